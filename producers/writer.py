"""Writes the rows of one table into the forward logs of the groups that own them.

The writer extends the table's schema by new columns and reads the change back as accepted. It routes the rows
to groups, encodes them and sends the messages in order. An error of a message that was not awaited is raised
by the next call. It follows the membership log, and works over any number of changes (`routes.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from headrace.connectors.formats.arrow_tables import normalise
from headrace.connectors.formats.interface import FormatOptions, TimeRangeError
from headrace.connectors.formats.row_rules import check_arrays, check_times, encode_texts
from headrace.connectors.formats.time_rules import check_integers, check_resolution
from headrace.connectors.log.topics import Topics
from headrace.producers.acks import Quorum, QuorumTimeout
from headrace.producers.cluster import Cluster, Schemas, SlotRouting
from headrace.producers.repeated_rows import check_distinct
from headrace.producers.router import MESSAGE_ROWS_MAX, encode_writes, route
from headrace.producers.routes import RouteKeeper
from headrace.producers.sender import (
    EXIT_FLUSH_TIMEOUT_S,
    FLUSH_TIMEOUT_S,
    RoutedMessage,
    Sender,
    WriteFailed,
    WriteUnknown,
)
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.payload import COMPRESSIONS
from headrace.schemas.tables import TIME_COLUMN, DatabaseSchema, FieldType, SchemaError, TableSchema, TimeResolution

# Bounds the encoded copy of a large table. With a quorum each block has to be durable within the timeout, so
# blocks are smaller.
BLOCK_ROWS_MAX = 8 * MESSAGE_ROWS_MAX
QUORUM_BLOCK_ROWS_MAX = 2 * MESSAGE_ROWS_MAX
QUORUM_TIMEOUT_MS = 2_000


class WriterInvalid(HeadraceError):
    """Writer settings that do not exist."""


class ResolutionFixed(SchemaError):
    """Another resolution than the one that a table was made with."""

    exit_code = 2


class WriterClosed(HeadraceError):
    """A call to a writer that was closed."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How rows are written; `compression` is one of zstd, lz4 and none.

    `quorum`: 0 ignores delivery errors, 1 is the log's own acknowledgement, 2 and more wait for that many
    members of each group. `resolution` is that of a table which the writer makes; one that exists keeps its own,
    and is refused if `resolution_required`.
    """

    quorum: int = 1
    quorum_timeout_ms: int = QUORUM_TIMEOUT_MS
    compression: str = "zstd"
    flush_timeout_s: float = FLUSH_TIMEOUT_S
    resolution: TimeResolution = TimeResolution.US
    resolution_required: bool = False

    def __post_init__(self) -> None:
        """Raises WriterInvalid."""
        if self.compression not in COMPRESSIONS:
            raise WriterInvalid(
                f"compression {self.compression!r} is unknown", action=f"use one of {', '.join(COMPRESSIONS)}"
            )
        if self.quorum_timeout_ms < 1:
            raise WriterInvalid(
                f"quorum_timeout_ms {self.quorum_timeout_ms} is no time to wait", action="give at least 1"
            )

    def resolution_of(self, table: TableSchema) -> TimeResolution:
        """The resolution of a table, or of one that is about to be made. Raises ResolutionFixed."""
        if table.version == 0:
            return self.resolution
        if self.resolution_required and table.resolution is not self.resolution:
            raise ResolutionFixed(
                f"{table.database}.{table.table} keeps {table.resolution.unit}s, and keeps them for good",
                action=f"write without the resolution {self.resolution}, or into a new table",
            )
        return table.resolution


@dataclass(slots=True)
class Written:
    """Counts of what a writer has appended; `points` are field values that are not null."""

    rows: int = 0
    points: int = 0


class TableWriter:
    """Writes rows of one table. A context manager, and safe to share between threads.

    `written` counts what was appended. Raises QuorumInvalid and QuorumTooLarge on construction.
    """

    def __init__(self, cluster: Cluster, database: str, table: str, settings: WriterSettings | None = None) -> None:
        self.database = database
        self.table = table
        self.written = Written()
        self._cluster = cluster
        self._settings = settings or WriterSettings()
        self._quorum = Quorum(
            cluster.log,
            cluster.topics,
            cluster.routing,
            cluster.watch,
            self._settings.quorum,
            self._settings.quorum_timeout_ms,
        )
        self._sender = Sender(cluster.appender, cluster.topic_of, receipts=self._quorum.watched)
        self._routes = RouteKeeper(cluster, self._sender, self._quorum, self._settings.compression)
        # Reentrant: `write` with a quorum and `close` flush while they hold it.
        self._lock = threading.RLock()
        self._known: tuple[pa.Schema, frozenset[str], TableSchema, DatabaseSchema] | None = None
        self._closed = False

    def write(self, rows: pa.Table, tags: Collection[str] | None) -> None:
        """Write rows: the columns `tags`, `time` (timestamps, or integers that are ns UTC; no nulls) and
        fields. `tags` is None when none were named: rows of a new table that share a time are refused then.

        With a quorum of 0 or 1 the rows are queued, and their errors are raised by a later call, once in each thread
        that has written: that call writes nothing. With more, the call returns when enough members hold them. Waits
        while the queue is full. An empty table writes nothing, but its columns extend the schema.

        Raises RowsRepeat, FormatError (also for a time finer than the table keeps), SchemaError, TypeClash and RowTooLarge
        before any row of a block of BLOCK_ROWS_MAX is written, and WriteFailed, WriteUnknown and QuorumTimeout,
        which count rows.
        """
        with self._lock:
            self._check_open()
            # With a quorum of 0 the caller has declared that it does not care for errors.
            if self._settings.quorum > 0:
                self._check_earlier(rows.num_rows)
            rows = normal_rows(rows, self.table, tags or ())
            if tags is None:
                check_new_table(self._cluster.tables, self.database, self.table, rows)
            tags = tags or ()
            expected = table_resolution(self._cluster.tables, self._settings, self.database, self.table, rows)
            schema, database = self._schema(rows.schema, frozenset(tags))
            if schema.resolution is not expected:
                # Another writer has made the table meanwhile.
                check_resolution(rows, f"{self.database}.{self.table}", schema.resolution)
            step = QUORUM_BLOCK_ROWS_MAX if self._quorum.watched else BLOCK_ROWS_MAX
            for start in range(0, rows.num_rows, step):
                with counting_unwritten(rows.num_rows - start - step):
                    self._write_block(schema, database, rows.slice(start, step))

    def flush(self) -> dict[str, int]:
        """Wait for everything written so far; the newest offset in each log, by its topic.

        Raises WriteFailed, WriteUnknown.
        """
        with self._lock:
            return self._flush(self._settings.flush_timeout_s)

    def newest(self) -> dict[str, int]:
        """The newest offset in each log that is known to hold rows of this writer, by its topic."""
        return offsets_by_topic(self._cluster.topics, self._sender.newest())

    @property
    def is_settled(self) -> bool:
        """Whether everything written has its report, and no error of one is left to raise."""
        return self._sender.is_settled

    def close(self) -> dict[str, int]:
        """Flush and take no more rows. Raises as `flush`."""
        with self._lock:
            self._closed = True
            # A second call as well: the first one may have been interrupted, or has given up waiting. Nothing is
            # waited for where everything has its report.
            return self.flush()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._closed = True
        # The caller has to see the error of the block: delivery errors are added as a note.
        try:
            self._flush(EXIT_FLUSH_TIMEOUT_S)
        except HeadraceError as also:
            error.add_note(f"also: {also}")

    def _check_earlier(self, rows: int) -> None:
        try:
            self._sender.check()
        except (WriteFailed, WriteUnknown) as error:
            if rows:
                # Whoever writes the rows of the earlier calls again has to write these as well.
                error.message += f"; these are of earlier calls, and the {rows:,} of this one were not written"
            raise

    def _flush(self, timeout_s: float) -> dict[str, int]:
        self._routes.settle(timeout_s)
        self._sender.check()
        return self.newest()

    def _write_block(self, schema: TableSchema, database: DatabaseSchema, rows: pa.Table) -> None:
        table = self._routes.route(self._settings.flush_timeout_s).table
        # Encoded as a whole before the first message is sent: a row that is too large leaves nothing of the
        # block in the log.
        messages = self._encode(table, schema, database, rows)
        # Before the first message: the ids that statuses are compared with must be those of before the write.
        self._prepare(messages, rows.num_rows)
        self._sender.append(messages)
        self.written.rows += rows.num_rows
        self.written.points += count_points(rows, (name for name, _ in schema.fields))
        if self._quorum.watched:
            self.flush()
            # Only the groups of this block: one that is behind must not delay writes to others.
            self._quorum.confirm(self._sender.written(), rows.num_rows)

    def _prepare(self, messages: list[RoutedMessage], rows: int) -> None:
        try:
            self._quorum.prepare(each.group for each in messages)
        except HeadraceError as error:
            raise WriteFailed(
                f"{rows:,} rows were not written: {error.message}",
                rows=rows,
                action=error.action,
                retriable=error.retriable,
            ) from error

    def _encode(
        self, table: SlotRouting, schema: TableSchema, database: DatabaseSchema, rows: pa.Table
    ) -> list[RoutedMessage]:
        return self._sender.encode(
            [
                (GroupKey(part.group, table.birth(part.group)), write, write.row_count)
                for part in route(table, database, schema, rows)
                for write in encode_writes(schema, table.version, part.rows, self._settings.compression)
            ]
        )

    def _schema(self, columns: pa.Schema, tags: frozenset[str]) -> tuple[TableSchema, DatabaseSchema]:
        """The schema that holds these columns; looked up again only when the columns change."""
        # Versions only add or widen, so a schema that held these columns once still does: rows may be written
        # under an old version.
        if self._known is None or self._known[0] != columns or self._known[1] != tags:
            fields = fields_of(columns, tags)
            tables, settings = self._cluster.tables, self._settings
            database = tables.ensure_database(self.database)
            schema = tables.ensure(self.database, self.table, sorted(tags), fields, resolution=settings.resolution)
            settings.resolution_of(schema)
            self._known = columns, tags, schema, database
        return self._known[2], self._known[3]

    def _check_open(self) -> None:
        if self._closed:
            raise WriterClosed(f"this writer of {self.database}.{self.table} is closed", action="open another one")


@contextmanager
def counting_unwritten(rows: int) -> Iterator[None]:
    """The error of one part of a call has also the rows behind that part, of which none was written."""
    try:
        yield
    except (WriteFailed, WriteUnknown, QuorumTimeout) as error:
        if rows > 0:
            error.message += f"; the {rows:,} rows behind them were not written"
            # Those of a QuorumTimeout are in the log.
            if not isinstance(error, QuorumTimeout):
                error.rows += rows
        raise


def normal_rows(rows: pa.Table, table: str, tags: Collection[str]) -> pa.Table:
    """Any Arrow table as a user table: tags as dictionaries, `time` as int64 ns, fields in table types.

    Raises FormatError, which names the column; also TimesImplausible, for integers that look like another unit.
    """
    rows = encode_texts(rows, tags)
    check_arrays(rows)
    check_integers(rows)
    # Chunks may have dictionaries of their own, in which the same code means different values.
    if any(pa.types.is_dictionary(column.type) and column.num_chunks > 1 for column in rows.columns):
        rows = rows.unify_dictionaries().combine_chunks()
    rows = normalise(rows, FormatOptions(table=table, tags=tuple(sorted(tags))))
    check_times(rows)
    return rows


def check_new_table(tables: Schemas, database: str, table: str, rows: pa.Table) -> None:
    """Raises RowsRepeat for normal rows without tags that share a time, if their table is new."""
    if tables.catalogue.newest(database, table).version == 0:
        # Another client may have made the table since the catalogue was read.
        tables.refresh()
        if tables.catalogue.newest(database, table).version == 0:
            check_distinct(rows, f"{database}.{table}")


def fields_of(columns: pa.Schema, tags: Collection[str]) -> dict[str, FieldType]:
    """The fields of rows that are normal, with their types: all columns but tags and time."""
    return {
        column.name: kind
        for column in columns
        if column.name not in tags and column.name != TIME_COLUMN and (kind := FieldType.of_arrow(column.type))
    }


def table_resolution(
    tables: Schemas, settings: WriterSettings, database: str, table: str, rows: pa.Table
) -> TimeResolution:
    """The resolution of a table as far as it is known; before the table is made or changed.

    Raises TimeRangeError for rows that are finer, ResolutionFixed.
    """
    resolution = settings.resolution_of(tables.catalogue.newest(database, table))
    try:
        check_resolution(rows, f"{database}.{table}", resolution)
    except TimeRangeError:
        # Another client may have made the table with finer times since the catalogue was read.
        tables.refresh()
        resolution = settings.resolution_of(tables.catalogue.newest(database, table))
        check_resolution(rows, f"{database}.{table}", resolution)
    return resolution


def offsets_by_topic(topics: Topics, offsets: Mapping[GroupKey, int]) -> dict[str, int]:
    """Offsets of groups by their topics, as queries take them."""
    return {topics.forward(group.group, group.birth): offset for group, offset in offsets.items()}


def count_points(rows: pa.Table, fields: Iterable[str]) -> int:
    """Field values of a table that are not null."""
    present = set(rows.column_names)
    columns = [rows.column(name) for name in fields if name in present]
    return sum(len(column) - column.null_count for column in columns)
