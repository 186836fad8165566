"""Work on a thread of its own that stops where it is asked to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.consumers.scheduling import threaded_driver
from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, Done, DriverSpec
from headrace.consumers.scheduling.driver_task import DriverTask, ScheduledQuery, Submission
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.scheduling_errors import QueryCancelled, QueryFailed, QueryMemory
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.threaded_driver import YIELD_INTERVAL_S, ThreadedDriver, Turn
from headrace.consumers.scheduling.work_threads import WorkThreads
from tests.unit.scheduling.parts import Steps, VirtualClock
from tests.unit.scheduling.test_driver_scheduler import check_empty
from tests.waiting import eventually

WAIT_S = 60.0


def nothing() -> None:
    """An interrupt of work that needs none."""


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[SchedulerThreads]:
    """A scheduler with one worker, without threads at its end. The parameter is the seconds of a slice."""
    before = set(threading.enumerate())
    threads = SchedulerThreads(SchedulerLimits(workers=1, slice_s=getattr(request, "param", 0.001)))
    try:
        yield threads
        check_empty(threads.scheduler)
    finally:
        threads.close()

    def left() -> list[str]:
        return [each.name for each in set(threading.enumerate()) - before if each.name.startswith("query")]

    # A thread of work ends a moment behind it.
    eventually(lambda: not left(), "no thread")


def submit(
    threads: SchedulerThreads, work: Callable[[Turn], None], name: str, interrupt: Callable[[], None] = nothing
) -> ScheduledQuery:
    """Run work as the only driver of a query."""
    driver = ThreadedDriver(work, interrupt)
    return threads.scheduler.submit(Submission(name, [DriverSpec(driver)], 600_000))


def test_work_pauses_behind_its_slice() -> None:
    """Within the slice a pause returns at once; behind it the step returns, with the processor time used."""
    clock, cpu, order = VirtualClock(), VirtualClock(0.0), list[str]()

    def work(turn: Turn) -> None:
        for name in ("a", "b", "c"):
            order.append(name)
            clock.now_s += 0.6
            cpu.now_s += 0.25
            turn.pause()

    driver = Steps(ThreadedDriver(work, nothing, clock, cpu))
    assert [] == order
    assert Again(0.5) == driver.step(1.0)
    assert (["a", "b"], 1) == (order, driver.inner)
    assert Done(0.25) == driver.step(1.0)
    # The pause in the second slice.
    assert 2 == driver.inner
    driver.close()
    assert ["a", "b", "c"] == order


def test_work_lets_threads_that_are_ready_have_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first pause behind each millisecond, within a slice; what the others take counts in it, in no step."""
    clock, yields = VirtualClock(), list[float]()

    def yields_for() -> None:
        yields.append(clock.now_s)
        clock.now_s += 0.3

    def work(turn: Turn) -> None:
        began_s = clock.now_s
        for after_s in (0.4, 0.7, 0.3, 0.8):
            clock.now_s += after_s * YIELD_INTERVAL_S
            turn.pause()
        yields[:] = [round((each - began_s) / YIELD_INTERVAL_S, 3) for each in yields]

    monkeypatch.setattr(threaded_driver, "yield_processor", yields_for)
    driver = Steps(ThreadedDriver(work, nothing, clock, VirtualClock(0.0)))
    assert isinstance(driver.step(0.5), Again)
    assert isinstance(driver.step(0.5), Done)
    driver.close()
    assert [1.1, round(2.2 + 0.3 / YIELD_INTERVAL_S, 3)] == yields
    assert [0.3, 0.3] == [round(each, 6) for each in driver.gave_way_s]
    assert 3 == driver.inner


def test_work_runs_on_where_its_slice_is_renewed() -> None:
    """Its step returns behind the first slice that is not, and has the processor time of that one alone."""
    clock, cpu, asked = VirtualClock(), VirtualClock(0.0), list[float]()

    def twice(cpu_s: float) -> float | None:
        asked.append(cpu_s)
        return 2.0 if len(asked) < 3 else None

    def work(turn: Turn) -> None:
        for _ in range(20):
            clock.now_s += 1.0
            cpu.now_s += 0.25
            turn.pause()

    threaded = ThreadedDriver(work, nothing, clock, cpu)
    driver = Steps(threaded, twice)
    assert Again(0.5) == driver.step(1.0)
    assert [0.25, 0.5, 0.5] == asked
    assert 1_005.0 == clock.now_s
    # A worker knows the driver: kept, both would outlive the query.
    assert threaded.worker is None
    driver.close()


def test_a_step_that_does_not_end_is_in_the_report(threads: SchedulerThreads) -> None:
    """With its processor time so far, on the worker's thread and on its own; between steps there is none of it."""
    first, waits, second = threading.Event(), Future[None](), threading.Event()

    def spin_until(ends: threading.Event) -> None:
        while not ends.is_set():
            sum(range(1_000))

    def work(turn: Turn) -> None:
        spin_until(first)
        turn.block(waits, BlockedOn.LOG)
        spin_until(second)

    query = submit(threads, work, "long")

    def check_counted() -> None:
        charged_ns = query.usage.used_ns
        eventually(lambda: _reported_s(threads) > charged_ns / 1e9 + 0.05, "a step that is counted", 10.0)
        assert charged_ns == query.usage.used_ns

    try:
        check_counted()
        first.set()
        eventually(lambda: threads.scheduler.reports()[0].blocked_on is BlockedOn.LOG, "a blocked driver")
        assert _reported_s(threads) == query.usage.used_ns / 1e9 >= 0.05
        waits.set_result(None)
        check_counted()
    finally:
        first.set()
        second.set()
        if not waits.done():
            waits.set_result(None)
    assert query.wait(WAIT_S)
    assert query.tasks[0].driver.running_cpu_s() == 0.0


def _reported_s(threads: SchedulerThreads) -> float:
    """The processor time of the only query."""
    return threads.scheduler.reports()[0].cpu_seconds


def test_what_is_done_outside_is_charged_to_none() -> None:
    """Its processor time is in none of the steps: it may be for later work too."""
    cpu = VirtualClock(0.0)

    def work(turn: Turn) -> None:
        cpu.now_s += 0.25
        with turn.outside(BlockedOn.INSTANCE):
            cpu.now_s += 8.0
        cpu.now_s += 0.5

    driver = Steps(ThreadedDriver(work, nothing, VirtualClock(), cpu))
    step = driver.step(1.0)
    assert isinstance(step, Blocked)
    step.future.result(WAIT_S)
    assert (0.25, Done(0.5)) == (step.cpu_s, driver.step(1.0))
    driver.close()


def test_work_blocks_without_a_worker() -> None:
    """Its step returns what it waits for, and it runs on with the next step."""
    future: Future[None] = Future()
    driver = Steps(ThreadedDriver(lambda turn: turn.block(future, BlockedOn.OUTPUT), nothing, cpu_s=lambda: 0.0))
    assert Blocked(future, BlockedOn.OUTPUT, 0.0) == driver.step(1.0)
    assert Done(0.0) == driver.step(1.0)
    driver.close()


def test_an_error_of_the_work_is_that_of_the_step() -> None:
    """Whatever it is."""

    def work(_turn: Turn) -> None:
        raise QueryMemory.above(1)

    driver = Steps(ThreadedDriver(work, nothing))
    with pytest.raises(QueryMemory):
        driver.step(1.0)
    driver.close()


def test_a_paused_driver_can_be_closed() -> None:
    """Its work ends with QueryCancelled; one that has not begun never begins."""
    ended = list[BaseException]()

    def work(turn: Turn) -> None:
        try:
            while True:
                turn.pause()
        except BaseException as error:
            ended.append(error)
            raise

    driver = Steps(ThreadedDriver(work, nothing))
    assert isinstance(driver.step(0.0), Again)
    driver.close()
    assert [QueryCancelled] == [type(error) for error in ended]
    ThreadedDriver(work, nothing).close()
    assert 1 == len(ended)


def test_work_that_is_alone_keeps_its_worker(threads: SchedulerThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other thread is woken between its slices, and each is counted; work that comes later gets its share."""
    given, give_back = list[str](), threads.scheduler.give_back

    def noted(task: DriverTask, *rest: Any) -> None:
        given.append(task.query.id)
        give_back(task, *rest)

    monkeypatch.setattr(threads.scheduler, "give_back", noted)
    slices = threads.scheduler.statistics.steps.counts

    def work(turn: Turn) -> None:
        while sum(slices) < 20:
            turn.pause()
        assert [] == given
        other = submit(threads, lambda turn: turn.pause(), "other")

        def ended() -> bool:
            turn.pause()
            return other.wait(0)

        eventually(ended, "the end of the other one")

    query = submit(threads, work, "long")
    assert query.wait(WAIT_S)
    assert (None, True) == (query.error, "other" in given)


def test_short_work_wakes_no_other_thread(threads: SchedulerThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on the thread of its worker, which then takes the next query."""
    used, give_back = list[threading.Thread](), threads.scheduler.give_back

    def noted(*given: Any) -> None:
        used.append(threading.current_thread())
        give_back(*given)

    monkeypatch.setattr(threads.scheduler, "give_back", noted)
    for name in ("a", "b"):
        query = submit(threads, lambda _turn: used.append(threading.current_thread()), name)
        assert query.wait(WAIT_S)
        assert query.error is None
    assert [True] * 4 == [thread is used[0] for thread in used]


def test_work_that_waits_gives_its_worker_to_another_thread(threads: SchedulerThreads) -> None:
    """Other queries run meanwhile, and the number of workers stays as it is."""
    hold, found = Future[None](), list[threading.Thread]()

    def work(turn: Turn) -> None:
        found.append(threading.current_thread())
        turn.block(hold, BlockedOn.REMOTE)
        found.append(threading.current_thread())

    query = submit(threads, work, "waits")
    eventually(lambda: threads.scheduler.figures().tasks[TaskState.BLOCKED] == 1, "a blocked driver")
    other = submit(threads, lambda _turn: found.append(threading.current_thread()), "other")
    assert other.wait(WAIT_S)
    hold.set_result(None)
    assert query.wait(WAIT_S)
    assert (None, None, 1) == (query.error, other.error, threads.workers)
    first, beside, last = found
    assert first is last
    assert first is not beside


def test_a_worker_does_not_keep_a_query_that_has_ended(threads: SchedulerThreads) -> None:
    """Also where its thread took over from one that had to wait: what a query holds is free behind it."""

    def ran() -> weakref.ref[ThreadedDriver]:
        hold = Future[None]()
        driver = ThreadedDriver(lambda turn: turn.block(hold, BlockedOn.REMOTE), nothing)
        query = threads.scheduler.submit(Submission("kept", [DriverSpec(driver)], 600_000))
        eventually(lambda: threads.scheduler.figures().tasks[TaskState.BLOCKED] == 1, "a blocked driver")
        hold.set_result(None)
        assert query.wait(WAIT_S)
        return weakref.ref(driver)

    freed = ran()
    # The worker looks for the next query meanwhile, and the thread of the work ends.
    assert submit(threads, lambda _turn: None, "other").wait(WAIT_S)
    eventually(lambda: gc.collect() >= 0 and freed() is None, "the driver is free", 20)


@pytest.mark.parametrize("threads", [0.05], indirect=True)
def test_the_time_between_two_pauses_is_a_step(threads: SchedulerThreads) -> None:
    """So soon the work can stop, however long its slices are; those that take longer than a slice are counted."""

    def work(turn: Turn) -> None:
        for _ in range(40):
            time.sleep(0.004)
            turn.pause()
        time.sleep(0.2)

    assert submit(threads, work, "steps").wait(WAIT_S)
    statistics = threads.scheduler.statistics
    assert 41 == sum(statistics.steps.counts)
    assert 0.36 <= statistics.steps.seconds
    assert 1 <= statistics.long_steps < 20


def test_work_that_waits_is_charged(threads: SchedulerThreads) -> None:
    """What it used before its wait and behind it, each on its own thread."""
    cpu, hold = VirtualClock(0.0), Future[None]()

    def work(turn: Turn) -> None:
        cpu.now_s += 2.0
        turn.block(hold, BlockedOn.REMOTE)
        cpu.now_s += 0.5

    driver = ThreadedDriver(work, nothing, cpu_s=cpu)
    query = threads.scheduler.submit(Submission("charged", [DriverSpec(driver)], 600_000))
    hold.set_result(None)
    assert query.wait(WAIT_S)
    assert 2_500_000_000 == query.usage.used_ns


def test_a_thread_of_lower_priority_is_a_worker_no_more(threads: SchedulerThreads) -> None:
    """It was lowered for a query that was alone to its end; the next one may be short."""
    found = list[threading.Thread]()

    def work(turn: Turn) -> None:
        found.append(threading.current_thread())
        if len(found) == 1:
            turn._priority.lower()

    for name in ("long", "short"):
        assert submit(threads, work, name).wait(WAIT_S)
    first, second = found
    assert first is not second
    first.join(WAIT_S)
    assert not first.is_alive()


def test_without_another_thread_work_that_waits_fails(
    threads: SchedulerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread stays the worker, so that other queries run."""

    def refused(*_arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(WorkThreads, "run", refused)
        query = submit(threads, lambda turn: turn.block(Future[None](), BlockedOn.REMOTE), "waits")
        assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryFailed)
    other = submit(threads, lambda turn: turn.pause(), "other")
    assert other.wait(WAIT_S)
    assert other.error is None


def test_one_worker_shares_its_time(threads: SchedulerThreads) -> None:
    """Three endless works take turns, never two at once, and each can be killed."""
    turns, computing = Counter[str](), threading.Lock()

    def endless(name: str) -> Callable[[Turn], None]:
        def work(turn: Turn) -> None:
            while True:
                assert computing.acquire(blocking=False), "two at once"
                turns[name] += 1
                computing.release()
                turn.pause()

        return work

    queries = [submit(threads, endless(name), name) for name in ("a", "b", "c")]
    eventually(lambda: len(turns) == 3 and min(turns.values()) > 100, "a hundred turns of each")
    for query in queries:
        threads.scheduler.kill(query.id)
    assert all(query.wait(WAIT_S) and isinstance(query.error, QueryCancelled) for query in queries)


def test_work_between_two_pauses_is_interrupted(threads: SchedulerThreads) -> None:
    """A step that does not pause ends by its interrupt."""
    began, interrupted = threading.Event(), threading.Event()

    def work(_turn: Turn) -> None:
        began.set()
        assert interrupted.wait(WAIT_S)

    query = submit(threads, work, "q", interrupted.set)
    assert began.wait(WAIT_S)
    threads.scheduler.kill("q")
    assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryCancelled)


@pytest.fixture
def readings(tmp_path: Path) -> Path:
    """A Parquet file of 400,000 rows."""
    path = tmp_path / "readings.parquet"
    duckdb.sql(f"COPY (SELECT range AS v FROM range(400_000)) TO '{path}' (ROW_GROUP_SIZE 131072)")
    return path


def statement(path: Path, found: list[int], paused: list[int]) -> tuple[Callable[[Turn], None], Callable[[], None]]:
    """A scan that pauses every 32 Ki rows, and its interrupt."""
    connection = duckdb.connect(config={"threads": 1})

    def work(turn: Turn) -> None:
        def permit(row: int) -> bool:
            paused.append(row)
            # A slice is over as soon as it has begun: every call is a turn of its own.
            time.sleep(0.002)
            turn.pause()
            return True

        connection.create_function("permit", permit, ["BIGINT"], "BOOLEAN", side_effects=True)
        sql = (
            f"SELECT sum(v) FROM read_parquet('{path}', file_row_number = true) "
            "WHERE CASE WHEN file_row_number % 32768 = 0 THEN permit(file_row_number) ELSE true END"
        )
        with connection:
            ((total,),) = connection.execute(sql).fetchall()
        found.append(total)

    def interrupt() -> None:
        # A connection that is closed has no statement to interrupt.
        with suppress(duckdb.Error):
            connection.interrupt()

    return work, interrupt


@pytest.mark.parametrize("threads", [0.000_001], indirect=True)
def test_statements_of_duckdb_take_turns(threads: SchedulerThreads, readings: Path) -> None:
    """Two scans share one worker in the middle of their statements, and their answers are right."""
    found, order = list[int](), list[str]()
    calls: dict[str, list[int]] = {"a": [], "b": []}
    # Both before the first begins: to connect takes longer than to scan.
    statements = {name: statement(readings, found, paused) for name, paused in calls.items()}

    def noting(name: str, work: Callable[[Turn], None]) -> Callable[[Turn], None]:
        def noted(turn: Turn) -> None:
            pause = turn.pause

            def note() -> None:
                order.append(name)
                pause()

            turn.pause = note  # type: ignore[method-assign]
            work(turn)

        return noted

    # The worker is busy until both are there: else the first may have ended before the second comes.
    both = threading.Event()

    def busy(_turn: Turn) -> None:
        both.wait(WAIT_S)

    gate = submit(threads, busy, "gate")
    queries = [submit(threads, noting(name, work), name, end) for name, (work, end) in statements.items()]
    # The first slice of a short one may be enough for a scan.
    for query in queries:
        threads.scheduler._ready._queue.mark_long(query.tasks[0])
    both.set()
    assert all(query.wait(WAIT_S) for query in (gate, *queries))
    assert [None, None] == [query.error for query in queries]
    assert [79_999_800_000] * 2 == found
    assert [list(range(0, 400_000, 32_768))] * 2 == list(calls.values())
    changes = sum(one != other for one, other in pairwise(order))
    # One after the other would be one change.
    assert changes > 1, order


def test_a_statement_of_duckdb_can_be_killed_between_two_turns(threads: SchedulerThreads, readings: Path) -> None:
    """It ends in its scan, and its thread too."""
    found, paused, hold = list[int](), list[int](), Future[None]()
    work, interrupt = statement(readings, found, paused)

    def blocking(turn: Turn) -> None:
        turn.pause = lambda: turn.block(hold, BlockedOn.OUTPUT)  # type: ignore[method-assign]
        work(turn)

    query = submit(threads, blocking, "q", interrupt)
    eventually(lambda: bool(threads.scheduler.reports()[0].blocked_on), "a blocked driver")
    threads.scheduler.kill("q")
    assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryCancelled)
    assert ([], [0]) == (found, paused)
