"""Puts what a statement reads in the place of its tables, so that no view has to be made for it.

To make views, and to forget them, takes longer than a short query. Where a table has no place in the text, or its name
may mean something else there, the caller makes views.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace.consumers.query.guard import Statement, TableName
from headrace.consumers.query.table_names import Resolved, TableKey, fold
from headrace.consumers.query.views import quoted

INLINED_CHARACTERS_MAX = 128 * 1024
"""The longest statement: a table that is read often is bound once as a view, and every time as a part of the text."""
_PART = re.compile(r'\s*("(?:[^"]|"")*"|[^\W\d][\w$]*)\s*')


def inlined(statement: Statement, resolved: Resolved, selects: Mapping[TableKey, str]) -> str | None:
    """The statement with the SELECT of each table in its place; None where it needs views."""
    # The text of a subquery names its column, and must be what the user wrote.
    if statement.explain or statement.verb or statement.has_subquery or resolved.shadowed:
        return None
    # Positions of the parser count bytes, not characters.
    text, parts = statement.sql.encode(), list[tuple[int, int, str]]()
    for name in statement.tables:
        key = resolved.by_path.get(fold(name.path))
        # The name of a CTE stays as it is.
        if key is None:
            continue
        place = _place(text, name)
        if place is None:
            return None
        parts.append((*place, f"({selects[key]})" + ("" if name.aliased else f" AS {quoted(name.path[-1])}")))
    if parts and len(text) + sum(len(part) for *_, part in parts) > INLINED_CHARACTERS_MAX:
        return None
    return _spliced(text, parts)


def _spliced(text: bytes, parts: Sequence[tuple[int, int, str]]) -> str:
    # From the last to the first, so that no part moves another one's place.
    for start, end, part in sorted(parts, reverse=True):
        text = text[:start] + part.encode() + text[end:]
    return text.decode()


def _place(text: bytes, name: TableName) -> tuple[int, int] | None:
    """Where a name is written in the bytes of a statement; None if something else is there."""
    if name.position is None:
        return None
    rest, end = text[name.position :].decode(errors="replace"), 0
    for number, part in enumerate(name.path):
        if number:
            if rest[end : end + 1] != ".":
                return None
            end += 1
        found = _PART.match(rest, end)
        if found is None or _plain(found[1]).lower() != part.lower():
            return None
        end = found.end()
    # Behind the name, where blanks separate it from what follows.
    written = rest[:end].rstrip()
    return None if rest[end : end + 1] == "." else (name.position, name.position + len(written.encode()))


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
