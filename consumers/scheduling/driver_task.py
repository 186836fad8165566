"""A submitted query, and its drivers as tasks of the scheduler.

The state of a task is guarded by its own lock; what a query has is guarded by the lock of the scheduler. A thread that
holds the lock of a task may take that of the scheduler, never the other way round, and never the lock of a second task.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from headrace.consumers.scheduling.driver import BlockedOn, Driver, DriverSpec
from headrace.consumers.scheduling.multilevel_queue import NS_PER_S, Usage, level_of
from headrace.consumers.scheduling.scheduling_errors import QueryError, QueryFailed
from headrace.consumers.scheduling.task_states import ENDED, TaskState, Transition, after

_log = structlog.get_logger(__name__)


class EndWatcher(Protocol):
    """Who wants to know that a query has ended."""

    @property
    def answered(self) -> bool:
        """Whether it has given its whole answer, and computes nothing any more before it ends."""
        ...

    def ended(self, error: QueryError | None) -> None:
        """It holds nothing any more. `error` is why it gave no answer. Called once, by any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """A query to run. It reserves `memory_bytes` before its drivers run. `urgent`: before all levels.

    `apart`: whoever submits it bounds the number of such queries, which no limit of the scheduler refuses.
    """

    id: str
    drivers: Sequence[DriverSpec]
    timeout_ms: int
    memory_bytes: int = 0
    sql: str = ""
    user: str = ""
    urgent: bool = False
    apart: bool = False
    watcher: EndWatcher | None = None


class DriverTask:
    """One driver and its state. `gates` are what it waits for while it is BLOCKED."""

    __slots__ = (
        *("query", "number", "driver", "unbounded", "lock", "state", "gates", "blocked_on", "since_s", "has_run"),
        *("dependents", "is_closing"),
    )

    def __init__(self, query: ScheduledQuery, number: int, spec: DriverSpec, now_s: float) -> None:
        self.query = query
        self.number = number
        self.driver: Driver = spec.driver
        self.unbounded = spec.unbounded
        self.lock = threading.Lock()
        self.state = TaskState.READY
        self.gates: set[Any] = set()
        self.blocked_on: BlockedOn | None = None
        self.since_s = now_s
        self.has_run = False
        self.dependents: list[DriverTask] = []
        self.is_closing = False

    @property
    def id(self) -> str:
        """The query and the number of the driver in it."""
        return f"{self.query.id}/{self.number}"

    @property
    def usage(self) -> Usage:
        """See QueuedTask: the time of the query."""
        return self.query.usage

    def block(self, gate: object, on: BlockedOn) -> None:
        """Wait for something more; the caller has the lock, or the only reference."""
        self.gates.add(gate)
        self.blocked_on = on

    def move(self, transition: Transition) -> bool:
        """Make a transition, if it is legal in the state of this moment. The caller has the lock."""
        following = after(self.state, transition)
        if following is None:
            return False
        self.state = following
        return True

    def condition(self, error: BaseException) -> QueryError:
        """The condition that an error of the driver is."""
        if isinstance(error, QueryError):
            return error
        _log.error("driver failed", query=self.query.id, driver=self.id, error=repr(error), exc_info=error)
        return QueryFailed("the query met a defect of the node", action="the log of the node has the details")

    def spent_s(self, now_s: float) -> float:
        """The time in the state that it leaves now. The caller has the lock."""
        spent_s, self.since_s = max(0.0, now_s - self.since_s), now_s
        return spent_s


class ScheduledQuery:
    """A query between its submission and its end. Any thread may read it and wait for it."""

    def __init__(self, submission: Submission, now_s: float, timeout_s_max: float) -> None:
        self.submission = submission
        self.id = submission.id
        self.usage = Usage(urgent=submission.urgent)
        self.deadline_s = now_s + min(submission.timeout_ms / 1_000, timeout_s_max)
        self.tasks = tuple(DriverTask(self, number, spec, now_s) for number, spec in enumerate(submission.drivers))
        self.cause: QueryError | None = None
        """Why it was aborted: the first cause."""
        self.memory: Future[None] | None = None
        """Done once it has the memory that it asked for while it ran."""
        self.open = set(self.tasks)
        """Tasks whose drivers are not closed yet."""
        self._ended = threading.Event()
        for task, spec in zip(self.tasks, submission.drivers, strict=True):
            for number in spec.needs:
                if not 0 <= number < task.number:
                    raise ValueError(f"driver {task.number} needs driver {number}, which is none before it")
                self.tasks[number].dependents.append(task)
                task.block(self.tasks[number], BlockedOn.DRIVER)

    def more(self, specs: Sequence[DriverSpec], now_s: float) -> list[DriverTask]:
        """Tasks of drivers that come later; they are the query's with `extend`. They need no others."""
        return [DriverTask(self, number, spec, now_s) for number, spec in enumerate(specs, len(self.tasks))]

    def extend(self, tasks: Sequence[DriverTask]) -> None:
        """Have more tasks. The caller has the lock of the scheduler."""
        self.tasks = (*self.tasks, *tasks)
        self.open.update(tasks)

    @property
    def error(self) -> QueryError | None:
        """Why it gave no answer; None while it runs, and when every driver has finished."""
        return self.cause if any(task.state is TaskState.ABORTED for task in self.tasks) else None

    @property
    def answered(self) -> bool:
        """See EndWatcher."""
        watcher = self.submission.watcher
        return watcher is not None and watcher.answered

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until its drivers are closed and what it held is free; whether that is so."""
        return self._ended.wait(timeout_s)

    def set_ended(self) -> None:
        """Its drivers are closed; for the scheduler."""
        try:
            if self.submission.watcher is not None:
                self.submission.watcher.ended(self.error)
        finally:
            self._ended.set()

    def report(self, memory_bytes: int) -> QueryReport:
        """What it does now. No lock is taken: each state is that of a moment."""
        states = Counter(task.state for task in self.tasks)
        live = [state for state in (TaskState.RUNNING, TaskState.READY, TaskState.BLOCKED) if states[state]]
        used_s = self.usage.used_ns / NS_PER_S
        # A step is charged at its end, and one that cannot stop may take minutes.
        used_s += sum(task.driver.running_cpu_s() for task in self.tasks if task.state is TaskState.RUNNING)
        blocked = [task.blocked_on for task in self.tasks if task.state is TaskState.BLOCKED and task.blocked_on]
        return QueryReport(
            self.id,
            self.submission.sql,
            self.submission.user,
            live[0] if live and self.cause is None else self._end_state(states),
            max(self.usage.level, level_of(used_s)),
            used_s,
            {state: states[state] for state in TaskState if state not in ENDED},
            memory_bytes,
            blocked[0] if blocked else None,
            self.answered,
        )

    def _end_state(self, states: Counter[TaskState]) -> TaskState:
        return TaskState.ABORTED if self.cause is not None or states[TaskState.ABORTED] else TaskState.FINISHED


@dataclass(frozen=True, slots=True)
class QueryReport:
    """A running query as operators see it. An aborted one is here until its last step has returned."""

    id: str
    sql: str
    user: str
    state: TaskState
    level: int
    cpu_seconds: float
    """With the steps that run."""
    drivers: dict[TaskState, int]
    memory_bytes: int
    blocked_on: BlockedOn | None
    answered: bool = False
