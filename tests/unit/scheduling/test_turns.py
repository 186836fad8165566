"""Turns of work beside others: waits outside a worker, steps that cannot stop, and memory that is exchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, DriverSpec
from headrace.consumers.scheduling.multilevel_queue import SHORT_S
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduling_errors import QueryCancelled, QueryMemory, QueryUnknown
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn
from headrace.consumers.scheduling.unbounded_slots import UnboundedSlots
from tests.present import present
from tests.unit.scheduling.parts import NO_WORKER, Bench, ScriptedDriver, Steps, VirtualClock, blocked


@dataclass(eq=False)
class Sort:
    """A driver whose steps cannot stop, or one whose can."""

    unbounded: bool = True


def driver_of(work: Callable[[Turn], None], interrupt: Callable[[], None] = lambda: None) -> Steps:
    """Work with clocks that a test moves."""
    return Steps(ThreadedDriver(work, interrupt, VirtualClock(), VirtualClock(0.0)))


def test_a_wait_outside_needs_no_worker() -> None:
    """The driver is blocked while the work waits by itself; behind the wait it needs another step."""
    inside, leave, behind = threading.Event(), threading.Event(), list[str]()

    def work(turn: Turn) -> None:
        with turn.outside(BlockedOn.LOG):
            inside.set()
            assert leave.wait(60)
        behind.append("behind")

    driver = driver_of(work)
    step = driver.step(1.0)
    assert isinstance(step, Blocked)
    assert BlockedOn.LOG is step.on
    assert inside.wait(60)
    assert not step.future.done()
    leave.set()
    step.future.result(60)
    assert [] == behind
    assert Done(0.0) == driver.step(1.0)
    assert ["behind"] == behind
    driver.close()


def test_an_error_outside_ends_the_work_in_a_step() -> None:
    """As any other error of the work: it comes to whoever runs the next step."""

    def work(turn: Turn) -> None:
        with turn.outside(BlockedOn.REMOTE):
            raise QueryMemory.above(7)

    driver = driver_of(work)
    assert isinstance(driver.step(1.0), Blocked)
    with pytest.raises(QueryMemory):
        driver.step(1.0)
    driver.close()


def test_a_wait_outside_ends_with_its_query() -> None:
    """A driver that is closed meanwhile takes no further step."""
    leave, ended = threading.Event(), list[type[BaseException]]()

    def work(turn: Turn) -> None:
        try:
            with turn.outside(BlockedOn.LOG):
                assert leave.wait(60)
        except BaseException as error:
            ended.append(type(error))
            raise

    driver = driver_of(work, leave.set)
    assert isinstance(driver.step(1.0), Blocked)
    driver.close()
    assert [QueryCancelled] == ended


def test_work_becomes_unbounded_once() -> None:
    """The first call gives its step back; the driver runs as one that cannot stop. Others do nothing."""
    order = list[str]()

    def work(turn: Turn) -> None:
        for name in ("a", "b"):
            turn.set_unbounded()
            order.append(name)

    driver = driver_of(work)
    assert Again(0.0, unbounded=True) == driver.step(1.0)
    assert [] == order
    assert Done(0.0) == driver.step(1.0)
    assert ["a", "b"] == order
    driver.close()


def test_work_that_cannot_stop_once_is_bounded_from_its_next_pause_on() -> None:
    """That pause gives the step back, within the slice too; a second call before it does nothing."""

    def work(turn: Turn) -> None:
        turn.set_unbounded_once()
        turn.set_unbounded_once()
        turn.pause()
        turn.pause()

    driver = driver_of(work)
    steps = [driver.step(1.0) for _ in range(3)]
    assert [Again(0.0, unbounded=True), Again(0.0, unbounded=False), Done(0.0)] == steps
    driver.close()


def test_work_that_may_never_stop_stays_so_at_a_pause() -> None:
    """A sort behind a long statement: the pause does not take back what the sort has asked for."""

    def work(turn: Turn) -> None:
        turn.set_unbounded_once()
        turn.set_unbounded()
        turn.pause()

    driver = driver_of(work)
    steps = [driver.step(1.0) for _ in range(3)]
    assert [Again(0.0, unbounded=True), Again(0.0, unbounded=True), Done(0.0)] == steps
    driver.close()


def test_a_driver_that_is_bounded_again_takes_any_worker() -> None:
    """Two that were unbounded for one step run at once behind it; one that says nothing stays as it was."""
    bench = Bench(SchedulerLimits(workers=2))
    steps = [Again(unbounded=True), Again(), Again(unbounded=False), Again()]
    first, second = (bench.submit(ScriptedDriver(list(steps))) for _ in range(2))
    for _ in range(2):
        bench.turn(SHORT_S)
    assert all(task.unbounded for query in (first, second) for task in query.tasks)
    bench.run()
    assert all(query.wait(0) and not query.tasks[0].unbounded for query in (first, second))


def test_a_driver_that_becomes_unbounded_waits_for_its_slot() -> None:
    """Of two workers one is for the others, also if a driver says only later that it cannot stop."""
    bench = Bench(SchedulerLimits(workers=2))
    sorts = [bench.submit(ScriptedDriver([Again(unbounded=True), Again()])) for _ in range(2)]
    for _ in sorts:
        bench.turn(SHORT_S)
    first = bench.scheduler.take(0)
    assert first is not None
    assert bench.scheduler.take(0) is None
    short = bench.submit(ScriptedDriver())
    assert present(bench.scheduler.take(0)) is short.tasks[0]
    bench.scheduler.give_back(short.tasks[0], Done(), 0.001)
    bench.scheduler.give_back(first, first.driver.step(0.0, NO_WORKER), 0.001)
    bench.run()
    assert all(query.wait(0) for query in (*sorts, short))


@pytest.mark.parametrize(("workers", "unbounded_s"), [(1, 0.002), (2, 0.008), (8, 0.008)])
def test_an_unbounded_driver_has_longer_slices_where_a_worker_is_left(workers: int, unbounded_s: float) -> None:
    """Others do not wait for it there. Its steps are counted as long as those of any driver."""
    bench = Bench(SchedulerLimits(workers=workers, slice_s=0.002))
    (task,) = bench.submit(DriverSpec(ScriptedDriver([Again()]), unbounded=True)).tasks
    bench.turn(SHORT_S)
    assert unbounded_s == pytest.approx(bench.scheduler.slice_s(task))
    assert task is present(bench.scheduler.take(0))
    bench.scheduler.give_back(task, Done(), 0.005, [0.005])
    assert 2 == bench.scheduler.statistics.long_steps


@pytest.mark.parametrize(("used_s", "slice_s"), [(0.0, SHORT_S), (0.003, SHORT_S - 0.003), (SHORT_S - 0.001, 0.002)])
def test_a_query_that_has_used_next_to_nothing_is_not_interrupted(used_s: float, slice_s: float) -> None:
    """Its slice is what is left of the time for which it is short; behind a common one it was often almost done."""
    bench = Bench(SchedulerLimits(slice_s=0.002))
    (task,) = bench.submit(ScriptedDriver([Again()])).tasks
    bench.turn(used_s)
    assert slice_s == pytest.approx(bench.scheduler.slice_s(task))
    bench.run()


def test_slots_hold_those_above_their_limit() -> None:
    """They come back when one is free, all of them; bounded drivers need no slot, and what has none frees none."""
    slots: UnboundedSlots[Sort] = UnboundedSlots(1)
    first, second, third, scan = Sort(), Sort(), Sort(), Sort(unbounded=False)
    assert [slots.take(each) for each in (first, second, third, scan)] == [True, False, False, True]
    assert [] == slots.free(scan)
    assert [] == slots.free(second)
    assert 1 == len(slots)
    assert [second, third] == slots.free(first)
    assert [] == slots.free(first)
    assert 0 == len(slots)
    assert slots.take(third)


def test_memory_is_exchanged_while_a_query_runs() -> None:
    """It has all of the new amount or none: what it had is free for others until then."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=80))
    (step, done), (other_step, other_done) = blocked(), blocked()
    first = bench.submit(ScriptedDriver([step]), memory_bytes=30)
    second = bench.submit(ScriptedDriver([other_step]), memory_bytes=50)
    bench.run()
    with pytest.raises(QueryMemory):
        bench.scheduler.reserve(first.id, 81)
    assert [30, 50] == [report.memory_bytes for report in bench.scheduler.reports()]
    exchanged: Future[None] = bench.scheduler.reserve(first.id, 80)
    assert (False, [0, 50]) == (exchanged.done(), [report.memory_bytes for report in bench.scheduler.reports()])
    other_done.set_result(None)
    bench.run()
    assert (True, True) == (second.wait(0), exchanged.done())
    assert [80] == [report.memory_bytes for report in bench.scheduler.reports()]
    assert bench.scheduler.reserve(first.id, 10).done()
    done.set_result(None)
    bench.run()
    assert (True, 0) == (first.wait(0), bench.scheduler.figures().memory_bytes)
    with pytest.raises(QueryUnknown):
        bench.scheduler.reserve(first.id, 1)


def test_a_report_counts_the_steps_that_run() -> None:
    """Their time gives the query its level there; a driver that waits has none, and neither has an ended one."""

    class Endless(ScriptedDriver):
        def running_cpu_s(self) -> float:
            return 9.5

    bench = Bench(SchedulerLimits(workers=2))
    query = bench.submit(Endless(), Endless())
    levels = []
    for _ in range(3):
        (report,) = bench.scheduler.reports()
        levels.append((report.level, report.cpu_seconds, query.usage.level))
        task = bench.scheduler.take(0)
    assert [(0, 0.0, 0), (1, 9.5, 0), (2, 19.0, 0)] == levels
    assert task is None
    for each in query.tasks:
        bench.scheduler.give_back(each, Done(), 12.0)
    assert (True, 2) == (query.wait(0), query.usage.level)
