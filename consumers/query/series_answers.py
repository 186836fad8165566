"""Computes the aggregates of few series from their rows. Pure.

What DuckDB would compute in another way, such as the largest of values that are no numbers, it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    if any((chunk.to_numpy(zero_copy_only=True) % MICROSECOND_NS).any() for chunk in times.chunks):
        return None
    try:
        values = [_value(function, _column(tables, column or TIME_COLUMN)) for function, column in wanted.items]
        arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    except (_DuckDbComputes, pa.ArrowException):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    chunks = [chunk for table in tables for chunk in table.column(name).chunks]
    if name == TIME_COLUMN:
        chunks = [chunk.view(pa.int64()) for chunk in chunks]
    return pa.chunked_array(chunks, None if chunks else pa.int64())


def _value(function: str, column: pa.ChunkedArray) -> Any:
    count = len(column) - column.null_count
    if function == "count":
        return count
    if not count:
        return None
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(low, float) and not _are_finite(column):
        raise _DuckDbComputes
    if function in ("min", "max"):
        return low if function == "min" else high
    if isinstance(low, int) and count * max(abs(low), abs(high)) > EXACT_MAX:
        raise _DuckDbComputes
    total = pc.sum(column).as_py()
    if not math.isfinite(total):
        raise _DuckDbComputes
    return total / count if function == "avg" else total


def _are_finite(column: pa.ChunkedArray) -> bool:
    # Kernels for the least and the largest pass over what is no number.
    return all(np.isfinite(chunk.drop_null().to_numpy()).all() for chunk in column.chunks)
