"""Follows the table log, and changes it: every schema of the cluster, as one sequence of changes.

A writer that needs a new column appends a change on top of the version it knows and reads the log back. Of
two changes that build on the same version the first counts, and the other writer plans its change again. Safe
to share between threads.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import STOP_FLUSH_S, Log, LogUnavailable, Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.compared_log import ComparedLog
from headrace.consumers.membership.schema_history import lost_error
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.messages import TableVersion
from headrace.schemas.records import decode_schema_change, encode_schema_change, format_of_change
from headrace.schemas.tables import (
    BUCKETS_MAX,
    DEFAULT_BUCKETS,
    DEFAULT_SLICE_NS,
    SLICE_NS_MIN,
    Catalogue,
    DatabaseChange,
    DatabaseSchema,
    FieldType,
    RecordName,
    RecordRefusal,
    SchemaChange,
    SchemaError,
    TableDrop,
    TableSchema,
    TimeResolution,
    check_name,
    plan_change,
)

ATTEMPTS_MAX = 20
REFRESH_TIMEOUT_S = 30.0


class SchemaContended(HeadraceError):
    """Other writers changed the same table first, again and again."""


class SchemaLog:
    """The catalogue of a cluster's tables, as far as its log has been read.

    Once the log is lost, `lost` says why, and no schema is given out until it has its records again.
    """

    def __init__(self, log: Log, topics: Topics, history_file: Path | None = None) -> None:
        """`history_file` keeps over restarts what was read, so that another log under the name is detected."""
        self._log = log
        self._compared = ComparedLog(log, topics.table, lost_error, history_file)
        self._writer = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self.catalogue = Catalogue()

    @property
    def lost(self) -> str:
        """Why the log is not the one that was read, empty while it is."""
        return self._compared.lost

    def refresh(self, timeout_s: float = REFRESH_TIMEOUT_S) -> None:
        """Read the log to its end. Raises LogUnavailable when that takes too long, SchemaLogLost."""
        with self._lock:
            end = self.verify()
            deadline, compared = Deadline(timeout_s), self._compared
            while compared.reader().position(compared.topic) < end:
                self.follow(min(0.2, deadline.left_s()))
                if deadline.passed():
                    raise LogUnavailable(
                        f"topic {compared.topic} was not read to its end", action="check the broker", retriable=True
                    )
            if compared.history.records < compared.known.records:
                raise compared.lose(
                    f"has {compared.history.records} records, {compared.known.records} were read from it"
                )

    def follow(self, timeout_s: float) -> None:
        """Take what has arrived, waiting up to `timeout_s` for the first record."""
        with self._lock:
            try:
                self._take(self._compared.poll(1_000, timeout_s))
            except HeadraceError:
                # What was not applied is read again: a change that is missed would make versions differ.
                self._compared.close()
                raise

    def _take(self, records: Sequence[Record]) -> None:
        compared = self._compared
        for record in records:
            check_format(record.headers, record.topic, record.offset)
            compared.take(record)
            if compared.history.records == compared.known.records and compared.history != compared.known:
                raise compared.lose("begins with other records than those that were read from it")
            try:
                _, change = decode_schema_change(record.value)
            except FrameInvalid as error:
                compared.note_foreign(record, error)
                continue
            with self._changed:
                self.catalogue.apply(change)
                self._changed.notify_all()
        compared.save()

    def verify(self) -> int:
        """The end of the log, which is that which was read, or begins with the same records.

        Raises SchemaLogLost, TopicMissing, LogUnavailable.
        """
        with self._lock:
            end = self._compared.verify()
            self._compared.lost = ""
            return end

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at exactly this version; None when the log was not read that far in time, or is lost.

        Another thread follows the log.
        """

        def known() -> TableSchema | None:
            return None if self.lost else self.catalogue.at(database, table, version)

        with self._changed:
            self._changed.wait_for(lambda: known() is not None, timeout_s)
            return known()

    def accepts(self, record: RecordName, tables: Sequence[TableVersion], timeout_s: float) -> bool | None:
        """Whether a forward record that names these versions of tables counts: True once the log holds them all,
        False once it was refused, None while neither is known after `timeout_s`.

        The same for every reader of the table log, whenever it reads.
        """

        def held() -> bool:
            return all(self.catalogue.at(each.database, each.table, each.schema_version) for each in tables)

        def refused() -> bool:
            return record in self.catalogue.refused

        with self._changed:
            # The refusal is looked at first: the version may have come behind it.
            self._changed.wait_for(lambda: not self.lost and (refused() or held()), timeout_s)
            # Another log of the same name may hold other versions, and lacks refusals.
            if self.lost:
                return None
            return False if refused() else True if held() else None

    def refuse(self, refusal: RecordRefusal) -> bool:
        """Append the refusal of a forward record; False when the version it names came first after all."""
        with self._lock:
            self._change(refusal, f"{refusal.database}.{refusal.table}")
            return refusal.record in self.catalogue.refused

    def drop(self, database: str, table: str) -> bool:
        """Record that a table was dropped, so that it is not listed while it is empty; False when a writer changed
        it meanwhile.
        """
        with self._lock:
            self.refresh()
            version = self.catalogue.newest(database, table).version
            self._change(TableDrop(database, table, version), f"{database}.{table}")
            return self.catalogue.is_dropped(database, table)

    def database(self, database: str) -> DatabaseSchema | None:
        """The database, None while the log has no record of it."""
        return self.catalogue.databases.get(database)

    def retention_ns(self, database: str, table: str) -> int | None:
        """How long a table keeps its rows, None when it keeps everything."""
        return self.catalogue.newest(database, table).retention_ns

    def ensure_database(
        self, database: str, slice_ns: int = DEFAULT_SLICE_NS, buckets: int = DEFAULT_BUCKETS
    ) -> DatabaseSchema:
        """The database, created if it is new; `slice_ns` and `buckets` only matter when it is created.

        Raises SchemaError.
        """
        known = self.catalogue.databases.get(database)
        if known is not None:
            return known
        check_name("database", database)
        _check_partitions(database, slice_ns, buckets)
        with self._lock:
            self.refresh()
            if database not in self.catalogue.databases:
                self._change(DatabaseChange(database, slice_ns, buckets), database)
            created = self.catalogue.databases.get(database)
            if created is None:
                raise SchemaError(
                    f"database {database!r} was refused",
                    action="another database differs only in case",
                )
            return created

    def ensure(
        self,
        database: str,
        table: str,
        tags: Iterable[str],
        fields: Mapping[str, FieldType],
        retention_ns: int | None = None,
        resolution: TimeResolution | None = None,
    ) -> TableSchema:
        """A schema of the table that holds these columns, changed and read back as accepted where needed.

        `resolution` is that of a new table; one that exists keeps its own.

        Raises SchemaError and TypeClash for impossible columns, SchemaContended when other writers keep
        coming first.
        """
        tag_names = tuple(tags)
        with self._lock:
            for attempt in range(ATTEMPTS_MAX):
                # Batches with known columns, nearly all of them, are planned from memory; the log is read
                # only when the table seems to need a change.
                current = self.catalogue.newest(database, table)
                if attempt == 0 and (current.version == 0 or plan_change(current, tag_names, fields, retention_ns)):
                    self.refresh()
                    current = self.catalogue.newest(database, table)
                check_name("table", table)
                change = plan_change(current, tag_names, fields, retention_ns, resolution)
                if change is None:
                    return current
                self._change(change, f"{database}.{table}")
                # Nobody's change was accepted, so ours was refused by a rule that reading the log again does
                # not change.
                if current.version == self.catalogue.newest(database, table).version:
                    raise SchemaError(
                        f"table {table!r} of {database!r} was refused", action="another table differs only in case"
                    )
        raise SchemaContended(f"the schema of {database}.{table} kept changing", action="try again", retriable=True)

    def close(self) -> None:
        """Close the reader, unless a thread still waits for the log with it: then it ends with the process."""
        if self._lock.acquire(timeout=STOP_FLUSH_S):
            try:
                self._compared.close()
            finally:
                self._lock.release()

    def _change(self, change: SchemaChange, key: str) -> None:
        value, needed = encode_schema_change(self._writer, change), format_of_change(change)
        append_one(self._log, self._compared.topic, value, key=key.encode(), needed_format=needed)
        self.refresh()


def _check_partitions(database: str, slice_ns: int, buckets: int) -> None:
    # Not a rule of the catalogue: that would take databases away that an older build made.
    if slice_ns < SLICE_NS_MIN:
        raise SchemaError(
            f"database {database!r} would have slices of {slice_ns} ns",
            action=f"{SLICE_NS_MIN} ns is the least, and {DEFAULT_SLICE_NS} (a day) the default",
        )
    if not 0 < buckets <= BUCKETS_MAX:
        raise SchemaError(f"database {database!r} would have {buckets} buckets", action=f"give it 1 to {BUCKETS_MAX}")
