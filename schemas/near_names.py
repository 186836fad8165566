"""The tables that somebody who misspelt a name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

NEAR_MAX = 3
_ALIKE = 0.6


def near_tables(path: Sequence[str], tables: Sequence[tuple[str, str]]) -> list[str]:
    """Similar `database.table` names: by the whole name, else by the table's name alone."""
    whole = {".".join(key).lower(): ".".join(key) for key in tables}
    near = difflib.get_close_matches(".".join(path).lower(), whole, n=NEAR_MAX, cutoff=_ALIKE)
    if near:
        return [whole[name] for name in near]
    last = difflib.get_close_matches(path[-1].lower(), {key[1].lower() for key in tables}, n=NEAR_MAX, cutoff=_ALIKE)
    return [".".join(key) for key in tables if key[1].lower() in last][:NEAR_MAX]
