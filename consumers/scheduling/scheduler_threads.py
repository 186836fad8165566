"""The threads of a driver scheduler: its workers, the sentinel of its timeouts, and those that wake drivers.

The number of workers is fixed; which threads they are changes. One that has to wait in the middle of a step is
replaced, and so is one that dies or whose priority was lowered. The query of one that dies is aborted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import structlog

from headrace.consumers.scheduling.driver import Again, Step
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.driver_task import DriverTask
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.work_threads import ThreadPriority, WorkThreads

WAKE_THREADS = 16
"""Most are for closes of drivers whose work waits for something that no interrupt ends."""
IDLE_WAIT_S = 5.0
REPLACE_PAUSE_S = 0.1
"""Before a worker that died is replaced: an error at every start does not become a storm of threads."""
_log = structlog.get_logger(__name__)


class SchedulerThreads:
    """A scheduler with its threads, from the construction to `close`."""

    def __init__(
        self,
        limits: SchedulerLimits,
        clock_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`cpu_s` is the processor time of the thread that calls it."""
        self.scheduler = DriverScheduler(limits, self._defer, clock_s)
        self._clock_s = clock_s
        self._cpu_s = cpu_s
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._wakers = ThreadPoolExecutor(WAKE_THREADS, thread_name_prefix="query-wake")
        self._threads = WorkThreads()
        self._workers = set(range(limits.workers + limits.short_workers))
        for number in sorted(self._workers):
            self._begin_worker(number)
        self._sentinel = threading.Thread(target=self._watch, name="query-sentinel", daemon=True)
        self._sentinel.start()

    @property
    def workers(self) -> int:
        """Workers that have not ended, short ones among them."""
        with self._changed:
            return len(self._workers)

    def close(self) -> None:
        """Abort every query, and wait until all workers have ended."""
        self._closing.set()
        self.scheduler.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._workers)
        self._sentinel.join()
        self._wakers.shutdown()
        self._threads.close()

    def _defer(self, call: Callable[[], None]) -> None:
        # A future may be completed long after the close, by a thread that must not see an error of ours.
        with suppress(RuntimeError):
            self._wakers.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            _log.error("query thread failed", error=repr(error), exc_info=error)

    def _begin_worker(self, number: int, ended: _EndedStep | None = None) -> None:
        """Let another thread be a worker, from the end of a step on. Raises RuntimeError where there can be none."""
        left = [] if ended is None else [ended]
        self._threads.run(partial(self._work, number, left), f"query-worker-{number}")

    def _work(self, number: int, left: list[_EndedStep], priority: ThreadPriority) -> None:
        """Be a worker, until the close or until another thread is. Takes what the one before has left."""
        try:
            # Not held: this may be the worker for days, and a driver has all that its query has.
            while left:
                self._give_back(left.pop())
            while not self._closing.is_set():
                task = self.scheduler.take(IDLE_WAIT_S, short=self._is_short(number))
                if task is not None and not self._run(number, task, priority):
                    return
                if priority.is_low:
                    # It cannot be raised again, and the next query may be a short one.
                    self._begin_worker(number)
                    return
        except BaseException as error:
            _log.error("query worker died and is replaced", worker=number, error=repr(error), exc_info=error)
            if self._is_replaced(number):
                return
        with self._changed:
            self._workers.remove(number)
            self._changed.notify_all()

    def _is_short(self, number: int) -> bool:
        """Whether a worker is a short one, see ReadyDrivers."""
        return number >= self.scheduler.limits.workers

    def _give_back(self, ended: _EndedStep) -> None:
        with self._serving(ended.task):
            self.scheduler.give_back(*ended)

    def _is_replaced(self, number: int) -> bool:
        """Whether another thread is the worker; False behind the close."""
        while not self._closing.wait(REPLACE_PAUSE_S):
            # The process may have no room for another thread at this moment.
            with suppress(RuntimeError):
                self._begin_worker(number)
                return True
        return False

    def _run(self, number: int, task: DriverTask, priority: ThreadPriority) -> bool:
        """One slice of a driver; whether this thread is a worker still."""
        begin_worker, renews = partial(self._begin_worker, number), not self._is_short(number)
        slices = _Slices(self.scheduler, task, priority, begin_worker, self._clock_s, renews=renews)
        with self._serving(task):
            step = self._slice(slices)
            if not slices.handed_over:
                self.scheduler.give_back(*slices.ended(step))
        return not slices.handed_over

    @contextmanager
    def _serving(self, task: DriverTask) -> Iterator[None]:
        """The thread and its lines in the log have the names of query and driver. An error ends the query."""
        thread = threading.current_thread()
        idle_name, thread.name = thread.name, f"query {task.id}"
        # Not `bound_contextvars`, which looks at every variable of the context.
        tokens = structlog.contextvars.bind_contextvars(query=task.query.id, driver=task.id)
        try:
            yield
        except BaseException as error:
            self.scheduler.fail(task, error)
            # What is no Exception is meant for the thread.
            if not isinstance(error, Exception):
                raise
        finally:
            structlog.contextvars.reset_contextvars(**tokens)
            thread.name = idle_name

    def _slice(self, slices: _Slices) -> Step:
        """Steps until the slice is over: by wall time, and charged by processor time."""
        task, slice_s = slices.task, self.scheduler.slice_s(slices.task)
        while True:
            cpu_began_s = self._cpu_s()
            step = task.driver.step(slice_s - slices.passed_s, slices)
            if slices.handed_over:
                return step
            slices.end_step()
            slices.used_s += self._cpu_s() - cpu_began_s if step.cpu_s is None else step.cpu_s
            # Whether a driver may run that cannot stop is the scheduler's decision, also within a slice.
            may_go_on = isinstance(step, Again) and step.unbounded is None and task.state is TaskState.RUNNING
            if not may_go_on or slices.passed_s >= slice_s:
                return step

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self.scheduler.expire()
                self.scheduler.wait_for_deadline()
            except Exception as error:
                _log.error("query sentinel failed", error=repr(error), exc_info=error)
                self._closing.wait(REPLACE_PAUSE_S)


class _EndedStep(NamedTuple):
    """What a driver is given back with, see `DriverScheduler.give_back`."""

    task: DriverTask
    step: Step
    used_s: float
    steps_s: Sequence[float]


class _Slices:
    """See Worker: the slices of one driver from the moment at which a worker has it."""

    def __init__(
        self,
        scheduler: DriverScheduler,
        task: DriverTask,
        priority: ThreadPriority,
        begin_worker: Callable[[_EndedStep], None],
        clock_s: Callable[[], float],
        *,
        renews: bool,
    ) -> None:
        """`renews`: whether the driver may have more than one."""
        self.task = task
        self.priority = priority
        self.used_s = 0.0
        """The processor time of the steps that have ended, since the last renewal."""
        self.handed_over = False
        """Whether another thread is the worker. The task of the driver is its business since then."""
        self._scheduler = scheduler
        self._begin_worker = begin_worker
        self._clock_s = clock_s
        self._renews = renews
        self._began_s = self._step_began_s = clock_s()
        self._steps_s: list[float] = []

    @property
    def passed_s(self) -> float:
        """The time of this slice, up to the end of its last step."""
        return self._step_began_s - self._began_s

    def end_step(self) -> None:
        """See Worker."""
        now_s = self._clock_s()
        self._steps_s.append(now_s - self._step_began_s)
        self._step_began_s = now_s

    def gave_way(self, seconds: float) -> None:
        """See Worker."""
        self._step_began_s += seconds

    def ended(self, step: Step) -> _EndedStep:
        """What its driver is given back with, behind its last step."""
        return _EndedStep(self.task, step, self.used_s, self._steps_s)

    def next_slice_s(self, cpu_s: float) -> float | None:
        """See Worker."""
        if not self._renews:
            return None
        now_s = self._clock_s()
        slice_s = self._scheduler.renew(self.task, cpu_s, [*self._steps_s, now_s - self._step_began_s])
        if slice_s is not None:
            self._began_s = self._step_began_s = now_s
            self._steps_s = []
        return slice_s

    def hand_over(self, step: Step) -> None:
        """See Worker."""
        self.end_step()
        self.used_s += step.cpu_s or 0.0
        self._begin_worker(self.ended(step))
        self.handed_over = True
