"""One scan for another node: a query of one driver, whose rows leave batch by batch.

It takes turns with the queries of its node, and ages as they do. Its memory is apart from theirs: queries here may wait
for this scan's asker, and hold theirs meanwhile.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.query_errors import NotCaughtUp, QueryCancelled, QueryError, QueryMemory
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.scan_memory import ScanMemory
from headrace.consumers.query.scan_request import RemoteScanRequest, wire_schema
from headrace.consumers.query.scan_statement import ScanStatement
from headrace.consumers.query.table_source import Reading
from headrace.consumers.scheduling.driver import BlockedOn, DriverSpec
from headrace.consumers.scheduling.driver_task import ScheduledQuery, Submission
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn
from headrace.schemas.tables import TableSchema

BUFFER_BYTES = 1_000_000
"""Rows that wait to leave. One batch may be larger."""


class RunningScan:
    """One scan. `schema` is that of its batches. It holds files, memory and a permit until it is closed.

    From the first `next` on it is a query of one driver, so it takes turns with the queries of this node.
    """

    def __init__(
        self,
        resources: ExitStack,
        engine: QueryEngine,
        request: RemoteScanRequest,
        schema: TableSchema,
        fence: LocalFence,
        source: LocalSource,
        memory: ScanMemory,
        on_end: Callable[[int | None], None],
    ) -> None:
        fragment = request.fragment
        self.schema = (
            fragment.schema
            if fragment is not None and fragment.schema is not None
            else wire_schema(schema, request.columns)
        )
        self.id = f"scan-{uuid.uuid4().hex[:12]}"
        self._resources = resources
        self._engine = engine
        self._request = request
        self._table = schema
        self._fence = fence
        self._source = source
        self._memory = memory
        self._on_end = on_end
        self._timeout_ms = max(1, min(request.timeout_ms, engine.settings.timeout_ms))
        self.timer = QueryTimer(engine.interrupter, self._timeout_ms)
        resources.callback(self.timer.finish)
        self._output = QueryOutput(BUFFER_BYTES)
        self._scheduled: ScheduledQuery | None = None
        self._lock = threading.Lock()
        self._is_closed = self._has_ended = False
        self._rows = 0
        self._figures: ScanFigures | None = None
        self.hand_overs = HandOvers()

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None once these were all and the group still serves. Raises a QueryError."""
        self._start()
        batch = self._output.take()
        if batch is not None:
            self._rows += batch.num_rows
            return batch
        # Behind the last row, as it leaves.
        self._fence.check()
        self._end(self._rows)
        return None

    def close(self) -> None:
        """End the scan, also a batch that is being computed. Closing twice is fine."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            scheduled = self._scheduled
        if was_closed:
            return
        self.timer.cancel()
        self._output.abandon()
        if scheduled is not None:
            self._engine.scheduler.abort(scheduled, QueryCancelled("the scan was closed before its end"))
            # Its files are in use until then.
            scheduled.wait()
        self._end(None)
        self._resources.close()

    @property
    def answered(self) -> bool:
        """See EndWatcher."""
        return self._output.complete

    def ended(self, error: QueryError | None) -> None:
        """See EndWatcher."""
        self._output.fail(error or QueryCancelled("the scan ended without an answer"))

    def figures(self) -> Mapping[str, Any]:
        """What was read, if the asker wants to know; see ScanFigures."""
        return {} if self._figures is None else self._figures.document()

    def _start(self) -> None:
        with self._lock:
            if self._is_closed:
                raise QueryCancelled("the scan was closed before its end")
            if self._scheduled is not None:
                return
            driver = ThreadedDriver(self._work, self.timer.cancel)
            # Its memory is not that of queries: they may wait for this scan, and hold theirs meanwhile.
            self._scheduled = self._engine.scheduler.submit(
                Submission(self.id, [DriverSpec(driver)], self._timeout_ms, sql=self._shown, apart=True, watcher=self)
            )

    @property
    def _shown(self) -> str:
        """The scan for operators."""
        request, fragment = self._request, self._request.fragment
        what = fragment.sql if fragment is not None else f"FROM {request.database}.{request.table}"
        return f"{what} -- of group {request.group}, for another node"

    def _end(self, rows: int | None) -> None:
        with self._lock:
            had_ended, self._has_ended = self._has_ended, True
        if not had_ended:
            self._on_end(rows)

    def _work(self, turn: Turn) -> None:
        """See ThreadedDriver."""
        deadline = Deadline(min(self.timer.left_s, self._request.wait_ms / 1_000))
        after = self._waited(turn, deadline)
        # Before the rows are read: they have at least what was accepted by now.
        [group] = self._fence.groups
        self.hand_overs = HandOvers.of(group.applied.changes)
        reading = Reading(self._fence, after, self.timer, deadline, turn)
        sizes_mb = self._memory.sizes_mb(self.schema, computes=self._request.fragment is not None)
        for memory_mb in sizes_mb:
            try:
                self._read(reading, turn, memory_mb)
                return
            except QueryMemory as error:
                # Without rows it may begin again: nothing of it has left.
                if self._output.begun or memory_mb == sizes_mb[-1]:
                    raise QueryMemory.above(memory_mb, self._memory.node) from error

    def _read(self, reading: Reading, turn: Turn, memory_mb: int) -> None:
        """Run it once, to its last row."""
        # The memory for others with the last row, which its asker may take late or never.
        with self._memory.lent(memory_mb, self.timer, turn), ExitStack() as resources:
            statement = ScanStatement(
                *(self._engine, self._request, self._table, self.timer, self._fence, turn, resources, memory_mb)
            )
            for batch in statement.batches(self._source, reading, self.schema):
                room = self._output.put(self.schema, self._fence, batch)
                if room is not None:
                    turn.block(room, BlockedOn.OUTPUT)
                turn.pause()
            # Until its asker has taken the last row, the group is not closed.
            self._resources.push(resources.pop_all())
        self._figures = statement.figures
        self._output.end(self.schema, self._fence)

    def _waited(self, turn: Turn, deadline: Deadline) -> dict[str, int]:
        """Wait until the group has what the asker must see; the offset. Raises NotCaughtUp, SlotNotHeld."""
        request = self._request
        ((name, confirmed),) = self._fence.confirmed.items()
        after = {name: max(request.after, confirmed)}

        def reached(timeout_s: float) -> bool:
            part = Deadline(timeout_s)
            return self._source.wait(self._fence, after, timeout_s) and self._source.wait_accepted(
                self._fence, {name: request.accepted}, part.left_s()
            )

        # Most have nothing to wait for, and keep their worker.
        if reached(0.0):
            return after
        with turn.outside(BlockedOn.LOG):
            has_reached = reached(deadline.left_s())
        if not has_reached:
            raise NotCaughtUp(
                f"it did not reach offset {after[name]} of group {request.group}, of slot table "
                f"{request.table_version}, in {request.wait_ms} ms",
                action="retry, or ask another node",
                retriable=True,
            )
        return after
