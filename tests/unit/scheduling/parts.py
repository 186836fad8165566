"""Tasks, drivers and clocks for tests of the scheduler."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, Driver, DriverSpec, Step, Worker
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.driver_task import DriverTask, Submission
from headrace.consumers.scheduling.multilevel_queue import THRESHOLDS_S, MultilevelQueue, Usage
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.work_threads import ThreadPriority


@dataclass(eq=False)
class Task:
    """A driver of the queue's tests; drivers of one query share its usage."""

    name: str = ""
    usage: Usage = field(default_factory=Usage)

    def __repr__(self) -> str:
        return self.name or object.__repr__(self)


def task_at(used_s: float, name: str = "", thresholds_s: Sequence[int] = THRESHOLDS_S) -> Task:
    """A driver whose query has used some time in a queue of its own, so that no level of another one is charged."""
    task = Task(name)
    MultilevelQueue[Task](thresholds_s).charge(task, used_s)
    task.usage.level_ns = 0
    return task


@dataclass
class VirtualClock:
    """A virtual clock, which a test moves."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedDriver:
    """Returns the steps of a script, then Done; a function in it is called for its step, an error is raised."""

    def __init__(self, steps: Iterable[Step | BaseException | Callable[[], Step]] = ()) -> None:
        self.steps = deque(steps)
        self.taken = 0
        self.cancelled = 0
        self.closed = 0

    def step(self, slice_s: float, worker: Worker) -> Step:
        """See Driver."""
        assert not self.closed, "a step behind the close"
        self.taken += 1
        following = self.steps.popleft() if self.steps else Done()
        if isinstance(following, BaseException):
            raise following
        return following() if callable(following) else following

    def running_cpu_s(self) -> float:
        """See Driver."""
        return 0.0

    def cancel(self) -> None:
        """See Driver."""
        self.cancelled += 1

    def close(self) -> None:
        """See Driver."""
        self.closed += 1


class Steps:
    """The worker of a driver, on a thread of its own for each step. `lower` is that of ThreadPriority."""

    def __init__(
        self,
        driver: Driver,
        next_slice_s: Callable[[float], float | None] = lambda _cpu_s: None,
        lower: Callable[[int], None] = lambda _more: None,
    ) -> None:
        self._driver = driver
        self._next_slice_s = next_slice_s
        self._lower = lower
        self.inner = 0
        """Steps that ended within their slices."""
        self.gave_way_s = list[float]()

    def _note(self) -> None:
        self.inner += 1

    def step(self, slice_s: float) -> Step:
        """One step, to its end or until another thread would be the worker. Raises what it raises."""
        found: SimpleQueue[Step | BaseException] = SimpleQueue()

        def run() -> None:
            worker = _StepWorker(
                ThreadPriority(self._lower), self._next_slice_s, found.put, self._note, self.gave_way_s.append
            )
            try:
                found.put(self._driver.step(slice_s, worker))
            except BaseException as error:
                found.put(error)

        threading.Thread(target=run, name="step").start()
        step = found.get(timeout=60)
        if isinstance(step, BaseException):
            raise step
        return step

    def close(self) -> None:
        """Close the driver."""
        self._driver.close()


@dataclass
class _StepWorker:
    """See Worker."""

    priority: ThreadPriority
    next_slice_s: Callable[[float], float | None]
    hand_over: Callable[[Step], None]
    end_step: Callable[[], None]
    gave_way: Callable[[float], None] = lambda _seconds: None


NO_WORKER: Worker = _StepWorker(
    ThreadPriority(lambda _more: None), lambda _cpu_s: None, lambda _step: None, lambda: None
)
"""For drivers that need none."""


class Bench:
    """A scheduler without threads: what is deferred waits for `settle`."""

    def __init__(self, limits: SchedulerLimits | None = None) -> None:
        self.clock = VirtualClock()
        self.deferred: deque[Callable[[], None]] = deque()
        self.scheduler = DriverScheduler(limits or SchedulerLimits(), self.deferred.append, self.clock)
        self._queries = 0

    def submit(self, *drivers: ScriptedDriver | DriverSpec, timeout_ms: int = 60_000, **options: Any) -> Any:
        """Submit a query of some drivers."""
        self._queries += 1
        specs = [each if isinstance(each, DriverSpec) else DriverSpec(each) for each in drivers]
        name = options.pop("id", f"q{self._queries}")
        return self.scheduler.submit(Submission(name, specs, timeout_ms, **options))

    def settle(self) -> None:
        """Run what is deferred, also what that defers."""
        while self.deferred:
            self.deferred.popleft()()

    def turn(self, used_s: float = 0.001) -> DriverTask | None:
        """One step of the driver that runs next, which uses some time."""
        task = self.scheduler.take(0)
        if task is None:
            return None
        try:
            step = task.driver.step(self.scheduler.slice_s(task), NO_WORKER)
        except Exception as error:
            self.scheduler.fail(task, error)
        else:
            self.clock.now_s += used_s
            self.scheduler.give_back(task, step, used_s, [used_s])
        return task

    def run(self) -> None:
        """Turns until nothing is ready."""
        self.settle()
        while self.turn() is not None:
            self.settle()


def blocked(on: BlockedOn = BlockedOn.REMOTE) -> tuple[Blocked, Future[None]]:
    """A step that blocks, and what it waits for."""
    future: Future[None] = Future()
    return Blocked(future, on), future


def again(count: int) -> list[Step]:
    """Steps that want another one."""
    return [Again()] * count
