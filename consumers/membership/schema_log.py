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

from headrace.connectors.deadline import Deadline, GracePeriod
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log, LogUnavailable, Reader, Record, TopicMissing, read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_history import SchemaHistory, SchemaLogLost, lost_error
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.messages import TableVersion
from headrace.schemas.records import decode_schema_change, encode_schema_change, format_of_change
from headrace.schemas.tables import (
    DEFAULT_BUCKETS,
    DEFAULT_SLICE_NS,
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
        self._topic = topics.table
        self._topic_id = ""
        self._next = 0
        self._absence = GracePeriod()
        self._history = SchemaHistory()
        self._history_file = history_file
        self._known = SchemaHistory.load(history_file) if history_file is not None else SchemaHistory()
        self._writer = uuid.uuid4().hex
        self._reader: Reader | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self.catalogue = Catalogue()
        self.lost = ""

    def refresh(self, timeout_s: float = REFRESH_TIMEOUT_S) -> None:
        """Read the log to its end. Raises LogUnavailable when that takes too long, SchemaLogLost."""
        with self._lock:
            end = self.verify()
            deadline = Deadline(timeout_s)
            while self._open_reader().position(self._topic) < end:
                self.follow(min(0.2, deadline.left_s()))
                if deadline.passed():
                    raise LogUnavailable(
                        f"topic {self._topic} was not read to its end", action="check the broker", retriable=True
                    )
            if self._history.records < self._known.records:
                raise self._lose(f"has {self._history.records} records, {self._known.records} were read from it")

    def follow(self, timeout_s: float) -> None:
        """Take what has arrived, waiting up to `timeout_s` for the first record."""
        with self._lock:
            try:
                self._take(self._open_reader().poll(1_000, timeout_s))
            except HeadraceError:
                # What was not applied is read again: a change that is missed would make versions differ.
                self._close_reader()
                raise

    def _take(self, records: Sequence[Record]) -> None:
        if not records:
            return
        # After they were read and before they count: they may be those of a topic that was created again. Then
        # they are read again, from the place where this log continues.
        if self.verify() <= records[-1].offset or self._reader is None:
            self._close_reader()
            return
        for record in records:
            check_format(record.headers)
            self._history, self._next = self._history.after([record]), record.offset + 1
            if self._history.records == self._known.records and self._history != self._known:
                raise self._lose("begins with other records than those that were read from it")
            try:
                _, change = decode_schema_change(record.value)
            except FrameInvalid:
                continue
            with self._changed:
                self.catalogue.apply(change)
                self._changed.notify_all()
        if self._history_file is not None and self._history.records > self._known.records:
            self._known = self._history
            self._history.save(self._history_file)

    def verify(self) -> int:
        """The end of the log, which is that which was read, or begins with the same records.

        Raises SchemaLogLost, TopicMissing, LogUnavailable.
        """
        with self._lock:
            try:
                state = self._log.describe(self._topic)
            except TopicMissing as error:
                if self._history.records and self._absence.missing(self._topic):
                    raise self._lose("does not exist any more") from error
                raise
            self._absence.present(self._topic)
            if state.topic_id != (self._topic_id or state.topic_id) or state.end < self._next:
                self._compare()
            self._topic_id, self.lost = state.topic_id, ""
            return state.end

    def _compare(self) -> None:
        """Continue in another topic of the same name if it begins with the records that were read."""
        count = self._history.records
        read = read_to_end(self._log, self._topic, timeout_s=REFRESH_TIMEOUT_S)[:count]
        if SchemaHistory().after(read) != self._history:
            raise self._lose(f"was created again or truncated: it does not have the {count} records read before")
        self._next = read[-1].offset + 1 if read else 0
        self._close_reader()

    def _lose(self, why: str) -> SchemaLogLost:
        error = lost_error(self._topic, why)
        self.lost = str(error)
        return error

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
        with self._lock:
            self.refresh()
            if database not in self.catalogue.databases:
                self._change(DatabaseChange(database, slice_ns, buckets), database)
            created = self.catalogue.databases.get(database)
            if created is None:
                raise SchemaError(
                    f"database {database!r} was refused",
                    action="another database differs only in case, or a limit is broken",
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
        """Close the reader."""
        with self._lock:
            self._close_reader()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _change(self, change: SchemaChange, key: str) -> None:
        value, needed = encode_schema_change(self._writer, change), format_of_change(change)
        append_one(self._log, self._topic, value, key=key.encode(), needed_format=needed)
        self.refresh()

    def _open_reader(self) -> Reader:
        if self._reader is None:
            self._reader = self._log.reader({self._topic: self._next}, follow=True)
        return self._reader
