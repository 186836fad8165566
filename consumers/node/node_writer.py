"""The writer inside a node, for rows that come over HTTP. Its connection is made by the first of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import STOP_FLUSH_S, Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.routing import open_routing
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.consumers.serve.write_api import WriteFigures, WriteOptions, WrittenRows
from headrace.producers.cluster import Cluster
from headrace.producers.deletes import bound_ns, delete_rows, drop_table, set_retention
from headrace.producers.group_writer import GroupWriter, GroupWriterStatistics
from headrace.producers.line_requests import LineAnswer, LineRequest
from headrace.producers.settings import WriteSettings
from headrace.producers.writer import TableWriter, WriterClosed, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, Catalogue, TableSchema, TimeResolution

OPEN_TIMEOUT_S = 10.0


class NodeWriter:
    """See WriteApi. `close` writes what waits."""

    def __init__(self, log: Log, topics: Topics, settings: WriteSettings) -> None:
        self.settings = settings
        self.figures = WriteFigures()
        self._log = log
        self._topics = topics
        self._lock = threading.Lock()
        self._refused: tuple[float, HeadraceError] | None = None
        """The newest attempt to connect that failed: its end, and why."""
        self._cluster: Cluster | None = None
        self._groups: GroupWriter | None = None
        self._opened = ExitStack()
        self._closed = False

    @property
    def statistics(self) -> GroupWriterStatistics:
        """See WriteApi."""
        return self._groups.statistics if self._groups is not None else GroupWriterStatistics()

    def submit(self, request: LineRequest) -> Future[LineAnswer]:
        """See WriteApi."""
        cluster = self._open()
        with self._lock:
            # Nobody would end one that is made behind `close`.
            self._check_open()
            if self._groups is None:
                waiting_bytes_max = self.settings.http_waiting_mb_max * 1_000_000
                self._groups = GroupWriter(cluster, self._writer_settings(WriteOptions()), waiting_bytes_max)
        return self._groups.submit(request)

    def write(
        self, database: str, table: str, rows: pa.Table, tags: Collection[str] | None, options: WriteOptions
    ) -> WrittenRows:
        """See WriteApi."""
        writer = TableWriter(self._open(), database, table, self._writer_settings(options))
        with writer:
            writer.write(rows, tags)
        return WrittenRows(writer.written.rows, writer.written.points, writer.newest())

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | list[str]],
        start: int | str | None,
        end: int | str | None,
        quorum: int | None,
    ) -> Mapping[str, int]:
        """See WriteApi."""
        settings = self._writer_settings(WriteOptions(quorum))
        return delete_rows(self._open(), database, table, tags, _ns(start), _ns(end), settings)

    def drop(self, database: str, table: str, quorum: int | None) -> Mapping[str, int]:
        """See WriteApi."""
        return drop_table(self._open(), database, table, self._writer_settings(WriteOptions(quorum)))

    def set_retention(self, database: str, table: str, keep_ns: int | None) -> TableSchema:
        """See WriteApi."""
        return set_retention(self._open(), database, table, keep_ns)

    def create_database(self, database: str) -> None:
        """See WriteApi."""
        self._open().tables.ensure_database(database)

    def schemas(self) -> Catalogue:
        """See WriteApi."""
        tables = self._open().tables
        tables.refresh()
        return tables.catalogue

    def close(self) -> None:
        """Write what waits for a moment, and take no more."""
        # First: an attempt to connect ends by it, and whoever waits for that one begins none.
        self._closed = True
        with self._lock:
            self._cluster = None
        if self._groups is not None:
            self._groups.close(STOP_FLUSH_S)
        self._opened.close()

    def _open(self) -> Cluster:
        called_s = time.monotonic()
        with self._lock:
            self._check_open()
            # Without Kafka each of many requests would make an attempt of its own, one behind another.
            if self._refused is not None and self._refused[0] >= called_s:
                raise self._refused[1]
            if self._cluster is None:
                try:
                    self._cluster = self._connect()
                except HeadraceError as error:
                    self._refused = time.monotonic(), error
                    raise
            return self._cluster

    def _check_open(self) -> None:
        if self._closed:
            # It may start again, which clients wait for.
            raise WriterClosed("the node is stopping", action="try again, or write to another node", retriable=True)

    def _connect(self) -> Cluster:
        with ExitStack() as undo:
            routing = open_routing(
                self._log, self._topics, Deadline(OPEN_TIMEOUT_S), on_wait=lambda _: self._check_open()
            )
            undo.callback(routing.close)
            tables = SchemaLog(self._log, self._topics)
            undo.callback(tables.close)
            tables.refresh()
            watch = StatusWatch(self._log, self._topics)
            undo.callback(watch.close)
            appender = self._log.appender()
            undo.callback(appender.close, STOP_FLUSH_S)
            routing.prepare = appender.prepare
            self._opened = undo.pop_all()
        return Cluster(self._log, self._topics, routing, tables, watch, appender)

    def _writer_settings(self, options: WriteOptions) -> WriterSettings:
        ours = self.settings
        return WriterSettings(
            ours.quorum if options.quorum is None else options.quorum,
            ours.quorum_timeout_ms if options.quorum_timeout_ms is None else options.quorum_timeout_ms,
            ours.compression,
            resolution=options.resolution or TimeResolution(ours.time_resolution),
            resolution_required=options.resolution_required,
        )


def _ns(point: int | str | None) -> int | None:
    """A point in time as nanoseconds since 1970, UTC."""
    return None if point is None else bound_ns(pa.table({TIME_COLUMN: [point]}))
