"""A driver whose work is one call that cannot be divided into steps.

DuckDB runs a statement to its end. But it calls our functions on the way, and a function may wait. The work calls
`Turn.pause` wherever it can wait; behind the end of its slice that returns only with the next step. So at most as many
threads compute as there are workers.

The work begins on the thread of the worker that takes its first step, so that a short query wakes no other thread.
Where it has to wait it keeps that thread, and another one is the worker from then on (as Go hands a P over when its M
blocks). A worker that takes a later step waits for the thread that has the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from headrace.connectors.processor import processor_time, yield_processor
from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, Step, Worker
from headrace.consumers.scheduling.scheduling_errors import QueryCancelled

YIELD_INTERVAL_S = 0.001
"""How long work computes until its next pause also lets threads that are ready have its processor."""


class Turn:
    """What the work knows of the scheduler. Used by the thread of the work alone."""

    def __init__(self, driver: ThreadedDriver, worker: Worker, slice_s: float) -> None:
        self.has_worker = True
        """Whether its thread is that of the worker, as it is in the first step."""
        self._driver = driver
        self._yielded_s = driver.clock_s()
        self._ends_s = self._yielded_s + slice_s
        self._cpu_began_s = self._cpu_first_s = driver.cpu_s()
        self._driver.computing = (threading.get_native_id(), self._cpu_began_s)
        self._priority = worker.priority
        self._unbounded = False
        self._bounded_at_pause = False

    def pause(self) -> None:
        """Go on within the slice; wait for the next one behind it. Raises QueryCancelled behind `cancel`."""
        driver = self._driver
        if driver.cancelled:
            raise QueryCancelled("the query was cancelled before its end")
        if self._bounded_at_pause:
            self._bounded_at_pause = False
            self._give_back(Again(self.used_s(), unbounded=False))
        elif self._yielded(driver.clock_s()) < self._ends_s:
            assert driver.worker is not None
            driver.worker.end_step()
        elif not self._renewed():
            self._give_back(Again(self.used_s()))

    def _yielded(self, now_s: float) -> float:
        """The time, behind threads that were ready: now and then, the event loop's among them."""
        if now_s - self._yielded_s < YIELD_INTERVAL_S:
            return now_s
        yield_processor()
        self._yielded_s = self._driver.clock_s()
        assert self._driver.worker is not None
        self._driver.worker.gave_way(self._yielded_s - now_s)
        return self._yielded_s

    def block(self, future: Future[Any], on: BlockedOn, keeps_bytes: int | None = None) -> None:
        """Wait for a future without a worker; see Blocked. Raises QueryCancelled behind `cancel`."""
        self._give_back(Blocked(future, on, self.used_s(), keeps_bytes))

    @contextmanager
    def outside(self, on: BlockedOn) -> Iterator[None]:
        """Without a worker inside: for a wait that is no future. Behind it comes the next step. Nothing inside is charged.

        Raises QueryCancelled behind `cancel`.
        """
        future = Future[None]()
        self._end_step(Blocked(future, on, self.used_s()))
        try:
            yield
        finally:
            future.set_result(None)
            self._begin_step()

    def set_unbounded_once(self) -> None:
        """The work does what cannot stop until its next pause, such as to bind a long statement: wait for a turn."""
        if not self._unbounded and not self._bounded_at_pause:
            self._bounded_at_pause = True
            self._give_back(Again(self.used_s(), unbounded=True))

    def set_unbounded(self) -> None:
        """From now on the work may do what cannot stop, such as a sort: wait for a turn as such. Once is enough."""
        if not self._unbounded:
            self._unbounded, self._bounded_at_pause = True, False
            # What cannot stop lets others pass in another way.
            self._priority.lower()
            self._give_back(Again(self.used_s(), unbounded=True))

    def _end_step(self, step: Step) -> None:
        """This thread computes no more until its next step."""
        driver = self._driver
        driver.computing = None
        if not self.has_worker:
            driver.steps.put(step)
            return
        worker, driver.worker = driver.worker, None
        assert worker is not None
        worker.hand_over(step)
        self.has_worker = False

    def _begin_step(self) -> None:
        """Wait for the next step."""
        ends_s = self._driver.turns.get()
        if ends_s is None:
            raise QueryCancelled("the query was cancelled before its end")
        self._begin_until(ends_s)

    def _begin_until(self, ends_s: float) -> None:
        self._ends_s = ends_s
        self._cpu_began_s = self._driver.cpu_s()
        self._driver.computing = (threading.get_native_id(), self._cpu_began_s)
        self._priority.used(self._cpu_began_s - self._cpu_first_s)

    def _renewed(self) -> bool:
        """Whether the next slice has begun at once."""
        # To give the worker back and to get it again means to wake two threads, which takes half a slice.
        worker, now_s = self._driver.worker, self._driver.clock_s()
        slice_s = None if worker is None else worker.next_slice_s(self.used_s())
        if slice_s is None:
            return False
        self._begin_until(now_s + slice_s)
        return True

    def used_s(self) -> float:
        """The processor time of this step so far."""
        return max(0.0, self._driver.cpu_s() - self._cpu_began_s)

    def _give_back(self, step: Step) -> None:
        self._end_step(step)
        self._begin_step()


class ThreadedDriver:
    """See Driver. `work` runs once, from the first step on; `interrupt` ends what it does between two pauses."""

    def __init__(
        self,
        work: Callable[[Turn], None],
        interrupt: Callable[[], None],
        clock_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`interrupt` may be called by any thread, also when nothing runs."""
        self.clock_s = clock_s
        self.cpu_s = cpu_s
        self.cancelled = False
        self.worker: Worker | None = None
        """That of the step that runs."""
        self.computing: tuple[int, float] | None = None
        """The native id of the thread that computes, and its processor time as the step began; None between steps."""
        self.turns: SimpleQueue[float | None] = SimpleQueue()
        self.steps: SimpleQueue[Step | BaseException] = SimpleQueue()
        self._work = work
        self._interrupt = interrupt
        self._begun = False
        self._ended = threading.Event()

    def step(self, slice_s: float, worker: Worker) -> Step:
        """See Driver: the work runs until it pauses behind the slice, blocks, or ends."""
        self.worker = worker
        if not self._begun:
            self._begun = True
            return self._run(Turn(self, worker, slice_s))
        self.turns.put(self.clock_s() + slice_s)
        return self._returned(self.steps.get())

    def running_cpu_s(self) -> float:
        """See Driver."""
        computing = self.computing
        if computing is None:
            return 0.0
        native_id, began_s = computing
        return max(0.0, processor_time(native_id).ran_s - began_s)

    def cancel(self) -> None:
        """See Driver."""
        self.cancelled = True
        self._interrupt()

    def close(self) -> None:
        """See Driver. Waits until the work has ended."""
        if not self._begun:
            return
        try:
            if not self._ended.is_set():
                self.turns.put(None)
                self.cancel()
        finally:
            self._ended.wait()

    def _run(self, turn: Turn) -> Step:
        """The work to its end, on this thread: the step in which it began, if that is also its last one."""
        step: Step | BaseException
        try:
            self._work(turn)
            step = Done(turn.used_s())
        except BaseException as error:
            step = error
        self.computing = None
        # First: whoever has the last step finds that the work has ended.
        self._ended.set()
        if turn.has_worker:
            return self._returned(step)
        self.steps.put(step)
        return Done()

    def _returned(self, step: Step | BaseException) -> Step:
        # It leads back to the driver, and only a collection would end both.
        self.worker = None
        if isinstance(step, BaseException):
            raise step
        return step
