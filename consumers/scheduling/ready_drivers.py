"""The drivers that are ready, and the workers that wait for one of them.

Beside the workers that take whichever driver is next there are short workers. They take queries that have used next to
nothing, and those for one slice: a short query would otherwise wait for the end of a step wherever every worker is in a
long one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from headrace.consumers.scheduling.driver_task import DriverTask
from headrace.consumers.scheduling.multilevel_queue import LevelFigures, MultilevelQueue
from headrace.consumers.scheduling.unbounded_slots import UnboundedSlots


class ReadyDrivers:
    """Every method needs the lock that it was made with; `take` gives it up while it waits."""

    def __init__(self, lock: threading.Lock, unbounded_max: int) -> None:
        """`unbounded_max`: see UnboundedSlots."""
        self._queue: MultilevelQueue[DriverTask] = MultilevelQueue()
        self._unbounded: UnboundedSlots[DriverTask] = UnboundedSlots(unbounded_max)
        self._changed = threading.Condition(lock)
        self._short_changed = threading.Condition(lock)
        self._waiting = 0
        """Workers that wait for any driver."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def figures(self) -> Mapping[str, LevelFigures]:
        """See MultilevelQueue."""
        return self._queue.figures()

    def offer(self, task: DriverTask) -> None:
        """A driver is ready that was not."""
        self._add(task)
        self._call()

    def wake(self, task: DriverTask) -> None:
        """A driver is ready that was blocked behind its first step."""
        self._queue.wake(task)
        self._call()

    def put_back(self, task: DriverTask) -> None:
        """A driver wants another slice. Nobody is called: the worker that puts it back takes the next one."""
        self._add(task)
        self.stop_unbounded(task)

    def renews(self, task: DriverTask) -> bool:
        """Whether a driver that runs may have another slice at once: nobody else is ready."""
        return not task.unbounded and not len(self._queue)

    def renew(self, task: DriverTask) -> None:
        """Put a driver back, and take it again."""
        self._queue.offer(task)
        self._queue.poll()

    def charge(self, task: DriverTask, used_s: float) -> None:
        """See MultilevelQueue."""
        self._queue.charge(task, used_s)

    def remove(self, task: DriverTask) -> None:
        """See MultilevelQueue."""
        self._queue.remove(task)

    def take(self, wait_s: float, *, short: bool) -> DriverTask | None:
        """The driver that runs next; `short`: one whose query has used next to nothing. None: none within `wait_s`."""
        task = self._polled(short=short)
        if task is None and wait_s > 0 and not self._closed:
            if short:
                self._wait_short(wait_s)
            else:
                self._wait(wait_s)
            task = self._polled(short=short)
        if not short and not self._waiting and self._queue.has_short:
            # Several came before this worker was awake, and it was called for each of them.
            self._short_changed.notify()
        return task

    def stop_unbounded(self, task: DriverTask) -> None:
        """A worker is free of a driver; those that were held for the sake of others may be polled again."""
        for each in self._unbounded.free(task):
            # Aborted ones have left the queue.
            if self._queue.is_running(each):
                self.offer(each)

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        self._changed.notify_all()
        self._short_changed.notify_all()

    def _add(self, task: DriverTask) -> None:
        if task.unbounded:
            # A short worker inside what cannot stop would keep all short queries waiting.
            self._queue.mark_long(task)
        self._queue.offer(task)

    def _call(self) -> None:
        """Wake whoever may take the driver that has come."""
        self._changed.notify()
        if not self._waiting and self._queue.has_short:
            self._short_changed.notify()

    def _wait(self, wait_s: float) -> None:
        self._waiting += 1
        try:
            self._changed.wait(wait_s)
        finally:
            self._waiting -= 1

    def _wait_short(self, wait_s: float) -> None:
        if len(self._queue):
            # What a short worker has put back is for the others, and nobody has called one.
            self._changed.notify()
        self._short_changed.wait(wait_s)

    def _polled(self, *, short: bool) -> DriverTask | None:
        poll = self._queue.poll_short if short else self._queue.poll
        while (task := poll()) is not None:
            if self._unbounded.take(task):
                return task
        return None
