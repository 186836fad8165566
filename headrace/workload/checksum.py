"""One checksum per series, to compare the readings of two tables whatever way they took.

A point hashes to 64 bits from its time, its field (name and type) and the bits of its value; a row also
hashes its time alone, so rows without fields count. The checksum of a series is the sum modulo 2^64:
independent of order, and two parts of a table add up. Null fields and columns that are not there are the same
thing; NaNs are all equal and so are both zeros; dictionary and plain strings are equal, and so are times as
int64 ns and as timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN
from headrace.workload.series import ColumnMissing, series_rows, tag_names
from headrace.workload.workload import Workload

CHECKSUM_SCHEMA = pa.schema([("series", pa.string()), ("rows", pa.int64()), ("checksum", pa.uint64())])
DIFFERENCES_MAX = 20
_BLOCK_ROWS = 1 << 16
_PARTS_HELD = 64
_TIME_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BYTE_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Words: TypeAlias = npt.NDArray[np.uint64]


class NotComparable(HeadraceError):
    """A column whose type no table of Headrace has."""


def checksums(table: pa.Table, tags: Sequence[str] | None = None, *, integers_as_float64: bool = False) -> pa.Table:
    """One row a series of a user table: `series`, `rows` and `checksum`, sorted by series.

    A series is named by its tags as in a series key, without the table. `tags` names the tag columns; None
    means the dictionary-typed ones. `integers_as_float64` hashes integers as the floats that they become on
    their way through JSON. Raises ColumnMissing without `time` or a tag, NotComparable for a type that no
    field has.
    """
    names = tag_names(table, tags)
    if TIME_COLUMN not in table.column_names:
        raise ColumnMissing(
            f"there is no column {TIME_COLUMN!r}", action=f"columns are {', '.join(table.column_names)}"
        )
    fields = [name for name in table.column_names if name not in names and name != TIME_COLUMN]
    series = series_rows(table, names)
    hashes = _row_hashes(
        _time_words(table[TIME_COLUMN]), [_field(name, table[name], integers_as_float64) for name in fields]
    )
    sums = (
        pa.table({"code": series.codes, "hash": hashes}).group_by("code").aggregate([("hash", "sum")]).sort_by("code")
    )
    keys = pc.utf8_slice_codeunits(series.keys(""), 1)
    rows = np.bincount(series.codes, minlength=series.count).astype(np.int64)
    return total([pa.table([keys, pa.array(rows), sums["hash_sum"]], schema=CHECKSUM_SCHEMA)])


def total(parts: Iterable[pa.Table]) -> pa.Table:
    """The checksums of a table of which `parts` are the checksums of disjoint pieces."""
    together = pa.concat_tables([CHECKSUM_SCHEMA.empty_table(), *parts])
    sums = together.group_by("series").aggregate([("rows", "sum"), ("checksum", "sum")]).sort_by("series")
    return sums.select(["series", "rows_sum", "checksum_sum"]).rename_columns(CHECKSUM_SCHEMA.names).combine_chunks()


def workload_checksums(workload: Workload, *, integers_as_float64: bool = False) -> dict[str, pa.Table]:
    """The checksums of each table of a workload, by table name; memory holds a few batches."""
    parts: dict[str, list[pa.Table]] = {name: [] for name in workload.tables}
    for name, batch in workload.batches():
        parts[name].append(checksums(batch, integers_as_float64=integers_as_float64))
        # Summed up from time to time: with many hosts the checksums of all batches would fill memory.
        if len(parts[name]) == _PARTS_HELD:
            parts[name] = [total(parts[name])]
    return {name: total(tables) for name, tables in parts.items()}


def compare(expected: pa.Table, found: pa.Table, most: int = DIFFERENCES_MAX) -> list[str]:
    """The differences of two results of `checksums`: a line each for the first `most` series, and one more."""
    both = expected.join(
        found, "series", join_type="full outer", left_suffix="_expected", right_suffix="_found", coalesce_keys=True
    )
    # A series that is missing on one side gives nulls, and so counts as different.
    same = pc.and_kleene(
        pc.equal(both["rows_expected"], both["rows_found"]), pc.equal(both["checksum_expected"], both["checksum_found"])
    )
    different = both.filter(pc.invert(pc.fill_null(same, False))).sort_by("series")
    lines = [_difference(**row) for row in different.slice(0, most).to_pylist()]
    return lines if len(different) <= most else [*lines, f"and {len(different) - most} series more"]


def _difference(
    series: str,
    rows_expected: int | None,
    checksum_expected: int | None,
    rows_found: int | None,
    checksum_found: int | None,
) -> str:
    name = series or "the series without tags"
    if rows_found is None:
        return f"{name}: missing, {rows_expected} rows expected"
    if rows_expected is None:
        return f"{name}: not expected, {rows_found} rows found"
    if rows_expected != rows_found:
        return f"{name}: {rows_expected} rows expected, {rows_found} found"
    sums = f"checksum {checksum_expected:016x} expected, {checksum_found:016x} found"
    return f"{name}: {rows_found} rows, but other content ({sums})"


def _row_hashes(times: Words, fields: Sequence[tuple[np.uint64, Words, npt.NDArray[np.bool_] | None]]) -> Words:
    """The hash of each row, computed in blocks that fit into the cache."""
    hashes = np.empty(len(times), np.uint64)
    for first in range(0, len(times), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        time_hashes = _mixed(times[block] * _TIME_FACTOR)
        rows = time_hashes.copy()
        for factor, words, valid in fields:
            points = _mixed((time_hashes * factor) ^ words[block])
            rows += points if valid is None else points * valid[block]
        hashes[block] = rows
    return hashes


def _mixed(words: Words) -> Words:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), in place."""
    for shift, factor in ((np.uint64(30), _MIX_1), (np.uint64(27), _MIX_2)):
        words ^= words >> shift
        words *= factor
    words ^= words >> np.uint64(31)
    return words


def _field(
    name: str, column: pa.ChunkedArray, integers_as_float64: bool
) -> tuple[np.uint64, Words, npt.NDArray[np.bool_] | None]:
    """The factor of a field, the bits of its values, and where they are not null (None: everywhere)."""
    kind, words = _value_words(name, column, integers_as_float64)
    # Odd: multiplication by an odd number is a bijection modulo 2^64, so no two times of a field get the same
    # product.
    factor = np.uint64(xxhash.xxh3_64_intdigest(f"{kind}:{name}".encode()) | 1)
    return factor, words, pc.is_valid(column).to_numpy() if column.null_count else None


def _value_words(name: str, column: pa.ChunkedArray, integers_as_float64: bool) -> tuple[str, Words]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_floating(kind) or (integers_as_float64 and pa.types.is_integer(kind)):
        return "float64", _float_words(_filled(column, pa.float64(), 0.0))
    if pa.types.is_integer(kind):
        return "int64", _filled(column, pa.int64(), 0).view(np.uint64)
    if pa.types.is_boolean(kind):
        return "bool", _filled(column, pa.bool_(), False).astype(np.uint64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string", _string_words(column)
    if pa.types.is_null(kind):
        return "null", np.zeros(len(column), np.uint64)
    raise NotComparable(f"field {name!r} has type {kind}", action="fields are float64, int64, bool or string")


def _filled(column: pa.ChunkedArray, kind: pa.DataType, filler: float | bool) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = pc.fill_null(column.cast(kind), pa.scalar(filler, kind)).to_numpy()
    return values


def _float_words(values: npt.NDArray[np.float64]) -> Words:
    # Adding 0.0 makes -0.0 equal to 0.0, and copies: the caller's buffer must not change.
    canonical = values + 0.0
    canonical[np.isnan(canonical)] = np.nan
    return canonical.view(np.uint64)


def _time_words(column: pa.ChunkedArray) -> Words:
    if column.null_count:
        raise NotComparable(f"{column.null_count} rows have no time")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns", column.type.tz))
    return _filled(column, pa.int64(), 0).view(np.uint64)


def _string_words(column: pa.ChunkedArray) -> Words:
    """A hash of each text: the sum of the hashes of each byte at its place."""
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    texts = pa.concat_arrays(
        pc.fill_null(plain.cast(pa.large_binary()), b"").chunks or [pa.array([], pa.large_binary())]
    )
    # A running sum over the bytes of all texts, and differences at their ends: no Python call per text.
    offsets = (
        np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        if len(texts)
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    places = np.arange(len(data)) - np.repeat(offsets[:-1] - offsets[0], lengths)
    bytes_mixed = _mixed((places.astype(np.uint64) << np.uint64(8) | data) * _BYTE_FACTOR + _BYTE_FACTOR)
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(bytes_mixed, dtype=np.uint64)])
    sums = running[offsets[1:] - offsets[0]] - running[offsets[:-1] - offsets[0]]
    return _mixed(sums + lengths.astype(np.uint64) * _TIME_FACTOR)
