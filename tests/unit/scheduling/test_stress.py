"""Random submits, finishes, blocks, unblocks, aborts and timeouts from four threads: nothing leaks."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, DriverSpec, Step, Worker
from headrace.consumers.scheduling.driver_task import ScheduledQuery, Submission
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.scheduling_errors import QueryError, QueryUnknown, TooManyQueries
from headrace.consumers.scheduling.task_states import ENDED, TaskState
from tests.unit.scheduling.test_driver_scheduler import check_empty

THREADS = 4
OPERATIONS_QUICK = 8_000
OPERATIONS = 100_000
LIMITS = SchedulerLimits(
    workers=3,
    slice_s=0.000_1,
    capacity=CapacityLimits(drivers_max=100, queries_max=40, queries_per_user_max=15, drivers_per_query_max=6),
    memory_bytes=100,
    memory_per_query_bytes=60,
    short_workers=1,
)
END_S = 120.0


class RandomDriver:
    """Finishes, blocks or fails at random. Its futures are for others to complete."""

    def __init__(self, chance: random.Random, pending: SimpleQueue[Future[None]]) -> None:
        self._chance = chance
        self._pending = pending
        self._stepping = threading.Lock()
        self.closed = 0

    def step(self, slice_s: float, worker: Worker) -> Step:
        """See Driver."""
        assert self._stepping.acquire(blocking=False), "two steps at once"
        try:
            assert not self.closed, "a step behind the close"
            kind = self._chance.random()
            if kind < 0.5:
                return Again()
            if kind < 0.75:
                return Done()
            if kind < 0.97:
                future: Future[None] = Future()
                self._pending.put(future)
                return Blocked(future, self._chance.choice(list(BlockedOn)))
            raise OSError("a driver fails")
        finally:
            self._stepping.release()

    def running_cpu_s(self) -> float:
        """See Driver."""
        return 0.0

    def cancel(self) -> None:
        """See Driver."""

    def close(self) -> None:
        """See Driver."""
        assert self._stepping.acquire(blocking=False), "a close under a step"
        self.closed += 1
        self._stepping.release()


class Crowd:
    """Four threads of users over one scheduler."""

    def __init__(self, seed: int, operations: int) -> None:
        self.threads = SchedulerThreads(LIMITS)
        self.done = Counter[str]()
        self._seed = seed
        self._operations = operations
        self._pending: SimpleQueue[Future[None]] = SimpleQueue()
        self._lock = threading.Lock()
        self.queries: list[ScheduledQuery] = []
        self.drivers: list[RandomDriver] = []

    def run(self) -> None:
        """All operations, and then what ends every query."""
        with ThreadPoolExecutor(THREADS) as pool:
            for each in [pool.submit(self._user, number) for number in range(THREADS)]:
                each.result()
        while not all(query.wait(0.01) for query in list(self.queries)):
            self._complete(None)
            for query in self.queries:
                if self.threads.scheduler.figures().queries and not query.wait(0):
                    self.threads.scheduler.abort(query, QueryError("the end"))

    def _user(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        for count in range(self._operations // THREADS):
            kind = chance.choices(("submit", "complete", "kill", "fail", "expire", "extend"), (30, 50, 6, 8, 6, 15))[0]
            self.done[kind] += 1
            if kind == "submit":
                self._submit(chance, f"{number}/{count}")
            elif kind == "complete":
                self._complete(None)
            elif kind == "fail":
                self._complete(OSError("what it waited for is gone"))
            elif kind == "expire":
                self.threads.scheduler.expire()
            elif kind == "extend":
                self._extend(chance)
            else:
                self._kill(chance)

    def _submit(self, chance: random.Random, name: str) -> None:
        drivers = [RandomDriver(random.Random(chance.random()), self._pending) for _ in range(chance.randint(1, 6))]
        specs = [
            DriverSpec(driver, [chance.randrange(number)] if number and chance.random() < 0.3 else [], number == 1)
            for number, driver in enumerate(drivers)
        ]
        submission = Submission(
            name,
            specs,
            timeout_ms=chance.choice((1, 5, 50, 10**15)),
            memory_bytes=chance.choice((0, 10, 60)),
            user=chance.choice(("ann", "ben", "")),
            urgent=chance.random() < 0.1,
        )
        try:
            query = self.threads.scheduler.submit(submission)
        except TooManyQueries:
            self.done["refused"] += 1
            return
        with self._lock:
            self.queries.append(query)
            self.drivers += drivers

    def _extend(self, chance: random.Random) -> None:
        with self._lock:
            query = chance.choice(self.queries) if self.queries else None
        drivers = [RandomDriver(random.Random(chance.random()), self._pending) for _ in range(chance.randint(1, 3))]
        try:
            has_more = query is not None and self.threads.scheduler.extend(
                query.id, [DriverSpec(driver) for driver in drivers], chance.choice((10, 30, 60))
            )
        except QueryUnknown:
            return
        self.done["extended"] += has_more
        with self._lock:
            self.drivers += drivers if has_more else []

    def _complete(self, error: BaseException | None) -> None:
        while not self._pending.empty():
            try:
                future = self._pending.get(block=False)
            except Exception:
                return
            if error is not None:
                future.set_exception(error)
                return
            future.set_result(None)

    def _kill(self, chance: random.Random) -> None:
        reports = self.threads.scheduler.reports()
        if reports:
            try:
                self.threads.scheduler.kill(chance.choice(reports).id)
            except QueryUnknown:
                self.done["kill was late"] += 1


def check_crowd(operations: int) -> dict[str, Any]:
    """Run a crowd and check what is left."""
    crowd = Crowd(7, operations)
    try:
        crowd.run()
        check_empty(crowd.threads.scheduler)
        statistics, figures = crowd.threads.scheduler.statistics, crowd.threads.scheduler.figures()
        states = Counter(task.state for query in crowd.queries for task in query.tasks)
        assert states.keys() <= ENDED
        assert {1} == {driver.closed for driver in crowd.drivers}
        assert (states[TaskState.FINISHED], states[TaskState.ABORTED]) == (statistics.finished, statistics.aborted)
        assert len(crowd.drivers) == statistics.finished + statistics.aborted
        assert sum(query.error is not None for query in crowd.queries) == sum(statistics.aborts.values())
        # Every way to an end was taken.
        assert {"QueryTimeout", "QueryCancelled", "QueryFailed"} <= statistics.aborts.keys()
        assert any(query.error is None for query in crowd.queries)
        assert LIMITS.workers + LIMITS.short_workers == crowd.threads.workers
        return {**crowd.done, "queries": len(crowd.queries), "tasks": dict(figures.tasks), **statistics.aborts}
    finally:
        crowd.threads.close()


@pytest.mark.slow(6)
def test_nothing_leaks() -> None:
    """No reservation, task, deadline or byte is left, and each task has ended once."""
    check_crowd(OPERATIONS_QUICK)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_nothing_leaks_in_the_long_run() -> None:
    """The same with 10⁵ operations."""
    print(check_crowd(OPERATIONS))
