"""The worker beside the others that takes short queries alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.consumers.scheduling import scheduler_threads
from headrace.consumers.scheduling.driver import Again, Done, DriverSpec, Step
from headrace.consumers.scheduling.driver_task import DriverTask, Submission
from headrace.consumers.scheduling.multilevel_queue import SHORT_S
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn
from tests.unit.scheduling.parts import Bench, ScriptedDriver, VirtualClock
from tests.unit.scheduling.test_driver_scheduler import check_empty
from tests.unit.scheduling.test_scheduler_threads import submit
from tests.waiting import eventually

WAIT_S = 20.0
LONG = Again(cpu_s=10 * SHORT_S)
"""A step behind which a query is not short."""


def behind_slice(clock: VirtualClock) -> Step:
    """A step at whose end the slice is over, and the query is not short."""
    clock.now_s += 1.0
    return LONG


class Held:
    """A driver that is inside a step of a worker that takes any query, until it is released."""

    def __init__(self, clock: VirtualClock) -> None:
        self.begun, self.leave = threading.Event(), threading.Event()
        self.driver = ScriptedDriver([lambda: behind_slice(clock), self._hold])

    def _hold(self) -> Step:
        self.begun.set()
        assert self.leave.wait(WAIT_S)
        return Done()


@pytest.fixture
def clock() -> VirtualClock:
    """The clock of the slices."""
    return VirtualClock()


@pytest.fixture
def threads(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchedulerThreads]:
    """One worker for any query and one for short ones, which nobody wakes but a call."""
    monkeypatch.setattr(scheduler_threads, "IDLE_WAIT_S", 10 * WAIT_S)
    threads = SchedulerThreads(SchedulerLimits(workers=1, slice_s=0.001, short_workers=1), clock)
    try:
        yield threads
        eventually(lambda: threads.scheduler.figures().queries == 0, "no query")
        check_empty(threads.scheduler)
    finally:
        threads.close()


def test_a_short_query_does_not_wait_for_the_step_of_a_long_one(threads: SchedulerThreads, clock: VirtualClock) -> None:
    """Every other worker is inside a step that does not end."""
    held = Held(clock)
    long = submit(threads, held.driver, name="long")
    assert held.begun.wait(WAIT_S)
    for number in range(3):
        assert submit(threads, ScriptedDriver(), name=f"short {number}").wait(WAIT_S)
    assert not long.wait(0)
    held.leave.set()
    assert long.wait(WAIT_S)


def test_both_workers_are_called_where_several_queries_come_at_once(threads: SchedulerThreads) -> None:
    """The worker that is called first does not run them one after the other."""
    for number in range(20):
        both = threading.Barrier(2)

        def meet(both: threading.Barrier = both) -> Step:
            both.wait(WAIT_S)
            return Done()

        query = submit(threads, ScriptedDriver([meet]), ScriptedDriver([meet]), name=f"q{number}")
        assert query.wait(WAIT_S)
        assert query.error is None


def test_a_short_worker_gives_a_driver_back_behind_its_slice(
    threads: SchedulerThreads, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody else is ready: otherwise one more thread than there are workers would compute for long."""
    held, begun, leave = Held(clock), threading.Event(), threading.Event()

    def work(turn: Turn) -> None:
        begun.set()
        while not leave.is_set():
            clock.now_s += SHORT_S
            turn.pause()

    long = submit(threads, held.driver, name="long")
    assert held.begun.wait(WAIT_S)
    driver = ThreadedDriver(work, lambda: None, clock, cpu_s=lambda: 0.0)
    beside = threads.scheduler.submit(Submission("beside", [DriverSpec(driver)], 600_000))
    assert begun.wait(WAIT_S)
    # It says that it has used nothing, so it is short for ever, and gives its worker back all the same.
    given, give_back = list[str](), threads.scheduler.give_back

    def noted(task: DriverTask, *rest: Any) -> None:
        given.append(task.id)
        give_back(task, *rest)

    monkeypatch.setattr(threads.scheduler, "give_back", noted)
    try:
        eventually(lambda: len(given) > 2, "slices that ended", timeout_s=WAIT_S)
    finally:
        leave.set()
        held.leave.set()
    assert beside.wait(WAIT_S)
    assert long.wait(WAIT_S)


def test_a_worker_that_waits_is_called_for_what_a_short_one_puts_back(
    threads: SchedulerThreads, clock: VirtualClock
) -> None:
    """The short worker itself does not take it again."""
    held, begun, leave = Held(clock), threading.Event(), threading.Event()

    def first() -> Step:
        begun.set()
        assert leave.wait(WAIT_S)
        return behind_slice(clock)

    long = submit(threads, held.driver, name="long")
    assert held.begun.wait(WAIT_S)
    query = submit(threads, ScriptedDriver([first]), name="put back")
    assert begun.wait(WAIT_S)
    held.leave.set()
    assert long.wait(WAIT_S)
    eventually(lambda: threads.scheduler._ready._waiting == 1, "the other worker waits")
    leave.set()
    assert query.wait(WAIT_S)


def test_short_workers_take_no_query_that_is_not_short() -> None:
    """Neither one that has used much, nor one whose steps cannot stop."""
    bench = Bench()
    bench.submit(ScriptedDriver([LONG]))
    bench.submit(DriverSpec(ScriptedDriver(), unbounded=True))
    task = bench.scheduler.take(0, short=True)
    assert task is not None
    bench.scheduler.give_back(task, LONG, 10 * SHORT_S)
    assert bench.scheduler.take(0, short=True) is None
    assert 2 == bench.scheduler.figures().tasks[TaskState.READY]
    bench.run()
    check_empty(bench.scheduler)


def test_what_cannot_stop_is_not_short_from_then_on() -> None:
    """A driver that asks for such a turn in its first step is left to the other workers."""
    bench = Bench()
    bench.submit(ScriptedDriver([Again(unbounded=True), Again(unbounded=False)]))
    for _ in range(2):
        bench.turn(used_s=0.0)
        assert bench.scheduler.take(0, short=True) is None
    bench.run()
    check_empty(bench.scheduler)
