"""The rows between a query and its reader: a bounded buffer, so that a slow reader holds up its own query alone.

The query is blocked while the buffer is full, and needs no worker then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pyarrow as pa

from headrace.consumers.query.query_errors import NotCaughtUp, QueryCancelled, QueryError, QueryTimeout
from headrace.consumers.query.table_source import ReadFence

BUFFER_BYTES = 4_000_000
"""Rows that wait for their reader. One batch may be larger."""


class QueryOutput:
    """Written by one thread, read by one, and ended by any."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._schema: pa.Schema | None = None
        self._fence: ReadFence | None = None
        self._room: Future[None] | None = None
        self._complete = False
        self._error: QueryError | None = None
        self._abandoned = False
        self._on_ready: tuple[Callable[[], None], int] | None = None
        self.lacking: Mapping[str, int] = {}
        """The log offsets by group that the query waits for."""

    @property
    def complete(self) -> bool:
        """Whether every row is written."""
        return self._complete

    @property
    def begun(self) -> bool:
        """Whether the reader may have seen anything."""
        return self._schema is not None

    def put(self, schema: pa.Schema, fence: ReadFence, batch: pa.RecordBatch) -> Future[None] | None:
        """Write rows; where that fills the buffer, the future that is done when there is room again."""
        with self._changed:
            self._schema, self._fence = schema, fence
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            is_full = self._bytes >= self._buffer_bytes and not self._abandoned
            room = self._room = Future() if is_full else self._room
        self._call_if_ready()
        return room if is_full else None

    def end(self, schema: pa.Schema, fence: ReadFence) -> None:
        """Every row is written."""
        with self._changed:
            self._schema, self._fence = schema, fence
            self._complete = True
            self._changed.notify_all()
        self._call_if_ready()

    def fail(self, error: QueryError) -> None:
        """The query has ended; without its last row, unless that was written."""
        with self._changed:
            if isinstance(error, QueryTimeout) and self.lacking:
                error = NotCaughtUp.to(self.lacking)
            if not self._complete:
                self._error = self._error or error
                self._batches.clear()
            self._changed.notify_all()
        self._call_if_ready()

    @property
    def whole_bytes(self) -> int | None:
        """The size of all rows, None while some may come, and of a query that has failed."""
        with self._changed:
            return self._bytes if self._complete else None

    def when_ready(self, call: Callable[[], None], ready_bytes: int) -> None:
        """Call once, when every row or so many bytes are there, or the query has failed. By any thread, and at once."""
        with self._changed:
            self._on_ready = call, ready_bytes
        self._call_if_ready()

    def _call_if_ready(self) -> None:
        with self._changed:
            if self._on_ready is None:
                return
            call, ready_bytes = self._on_ready
            if not (self._complete or self._error is not None or self._bytes >= ready_bytes):
                return
            self._on_ready = None
        # Outside the lock: it may look at once.
        call()

    def wait_begun(self) -> tuple[pa.Schema, ReadFence]:
        """The schema and the fence of the answer, once there are rows or none will come. Raises QueryError."""
        with self._changed:
            self._changed.wait_for(lambda: self._schema is not None or self._error is not None)
            if self._error is not None:
                raise self._error
            assert self._fence is not None
            return self._schema, self._fence

    def take(self) -> pa.RecordBatch | None:
        """The next rows; None behind the last. Raises the QueryError that ended the query."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._complete or self._error or self._abandoned)
            if self._abandoned:
                raise QueryCancelled("the result was closed before its end")
            if self._error is not None:
                raise self._error
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._bytes -= batch.nbytes
            room = self._room if self._bytes <= self._buffer_bytes // 2 else None
            if room is not None:
                self._room = None
        # Outside the lock: what waits for it may run at once.
        if room is not None:
            room.set_result(None)
        return batch

    def abandon(self) -> None:
        """Nobody reads any more."""
        with self._changed:
            self._abandoned = True
            self._batches.clear()
            self._changed.notify_all()
