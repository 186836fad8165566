"""Tasks and queries of the scheduler, without threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.consumers.scheduling.driver import Again, BlockedOn, Done, DriverSpec, Step
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduling_errors import (
    QueryCancelled,
    QueryError,
    QueryFailed,
    QueryMemory,
    QueryTimeout,
    QueryUnknown,
    TooManyQueries,
)
from headrace.consumers.scheduling.task_states import LIVE, TaskState
from tests.unit.scheduling.parts import Bench, ScriptedDriver, again, blocked

READY, RUNNING, BLOCKED = TaskState.READY, TaskState.RUNNING, TaskState.BLOCKED
FINISHED, ABORTED = TaskState.FINISHED, TaskState.ABORTED


def check_empty(scheduler: DriverScheduler) -> None:
    """It holds nothing: no task, place, reservation, memory or deadline."""
    figures = scheduler.figures()
    assert dict.fromkeys(LIVE, 0) == {state: figures.tasks[state] for state in LIVE}
    assert (0, 0, 0, 0) == (figures.reserved, figures.queries, figures.timeouts, figures.memory_bytes)
    assert 0 == sum(level.ready for level in figures.levels.values())
    assert [] == scheduler.reports()


def test_a_query_runs_to_its_end() -> None:
    """Its drivers finish, are closed once and release everything; it has no error."""
    bench = Bench()
    drivers = [ScriptedDriver(again(2)), ScriptedDriver()]
    query = bench.submit(*drivers, memory_bytes=100)
    assert not query.wait(0)
    assert {READY: 2, RUNNING: 0, BLOCKED: 0, FINISHED: 0, ABORTED: 0} == bench.scheduler.figures().tasks
    bench.run()
    assert query.wait(0)
    assert query.error is None
    assert [(3, 1), (1, 1)] == [(driver.taken, driver.closed) for driver in drivers]
    assert [0, 0] == [driver.cancelled for driver in drivers]
    assert 2 == bench.scheduler.figures().tasks[FINISHED]
    check_empty(bench.scheduler)


def test_a_blocked_driver_waits_for_its_future() -> None:
    """It keeps its place, uses no worker, and is woken by what is deferred, not by whoever completes the future."""
    bench = Bench()
    step, future = blocked(BlockedOn.OUTPUT)
    driver = ScriptedDriver([step])
    query = bench.submit(driver)
    bench.turn()
    assert bench.turn() is None
    [report] = bench.scheduler.reports()
    assert (BLOCKED, BlockedOn.OUTPUT, 1) == (report.state, report.blocked_on, bench.scheduler.figures().reserved)
    bench.clock.now_s += 3
    future.set_result(None)
    assert query.tasks[0].state is BLOCKED
    bench.run()
    assert query.wait(0)
    assert 3 == bench.scheduler.statistics.blocked_seconds[BlockedOn.OUTPUT]
    check_empty(bench.scheduler)


def test_a_future_that_is_done_already_blocks_for_a_moment_only() -> None:
    """It is woken at once, and only behind its transition."""
    bench = Bench()
    step, future = blocked()
    future.set_result(None)
    query = bench.submit(ScriptedDriver([step]))
    bench.turn()
    assert query.tasks[0].state is BLOCKED
    bench.run()
    assert query.wait(0)


def test_a_failed_future_ends_the_query() -> None:
    """With its error; a cancelled one with QueryCancelled."""
    bench = Bench()
    steps = [blocked(), blocked(), blocked()]
    queries = [bench.submit(ScriptedDriver([step])) for step, _ in steps]
    for _ in steps:
        bench.turn()
    steps[0][1].set_exception(QueryMemory.above(7))
    steps[1][1].cancel()
    steps[2][1].set_exception(OSError("gone"))
    bench.settle()
    assert [QueryMemory, QueryCancelled, QueryFailed] == [type(query.error) for query in queries]
    check_empty(bench.scheduler)


def test_an_abort_ends_every_driver_with_the_first_cause() -> None:
    """In whatever state they are; what has finished stays finished, and later causes count for nothing."""
    bench = Bench()
    step, future = blocked()
    drivers = [ScriptedDriver(), ScriptedDriver([step]), ScriptedDriver([QueryMemory.above(1)]), ScriptedDriver()]
    query = bench.submit(*drivers)
    for _ in range(3):
        bench.turn()
    bench.scheduler.abort(query, QueryTimeout.after(1))
    bench.settle()
    future.set_result(None)
    bench.run()
    assert isinstance(query.error, QueryMemory)
    assert [FINISHED, ABORTED, ABORTED, ABORTED] == [task.state for task in query.tasks]
    assert [1, 1, 1, 0] == [driver.taken for driver in drivers]
    assert [1, 1, 1, 1] == [driver.closed for driver in drivers]
    assert {"QueryMemory": 1} == bench.scheduler.statistics.aborts
    check_empty(bench.scheduler)


def test_a_running_driver_is_closed_behind_its_step() -> None:
    """An abort asks its step to end; nothing is released before it has."""
    bench = Bench()
    driver = ScriptedDriver(again(5))
    query = bench.submit(driver, memory_bytes=10)
    task = bench.scheduler.take(0)
    assert task is query.tasks[0]
    bench.scheduler.kill(query.id)
    bench.settle()
    assert (1, 0, False) == (driver.cancelled, driver.closed, query.wait(0))
    [report] = bench.scheduler.reports()
    assert (ABORTED, 10) == (report.state, report.memory_bytes)
    bench.scheduler.give_back(task, Again(), 0.001)
    assert (1, True) == (driver.closed, query.wait(0))
    assert isinstance(query.error, QueryCancelled)
    check_empty(bench.scheduler)


@pytest.mark.parametrize("last", [Again(), Done(), blocked()[0]])
def test_what_an_aborted_driver_returns_counts_for_nothing(last: Step) -> None:
    """It stays aborted, whatever its last step was."""
    bench = Bench()
    query = bench.submit(ScriptedDriver())
    task = bench.scheduler.take(0)
    assert task is not None
    bench.scheduler.kill(query.id)
    bench.scheduler.give_back(task, last, 0.001)
    bench.run()
    assert ABORTED is task.state
    check_empty(bench.scheduler)


def test_an_abort_behind_the_end_changes_nothing() -> None:
    """A query that has finished stays finished."""
    bench = Bench()
    query = bench.submit(ScriptedDriver())
    bench.run()
    bench.scheduler.abort(query, QueryTimeout.after(1))
    bench.settle()
    assert query.error is None
    assert {} == bench.scheduler.statistics.aborts
    with pytest.raises(QueryUnknown):
        bench.scheduler.kill(query.id)


def test_the_state_is_checked_again_under_the_lock() -> None:
    """A driver that was aborted between the poll and the lock of its task does not start."""
    bench = Bench()
    query = bench.submit(ScriptedDriver(), ScriptedDriver())
    taken = bench.scheduler._ready.take

    def take_and_abort(wait_s: float, *, short: bool) -> Any:
        task = taken(wait_s, short=short)
        # As another thread would, between the two locks.
        bench.scheduler._lock.release()
        bench.scheduler.kill(query.id)
        bench.scheduler._lock.acquire()
        return task

    bench.scheduler._ready.take = take_and_abort  # type: ignore[method-assign]
    assert bench.scheduler.take(0) is None
    bench.settle()
    assert query.wait(0)
    check_empty(bench.scheduler)


class WatchedLock:
    """A lock of a task that fails when a thread takes a second one."""

    held = threading.local()

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        assert not getattr(self.held, "any", False), "two locks of tasks at once"
        self._lock.acquire()
        self.held.any = True

    def __exit__(self, *_error: object) -> None:
        self.held.any = False
        self._lock.release()


def test_no_thread_holds_two_locks_of_tasks() -> None:
    """Nor in an abort that cascades, or a wake that follows from the end of another driver or query."""
    bench = Bench(SchedulerLimits(memory_bytes=10, memory_per_query_bytes=10))

    def submit(*drivers: ScriptedDriver | DriverSpec) -> Any:
        query = bench.submit(*drivers, memory_bytes=10)
        for task in query.tasks:
            task.lock = WatchedLock()
        return query

    step, future = blocked()
    first = submit(ScriptedDriver(), DriverSpec(ScriptedDriver([step]), needs=[0]), ScriptedDriver())
    second = submit(ScriptedDriver([KeyError()]), ScriptedDriver(), ScriptedDriver([step]))
    third = submit(ScriptedDriver())
    bench.run()
    assert (False, False, False) == (first.wait(0), second.wait(0), third.wait(0))
    future.set_result(None)
    bench.run()
    assert (True, True, True) == (first.wait(0), second.wait(0), third.wait(0))
    check_empty(bench.scheduler)


def test_a_driver_runs_behind_those_that_it_needs() -> None:
    """It is blocked on them until the last one has finished."""
    bench = Bench()
    order: list[str] = []

    def noting(name: str) -> Callable[[], Step]:
        def note() -> Step:
            order.append(name)
            return Done()

        return note

    query = bench.submit(
        ScriptedDriver([Again(), noting("build")]),
        ScriptedDriver([Again(), Again(), noting("filter")]),
        DriverSpec(ScriptedDriver([noting("probe")]), needs=[0, 1]),
    )
    [report] = bench.scheduler.reports()
    assert ({READY: 2, RUNNING: 0, BLOCKED: 1}, BlockedOn.DRIVER) == (report.drivers, report.blocked_on)
    bench.run()
    assert ["build", "filter", "probe"] == order
    assert query.wait(0)
    check_empty(bench.scheduler)


@pytest.mark.parametrize("needs", [[0], [1], [-1]])
def test_a_driver_needs_earlier_ones(needs: list[int]) -> None:
    """Others would wait for ever."""
    bench = Bench()
    with pytest.raises(ValueError):
        bench.submit(DriverSpec(ScriptedDriver(), needs=needs), ScriptedDriver())
    check_empty(bench.scheduler)


def test_a_query_waits_for_memory() -> None:
    """It is blocked before its first step, and runs when another one has ended."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=80))
    step, future = blocked()
    first = bench.submit(ScriptedDriver([step]), memory_bytes=80)
    second = bench.submit(ScriptedDriver(), ScriptedDriver(), memory_bytes=30)
    bench.run()
    report = bench.scheduler.reports()[1]
    assert (BLOCKED, BlockedOn.MEMORY, 0) == (report.state, report.blocked_on, report.memory_bytes)
    with pytest.raises(QueryMemory):
        bench.submit(ScriptedDriver(), memory_bytes=81)
    future.set_result(None)
    bench.run()
    assert (True, True) == (first.wait(0), second.wait(0))
    check_empty(bench.scheduler)


def test_a_query_that_waits_for_memory_can_be_killed() -> None:
    """It never runs, and those behind it do."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=80))
    step, future = blocked()
    bench.submit(ScriptedDriver([step]), memory_bytes=60)
    waiting, small = (bench.submit(ScriptedDriver(), memory_bytes=size) for size in (80, 40))
    bench.run()
    assert not small.wait(0)
    bench.scheduler.kill(waiting.id)
    bench.run()
    assert (True, True) == (waiting.wait(0), small.wait(0))
    assert 0 == waiting.submission.drivers[0].driver.taken
    future.set_result(None)
    bench.run()
    check_empty(bench.scheduler)


def test_too_many_are_refused_and_leave_nothing() -> None:
    """A refused query has no place, no memory and no deadline; when another one has ended it is accepted."""
    bench = Bench(SchedulerLimits(capacity=CapacityLimits(drivers_max=2)))
    first = bench.submit(ScriptedDriver(), ScriptedDriver(), memory_bytes=5)
    with pytest.raises(TooManyQueries):
        bench.submit(ScriptedDriver(), memory_bytes=7)
    figures = bench.scheduler.figures()
    assert (1, 1, 5) == (figures.queries, figures.timeouts, figures.memory_bytes)
    assert 1 == bench.scheduler.statistics.refused
    bench.run()
    assert first.wait(0)
    bench.submit(ScriptedDriver())
    bench.run()
    check_empty(bench.scheduler)


def test_a_driver_that_comes_back_is_never_refused() -> None:
    """The places of those that run or are blocked are reserved: a full queue takes them back."""
    bench = Bench(SchedulerLimits(capacity=CapacityLimits(drivers_max=2)))
    step, future = blocked()
    first, second = bench.submit(ScriptedDriver([step])), bench.submit(ScriptedDriver(again(3)))
    bench.turn()
    assert 1 == bench.scheduler.figures().reserved
    with pytest.raises(TooManyQueries):
        bench.submit(ScriptedDriver())
    future.set_result(None)
    bench.run()
    assert (True, True) == (first.wait(0), second.wait(0))
    check_empty(bench.scheduler)


def test_a_query_ends_at_its_deadline() -> None:
    """In whatever state its drivers are, with QueryTimeout, and none before."""
    bench = Bench()
    step, _future = blocked()
    query = bench.submit(ScriptedDriver([step]), ScriptedDriver(), timeout_ms=500)
    other = bench.submit(ScriptedDriver(), timeout_ms=501)
    bench.turn(0)
    bench.clock.now_s += 0.499
    bench.scheduler.expire()
    assert query.cause is None
    bench.clock.now_s += 0.001
    bench.scheduler.expire()
    bench.settle()
    assert isinstance(query.error, QueryTimeout)
    assert "500 ms" in query.error.message
    assert other.cause is None
    bench.run()
    check_empty(bench.scheduler)


def test_a_deadline_has_a_limit() -> None:
    """A timeout of 10¹² s is one of `timeout_s_max`."""
    bench = Bench(SchedulerLimits(timeout_s_max=60))
    query = bench.submit(ScriptedDriver(), timeout_ms=10**15)
    bench.clock.now_s += 61
    bench.scheduler.expire()
    bench.settle()
    assert isinstance(query.error, QueryTimeout)


def test_an_error_of_a_driver_is_that_of_the_query() -> None:
    """A condition as it is; anything else is a defect, whose text stays in the log."""
    bench = Bench()
    known, unknown = (
        bench.submit(ScriptedDriver([error])) for error in (QueryMemory.above(3), RuntimeError("/secret/path"))
    )
    bench.run()
    assert isinstance(known.error, QueryMemory)
    assert isinstance(unknown.error, QueryFailed)
    assert "secret" not in str(unknown.error)
    check_empty(bench.scheduler)


def test_drivers_that_cannot_stop_leave_a_worker_to_others() -> None:
    """Of three workers two may be in steps without bound; those that wait are ready, and their turn comes."""
    bench = Bench(SchedulerLimits(workers=3))
    sorts = [bench.submit(DriverSpec(ScriptedDriver(again(1)), unbounded=True)) for _ in range(4)]
    scan = bench.submit(ScriptedDriver(again(1)))
    taken = [bench.scheduler.take(0) for _ in range(4)]
    assert [scan.tasks[0], sorts[0].tasks[0], sorts[1].tasks[0], None] == taken
    assert {READY: 2, RUNNING: 3} == {state: bench.scheduler.figures().tasks[state] for state in (READY, RUNNING)}
    bench.scheduler.kill(sorts[2].id)
    for task in taken[:3]:
        assert task is not None
        bench.scheduler.give_back(task, Again(), 0.001)
    bench.run()
    assert all(query.wait(0) for query in (*sorts, scan))
    check_empty(bench.scheduler)


def test_an_unbounded_driver_that_is_aborted_frees_its_worker() -> None:
    """Between poll and start, or in its step: the next one runs."""
    bench = Bench(SchedulerLimits(workers=2))
    first, second = (bench.submit(DriverSpec(ScriptedDriver(again(1)), unbounded=True)) for _ in range(2))
    task = bench.scheduler.take(0)
    assert task is first.tasks[0]
    assert bench.scheduler.take(0) is None
    bench.scheduler.kill(first.id)
    bench.scheduler.give_back(task, Again(), 0.1)
    bench.run()
    assert (True, True, None) == (first.wait(0), second.wait(0), second.error)
    check_empty(bench.scheduler)


def test_slices_grow_with_the_level() -> None:
    """A level more is a unit more, and steps longer than their slice are counted."""
    bench = Bench(SchedulerLimits(slice_s=0.002))
    query = bench.submit(ScriptedDriver(again(3)))
    task = query.tasks[0]
    bench.turn(0.02)
    assert 0.002 == bench.scheduler.slice_s(task)
    bench.turn(11.0)
    assert 0.006 == pytest.approx(bench.scheduler.slice_s(task))
    bench.turn(0.005)
    statistics = bench.scheduler.statistics
    assert (2, 3) == (statistics.long_steps, sum(statistics.steps.counts))
    assert pytest.approx(11.025) == statistics.steps.seconds


def test_reports_show_what_queries_do() -> None:
    """Id, SQL, user, level, time, drivers and memory, in the order of submission."""
    bench = Bench()
    bench.submit(ScriptedDriver(again(3)), ScriptedDriver(), id="a", sql="SELECT 1", user="ann", memory_bytes=9)
    bench.submit(ScriptedDriver(), id="b")
    bench.turn(2.0)
    first, second = bench.scheduler.reports()
    assert ("a", "SELECT 1", "ann", READY, 1, 2.0) == (
        *(first.id, first.sql, first.user, first.state, first.level, first.cpu_seconds),
    )
    assert ({READY: 2, RUNNING: 0, BLOCKED: 0}, 9, None) == (first.drivers, first.memory_bytes, first.blocked_on)
    assert "b" == second.id


def test_a_closed_scheduler_has_no_queries() -> None:
    """Running ones are cancelled, and new ones refused."""
    bench = Bench()
    step, _future = blocked()
    queries = [bench.submit(ScriptedDriver([step])), bench.submit(ScriptedDriver())]
    bench.turn()
    bench.scheduler.close()
    bench.settle()
    assert all(isinstance(query.error, QueryCancelled) for query in queries)
    with pytest.raises(QueryError):
        bench.submit(ScriptedDriver())
    check_empty(bench.scheduler)


def test_an_error_at_the_end_of_a_driver_leaks_nothing() -> None:
    """One whose close or cancel fails still gives back what its query holds."""

    class Broken(ScriptedDriver):
        def close(self) -> None:
            raise SystemExit

        def cancel(self) -> None:
            raise OSError

    bench = Bench()
    first, second = bench.submit(Broken(), memory_bytes=1), bench.submit(Broken(again(1)))
    bench.turn()
    task = bench.scheduler.take(0)
    assert task is second.tasks[0]
    bench.scheduler.kill(second.id)
    bench.scheduler.give_back(task, Again(), 0.0)
    assert (True, True) == (first.wait(0), second.wait(0))
    check_empty(bench.scheduler)


@pytest.mark.parametrize("last", [Done(), Again()])
def test_an_error_behind_a_slice_closes_a_driver_once(last: Step) -> None:
    """A worker that fails when it has given its driver back reports that, whether the driver has ended or not."""
    bench = Bench()
    drivers = [ScriptedDriver(), ScriptedDriver(again(1))]
    query = bench.submit(*drivers)
    task = bench.scheduler.take(0)
    assert task is query.tasks[0]
    bench.scheduler.give_back(task, last, 0.001)
    bench.scheduler.fail(task, RuntimeError("a defect"))
    bench.run()
    assert isinstance(query.error, QueryFailed)
    assert [1, 1] == [driver.closed for driver in drivers]
    check_empty(bench.scheduler)


def test_a_query_needs_drivers_and_a_name_of_its_own() -> None:
    """Both are defects of the caller."""
    bench = Bench()
    with pytest.raises(ValueError):
        bench.submit()
    bench.submit(ScriptedDriver(), id="a")
    with pytest.raises(ValueError):
        bench.submit(ScriptedDriver(), id="a")
    bench.run()
    bench.submit(ScriptedDriver(), id="a")


def test_limits_leave_a_worker_free() -> None:
    """All workers but one may be in steps that cannot stop; the only one may too."""
    assert [1, 1, 2] == [replace(SchedulerLimits(), workers=workers).unbounded_max for workers in (1, 2, 3)]


def test_a_future_completed_behind_the_end_changes_nothing() -> None:
    """Ended tasks ignore everything."""
    bench = Bench()
    futures: list[Future[None]] = []
    for _ in range(2):
        step, future = blocked()
        futures.append(future)
        bench.submit(ScriptedDriver([step]))
        bench.turn()
    for query in [report.id for report in bench.scheduler.reports()]:
        bench.scheduler.kill(query)
    bench.settle()
    futures[0].set_result(None)
    futures[1].set_exception(OSError())
    bench.run()
    assert {"QueryCancelled": 2} == bench.scheduler.statistics.aborts
    check_empty(bench.scheduler)


def test_a_running_query_gets_more_drivers() -> None:
    """They share its time, and it ends behind the last of them; its memory grows with them."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=80))
    step, future = blocked()
    more = [ScriptedDriver(again(2)), ScriptedDriver()]
    query = bench.submit(ScriptedDriver([step]), memory_bytes=20)
    bench.turn()
    assert bench.scheduler.extend("q1", [DriverSpec(each) for each in more], 60)
    assert 60 == bench.scheduler.figures().memory_bytes
    assert {"q1/0", "q1/1", "q1/2"} == {task.id for task in query.tasks}
    future.set_result(None)
    bench.run()
    assert query.wait(0)
    assert query.error is None
    assert [(3, 1), (1, 1)] == [(driver.taken, driver.closed) for driver in more]
    check_empty(bench.scheduler)


def test_what_has_no_room_is_not_extended() -> None:
    """Nothing changes without places or memory, while others wait for memory, or once the query ends."""
    capacity = CapacityLimits(drivers_max=4, drivers_per_query_max=3)
    bench = Bench(SchedulerLimits(capacity=capacity, memory_bytes=100, memory_per_query_bytes=80))
    query = bench.submit(ScriptedDriver(), memory_bytes=20)
    spec = DriverSpec(ScriptedDriver())
    before = bench.scheduler.figures()
    for drivers, memory_bytes in (([spec] * 3, 20), ([spec], 81)):
        assert not bench.scheduler.extend("q1", drivers, memory_bytes)
    other = bench.submit(ScriptedDriver(), ScriptedDriver(), memory_bytes=60)
    assert not bench.scheduler.extend("q1", [spec] * 2, 20)
    assert not bench.scheduler.extend("q1", [spec], 50)
    bench.scheduler.abort(other, QueryCancelled("enough"))
    bench.settle()
    assert before.memory_bytes == bench.scheduler.figures().memory_bytes
    bench.submit(ScriptedDriver(), memory_bytes=80)
    bench.submit(ScriptedDriver(), memory_bytes=30)
    assert not bench.scheduler.extend("q1", [spec], 20)
    bench.scheduler.abort(query, QueryCancelled("enough"))
    assert not bench.scheduler.extend("q1", [spec], 20)
    bench.run()
    with pytest.raises(QueryUnknown):
        bench.scheduler.extend("q1", [spec], 20)
    assert 0 == cast(ScriptedDriver, spec.driver).taken
    check_empty(bench.scheduler)


def test_a_query_that_ends_gets_no_more_drivers() -> None:
    """Its driver still runs, and does not know of the abort yet."""
    bench = Bench()
    query = bench.submit(ScriptedDriver())
    task = bench.scheduler.take(0)
    assert task is not None
    bench.scheduler.abort(query, QueryCancelled("enough"))
    assert not bench.scheduler.extend("q1", [DriverSpec(ScriptedDriver())], 0)
    bench.scheduler.give_back(task, Done(), 0.001)
    bench.run()
    check_empty(bench.scheduler)


def test_an_abort_ends_drivers_that_came_later() -> None:
    """An error of one of them ends the query, too."""
    bench = Bench()
    step, _ = blocked()
    first, later = ScriptedDriver([step]), [ScriptedDriver([QueryMemory.above(1)]), ScriptedDriver(again(9))]
    query = bench.submit(first)
    bench.turn()
    assert bench.scheduler.extend("q1", [DriverSpec(each) for each in later], 0)
    bench.run()
    assert isinstance(query.error, QueryMemory)
    assert [1, 1, 1] == [driver.closed for driver in (first, *later)]
    check_empty(bench.scheduler)
