"""Workers, sentinel and wake threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, DriverSpec, Step, Worker
from headrace.consumers.scheduling.driver_task import DriverTask, ScheduledQuery, Submission
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.scheduling_errors import QueryCancelled, QueryFailed, QueryTimeout
from headrace.consumers.scheduling.task_states import TaskState
from tests.unit.scheduling.parts import ScriptedDriver, VirtualClock, again, blocked
from tests.unit.scheduling.test_driver_scheduler import check_empty
from tests.waiting import eventually

LONG_MS = 600_000
WAIT_S = 60.0


@pytest.fixture
def threads() -> Iterator[SchedulerThreads]:
    """A scheduler with two workers, which holds nothing at the end."""
    before = set(threading.enumerate())
    threads = SchedulerThreads(SchedulerLimits(workers=2))
    try:
        yield threads
        eventually(lambda: threads.scheduler.figures().queries == 0, "no query")
        check_empty(threads.scheduler)
    finally:
        threads.close()
    new = set(threading.enumerate()) - before
    assert [] == [each.name for each in new if each.name.startswith("query")]


def submit(threads: SchedulerThreads, *drivers: Any, name: str = "q", timeout_ms: int = LONG_MS) -> ScheduledQuery:
    """Submit a query of some drivers."""
    return threads.scheduler.submit(Submission(name, [DriverSpec(driver) for driver in drivers], timeout_ms))


def test_drivers_run_on_workers_to_their_end(threads: SchedulerThreads) -> None:
    """Each step happens once, and every driver is closed before the query has ended."""
    drivers = [ScriptedDriver(again(50)) for _ in range(8)]
    query = submit(threads, *drivers)
    assert query.wait(WAIT_S)
    assert [(51, 1)] * 8 == [(driver.taken, driver.closed) for driver in drivers]
    assert query.usage.used_ns > 0


def test_a_query_names_its_thread_and_its_log(threads: SchedulerThreads) -> None:
    """While a driver runs, its thread has the id of query and driver, and so have its lines in the log."""
    found: list[Any] = []

    def look() -> Step:
        found.append((threading.current_thread().name, structlog.contextvars.get_contextvars()))
        return Done()

    assert submit(threads, ScriptedDriver(), ScriptedDriver([look]), name="q7").wait(WAIT_S)
    assert [("query q7/1", {"query": "q7", "driver": "q7/1"})] == found


def test_a_future_wakes_its_driver_on_another_thread(threads: SchedulerThreads) -> None:
    """Whoever completes it runs nothing of the scheduler."""
    step, future = blocked()
    woken = threading.Event()
    query = submit(threads, ScriptedDriver([step, lambda: woken.set() or Done()]))  # type: ignore[func-returns-value]
    eventually(lambda: threads.scheduler.figures().tasks[TaskState.BLOCKED] == 1, "a blocked driver")
    opened = threads.scheduler._open
    waker = list[str]()

    def noting(task: DriverTask, gate: object) -> None:
        waker.append(threading.current_thread().name)
        opened(task, gate)

    threads.scheduler._open = noting  # type: ignore[method-assign]
    future.set_result(None)
    assert woken.wait(WAIT_S)
    assert query.wait(WAIT_S)
    assert [True] == [name.startswith("query-wake") for name in waker]


def test_work_that_cannot_stop_waits_for_its_turn_within_a_slice_too() -> None:
    """Of two workers one at most is inside such work, however long the slice is that it began in."""
    threads = SchedulerThreads(SchedulerLimits(workers=2, slice_s=3_600.0))
    both_ready, inside, most = threading.Barrier(2), list[int](), list[int]()

    def ready() -> Step:
        both_ready.wait(WAIT_S)
        return Again(unbounded=True)

    def sort() -> Step:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        return Done()

    try:
        queries = [submit(threads, ScriptedDriver([ready, sort]), name=name) for name in ("a", "b")]
        assert all(query.wait(WAIT_S) for query in queries)
        assert [1, 1] == most
    finally:
        threads.close()


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_a_worker_that_dies_is_replaced(threads: SchedulerThreads, error: BaseException) -> None:
    """Its query is aborted, the others are run, and there are as many workers as before."""
    dead = [submit(threads, ScriptedDriver([error]), name=f"dead {number}") for number in range(3)]
    for query in dead:
        assert query.wait(WAIT_S)
        assert isinstance(query.error, QueryFailed)
    later = submit(threads, ScriptedDriver(again(3)))
    assert later.wait(WAIT_S)
    assert later.error is None
    eventually(lambda: threads.workers == 2, "two workers")


def test_a_defect_of_the_scheduler_ends_its_query_only(threads: SchedulerThreads) -> None:
    """An error behind a step is that of the query whose step it was."""
    give_back = threads.scheduler.give_back

    def broken(task: DriverTask, step: Step, used_s: float, steps_s: Sequence[float] = ()) -> None:
        if task.query.id == "broken":
            raise RuntimeError("a defect")
        give_back(task, step, used_s, steps_s)

    threads.scheduler.give_back = broken  # type: ignore[method-assign]
    with capture_logs() as lines:
        query = submit(threads, ScriptedDriver(again(5)), ScriptedDriver(again(5)), name="broken")
        assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryFailed)
    assert "broken" in {line["query"] for line in lines}
    assert submit(threads, ScriptedDriver()).wait(WAIT_S)


def test_the_sentinel_ends_a_query_whose_time_is_over(threads: SchedulerThreads) -> None:
    """Also beside one with a deadline of 10¹² s, for which no thread sleeps."""
    far_step, far_future = blocked()
    far = submit(threads, ScriptedDriver([far_step]), name="far", timeout_ms=10**15)
    step, _future = blocked()
    near = submit(threads, ScriptedDriver([step]), name="near", timeout_ms=30)
    assert near.wait(WAIT_S)
    assert isinstance(near.error, QueryTimeout)
    assert not far.wait(0)
    far_future.set_result(None)
    assert far.wait(WAIT_S)
    assert far.error is None


def test_the_sentinel_survives_an_error(threads: SchedulerThreads) -> None:
    """Deadlines count behind it too."""
    expire, failures = threads.scheduler.expire, [OSError()]

    def broken() -> None:
        if failures:
            raise failures.pop()
        expire()

    threads.scheduler.expire = broken  # type: ignore[method-assign]
    step, _future = blocked()
    query = submit(threads, ScriptedDriver([step]), timeout_ms=30)
    assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryTimeout)
    assert [] == failures


def test_a_running_driver_can_be_killed(threads: SchedulerThreads) -> None:
    """One that always wants another step, and one whose step waits until it is cancelled."""

    class Endless(ScriptedDriver):
        def step(self, slice_s: float, worker: Worker) -> Step:
            return Again()

    class Waiting(ScriptedDriver):
        began, ended = threading.Event(), threading.Event()

        def step(self, slice_s: float, worker: Worker) -> Step:
            self.began.set()
            assert self.ended.wait(WAIT_S)
            return Again()

        def cancel(self) -> None:
            self.ended.set()

    drivers = Endless(), Waiting()
    query = submit(threads, *drivers)
    assert drivers[1].began.wait(WAIT_S)
    threads.scheduler.kill(query.id)
    assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryCancelled)
    assert [1, 1] == [driver.closed for driver in drivers]


def test_time_of_other_threads_is_charged() -> None:
    """A driver whose work is on a thread of its own reports the processor time that it used there."""
    threads = SchedulerThreads(SchedulerLimits(workers=1), cpu_s=lambda: 0.0)
    try:
        query = submit(threads, ScriptedDriver([Again(cpu_s=2.0), Done(cpu_s=0.5)]))
        assert query.wait(WAIT_S)
        assert 2_500_000_000 == query.usage.used_ns
    finally:
        threads.close()


def test_a_future_that_completes_behind_the_close_raises_nothing() -> None:
    """It belongs to somebody who knows nothing of the scheduler."""
    threads = SchedulerThreads(SchedulerLimits(workers=1))
    future: Future[None] = Future()
    query = submit(threads, ScriptedDriver([Blocked(future, BlockedOn.REMOTE)]))
    eventually(lambda: threads.scheduler.figures().tasks[TaskState.BLOCKED] == 1, "a blocked driver")
    threads.close()
    assert query.wait(0)
    future.set_result(None)
    assert isinstance(query.error, QueryCancelled)


def test_time_in_which_a_step_gives_way_is_in_no_step() -> None:
    """Steps are what cannot stop; the slice has all of it, so such a driver gets no longer one."""
    clock, gave_way_s = VirtualClock(), 5.0

    class Polite(ScriptedDriver):
        def step(self, slice_s: float, worker: Worker) -> Step:
            if not self.taken:
                for _ in range(2):
                    clock.now_s += 0.25
                    worker.end_step()
                clock.now_s += gave_way_s
                worker.gave_way(gave_way_s)
                clock.now_s += 0.25
            return super().step(slice_s, worker)

    threads = SchedulerThreads(SchedulerLimits(workers=1, slice_s=3.0), clock)
    try:
        assert submit(threads, Polite([Again()])).wait(WAIT_S)
        steps = threads.scheduler.statistics.steps
        # A second slice has the last step.
        assert 4 == sum(steps.counts)
        assert pytest.approx(0.75) == steps.seconds
    finally:
        threads.close()
