"""Writes lines of many clients: requests that wait are parsed together, written together, and synced once.

One thread takes the waiting requests in their order, as many as share database and unit of time, up to
`BATCH_BYTES_MAX`. While it waits for the log, the next requests gather. So one client has the latency of one sync, and
a thousand clients share it. A batch with an error that concerns its content is written again request by request:
nobody's lines are refused because of another client's. Writing again is safe, rows are upserts.

A request with many lines that are read one by one, as those with escapes in their fields, is moved to a second thread.
There such requests wait for each other, and for nobody else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.interface import ScansRefused
from headrace.producers.cluster import Cluster
from headrace.producers.line_batches import LineBatches
from headrace.producers.line_requests import LineAnswer, LineRequest
from headrace.producers.sender import WriteFailed
from headrace.producers.writer import WriterSettings
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.tables import check_name

BATCH_BYTES_MAX = 8 << 20
BATCH_REQUESTS_MAX = 4_096
SCANNED_LINES_MAX = 1_000
"""Lines of one request that the first thread reads one by one: some milliseconds."""
_log = structlog.get_logger(__name__)


class WritesWaiting(HeadraceError):
    """More bytes wait to be written than the node takes."""


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
    settled: bool = False

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
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._slow: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._batches = LineBatches(cluster, settings, SCANNED_LINES_MAX)
        self._slow_batches = LineBatches(cluster, settings, None)
        self._threads = [
            threading.Thread(target=self._run, name="group-writer", daemon=True),
            threading.Thread(target=self._run_slow, name="group-writer-slow", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

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
        deadline = Deadline(timeout_s)
        for thread in self._threads:
            thread.join(deadline.left_s())

    def _run(self) -> None:
        while batch := self._take():
            self._write_guarded(batch, self._batches)
            self._count(batches=1)
        self._batches.close()
        with self._changed:
            # Last: requests are moved to the second thread up to here, and it ends when nothing more can come.
            self._ended = True
            self._changed.notify_all()

    def _run_slow(self) -> None:
        while batch := self._take_slow():
            self._write_guarded(batch, self._slow_batches)
        self._slow_batches.close()

    def _write_guarded(self, batch: Sequence[_Waiting], batches: LineBatches) -> None:
        try:
            self._write(batch, batches)
        except Exception as error:
            # The thread has to survive: without it no later request would ever get an answer.
            _log.exception("a batch of lines failed")
            failed = WriteFailed(f"the node failed to write: {error!r}", rows=0, action="its log has the details")
            self._settle(batch, [failed] * len(batch))

    def _take_slow(self) -> list[_Waiting]:
        """The next request of the second thread; none when the first one has ended and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._slow)
            return [self._slow.popleft()] if self._slow else []

    def _take(self) -> list[_Waiting]:
        """The next requests that share a key, in their order; none when the writer is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            batch, size = list[_Waiting](), 0
            # The size is compared before a request is added: one that alone exceeds the limit would wait for ever.
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

    def _write(self, batch: Sequence[_Waiting], batches: LineBatches) -> None:
        try:
            found: Sequence[LineAnswer | HeadraceError] = batches.write([each.request for each in batch])
        except ScansRefused as error:
            slow = set(error.messages)
            rest = [each for number, each in enumerate(batch) if number not in slow]
            with self._changed:
                self._slow.extend(each for number, each in enumerate(batch) if number in slow)
                self._changed.notify_all()
            if rest:
                self._write(rest, batches)
            return
        except StateUnknown as error:
            # Not written again one by one: what is unknown is the log and nobody's content, and each request would
            # wait for its own time to run out.
            found = [error] * len(batch)
        except HeadraceError as error:
            # An error that may pass concerns the log, and all requests alike. One that does not is in the content of
            # one of them, and the others must be written.
            if len(batch) > 1 and not error.retriable:
                for each in batch:
                    self._write([each], batches)
                return
            found = [error] * len(batch)
        self._settle(batch, found)

    def _settle(self, batch: Sequence[_Waiting], found: Sequence[LineAnswer | HeadraceError]) -> None:
        for each, outcome in zip(batch, found, strict=True):
            # A batch that failed half-way may come here twice.
            if not each.settled:
                each.settled = True
                waited = {"waiting_requests": -1, "waiting_bytes": -len(each.request.body)}
                if isinstance(outcome, HeadraceError):
                    self._count(failed=1, **waited)
                else:
                    self._count(rows=outcome.rows, refused_lines=outcome.refused_count, **waited)
                each.settle(outcome)

    def _count(self, **amounts: int) -> None:
        # Both threads count, and those of callers.
        with self._changed:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)
