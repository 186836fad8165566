"""Keys of the slot model as rows of a table: a key is one series at one time, in the slot that its first digit names."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.schemas.messages import Delete, Write
from headrace.schemas.payload import decode_rows, encode_rows, row_schema
from headrace.schemas.series import series_key, slot_of
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema
from tests.unit.replication.slot_logs import SLOTS_TOTAL

HOUR_NS = 3_600_000_000_000
DATABASE = DatabaseSchema("db", HOUR_NS, 1)
FIELDS = (("v", FieldType.INT64),)
TABLE = TableSchema("db", "t", 1, ("name",), FIELDS)
SLICES = {
    slot: next(number for number in range(1_000) if slot_of("db", 0, number, SLOTS_TOTAL) == slot) for slot in range(4)
}
SLOT_OF_SLICE = {number: slot for slot, number in SLICES.items()}


class OneTable:
    """The table, known from the start. See SchemaLog."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """See SchemaLog."""
        del timeout_s
        return TABLE if (database, table, version) == ("db", "t", 1) else None

    def database(self, name: str) -> DatabaseSchema | None:
        """See SchemaLog."""
        return DATABASE if name == "db" else None

    def accepts(self, *_arguments: object) -> bool:
        """See SchemaLog."""
        return True


def payload_write(rows: Mapping[str, int], table_version: int = 1) -> Write:
    """A write of values by key."""
    keys = sorted(rows)
    series = pa.array([series_key("t", {"name": key[1:]}) for key in keys], pa.string()).dictionary_encode()
    times = pa.array([time_of(key) for key in keys], pa.int64())
    batch = pa.record_batch([series, times, pa.array([rows[key] for key in keys])], schema=row_schema(FIELDS))
    return Write("db", "t", 1, table_version, len(rows), encode_rows(batch).to_pybytes())


def values_of(batch: pa.RecordBatch) -> dict[str, int]:
    """The inverse of `payload_write`, from decoded rows."""
    names = [key.partition("=")[2] for key in batch.column(0).to_pylist()]
    slots = [SLOT_OF_SLICE[at // HOUR_NS] for at in batch.column(1).to_pylist()]
    return {f"{slot}{name}": value for slot, name, value in zip(slots, names, batch.column(2).to_pylist(), strict=True)}


def payload_rows(write: Write) -> dict[str, int]:
    """The inverse of `payload_write`."""
    return values_of(decode_rows(write.rows))


def payload_delete(key: str) -> Delete:
    """A delete of one key."""
    return Delete("db", "t", {"name": (key[1:],)}, time_of(key), time_of(key) + 1)


def time_of(key: str) -> int:
    """The time of a key's row."""
    return SLICES[int(key[0])] * HOUR_NS + 7


def key_of(name: str, time_ns: int) -> str:
    """The key of a row."""
    return f"{SLOT_OF_SLICE[time_ns // HOUR_NS]}{name}"
