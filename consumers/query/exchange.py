"""Rows on their way from several drivers of a query to one: a bounded buffer.

A driver that writes while it is full is blocked, and so is the one that reads while it is empty. Neither has a worker
then.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

import pyarrow as pa

BUFFER_BYTES = 4_000_000
"""Rows that wait for the driver that reads. One batch of each that writes may be beyond it."""


class Exchange:
    """Written by `writers` threads, and read by one. Each writer ends once."""

    def __init__(self, writers: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._open = writers
        self._error: BaseException | None = None
        self._room: list[Future[None]] = []
        self._rows: Future[None] | None = None
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether nobody reads any more. What is written then is lost."""
        return self._stopped

    def put(self, batch: pa.RecordBatch) -> Future[None] | None:
        """Write rows; where the buffer is full behind them, the future that is done when there is room again."""
        room = None
        with self._lock:
            if self._stopped:
                return None
            self._batches.append(batch)
            self._bytes += batch.nbytes
            waiting, self._rows = self._rows, None
            if self._bytes >= self._buffer_bytes:
                room = Future[None]()
                self._room.append(room)
        _complete(waiting)
        return room

    def end(self, error: BaseException | None = None) -> None:
        """A writer has written all its rows, or met an error. The first error is that of the reader."""
        with self._lock:
            self._open -= 1
            self._error = self._error or error
            waiting, self._rows = self._rows, None
        _complete(waiting)

    def take(self) -> pa.RecordBatch | Future[None] | None:
        """The next rows, or the future that is done when there may be some; None behind the last. Raises the error."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._batches:
                if not self._open:
                    return None
                self._rows = Future()
                return self._rows
            batch = self._batches.popleft()
            self._bytes -= batch.nbytes
            room = self._emptied() if self._bytes <= self._buffer_bytes // 2 else []
        for each in room:
            _complete(each)
        return batch

    def stop(self) -> None:
        """Nobody reads any more: writers are no longer blocked."""
        with self._lock:
            self._stopped = True
            self._batches.clear()
            self._bytes = 0
            room = self._emptied()
        for each in room:
            _complete(each)

    def _emptied(self) -> list[Future[None]]:
        room, self._room = self._room, []
        return room


def _complete(future: Future[None] | None) -> None:
    # Outside the lock: what waits for it may run at once.
    if future is not None:
        future.set_result(None)
