"""The rows of the simulation: each write has one row with a number of its own, of the series of its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache

import pyarrow as pa

from headrace.consumers.replication.admission import RowAdmission
from headrace.consumers.replication.hash_chain import record_digest
from headrace.schemas.messages import Message, Write, decode_message
from headrace.schemas.payload import SERIES_TYPE, PayloadInvalid, check_size, decode_rows, encode_rows
from headrace.schemas.records import Status, decode_status
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema
from tests.sim.world import EPOCH_MS

Hides = Callable[[int], bool]
"""Whether a record hides the row of a number."""
WRITERS = ("w0", "w1", "w2")
SLICE_NS = 1_000_000_000
RETENTION_NS = 6 * SLICE_NS
TIME_STEP_NS = 33_000_000
"""Between the times of two numbers, so that rows are about as old as the writes that bring them."""
DATABASE = DatabaseSchema("db", SLICE_NS, 1)
TABLE = TableSchema("db", "t", 1, ("writer",), (("number", FieldType.INT64),))


@cache
def encoded(number: int) -> bytes:
    """The payload of one write."""
    series = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([f"t,writer={writer_of(number)}"]))
    batch = pa.record_batch(
        [series.cast(SERIES_TYPE), pa.array([time_of(number)], pa.int64()), pa.array([number], pa.int64())],
        schema=pa.schema(
            [
                pa.field("__series", SERIES_TYPE, nullable=False),
                pa.field("time", pa.int64(), nullable=False),
                pa.field("number", pa.int64()),
            ]
        ),
    )
    return bytes(encode_rows(batch, "none").to_pybytes())


def unreadable(kind: int) -> Write:
    """A write that every replica must ignore alike."""
    payload = (b"", encoded(0)[:-9], b"no arrow stream", _other_columns())[kind]
    return Write(TABLE.database, TABLE.table, TABLE.version, 1, 1, payload)


@cache
def _other_columns() -> bytes:
    batch = decode_rows(encoded(0))
    return bytes(encode_rows(batch.rename_columns(["__series", "time", "other"]), "none").to_pybytes())


def time_of(number: int) -> int:
    """The time of a row, ns."""
    return EPOCH_MS * 1_000_000 + number * TIME_STEP_NS


def dropped_before(before_ns: int) -> Hides:
    """Which rows a Drop hides: those of whole slices."""
    end_ns = before_ns // SLICE_NS * SLICE_NS
    return lambda number: time_of(number) < end_ns


def deleted_by(tags: Mapping[str, tuple[str, ...]]) -> Hides:
    """Which rows a Delete hides."""
    return lambda number: matches(number, tags)


def writer_of(number: int) -> str:
    """The writer of a row."""
    return WRITERS[number % len(WRITERS)]


def write(number: int) -> Write:
    """The write of one row."""
    return Write(TABLE.database, TABLE.table, TABLE.version, 1, 1, encoded(number))


# The same bytes are read by every replica and by the oracle: each is decoded once, and what it gives is immutable.
@lru_cache(maxsize=4_096)
def decoded(value: bytes) -> Message:
    """See schemas.messages.decode_message."""
    return decode_message(value)


@lru_cache(maxsize=4_096)
def decoded_status(value: bytes) -> Status:
    """See schemas.records.decode_status."""
    return decode_status(value)


@lru_cache(maxsize=4_096)
def decoded_rows(data: bytes) -> pa.RecordBatch:
    """See schemas.payload.decode_rows."""
    return decode_rows(data)


class OneAdmission(RowAdmission):
    """What may enter is a function of schema and write: it is found out once, for all replicas."""

    def admit(self, schema: TableSchema, write: Write) -> pa.RecordBatch:
        """See RowAdmission."""
        found = _admitted(schema.version, write.row_count, write.rows)
        if isinstance(found, PayloadInvalid):
            raise found
        return found


@lru_cache(maxsize=4_096)
def _admitted(version: int, row_count: int, payload: bytes) -> pa.RecordBatch | PayloadInvalid:
    try:
        return RowAdmission().admit(TABLE, Write(TABLE.database, TABLE.table, version, row_count, 1, payload))
    except PayloadInvalid as error:
        return error


@lru_cache(maxsize=4_096)
def checked_size(data: bytes) -> int:
    """See schemas.payload.check_size."""
    return check_size(data)


@lru_cache(maxsize=4_096)
def digest(value: bytes) -> bytes:
    """See hash_chain.record_digest."""
    return record_digest(value)


@lru_cache(maxsize=4_096)
def number_of(data: bytes) -> int | None:
    """The number in a payload; None for one that no replica can read."""
    try:
        batch = decoded_rows(data)
    except PayloadInvalid:
        return None
    return int(batch.column("number")[0].as_py()) if batch.schema.names[2:] == ["number"] else None


def matches(number: int, tags: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a delete with these tags hides a row."""
    return all(tag == "writer" and writer_of(number) in values for tag, values in tags.items())


def hash_of_numbers(numbers: Iterable[int]) -> int:
    """A hash of a set of numbers."""
    found = 0
    for number in numbers:
        found ^= hash_of(number, 1)
    return found


def hash_of(number: int, version: int) -> int:
    """A hash of one visible row; 0 for none."""
    return hash((number, version)) if version else 0
