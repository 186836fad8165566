"""Computes the aggregates of few series from their rows. Pure.

What DuckDB would compute in another way, such as the largest of values that are no numbers, it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.consumers.query.series_plan import MICROSECOND_NS, SeriesAggregates
from headrace.schemas.tables import TIME_COLUMN

EXACT_MAX = 2**53
"""Sums of integers up to it are the same as numbers of any kind."""


class _DuckDbComputes(Exception):
    """The answer depends on how DuckDB computes it. Never leaves this module."""


def answer_of(rows: Sequence[pa.Table], wanted: SeriesAggregates, schema: pa.Schema) -> pa.RecordBatch | None:
    """The answer as DuckDB gives it, in its schema; None where DuckDB must compute it.

    `rows` are those of the scans of all groups: exactly those with the tags and the times, `time` in ns.
    """
    tables = [table for table in rows if table.num_rows]
    times = _column(tables, TIME_COLUMN)
    # Between whole microseconds SQL rounds, in ways that depend on how a bound is written.
    if any((chunk.to_numpy(zero_copy_only=True) % MICROSECOND_NS).any() for chunk in times):
        return None
    try:
        values = [_value(function, _column(tables, column or TIME_COLUMN)) for function, column in wanted.items]
        arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    except (_DuckDbComputes, pa.ArrowException):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(tables: Sequence[pa.Table], name: str) -> list[pa.Array]:
    """The chunks of a column; times are whole numbers there."""
    return [chunk for table in tables for chunk in table.column(name).chunks]


def _value(function: str, chunks: Sequence[pa.Array]) -> Any:
    count = sum(len(chunk) - chunk.null_count for chunk in chunks)
    if function == "count":
        return count
    if not count:
        return None
    # Not by kernels of Arrow: each gives the interpreter's lock away, and waits for it as long as a small query takes.
    given = [chunk.drop_null() if chunk.null_count else chunk for chunk in chunks]
    parts = [chunk.to_numpy(zero_copy_only=True) for chunk in given]
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    is_float = values.dtype.kind == "f"
    if is_float and not np.isfinite(values).all():
        raise _DuckDbComputes
    if function in ("min", "max"):
        return (values.min() if function == "min" else values.max()).item()
    low, high = values.min().item(), values.max().item()
    if not is_float and count * max(abs(low), abs(high)) > EXACT_MAX:
        raise _DuckDbComputes
    total = values.sum().item()
    if not math.isfinite(total):
        raise _DuckDbComputes
    return total / count if function == "avg" else total
