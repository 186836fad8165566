"""The types whose values no format of an answer holds.

DuckDB's Arrow export, from which every format is written, gives them as other values, or as its own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from headrace.consumers.query.query_errors import QueryInvalid

UNHELD = frozenset({"bignum", "bit", "geometry", "time with time zone", "uhugeint", "union", "variant"})
"""Types, by DuckDB's names for them."""
_NESTED = frozenset({"array", "list", "map", "struct"})


def check_types(columns: Iterable[tuple[Any, ...]]) -> None:
    """Check the columns of a result, each with its name and type first. Raises QueryInvalid."""
    for name, kind, *_ in columns:
        if not _is_held(kind):
            raise QueryInvalid(
                f"column {name!r} has the type {kind}, whose values no answer holds",
                action="cast it, such as CAST(… AS VARCHAR)",
            )


def _is_held(kind: DuckDBPyType) -> bool:
    if kind.id not in _NESTED:
        return kind.id not in UNHELD
    # The size of an array is among its children.
    return all(_is_held(child) for _, child in kind.children if isinstance(child, DuckDBPyType))
