"""The timer of a query, which ends what it does, and the thread that looks at all timers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.consumers.query.table_source import ReadTimer

INTERRUPT_AGAIN_S = 0.05
IDLE_WAIT_S = 60.0


class QueryTimer:
    """Interrupts what a query does when its time is over, or when it is cancelled."""

    def __init__(self, interrupter: Interrupter, timeout_ms: int) -> None:
        """Begins; `finish` ends it."""
        self.timeout_ms = timeout_ms
        self.awaited = dict[str, str]()
        self.ends_s = time.monotonic() + timeout_ms / 1000
        self._ends: list[Callable[[], None]] = []
        self._interrupter = interrupter
        self._lock = threading.Lock()
        self._cancelled = False
        interrupter.watch(self)

    @property
    def expired(self) -> bool:
        """True once the time is over."""
        return time.monotonic() >= self.ends_s

    @property
    def left_s(self) -> float:
        """Seconds left, 0 at least. None are left of a cancelled query."""
        if self._cancelled:
            return 0.0
        return max(0.0, self.ends_s - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the query was cancelled."""
        return self._cancelled

    def cancel(self) -> None:
        """End the query at its next interrupt; any thread."""
        self._cancelled = True
        self._interrupter.hurry()

    def interrupt(self) -> None:
        """End what the query does now: its statement, and what `interrupts` has added."""
        with self._lock:
            for end in self._ends:
                end()

    @contextmanager
    def interrupts(self, end: Callable[[], None]) -> Iterator[None]:
        """While this is open, `end` is called again and again from the end of the query's time on; any thread.

        `end` must not wait for anything.
        """
        with self._lock:
            self._ends.append(end)
        try:
            yield
        finally:
            # Under the lock: no call comes any more when this returns.
            with self._lock:
                self._ends.remove(end)

    def finish(self) -> None:
        """Stop. No interrupt happens after this returns."""
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


class ShortTimer:
    """See ReadTimer: the timer of a query that waits for `wait_s` at most."""

    def __init__(self, timer: ReadTimer, wait_s: float) -> None:
        self.timeout_ms = timer.timeout_ms
        self.awaited = timer.awaited
        self.interrupts = timer.interrupts
        self._timer = timer
        self._wait_s = wait_s

    @property
    def left_s(self) -> float:
        """The seconds to wait."""
        return min(self._wait_s, self._timer.left_s)

    @property
    def expired(self) -> bool:
        """That of the query."""
        return self._timer.expired

    @property
    def cancelled(self) -> bool:
        """That of the query."""
        return self._timer.cancelled
