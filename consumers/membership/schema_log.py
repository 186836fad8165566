"""Follows the table log, and changes it: every schema of the cluster, as one sequence of changes.

A writer that needs a new column appends a change on top of the version it knows and reads the log back. Of
two changes that build on the same version the first counts, and the other writer plans its change again. Safe
to share between threads.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log, LogUnavailable, Reader
from headrace.connectors.log.topics import Topics
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.messages import TableVersion
from headrace.schemas.records import decode_schema_change, encode_schema_change
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
    TableSchema,
    check_name,
    plan_change,
)

ATTEMPTS_MAX = 20
REFRESH_TIMEOUT_S = 30.0


class SchemaContended(HeadraceError):
    """Other writers changed the same table first, again and again."""


class SchemaLog:
    """The catalogue of a cluster's tables, as far as its log has been read."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topic = topics.table
        self._writer = uuid.uuid4().hex
        self._reader: Reader | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self.catalogue = Catalogue()

    def refresh(self, timeout_s: float = REFRESH_TIMEOUT_S) -> None:
        """Read the log to its end. Raises LogUnavailable when that takes too long."""
        with self._lock:
            end = self._log.describe(self._topic).end
            deadline = Deadline(timeout_s)
            while self._open_reader().position(self._topic) < end:
                self.follow(min(0.2, deadline.left_s()))
                if deadline.passed():
                    raise LogUnavailable(
                        f"topic {self._topic} was not read to its end", action="check the broker", retriable=True
                    )

    def follow(self, timeout_s: float) -> None:
        """Take what has arrived, waiting up to `timeout_s` for the first record."""
        with self._lock:
            for record in self._open_reader().poll(1_000, timeout_s):
                check_format(record.headers)
                try:
                    _, change = decode_schema_change(record.value)
                except FrameInvalid:
                    continue
                with self._changed:
                    self.catalogue.apply(change)
                    self._changed.notify_all()

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at exactly this version; None when the log was not read that far in time.

        Another thread follows the log.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.catalogue.at(database, table, version) is not None, timeout_s)
            return self.catalogue.at(database, table, version)

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
            self._changed.wait_for(lambda: refused() or held(), timeout_s)
            return False if refused() else True if held() else None

    def refuse(self, refusal: RecordRefusal) -> bool:
        """Append the refusal of a forward record; False when the version it names came first after all."""
        with self._lock:
            self._change(refusal, f"{refusal.database}.{refusal.table}")
            return refusal.record in self.catalogue.refused

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
    ) -> TableSchema:
        """A schema of the table that holds these columns, changed and read back as accepted where needed.

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
                change = plan_change(current, tag_names, fields, retention_ns)
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
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def _change(self, change: SchemaChange, key: str) -> None:
        append_one(self._log, self._topic, encode_schema_change(self._writer, change), key=key.encode())
        self.refresh()

    def _open_reader(self) -> Reader:
        if self._reader is None:
            self._reader = self._log.reader({self._topic: 0}, follow=True)
        return self._reader
