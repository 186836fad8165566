"""The row batch: rows of one table, on the wire and in memory.

A row batch is an Arrow record batch. Its columns are `__series` (dictionary<int32, utf8> of series keys),
`time` (int64, ns UTC, never null) and the fields of the table in order of name. Tags are not repeated per
row: a series key holds them all. On the wire it is one Arrow IPC stream of one batch with compressed buffers.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.arrow_stream import StreamInvalid, decoded_size
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import RESERVED_PREFIX, ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, TIME_COLUMN, FieldType

SERIES_COLUMN = "__series"
SERIES_TYPE = pa.dictionary(pa.int32(), pa.string())
COMPRESSIONS = ("zstd", "lz4", "none")
# What a row batch may take in memory, however small it is on the wire: sixteen times the largest message.
DECODED_BYTES_MAX = 128 * 1024 * 1024


class PayloadInvalid(HeadraceError):
    """Bytes that hold no row batch, for any build of Headrace."""


class PayloadTooLarge(PayloadInvalid):
    """A row batch that would take more than DECODED_BYTES_MAX in memory; nothing was decoded."""


def row_schema(fields: tuple[tuple[str, FieldType], ...]) -> pa.Schema:
    """The schema of a row batch with these fields."""
    columns = [pa.field(SERIES_COLUMN, SERIES_TYPE, nullable=False), pa.field(TIME_COLUMN, pa.int64(), nullable=False)]
    return pa.schema([*columns, *(pa.field(name, kind.arrow) for name, kind in fields)])


def encode_rows(batch: pa.RecordBatch, compression: str = "zstd") -> pa.Buffer:
    """A row batch as bytes; the dictionary must hold only series that the batch uses.

    Raises PayloadInvalid for a batch that `decode_rows` would refuse, but for its size: see `check_size`.
    """
    try:
        _check_schema(batch.schema)
        _check_values(batch)
    except pa.ArrowException as error:
        raise PayloadInvalid(f"rows are not valid: {error}") from error
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def check_size(data: bytes | memoryview | pa.Buffer) -> int:
    """Bytes that an encoded row batch takes in memory. Raises PayloadInvalid, and PayloadTooLarge above the limit."""
    try:
        size_bytes = decoded_size(data)
    except StreamInvalid as error:
        raise PayloadInvalid(f"a payload is {error}") from error
    if size_bytes > DECODED_BYTES_MAX:
        raise PayloadTooLarge(f"a payload takes {size_bytes} bytes in memory, {DECODED_BYTES_MAX} is the most")
    return size_bytes


def decode_rows(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The row batch in `data`.

    Raises PayloadInvalid for anything that is not exactly one valid row batch, before it takes more than
    DECODED_BYTES_MAX of memory. What it returns is safe for every kernel.
    """
    check_size(data)
    try:
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(data), options=options) as reader:
            # Before the batch: a foreign type may cost more than its buffers declare.
            _check_schema(reader.schema)
            batch = reader.read_next_batch()
            _check_values(batch)
            if next(iter(reader), None) is not None:
                raise PayloadInvalid("a payload holds more than one record batch")
    except (pa.ArrowException, StopIteration, OSError, ValueError) as error:
        raise PayloadInvalid(f"a payload is not an Arrow stream of rows: {error}") from error
    return batch


def _check_schema(schema: pa.Schema) -> None:
    if schema.names[:2] != [SERIES_COLUMN, TIME_COLUMN] or schema.types[:2] != [SERIES_TYPE, pa.int64()]:
        raise PayloadInvalid(f"a payload does not start with series and time: {schema.names[:2]}")
    fields = schema.names[2:]
    # One order for all: segments, digests and merges compare fields by position.
    if fields != sorted(set(fields)) or any(name.startswith(RESERVED_PREFIX) for name in fields):
        raise PayloadInvalid(f"a payload's fields are not in order of name: {fields}")
    for name, arrow_type in zip(fields, schema.types[2:], strict=True):
        if FieldType.of_arrow(arrow_type) is None:
            raise PayloadInvalid(f"field {name!r} of a payload has type {arrow_type}")


def _check_values(batch: pa.RecordBatch) -> None:
    # Offsets and dictionary indices that are out of range would read foreign memory in every later kernel, and
    # text that is not UTF-8 would fail in some of them: only the full check finds them.
    batch.validate(full=True)
    series, times = batch.column(0), batch.column(1)
    if series.null_count or times.null_count or series.dictionary.null_count:
        raise PayloadInvalid("a payload has a row without series or time")
    bounds = pc.min_max(times)
    if len(batch) and not ROW_TIME_MIN_NS <= bounds["min"].as_py() <= bounds["max"].as_py() <= ROW_TIME_MAX_NS:
        raise PayloadInvalid("a payload has a time outside the range that SQL has")
