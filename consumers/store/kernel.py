"""The order of rows in a store: one vectorised sort by (slice, bucket, series, time) that keeps the winner of equal rows.

Pure functions over row batches (see schemas.payload) given in order of rank. Rows with one (series, time) are the same row; the one with the
highest rank, the last one in the input, wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.series import bucket_of
from schemas.tables import FieldType

Int64s = npt.NDArray[np.int64]
Codes = npt.NDArray[Any]
RADIX_CODES = 1 << 16
_NUMERIC = (pa.float64(), pa.int64())


@dataclass(frozen=True, slots=True)
class Ordering:
    """Where each surviving row of a list of batches goes.

    `keys` are the distinct series keys in order of (bucket, key), `buckets` their buckets. Row i of the output is row `rows[i]` of the batches
    laid end to end, has time `times[i]` and `codes[i]` = index of its slice in `slices` × number of keys + index of its key; codes never fall.
    """

    keys: pa.StringArray
    buckets: npt.NDArray[np.int32]
    slices: Int64s
    rows: Int64s
    times: Int64s
    codes: Codes


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one slice and bucket in an Ordering: `rows[start:stop]`, as runs of one series each (`series` index into keys, `lengths`)."""

    slice_number: int
    bucket: int
    start: int
    stop: int
    series: Int64s
    lengths: Int64s


def order_rows(batches: Sequence[pa.RecordBatch], slice_ns: int | None = None, buckets: int = 1) -> Ordering:
    """Sorts the rows of `batches` (lowest rank first) and keeps the last of each (series, time). Without `slice_ns` there is one slice."""
    keys, series = unify_series(batches)
    times = _concat_numpy([batch.column(1) for batch in batches])
    keys, key_buckets, position = _order_keys(keys, buckets)
    slices, slice_index = _slices_of(times, slice_ns)
    codes = _codes(position[series], slice_index, len(keys), len(slices))
    rows = _stable_order(codes)
    sorted_times, sorted_codes = times[rows], codes[rows]
    same_series = sorted_codes[1:] == sorted_codes[:-1]
    if bool(np.any((sorted_times[1:] < sorted_times[:-1]) & same_series)):
        by_time = np.argsort(times, kind="stable")
        rows = by_time[_stable_order(codes[by_time])]
        sorted_times = times[rows]
    superseded = (sorted_times[1:] == sorted_times[:-1]) & same_series
    if bool(superseded.any()):
        keep = np.append(~superseded, True)
        rows, sorted_times, sorted_codes = rows[keep], sorted_times[keep], sorted_codes[keep]
    return Ordering(keys, key_buckets, slices, rows, sorted_times, sorted_codes)


def parts_of(ordering: Ordering) -> Iterator[Part]:
    """The slices and buckets of an ordering, each a contiguous stretch of it, in order of (slice, bucket)."""
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
    """Start, value and length of each stretch of equal values."""
    starts = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1) if len(codes) else np.empty(0, np.int64)
    return starts, codes[starts], np.diff(np.append(starts, len(codes)))


def unify_series(batches: Sequence[pa.RecordBatch]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """The distinct series keys of all batches, and for each row of the batches laid end to end the index of its key."""
    column: pa.DictionaryArray = pa.concat_arrays([batch.column(0) for batch in batches])
    codes = column.indices.to_numpy(zero_copy_only=True)
    encoded = column.dictionary.dictionary_encode()
    if len(encoded.dictionary) == len(encoded):
        return column.dictionary, codes
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=True)[codes]


def field_column(batches: Sequence[pa.RecordBatch], name: str, kind: FieldType) -> pa.Array:
    """One field of all batches laid end to end: null where a batch lacks it, int64 widened to float64, strings as large_string."""
    arrow_type = pa.large_string() if kind is FieldType.STRING else kind.arrow
    chunks = []
    for batch in batches:
        index = batch.schema.get_field_index(name)
        chunk = batch.column(index) if index >= 0 else pa.nulls(len(batch), arrow_type)
        chunks.append(chunk if chunk.type == arrow_type else widen(chunk, arrow_type))
    return pa.concat_arrays(chunks) if len(chunks) != 1 else chunks[0]


def widen(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """`values` as `arrow_type`. An int64 above 2**53 becomes the nearest float64, as the widening of a field promises no more."""
    return pc.cast(values, arrow_type, safe=False)


def gather(column: pa.Array, rows: Int64s) -> pa.Array:
    """The values of `column` at `rows`, which are all within it. Numbers take a way that is several times faster than `Array.take`."""
    if column.type not in _NUMERIC:
        return column.take(pa.array(rows))
    values = _numbers(column)
    taken = np.take(values, rows, mode="clip")
    if not column.null_count:
        return pa.array(taken, column.type)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(taken, column.type, mask=np.take(missing, rows, mode="clip"), from_pandas=False)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], np.int64 if column.type == pa.int64() else np.float64)
    return values[column.offset : column.offset + len(column)]


def _concat_numpy(columns: Sequence[pa.Array]) -> Int64s:
    return np.concatenate([column.to_numpy(zero_copy_only=True) for column in columns])


def _order_keys(keys: pa.StringArray, buckets: int) -> tuple[pa.StringArray, npt.NDArray[np.int32], Int64s]:
    """Keys in order of (bucket, key), the bucket of each, and where each given key went."""
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
    lowest, highest = int(times.min()) // slice_ns, int(times.max()) // slice_ns
    if lowest == highest:
        return np.array([lowest]), None
    numbers = np.floor_divide(times, slice_ns)
    slices, index = np.unique(numbers, return_inverse=True)
    return slices, index


def _codes(series: Int64s, slice_index: Int64s | None, keys: int, slices: int) -> Codes:
    codes = series if slice_index is None else slice_index * keys + series
    return codes.astype(np.uint16 if keys * slices <= RADIX_CODES else np.int64)


def _stable_order(codes: Codes) -> Int64s:
    """A stable argsort; NumPy sorts 16-bit keys by radix, so wider codes go through it once for each 16 bits that are in use."""
    if codes.dtype == np.uint16:
        return np.argsort(codes, kind="stable")
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    shift, highest = 16, int(codes.max(initial=0))
    while highest >> shift:
        digit = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += 16
    return order
