"""Routes the rows of a user table into row batches for the data groups that own them. Pure.

Client and Spark share `route`. It hashes each distinct tag combination once per batch, and no Python code
runs per row. Tag columns become one series code per row; series and time slice determine the group; the rows
of each group are selected column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.producers.cluster import SlotRouting
from headrace.schemas.arrow_stream import decoded_size
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import MESSAGE_BYTES_MAX, Write
from headrace.schemas.payload import DECODED_BYTES_MAX, SERIES_TYPE, encode_rows, row_schema
from headrace.schemas.series import bucket_of, escape_table, series_keys, slot_of
from headrace.schemas.tables import TIME_COLUMN, DatabaseSchema, TableSchema

MESSAGE_ROWS_MAX = 131_072
# The rest of a message is its envelope: names of database and table, position and digest.
PAYLOAD_BYTES_MAX = MESSAGE_BYTES_MAX - 65_536
# Far below 2**63, so that one more column of any cardinality cannot overflow an int64 code.
_CODE_SPACE_MAX = 1 << 40

Codes = npt.NDArray[Any]


class RowTooLarge(HeadraceError):
    """A single row that does not fit a message."""


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of one batch that belong to one data group, in their order of arrival."""

    group: str
    rows: pa.RecordBatch


def route(slot_table: SlotRouting, database: DatabaseSchema, schema: TableSchema, rows: pa.Table) -> list[GroupRows]:
    """Rows of a user table by data group; `schema` must already hold every column of `rows`.

    `rows` has the table's tags (string or dictionary), `time` (int64 ns, no nulls) and fields; the rows of a
    group keep their order.
    """
    if rows.num_rows == 0:
        return []
    codes, keys = encode_series(
        schema.table, {tag: rows.column(tag) for tag in schema.tags if tag in rows.column_names}, rows.num_rows
    )
    columns = _columns(schema, rows)
    # A single group owns every slot: no row needs its slot computed, and all rows stay where they are.
    if len(slot_table.headers) == 1:
        return [GroupRows(slot_table.headers[0], _batch(schema, codes, keys, columns))]
    owners = _owners(slot_table, database, keys, codes, np.asarray(columns[TIME_COLUMN]))
    # Ascending positions: the rows of a group keep their order, by which the later of two values of one row wins.
    return [
        GroupRows(slot_table.headers[owner], _select(schema, codes, keys, columns, np.flatnonzero(owners == owner)))
        for owner in np.unique(owners).tolist()
    ]


def route_again(
    slot_table: SlotRouting, database: DatabaseSchema, schema: TableSchema, rows: pa.RecordBatch
) -> list[GroupRows]:
    """Rows that were routed by another table, by data group; `schema` is that of the row batch."""
    # The rows come from the message: the caller's table may be gone when a topic refuses what was sent of it.
    series = rows.column(0)
    codes, keys = series.indices.to_numpy(), series.dictionary
    columns = dict(zip(rows.schema.names[1:], rows.columns[1:], strict=True))
    owners = _owners(slot_table, database, keys, codes, columns[TIME_COLUMN].to_numpy())
    return [
        GroupRows(slot_table.headers[owner], _select(schema, codes, keys, columns, np.flatnonzero(owners == owner)))
        for owner in np.unique(owners).tolist()
    ]


def encode_writes(
    schema: TableSchema, slot_table_version: int, rows: pa.RecordBatch, compression: str = "zstd"
) -> Iterator[Write]:
    """The rows of one group as `Write` bodies that fit a message. Raises RowTooLarge."""
    if rows.num_rows > MESSAGE_ROWS_MAX:
        for start in range(0, rows.num_rows, MESSAGE_ROWS_MAX):
            yield from encode_writes(schema, slot_table_version, rows.slice(start, MESSAGE_ROWS_MAX), compression)
        return
    data = encode_rows(rows, compression)
    size_bytes, limit_bytes = data.size, PAYLOAD_BYTES_MAX
    if size_bytes <= limit_bytes:
        # A message that compresses well is small on the wire and not in the memory of every replica.
        size_bytes, limit_bytes = decoded_size(data), DECODED_BYTES_MAX
    if size_bytes > limit_bytes:
        if rows.num_rows == 1:
            raise RowTooLarge(
                f"a row of {schema.database}.{schema.table} takes {size_bytes} bytes, a message holds {limit_bytes}",
                action="shorten its strings",
            )
        # Compressed size cannot be predicted: halving finds parts that fit, always the same for equal rows.
        half = rows.num_rows // 2
        for part in (rows.slice(0, half), rows.slice(half)):
            yield from encode_writes(schema, slot_table_version, part, compression)
        return
    yield Write(schema.database, schema.table, schema.version, slot_table_version, rows.num_rows, data.to_pybytes())


def encode_series(table: str, tags: dict[str, Any], row_count: int) -> tuple[npt.NDArray[np.int32], pa.StringArray]:
    """(code per row, series key per code) of tag columns; null and empty tags are equal."""
    columns = {name: _one_chunk(column) for name, column in tags.items()}
    if not columns:
        return np.zeros(row_count, np.int32), pa.array([escape_table(table)], pa.string())
    # Rows are compared as integers; text is built for the distinct combinations alone, of which a batch has few.
    combined = _combined_codes(list(columns.values()))
    encoded = pa.array(combined).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    # The first row of each code: of repeated indices numpy keeps the last assignment, so the rows are
    # assigned in reverse.
    first = np.empty(len(encoded.dictionary), np.int64)
    first[codes[::-1]] = np.arange(row_count - 1, -1, -1)
    distinct = {name: _strings(column.take(pa.array(first))) for name, column in columns.items()}
    keys = series_keys(table, distinct).dictionary_encode()
    # Null and empty tags have codes of their own but the same key: their codes are merged.
    if len(keys.dictionary) < len(keys):
        codes = keys.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)[codes]
    return codes, keys.dictionary


def _combined_codes(columns: list[pa.Array]) -> Codes:
    """One int64 per row, equal exactly where all tags are equal: mixed radix, re-coded before an overflow."""
    combined: Codes | None = None
    space = 1
    for column in columns:
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        # Null is one more value: without a code of its own it would be the first value of the next tag's block.
        cardinality = len(encoded.dictionary) + 1
        indices = encoded.indices
        if indices.null_count:
            indices = pc.fill_null(indices, cardinality - 1)
        codes = indices.to_numpy(zero_copy_only=False)
        if combined is not None and space * cardinality > _CODE_SPACE_MAX:
            combined = pa.array(combined).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
            space = int(combined.max()) + 1
        combined = codes.astype(np.int64) if combined is None else combined * cardinality + codes
        space *= cardinality
    assert combined is not None
    return combined


def _owners(
    slot_table: SlotRouting, database: DatabaseSchema, keys: pa.StringArray, codes: Codes, time_ns: Codes
) -> npt.NDArray[np.int32]:
    """Index of the owning group of each row."""
    # The only loop in Python: over the distinct series of the batch.
    buckets = np.fromiter((bucket_of(key, database.buckets) for key in keys.to_pylist()), np.int64, len(keys))
    first_slice, last_slice = int(time_ns.min()) // database.slice_ns, int(time_ns.max()) // database.slice_ns
    row_buckets = buckets[codes]
    # Most batches are within one slice: a lookup by bucket then replaces the sort of all rows in `np.unique`.
    if first_slice == last_slice:
        return _owner_of_buckets(slot_table, database, first_slice)[row_buckets]
    slices, row_slices = np.unique(time_ns // database.slice_ns, return_inverse=True)
    owners = np.stack([_owner_of_buckets(slot_table, database, number) for number in slices.tolist()])
    row_owners: npt.NDArray[np.int32] = owners[row_slices, row_buckets]
    return row_owners


def _owner_of_buckets(slot_table: SlotRouting, database: DatabaseSchema, slice_number: int) -> npt.NDArray[np.int32]:
    slots = (slot_of(database.database, bucket, slice_number, slot_table.slots) for bucket in range(database.buckets))
    return np.fromiter((slot_table.slot_headers[slot] for slot in slots), np.int32, database.buckets)


def _columns(schema: TableSchema, rows: pa.Table) -> dict[str, pa.Array]:
    columns, present = {TIME_COLUMN: _one_chunk(rows.column(TIME_COLUMN))}, set(rows.column_names)
    for name, kind in schema.fields:
        if name in present:
            column = _one_chunk(rows.column(name))
            if column.type != kind.arrow:
                # int64 to float64 is widening: beyond 2**53 neighbouring integers become equal, which the
                # schema change accepted.
                column = column.cast(kind.arrow, safe=False)
            columns[name] = column
    return columns


def _batch(schema: TableSchema, codes: Any, keys: pa.StringArray, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    series = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), keys)
    present = tuple((name, kind) for name, kind in schema.fields if name in columns)
    return pa.RecordBatch.from_arrays([series.cast(SERIES_TYPE), *columns.values()], schema=row_schema(present))


def _select(
    schema: TableSchema, codes: Any, keys: pa.StringArray, columns: dict[str, pa.Array], selected: Any
) -> pa.RecordBatch:
    """The selected rows, with only the series that they use: a message has no keys of other groups."""
    row_codes = codes[selected]
    used = np.zeros(len(keys), bool)
    used[row_codes] = True
    renumbered = (np.cumsum(used, dtype=np.int32) - 1)[row_codes]
    return _batch(
        schema,
        renumbered,
        keys.filter(pa.array(used)),
        {name: _take(column, selected) for name, column in columns.items()},
    )


def _take(column: pa.Array, selected: Any) -> pa.Array:
    # Without nulls numpy's indexing does the same as Arrow's `take` in less time.
    if column.null_count == 0 and (pa.types.is_int64(column.type) or pa.types.is_float64(column.type)):
        return pa.array(column.to_numpy()[selected])
    return column.take(pa.array(selected))


def _one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        combined = (
            column.unify_dictionaries().combine_chunks()
            if pa.types.is_dictionary(column.type)
            else column.combine_chunks()
        )
        if isinstance(combined, pa.ChunkedArray):
            return combined.chunk(0) if combined.num_chunks else pa.array([], column.type)
        return combined
    return column


def _strings(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())
