"""Writes lines of many clients: requests that wait are parsed together, written together, and synced once.

One thread takes the waiting requests in their order, as many as share database and unit of time, up to
`BATCH_BYTES_MAX`. While it waits for the log, the next requests gather. So one client has the latency of one sync, and
a thousand clients share it. A batch with an error that concerns its content is written again request by request:
nobody's lines are refused because of another client's. Writing again is safe, rows are upserts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pyarrow as pa
import structlog

from headrace.connectors.formats.interface import LINE_COLUMN, MESSAGE_COLUMN, FormatOptions
from headrace.connectors.formats.time_rules import TimeRules
from headrace.producers.cluster import Cluster
from headrace.producers.declared import DeclaredTags, DeclaredTypes
from headrace.producers.line_requests import LineAnswer, LineRequest, answers, parse_requests, rejected_lines
from headrace.producers.sender import WriteFailed
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.tables import check_name

BATCH_BYTES_MAX = 8 << 20
BATCH_REQUESTS_MAX = 4_096
WRITERS_MAX = 256
"""Tables whose writer is kept open; the one that was not used for longest is closed."""
_log = structlog.get_logger(__name__)


class WritesWaiting(HeadraceError):
    """More bytes wait to be written than the node takes."""


class LinesRefused(HeadraceError):
    """Lines of a request that is written whole or not at all; nothing of it was written."""

    exit_code = 3

    def __init__(self, message: str, answer: LineAnswer) -> None:
        super().__init__(message, action="correct these lines")
        self.answer = answer


@dataclass(slots=True)
class GroupWriterStatistics:
    """Counters since the start; `waiting_*` are gauges."""

    requests: int = 0
    rows: int = 0
    refused_lines: int = 0
    failed: int = 0
    refused_busy: int = 0
    batches: int = 0
    waiting_requests: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True)
class _Waiting:
    request: LineRequest
    answer: Future[LineAnswer] = field(default_factory=Future)

    def settle(self, found: LineAnswer | HeadraceError) -> None:
        """Complete the future, once; that of a caller which has left is cancelled already."""
        if self.answer.set_running_or_notify_cancel():
            if isinstance(found, HeadraceError):
                self.answer.set_exception(found)
            else:
                self.answer.set_result(found)


class GroupWriter:
    """See the module. Thread-safe; `close` ends its thread."""

    def __init__(self, cluster: Cluster, settings: WriterSettings, waiting_bytes_max: int) -> None:
        self.statistics = GroupWriterStatistics()
        self._cluster = cluster
        self._settings = settings
        self._waiting_bytes_max = waiting_bytes_max
        self._writers: OrderedDict[tuple[str, str], TableWriter] = OrderedDict()
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-writer", daemon=True)
        self._thread.start()

    def submit(self, request: LineRequest) -> Future[LineAnswer]:
        """Queue a request; the answer comes when its rows are acknowledged.

        Raises WritesWaiting and SchemaError. The future raises LinesRefused, SchemaError, WriteFailed, WriteUnknown and
        QuorumTimeout.
        """
        check_name("database", request.database)
        waiting = _Waiting(request)
        with self._changed:
            if self._closed or self.statistics.waiting_bytes + len(request.body) > self._waiting_bytes_max:
                self.statistics.refused_busy += 1
                raise WritesWaiting(
                    "the node is stopping" if self._closed else "too many bytes wait to be written",
                    action="try again in a moment",
                    retriable=True,
                )
            self._waiting.append(waiting)
            self._count(requests=1, waiting_requests=1, waiting_bytes=len(request.body))
            self._changed.notify_all()
        return waiting.answer

    def close(self, timeout_s: float) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._write(batch)
            except Exception as error:
                _log.exception("a batch of lines failed")
                failed = WriteFailed(f"the node failed to write: {error!r}", rows=0, action="its log has the details")
                self._settle(batch, [failed] * len(batch))
            with self._changed:
                size = sum(len(each.request.body) for each in batch)
                self._count(batches=1, waiting_requests=-len(batch), waiting_bytes=-size)
        for writer in self._writers.values():
            _close(writer)

    def _take(self) -> list[_Waiting]:
        """The next requests that share a key, in their order; none when the writer is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            batch, size = list[_Waiting](), 0
            while self._waiting and size < BATCH_BYTES_MAX and len(batch) < BATCH_REQUESTS_MAX:
                request = self._waiting[0].request
                # One that is written whole or not at all is never mixed with others.
                if batch and (request.whole or batch[0].request.whole):
                    break
                if batch and request.batch_key != batch[0].request.batch_key:
                    break
                size += len(request.body)
                batch.append(self._waiting.popleft())
            return batch

    def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            found: Sequence[LineAnswer | HeadraceError] = self._written([each.request for each in batch])
        except StateUnknown as error:
            found = [error] * len(batch)
        except HeadraceError as error:
            if len(batch) > 1 and not error.retriable:
                for each in batch:
                    self._write([each])
                return
            found = [error] * len(batch)
        self._settle(batch, found)

    def _settle(self, batch: Sequence[_Waiting], found: Sequence[LineAnswer | HeadraceError]) -> None:
        for each, outcome in zip(batch, found, strict=True):
            if not each.answer.done():
                if isinstance(outcome, HeadraceError):
                    self._count(failed=1)
                else:
                    self._count(rows=outcome.rows, refused_lines=outcome.refused_count)
                each.settle(outcome)

    def _written(self, requests: Sequence[LineRequest]) -> list[LineAnswer]:
        database, catalogue = requests[0].database, self._cluster.tables.catalogue
        options = FormatOptions(
            declared=DeclaredTypes(catalogue, database), declared_tags=DeclaredTags(catalogue, database)
        )
        parsed = parse_requests(requests, options)
        tables, rejected = dict[str, pa.Table](), [parsed.rejected]
        for name, rows in parsed.tables.items():
            tables[name], refused = self._fitting(database, name, rows)
            rejected += refused
        found = answers(requests, list(tables.values()), pa.concat_tables(rejected))
        if requests[0].whole and found[0].refused:
            first = found[0].refused[0]
            raise LinesRefused(f"line {first.line}: {first.reason}", replace(found[0], rows=0))
        writers = [self._append(database, name, rows) for name, rows in tables.items() if rows.num_rows]
        # One wait for all tables: their messages are in the log's queue already.
        for writer in writers:
            writer.flush()
        return found

    def _fitting(self, database: str, table: str, rows: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """(rows whose times the table can have, the others as rejected lines)."""
        schema = self._cluster.tables.catalogue.newest(database, table)
        rejected: list[pa.Table] = []
        for mask, reason in TimeRules(table, self._settings.resolution_of(schema), any_time=True).refusals(rows):
            rejected.append(rejected_lines(rows.filter(pa.array(mask)), reason))
            rows = rows.filter(pa.array(~mask))
        return rows, rejected

    def _append(self, database: str, table: str, rows: pa.Table) -> TableWriter:
        writer = self._writer(database, table)
        rows = rows.drop_columns([MESSAGE_COLUMN, LINE_COLUMN])
        writer.write(rows, [column.name for column in rows.schema if pa.types.is_dictionary(column.type)])
        return writer

    def _writer(self, database: str, table: str) -> TableWriter:
        key = database, table
        if key not in self._writers:
            if len(self._writers) >= WRITERS_MAX:
                _close(self._writers.popitem(last=False)[1])
            self._writers[key] = TableWriter(self._cluster, database, table, self._settings)
        self._writers.move_to_end(key)
        return self._writers[key]

    def _count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            setattr(self.statistics, name, getattr(self.statistics, name) + amount)


def _close(writer: TableWriter) -> None:
    # Everything that it wrote was flushed, or its error was reported with the batch.
    try:
        writer.close()
    except HeadraceError as error:
        _log.warning("a writer was closed with an error", table=writer.table, error=str(error))
