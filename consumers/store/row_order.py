"""The order of rows in a store: one vectorised sort by (slice, bucket, series, time) that keeps the winner of
equal rows.

Pure functions over row batches (see headrace.schemas.payload) in order of rank. Rows with the same (series,
time) are versions of one row. The one with the highest rank, the last in the input, wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, field_column, gather, unify_series, values_of_tags
from headrace.consumers.store.segment import Runs, SegmentRows
from headrace.schemas.series import bucket_of
from headrace.schemas.tables import DatabaseSchema, TableSchema

Codes = npt.NDArray[Any]

RADIX_CODES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ordering:
    """Where each surviving row of a list of batches goes.

    `keys` are the distinct series keys in order of (bucket, key), `buckets` their buckets. Row i of the
    output is row `rows[i]` of the concatenated batches and has time `times[i]`. `codes[i]` is the index of
    its slice in `slices` times the number of keys, plus the index of its key; codes never decrease.
    """

    keys: pa.StringArray
    buckets: npt.NDArray[np.int32]
    slices: Int64s
    rows: Int64s
    times: Int64s
    codes: Codes


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one slice and bucket in an Ordering: `rows[start:stop]`, as runs of one series each.

    `series` holds for each run the index of its key, `lengths` its number of rows.
    """

    slice_number: int
    bucket: int
    start: int
    stop: int
    series: Int64s
    lengths: Int64s

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class SortedTable:
    """Rows of one table in the order of its segments; `tags` are those of the keys of the ordering.

    Columns are gathered by the thread that encodes a part.
    """

    ordering: Ordering
    tags: Mapping[str, pa.StringArray]
    columns: Mapping[str, pa.Array]
    parts: Sequence[Part]

    def rows_of(self, part: Part) -> SegmentRows:
        """The rows of one slice and bucket."""
        rows = self.ordering.rows[part.start : part.stop]
        times = self.ordering.times[part.start : part.stop]
        series = pa.array(part.series)
        runs = Runs.of_times(self.ordering.keys.take(series), part.lengths, times)
        fields = {name: gather(column, rows) for name, column in self.columns.items()}
        return SegmentRows(runs, times, fields, {tag: values.take(series) for tag, values in self.tags.items()})


def sort_table(batches: Sequence[pa.RecordBatch], database: DatabaseSchema, schema: TableSchema) -> SortedTable:
    """Sorts row batches (lowest rank first, at least one) and keeps the winner of each (series, time)."""
    ordering = order_rows(batches, database.slice_ns, database.buckets)
    columns = {name: field_column(batches, name, kind) for name, kind in schema.fields}
    # Once for all files of the table: to find the tags in a few keys takes about as long as in many.
    tags = values_of_tags(ordering.keys, schema.tags)
    return SortedTable(ordering, tags, columns, list(parts_of(ordering)))


def order_rows(batches: Sequence[pa.RecordBatch], slice_ns: int | None = None, buckets: int = 1) -> Ordering:
    """Sorts the rows of `batches` (lowest rank first) and keeps the last of each (series, time).

    Without `slice_ns` there is one slice.
    """
    # Numbers for series first: sorting 16-bit codes by radix costs a fraction of comparing keys as text.
    keys, series = unify_series(batches)
    times = _concat_numpy([batch.column(1) for batch in batches])
    keys, key_buckets, position = _order_keys(keys, buckets)
    slices, slice_index = _slices_of(times, slice_ns)
    codes = _codes(position[series], slice_index, len(keys), len(slices))
    # Rows of one series mostly arrive in order of time, and a stable sort by code alone keeps that order. The
    # second sort, by time, runs only when some row arrived late.
    rows = _stable_order(codes)
    sorted_times, sorted_codes = times[rows], codes[rows]
    same_series = sorted_codes[1:] == sorted_codes[:-1]
    if bool(np.any((sorted_times[1:] < sorted_times[:-1]) & same_series)):
        by_time = np.argsort(times, kind="stable")
        rows = by_time[_stable_order(codes[by_time])]
        sorted_times = times[rows]
    # Every sort above is stable, so equal rows are still in order of rank: all but the last are superseded.
    superseded = (sorted_times[1:] == sorted_times[:-1]) & same_series
    if bool(superseded.any()):
        keep = np.append(~superseded, True)
        rows, sorted_times, sorted_codes = rows[keep], sorted_times[keep], sorted_codes[keep]
    return Ordering(keys, key_buckets, slices, rows, sorted_times, sorted_codes)


def parts_of(ordering: Ordering) -> Iterator[Part]:
    """The slices and buckets of an ordering, each a contiguous range of it, in order of (slice, bucket)."""
    if not len(ordering.rows):
        return
    starts, codes, lengths = runs_of(ordering.codes)
    slice_index, series = np.divmod(codes.astype(np.int64), len(ordering.keys))
    run_buckets = ordering.buckets[series]
    changes = np.flatnonzero((np.diff(slice_index) != 0) | (np.diff(run_buckets) != 0)) + 1
    bounds = [0, *changes.tolist(), len(starts)]
    for low, high in pairwise(bounds):
        start, stop = int(starts[low]), int(starts[high - 1] + lengths[high - 1])
        slice_number = int(ordering.slices[slice_index[low]])
        yield Part(slice_number, int(run_buckets[low]), start, stop, series[low:high], lengths[low:high])


def runs_of(codes: Codes) -> tuple[Int64s, Codes, Int64s]:
    """Start, value and length of each run of equal values."""
    starts = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1) if len(codes) else np.empty(0, np.int64)
    return starts, codes[starts], np.diff(np.append(starts, len(codes)))


def _concat_numpy(columns: Sequence[pa.Array]) -> Int64s:
    return np.concatenate([column.to_numpy(zero_copy_only=True) for column in columns])


def _order_keys(keys: pa.StringArray, buckets: int) -> tuple[pa.StringArray, npt.NDArray[np.int32], Int64s]:
    """Keys in order of (bucket, key), the bucket of each, and where each given key went."""
    # Keys are sorted, not rows: there are far fewer series
    # than rows, and codes then order rows as their keys would.
    if buckets == 1:
        order = pc.sort_indices(keys).to_numpy()
        numbers = np.zeros(len(keys), np.int32)
    else:
        numbers = np.fromiter((bucket_of(key, buckets) for key in keys.to_pylist()), np.int32, len(keys))
        columns = pa.table({"bucket": numbers, "key": keys})
        order = pc.sort_indices(columns, sort_keys=[("bucket", "ascending"), ("key", "ascending")]).to_numpy()
    position = np.empty(len(keys), np.int64)
    position[order] = np.arange(len(keys))
    return keys.take(pa.array(order)), numbers[order], position


def _slices_of(times: Int64s, slice_ns: int | None) -> tuple[Int64s, Int64s | None]:
    """The distinct slices, and for each row the index of its slice (None when there is only one)."""
    if slice_ns is None or not len(times):
        return np.zeros(1, np.int64), None
    # Most batch lists are within one slice: two reductions then replace a division and a sort of all rows.
    lowest, highest = int(times.min()) // slice_ns, int(times.max()) // slice_ns
    if lowest == highest:
        return np.array([lowest]), None
    numbers = np.floor_divide(times, slice_ns)
    slices, index = np.unique(numbers, return_inverse=True)
    return slices, index


def _codes(series: Int64s, slice_index: Int64s | None, keys: int, slices: int) -> Codes:
    # 16-bit codes are sorted in one radix pass and need a quarter of the memory.
    codes = series if slice_index is None else slice_index * keys + series
    return codes.astype(np.uint16 if keys * slices <= RADIX_CODES else np.int64)


def _stable_order(codes: Codes) -> Int64s:
    """A stable argsort of codes.

    NumPy sorts 16-bit keys by radix, so wider codes are sorted once for each 16 bits in use, lowest first
    (LSD radix).
    """
    if codes.dtype == np.uint16:
        return np.argsort(codes, kind="stable")
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    shift, highest = 16, int(codes.max(initial=0))
    while highest >> shift:
        digit = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += 16
    return order
