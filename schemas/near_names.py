"""The tables that somebody who misspelt a name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

NEAR_MAX = 3
_ALIKE = 0.6


def near_tables(
    path: Sequence[str], tables: Sequence[tuple[str, str]], shown: Callable[[Sequence[str]], str] = ".".join
) -> list[str]:
    """Similar `database.table` names, as `shown` writes them: by the whole name, else by the table's name alone."""
    whole = {".".join(key).lower(): shown(key) for key in tables}
    near = difflib.get_close_matches(".".join(path).lower(), whole, n=NEAR_MAX, cutoff=_ALIKE)
    if near:
        return [whole[name] for name in near]
    last = difflib.get_close_matches(path[-1].lower(), {key[1].lower() for key in tables}, n=NEAR_MAX, cutoff=_ALIKE)
    return [shown(key) for key in tables if key[1].lower() in last][:NEAR_MAX]
