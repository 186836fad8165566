"""The first rows in some order by a sort of all rows, for those that are too wide for a heap of the first ones.

DuckDB's heap for ORDER BY with LIMIT needs 340 KB for each column, however few rows there are. A sort needs a tenth of
that, and spills. DuckDB sorts where the limit is no constant.
"""

from __future__ import annotations

import re

TAIL_CHARACTERS = 200
_LIMIT = re.compile(r"\bLIMIT\s+(?P<rows>\d{1,18})(?P<offset>(?:\s+OFFSET\s+\d+)?)$", re.IGNORECASE)
# DuckDB takes no such limit behind a set operation, and a comment may hide where the statement ends.
_KEPT = re.compile(r"\b(?:UNION|INTERSECT|EXCEPT)\b|--|/\*", re.IGNORECASE)


def sorted_whole(sql: str) -> str:
    """A statement that ends in LIMIT, with a limit that DuckDB does not know before it runs; any other as it is.

    Left as they are too: statements with a set operation or a comment anywhere.
    """
    text = sql.rstrip(" \t\r\n;")
    # In the tail alone: a search of all would take the square of the spaces that somebody sends.
    found = _LIMIT.search(text, max(0, len(text) - TAIL_CHARACTERS))
    if found is None or _KEPT.search(text):
        return sql
    return f"{text[: found.start()]}LIMIT (SELECT {found['rows']}){found['offset']}"
