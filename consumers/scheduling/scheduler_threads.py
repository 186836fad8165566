"""The threads of a driver scheduler: its workers, the sentinel of its timeouts, and those that wake drivers.

The number of workers is fixed. One that dies is replaced, and the query of its driver is aborted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import structlog

from headrace.consumers.scheduling.driver import Again, Step
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.driver_task import DriverTask
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.task_states import TaskState

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
        self._lock = threading.Lock()
        self._wakers = ThreadPoolExecutor(WAKE_THREADS, thread_name_prefix="query-wake")
        self._workers: dict[int, threading.Thread] = {}
        for number in range(limits.workers):
            self._start_worker(number)
        self._sentinel = threading.Thread(target=self._watch, name="query-sentinel", daemon=True)
        self._sentinel.start()

    @property
    def workers(self) -> int:
        """Workers that live."""
        with self._lock:
            return sum(thread.is_alive() for thread in self._workers.values())

    def close(self) -> None:
        """Abort every query, and wait until all threads have ended."""
        self._closing.set()
        self.scheduler.close()
        # Again: a worker that died has just been replaced, perhaps.
        while self.workers:
            with self._lock:
                workers = list(self._workers.values())
            for worker in workers:
                worker.join()
        self._sentinel.join()
        self._wakers.shutdown()

    def _defer(self, call: Callable[[], None]) -> None:
        # A future may be completed long after the close, by a thread that must not see an error of ours.
        with suppress(RuntimeError):
            self._wakers.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            _log.error("query thread failed", error=repr(error), exc_info=error)

    def _start_worker(self, number: int, dead: threading.Thread | None = None) -> None:
        thread = threading.Thread(target=self._work, args=(number, dead), name=f"query-worker-{number}", daemon=True)
        # Started under the lock: `close` waits for every thread that it finds.
        with self._lock:
            self._workers[number] = thread
            thread.start()

    def _work(self, number: int, dead: threading.Thread | None = None) -> None:
        if dead is not None:
            dead.join()
        try:
            while not self._closing.is_set():
                task = self.scheduler.take(IDLE_WAIT_S)
                if task is not None:
                    self._run(task)
        except BaseException as error:
            _log.error("query worker died and is replaced", worker=number, error=repr(error), exc_info=error)
            if not self._closing.wait(REPLACE_PAUSE_S):
                self._start_worker(number, threading.current_thread())

    def _run(self, task: DriverTask) -> None:
        """One slice of a driver."""
        thread = threading.current_thread()
        idle_name, thread.name = thread.name, f"query {task.id}"
        steps_s: list[float] = []
        try:
            with structlog.contextvars.bound_contextvars(query=task.query.id, driver=task.id):
                step, used_s = self._slice(task, steps_s)
                self.scheduler.give_back(task, step, used_s, steps_s)
        except BaseException as error:
            self.scheduler.fail(task, error)
            # What is no Exception is meant for the thread.
            if not isinstance(error, Exception):
                raise
        finally:
            thread.name = idle_name

    def _slice(self, task: DriverTask, steps_s: list[float]) -> tuple[Step, float]:
        """Steps until the slice is over: by wall time, and charged by processor time."""
        slices = _Slices(self.scheduler, task, self._clock_s)
        slice_s, cpu_began_s, elsewhere_s = self.scheduler.slice_s(task), self._cpu_s(), 0.0
        while True:
            step = task.driver.step(slice_s - (slices.step_began_s - slices.began_s), slices)
            now_s = self._clock_s()
            steps_s.append(now_s - slices.step_began_s)
            elsewhere_s += step.cpu_s or 0.0
            slices.step_began_s = now_s
            # Whether a driver may run that cannot stop is the scheduler's decision, also within a slice.
            may_go_on = isinstance(step, Again) and step.unbounded is None and task.state is TaskState.RUNNING
            if not may_go_on or now_s - slices.began_s >= slice_s:
                return step, self._cpu_s() - cpu_began_s + elsewhere_s

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self.scheduler.expire()
                self.scheduler.wait_for_deadline()
            except Exception as error:
                _log.error("query sentinel failed", error=repr(error), exc_info=error)
                self._closing.wait(REPLACE_PAUSE_S)


class _Slices:
    """See Renewal: the slices of one driver from the moment at which a worker has it."""

    def __init__(self, scheduler: DriverScheduler, task: DriverTask, clock_s: Callable[[], float]) -> None:
        self.began_s = self.step_began_s = clock_s()
        self._scheduler = scheduler
        self._task = task
        self._clock_s = clock_s

    def next_slice_s(self, cpu_s: float) -> float | None:
        """See Renewal."""
        now_s = self._clock_s()
        slice_s = self._scheduler.renew(self._task, cpu_s, now_s - self.step_began_s)
        if slice_s is not None:
            self.began_s = self.step_began_s = now_s
        return slice_s
