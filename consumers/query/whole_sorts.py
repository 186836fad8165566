"""The first rows in some order by a sort of all rows, for those that are too wide for a heap of the first ones.

DuckDB's heap for ORDER BY with LIMIT needs 340 KB for each column, however few rows there are. A sort needs a tenth of
that, and spills. DuckDB sorts where the limit is no constant.
"""

from __future__ import annotations

import re

_LIMIT = re.compile(r"\bLIMIT\s+(?P<rows>\d+)(?P<rest>(?:\s+OFFSET\s+\d+)?\s*;?\s*)$", re.IGNORECASE)


def sorted_whole(sql: str) -> str:
    """A statement that ends in LIMIT, with a limit that DuckDB does not know before it runs; any other as it is."""
    return _LIMIT.sub(r"LIMIT (SELECT \g<rows>)\g<rest>", sql)
