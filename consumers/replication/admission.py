"""Whether the rows of a write may enter a store, and the wait for the table versions that a record names.

Every decision follows from the record, the table log and nothing else: a record that one replica ignores is
ignored by all, at the same version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol

import pyarrow as pa
import structlog
import xxhash

from headrace.consumers.replication.group_health import Event, GroupHealth, State
from headrace.consumers.replication.replica import Replica
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import TableVersion, Write
from headrace.schemas.payload import PayloadInvalid, decode_rows
from headrace.schemas.series import SeriesInvalid, check_series_keys
from headrace.schemas.tables import TIME_COLUMN, DatabaseSchema, FieldType, RecordName, TableSchema, TimeResolution

DICTIONARIES_KEPT = 256
_log = structlog.get_logger(__name__)


class GroupStopping(HeadraceError):
    """The group is being stopped while a record waits; the record stays in the journal."""


class TablesAwaited(HeadraceError):
    """A record names versions of tables that are not known yet, and the caller does not wait."""


class TableSchemas(Protocol):
    """The table log as a replica needs it: see `consumers.membership.schema_log`."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at a version, or None when the table log was not read that far in time."""
        ...

    def accepts(self, record: RecordName, tables: Sequence[TableVersion], timeout_s: float) -> bool | None:
        """Whether a record that names these versions counts; None while the table log has not decided."""
        ...

    def database(self, database: str) -> DatabaseSchema | None:
        """The database, None while it is unknown."""
        ...


class TableWait:
    """Waits until the table log has decided whether a record of one group counts.

    A wait is reported to the group's health; `stopping()` ends it. With `waits` off a record that would wait
    raises TablesAwaited.
    """

    # Without a limit of time: how late a version may come depends on clocks and brokers, and a record that one
    # replica gave up and another applied would be the end of their agreement. A refusal in the table log is in
    # the same order for all.

    def __init__(
        self, group: str, tables: TableSchemas, turn_s: float, health: GroupHealth, stopping: Callable[[], bool]
    ) -> None:
        self._group = group
        self._tables = tables
        self._turn_s = turn_s
        self._health = health
        self._stopping = stopping
        self.waits = True

    def accepts(self, offset: int, digest: bytes, tables: tuple[TableVersion, ...]) -> bool:
        """Whether the record counts, waited for. Raises GroupStopping and TablesAwaited."""
        record = RecordName(self._group, offset, digest)
        while not self._stopping():
            decided = self._tables.accepts(record, tables, self._turn_s if self.waits else 0.0)
            if decided is not None:
                # Not reported for every record: a report takes a lock.
                if self._health.holds(State.AWAITING):
                    self._health.report(Event.PROCEED)
                return decided
            if not self.waits:
                raise TablesAwaited(f"the record at offset {offset} of group {self._group} names unknown versions")
            named = ", ".join(f"version {each.schema_version} of table {each.database}.{each.table}" for each in tables)
            self._health.report(
                Event.AWAIT,
                f"{named}, which the record at offset {offset} names and the table log does not hold yet; if no "
                f"writer will add it: headrace refuse-record --group {self._group} --offset {offset}",
            )
        raise GroupStopping(f"group {self._group} is stopping")


class RowAdmission:
    """Decodes the rows of writes, and refuses those that their table cannot take. Owned by one thread."""

    def __init__(self) -> None:
        self._checked: OrderedDict[tuple[bytes, str, str, tuple[str, ...]], None] = OrderedDict()

    def admit(self, schema: TableSchema, write: Write) -> pa.RecordBatch:
        """The rows of a write, under the schema that it names. Raises PayloadInvalid."""
        rows = decode_rows(write.rows)
        if rows.num_rows != write.row_count:
            raise PayloadInvalid(f"a write of {write.row_count} rows holds {rows.num_rows}")
        if not fits(schema, rows):
            raise PayloadInvalid(f"the fields do not fit version {schema.version} of {schema.database}.{schema.table}")
        check_resolution(schema, rows)
        self._check_series(schema, rows.column(0).dictionary)
        return rows

    def _check_series(self, schema: TableSchema, keys: pa.StringArray) -> None:
        # Most messages of a table hold the series of the one before: a hash of the keys is all that they cost.
        known = (dictionary_digest(keys), schema.database, schema.table, schema.tags)
        if known in self._checked:
            self._checked.move_to_end(known)
            return
        try:
            check_series_keys(schema.table, schema.tags, keys)
        except SeriesInvalid as error:
            # A key in another form would be another series with the same tags: two rows where SQL has one.
            raise PayloadInvalid(f"a series key is wrong: {error}") from error
        self._checked[known] = None
        if len(self._checked) > DICTIONARIES_KEPT:
            self._checked.popitem(last=False)


def check_resolution(schema: TableSchema, rows: pa.RecordBatch) -> None:
    """Raises PayloadInvalid for a time with finer digits than the table keeps, which no file of it could hold."""
    if schema.resolution is TimeResolution.NS:
        return
    if (rows.column(TIME_COLUMN).to_numpy() % schema.resolution.nanoseconds).any():
        raise PayloadInvalid(f"a time is finer than the {schema.resolution.unit}s of {schema.database}.{schema.table}")


def log_rejection(group: str, replica: Replica) -> None:
    """Log what is wrong with the newest record of a group, if anything is."""
    found = replica.rejection
    if found is None:
        return
    # The first of a kind, then the second, the fourth and so on: a producer of nothing else must not fill the disk
    # with lines. The counts have them all.
    count = replica.ignored[found.why]
    if count & (count - 1) == 0:
        _log.warning("record ignored", group=group, **asdict(found), ignored_so_far=count)


def fits(schema: TableSchema, rows: pa.RecordBatch) -> bool:
    """Whether a row batch has only columns of the schema, each with its type."""
    types = schema.field_types()
    return all(types.get(field.name) == FieldType.of_arrow(field.type) for field in list(rows.schema)[2:])


def dictionary_digest(keys: pa.StringArray) -> bytes:
    """What distinguishes the series of one row batch from those of another."""
    hasher = xxhash.xxh3_128()
    for buffer in keys.buffers()[1:]:
        if buffer is not None:
            hasher.update(buffer)
    hasher.update(b"%d/%d" % (keys.offset, len(keys)))
    return hasher.digest()
