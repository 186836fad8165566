"""The threads on which threaded drivers work, kept for the next one, and their priority.

To start a thread takes part of a millisecond, far more while others compute. A thread whose work takes long lowers its
priority, so that the threads of short queries have a processor at once. No thread can raise it again without rights
that a node does not need, so such a thread ends behind its work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace.connectors.processor import lower_priority

IDLE_MAX = 16
"""Threads that wait for work."""
NICE_LONG = 10
"""What is added to the nice value of a thread whose work takes long: it gets a tenth of the time of another one.

It is not the most that there is: a thread holds the interpreter's lock now and then, and must come to its end.
"""
LONG_FROM_S = 0.03
"""The processor time from which on work takes long. To start another thread in the place of its own takes far less."""
_IDLE_NAME = "query-work"


class ThreadPriority:
    """The priority of the thread that makes it; used by that thread alone."""

    def __init__(self, lower: Callable[[int], None] | None = None) -> None:
        """`lower` adds to the nice value of the calling thread."""
        self.is_low = False
        self._lower = lower or lower_priority

    def lower(self) -> None:
        """Have the priority of work that takes long from now on."""
        if not self.is_low:
            self._lower(NICE_LONG)
            self.is_low = True

    def used(self, cpu_s: float) -> None:
        """Its work has used so much processor time."""
        if cpu_s >= LONG_FROM_S:
            self.lower()


class WorkThreads:
    """Runs work on threads of its own. Any thread may use it."""

    def __init__(self, idle_max: int = IDLE_MAX, lower: Callable[[int], None] | None = None) -> None:
        """See ThreadPriority for `lower`."""
        self._idle_max = idle_max
        self._lower = lower
        self._lock = threading.Lock()
        self._idle: list[_WorkThread] = []
        self._closed = False

    @property
    def idle(self) -> int:
        """Threads that wait for work."""
        with self._lock:
            return len(self._idle)

    def run(self, work: Callable[[ThreadPriority], None], name: str) -> None:
        """Run work on a thread that is called `name` meanwhile. It raises nothing."""
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _WorkThread(self, self._lower)
            thread.start()
        thread.work.put((work, name))

    def keeps(self, thread: _WorkThread) -> bool:
        """Whether a thread that has done its work waits for more."""
        with self._lock:
            if self._closed or thread.priority.is_low or len(self._idle) >= self._idle_max:
                return False
            self._idle.append(thread)
            return True

    def close(self) -> None:
        """End the threads that wait, and others behind their work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.work.put(None)
        for thread in idle:
            thread.join()


class _WorkThread(threading.Thread):
    def __init__(self, threads: WorkThreads, lower: Callable[[int], None] | None) -> None:
        super().__init__(name=_IDLE_NAME, daemon=True)
        self.work: SimpleQueue[tuple[Callable[[ThreadPriority], None], str] | None] = SimpleQueue()
        self.priority = ThreadPriority(lower)
        self._threads = threads

    def run(self) -> None:
        """See threading.Thread."""
        while (given := self.work.get()) is not None:
            work, self.name = given
            work(self.priority)
            self.name = _IDLE_NAME
            # It must not keep the query while it waits.
            del given, work
            if not self._threads.keeps(self):
                return
