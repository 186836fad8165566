"""The statement template of a text: the text with a mark in the place of each literal. Pure.

Most short statements differ from earlier ones in literals alone. What depends on nothing else is then done once.
A text with anything that is not plainly a word, an operator or a literal has no template.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from headrace.consumers.query.guard import Statement, TableName

CHARACTERS_MAX = 4_096
"""Longer texts have no template."""
LITERALS_MAX = 64
TEXTS_KNOWN_MAX = 64
"""Texts whose templates are remembered: a statement asks for its own several times."""
_TEXT, _WHOLE, _DECIMAL = "\x01", "\x02", "\x03"
# No brackets in a text: the guard counts them everywhere. No quote behind it: that would be a part of it.
_WORD, _OTHER = r"[A-Za-z_][A-Za-z0-9_]*(?!['\"$])|\"[^\"\x00-\x1f]*\"", r"\s|-(?!-)|/(?!\*)|[+*%<>=!|&^~,.()\[\]:]"
_TOKENS = re.compile(
    # All words and operators between two literals at once: a statement has fifty of them.
    rf"(?P<plain>(?:{_WORD}|{_OTHER})+)"
    r"|(?P<text>'[^'()\[\]{}\\;\x00-\x1f]*'(?!'))"
    r"|(?P<number>(?:0|[1-9][0-9]{0,18})(?:\.[0-9]+)?(?![\w.]))"
)


@dataclass(frozen=True, slots=True)
class Template:
    """`key` is equal for texts of one template. `literals` are those of this text, as written, and `ends` their ends."""

    key: str
    literals: tuple[str, ...]
    ends: tuple[int, ...]

    @property
    def texts(self) -> list[str]:
        """Those of the literals that are texts."""
        return [literal for literal in self.literals if literal[0] == "'"]


def template_of(sql: str) -> Template | None:
    """The template of a text that has literals; None where it has none, or is not plain."""
    return None if len(sql) > CHARACTERS_MAX or not sql.isascii() else _template_of(sql)


@lru_cache(TEXTS_KNOWN_MAX)
def _template_of(sql: str) -> Template | None:
    parts, literals, ends, end = list[str](), list[str](), list[int](), 0
    for match in _TOKENS.finditer(sql):
        if match.start() != end:
            return None
        end, kind, token = match.end(), match.lastgroup, match[0]
        if kind in ("text", "number"):
            parts.append(_TEXT if kind == "text" else _DECIMAL if "." in token else _WHOLE)
            literals.append(token)
            ends.append(end)
        else:
            parts.append(token)
    if end != len(sql) or not 0 < len(literals) <= LITERALS_MAX:
        return None
    return Template("".join(parts), tuple(literals), tuple(ends))


def with_probes(template: Template) -> tuple[str, tuple[str, ...]]:
    """A text of the same template whose literals occur nowhere else, and these literals."""
    probes, parts = list[str](), list[str]()
    for part in re.split(f"([{_TEXT}{_WHOLE}{_DECIMAL}])", template.key):
        if part in (_TEXT, _WHOLE, _DECIMAL):
            number = 7_310_000 + len(probes)
            probe = f"'q{number}q'" if part == _TEXT else f"{number}.5" if part == _DECIMAL else str(number)
            probes.append(probe)
            part = probe
        parts.append(part)
    return "".join(parts), tuple(probes)


def moved(statement: Statement, known: Template, other: Template, sql: str) -> Statement:
    """The statement of another text of the template of a known one, with its tables where they are there."""
    shifts = Shifts(known, other)
    return replace(statement, sql=sql, tables=tuple(_moved(name, shifts) for name in statement.tables))


class Shifts:
    """Where characters of a text, outside of its literals, are in another one of its template."""

    def __init__(self, known: Template, other: Template) -> None:
        growth = [len(new) - len(old) for new, old in zip(other.literals, known.literals, strict=True)]
        self._ends = known.ends
        self._shifts = [0, *accumulate(growth)]

    def moved(self, position: int) -> int:
        """The position in the other text."""
        return position + self._shifts[bisect_right(self._ends, position)]


def _moved(name: TableName, shifts: Shifts) -> TableName:
    if name.position is None:
        return name
    position = shifts.moved(name.position)
    # Most tables stand before all literals.
    return name if position == name.position else replace(name, position=position)
