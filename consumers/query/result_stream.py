"""A running query: the timer that ends it, and the stream of its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import duckdb
import pyarrow as pa

from headrace.consumers.query.query_errors import QueryCancelled, QueryError
from headrace.consumers.query.table_source import ReadFence

INTERRUPT_AGAIN_S = 0.05
IDLE_WAIT_S = 60.0


class QueryTimer:
    """Interrupts a connection when the time of its query is over, or when the query is cancelled."""

    def __init__(self, interrupter: Interrupter, interrupt: Callable[[], None], timeout_ms: int) -> None:
        """Begins; `finish` ends it."""
        self.timeout_ms = timeout_ms
        self.ends_s = time.monotonic() + timeout_ms / 1000
        self._ends = [interrupt]
        self._interrupter = interrupter
        self._cancelled = threading.Event()
        interrupter.watch(self)

    @property
    def expired(self) -> bool:
        """True once the time is over."""
        return self.left_s <= 0

    @property
    def left_s(self) -> float:
        """Seconds left, 0 at least."""
        return max(0.0, self.ends_s - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the query was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the query at its next interrupt; any thread."""
        self._cancelled.set()
        self._interrupter.hurry()

    def interrupt(self) -> None:
        """End what the query does now: its statement, and what `interrupts` has added."""
        # A copy: the threads that fetch rows add and remove theirs meanwhile.
        for end in tuple(self._ends):
            end()

    @contextmanager
    def interrupts(self, end: Callable[[], None]) -> Iterator[None]:
        """While this is open, `end` is called again and again from the end of the query's time on; any thread."""
        self._ends.append(end)
        try:
            yield
        finally:
            self._ends.remove(end)

    def finish(self) -> None:
        """Stop. No interrupt happens after this returns."""
        # The statements that detach the catalog come next, and a late interrupt would end those.
        self._interrupter.forget(self)

    def __repr__(self) -> str:
        return f"QueryTimer({self.left_s:.3f} s left of {self.timeout_ms} ms)"


class Interrupter:
    """The thread that interrupts the queries of an engine whose time is over. It starts with the first query."""

    # One thread for all: to start and to join one takes part of a millisecond of every query, and far more
    # while other threads compute.

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._timers: set[QueryTimer] = set()
        self._thread: threading.Thread | None = None
        self._wakes_s = 0.0
        self._closed = False

    def watch(self, timer: QueryTimer) -> None:
        """Interrupt the query of a timer from the end of its time on, until `forget`."""
        with self._changed:
            self._timers.add(timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="query-timer", daemon=True)
                self._thread.start()
            elif timer.ends_s < self._wakes_s:
                self._changed.notify()

    def hurry(self) -> None:
        """Look at the timers now: one was cancelled."""
        with self._changed:
            self._changed.notify()

    def forget(self, timer: QueryTimer) -> None:
        """Interrupt a query no more."""
        with self._changed:
            self._timers.discard(timer)
            if self._closed:
                self._changed.notify()

    def close(self) -> None:
        """End the thread once every timer is forgotten."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._timers or not self._closed:
                wait_s = self._interrupt_due()
                self._wakes_s = time.monotonic() + wait_s
                self._changed.wait(wait_s)
            self._thread = None

    def _interrupt_due(self) -> float:
        """Interrupt every query whose time is over; the seconds until it must be done again."""
        # Under the lock, so that no query is interrupted behind its `finish`. In a function of its own: the
        # thread must not keep the connection of a query that has ended while it waits.
        due = [timer for timer in self._timers if timer.cancelled or timer.expired]
        for timer in due:
            timer.interrupt()
        # DuckDB loses an interrupt between two statements of a query, so it is repeated.
        if due:
            return INTERRUPT_AGAIN_S
        return min((timer.left_s for timer in self._timers), default=IDLE_WAIT_S)


class ResultStream:
    """The result of one query: a schema with unique names, and batches that are computed as they are read.

    A context manager. Until it is closed it holds segment files, memory and one of the permits for running
    queries. `batches` is read once, by one thread at a time; any thread may `close` it, which ends a batch
    being computed.
    """

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        resources: ExitStack,
        timer: QueryTimer,
        translate: Callable[[Exception], QueryError],
        fence: ReadFence,
        row_limit: int | None,
    ) -> None:
        names = unique_names(reader.schema.names)
        self.schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
        self.rows = 0
        self.as_of = fence.as_of
        """The moment up to which a stale answer contains everything; None where the node serves."""
        self.timer = timer
        """The time of the query, which the reading of its result is part of."""
        self._reader = reader
        self._resources = resources
        self._translate = translate
        self._fence = fence
        self._row_limit = row_limit
        self._lock = threading.Lock()
        self._closed = False

    def hold(self, resources: ExitStack) -> None:
        """Close these resources at the end, and not those that it was made with."""
        self._resources = resources

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the query.

        Raises the QueryError that ended it early, if one did, or AnswerStale behind the last batch: only then
        is it known that the rows were those of a node that serves.
        """
        while self._row_limit is None or self.rows < self._row_limit:
            batch = self._next()
            if batch is None:
                break
            if self._row_limit is not None:
                batch = batch.slice(0, self._row_limit - self.rows)
            self.rows += batch.num_rows
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        self._fence.check()

    def read_all(self) -> pa.Table:
        """Every row as one table; closes the result."""
        with self:
            return pa.Table.from_batches(list(self.batches()), self.schema)

    def close(self) -> None:
        """Release everything that the query holds. Closing twice is fine."""
        # Cancelled before the lock is taken: the thread that computes a batch holds the lock until an
        # interrupt ends it.
        self.timer.cancel()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._resources.close()

    def _next(self) -> pa.RecordBatch | None:
        with self._lock:
            if self._closed:
                raise QueryCancelled("the result was closed before its end")
            # Between two batches no statement runs that could be interrupted, so a slow reader is ended here.
            try:
                if self.timer.expired or self.timer.cancelled:
                    raise duckdb.InterruptException("INTERRUPT Error: before the next batch")
                return self._reader.read_next_batch()
            except StopIteration:
                return None
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self._translate(error) from error

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unique_names(names: list[str]) -> list[str]:
    """Column names where a repeated one gets `_1`, `_2` …, as DuckDB does for the columns of a table."""
    # A name that is spelled out in the query keeps its column: `a, a, a_1` becomes `a, a_2, a_1`.
    taken = set(names)
    seen: set[str] = set()
    found: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in seen or (number and candidate in taken):
            number += 1
            candidate = f"{name}_{number}"
        seen.add(candidate)
        found.append(candidate)
    return found
