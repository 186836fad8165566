"""The row batch: rows of one table, on the wire and in memory.

A row batch is an Arrow record batch. Its columns are `__series` (dictionary<int32, utf8> of series keys),
`time` (int64, ns UTC, never null) and the fields of the table in order of name. Tags are not repeated per
row: a series key holds them all. On the wire it is one Arrow IPC stream of one batch with compressed buffers.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import RESERVED_PREFIX, TIME_COLUMN, FieldType

SERIES_COLUMN = "__series"
SERIES_TYPE = pa.dictionary(pa.int32(), pa.string())
COMPRESSIONS = ("zstd", "lz4", "none")


class PayloadInvalid(HeadraceError):
    """Bytes that hold no row batch, for any build of Headrace."""


def row_schema(fields: tuple[tuple[str, FieldType], ...]) -> pa.Schema:
    """The schema of a row batch with these fields."""
    columns = [pa.field(SERIES_COLUMN, SERIES_TYPE, nullable=False), pa.field(TIME_COLUMN, pa.int64(), nullable=False)]
    return pa.schema([*columns, *(pa.field(name, kind.arrow) for name, kind in fields)])


def encode_rows(batch: pa.RecordBatch, compression: str = "zstd") -> pa.Buffer:
    """A row batch as bytes; the dictionary must hold only series that the batch uses."""
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_rows(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The row batch in `data`.

    Raises PayloadInvalid for anything that is not exactly one well-formed row batch.
    """
    try:
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(data), options=options) as reader:
            batch = reader.read_next_batch()
            batch.validate()
            # A dictionary index out of range would read foreign memory in every later kernel; only the full
            # check finds it.
            batch.column(0).validate(full=True)
            _check(batch)
            if next(iter(reader), None) is not None:
                raise PayloadInvalid("a payload holds more than one record batch")
    except (pa.ArrowException, StopIteration, OSError, ValueError) as error:
        raise PayloadInvalid(f"a payload is not an Arrow stream of rows: {error}") from error
    return batch


def _check(batch: pa.RecordBatch) -> None:
    schema = batch.schema
    if schema.names[:2] != [SERIES_COLUMN, TIME_COLUMN] or schema.types[:2] != [SERIES_TYPE, pa.int64()]:
        raise PayloadInvalid(f"a payload does not start with series and time: {schema.names[:2]}")
    if batch.column(0).null_count or batch.column(1).null_count:
        raise PayloadInvalid("a payload has a row without series or time")
    fields = schema.names[2:]
    # One order for all: segments, digests and merges compare fields by position.
    if fields != sorted(set(fields)) or any(name.startswith(RESERVED_PREFIX) for name in fields):
        raise PayloadInvalid(f"a payload's fields are not in order of name: {fields}")
    for name, arrow_type in zip(fields, schema.types[2:], strict=True):
        if FieldType.of_arrow(arrow_type) is None:
            raise PayloadInvalid(f"field {name!r} of a payload has type {arrow_type}")
