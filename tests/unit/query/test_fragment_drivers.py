"""The drivers of a parallel fragment: they run at once, and end together whatever ends first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from headrace.consumers.query import exchange
from headrace.consumers.query.file_shares import ScanShare
from headrace.consumers.query.fragment_drivers import PARALLEL_VALUES_MIN, DriverHost, FragmentDrivers, Work
from headrace.consumers.query.query_errors import QueryCancelled, QueryInvalid
from headrace.consumers.scheduling import scheduler_threads
from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.consumers.scheduling.driver import BlockedOn, DriverSpec
from headrace.consumers.scheduling.driver_task import QueryReport, ScheduledQuery, Submission
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn

WAIT_S = 20.0
ROWS = pa.record_batch({"x": list(range(100))})
ROWS_TABLE = pa.table({})
TIMER = cast(Any, SimpleNamespace(cancel=lambda: None))


class Host:
    """See DriverHost: a scheduler of two workers, with memory for four drivers of 100 bytes."""

    def __init__(self, drivers_max: int = 10) -> None:
        limits = SchedulerLimits(2, 0.002, CapacityLimits(drivers_max), 400, 400)
        self.threads = SchedulerThreads(limits)
        self.scheduler = self.threads.scheduler
        self.workers = 2

    def reports(self) -> Sequence[QueryReport]:
        """See DriverHost."""
        return self.scheduler.reports()

    def extend(self, query_id: str, drivers: Sequence[DriverSpec], memory_mb: int) -> bool:
        """See DriverHost."""
        return self.scheduler.extend(query_id, drivers, memory_mb)

    def run(self, coordinate: Callable[[FragmentDrivers], None]) -> ScheduledQuery:
        """Submit a query whose coordinator does this."""

        def work(turn: Turn) -> None:
            drivers = FragmentDrivers(cast(DriverHost, self), "q", TIMER, turn, 100, lambda *_: cast(Any, None))
            coordinate(drivers)

        driver = ThreadedDriver(work, lambda: None)
        return self.scheduler.submit(Submission("q", [DriverSpec(driver)], 60_000, 100))

    def assert_empty(self) -> None:
        """Nothing of the query is left."""
        figures = self.scheduler.figures()
        assert (0, 0, 0) == (figures.queries, figures.memory_bytes, figures.reserved)


@pytest.fixture
def host() -> Iterator[Host]:
    """A scheduler."""
    found = Host()
    yield found
    found.threads.close()


def rows(times: int) -> Work:
    """A work that gives a batch so many times."""
    return lambda _: iter([ROWS] * times)


def test_drivers_run_at_once_and_every_batch_arrives(host: Host) -> None:
    """Both are in the middle of their work at the same moment; the coordinator has no worker then."""
    meeting, found = threading.Barrier(2, timeout=WAIT_S), list[pa.RecordBatch]()

    def meet(_: object) -> Iterator[pa.RecordBatch]:
        meeting.wait()
        yield ROWS

    def coordinate(drivers: FragmentDrivers) -> None:
        found.extend(drivers.batches([meet, meet]) or ())

    query = host.run(coordinate)
    assert query.wait(WAIT_S)
    assert query.error is None
    assert [ROWS, ROWS] == found
    host.assert_empty()


def test_a_full_buffer_blocks_drivers_and_nothing_is_lost(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of one batch: writers wait for the reader each time."""
    monkeypatch.setattr(exchange.Exchange.__init__, "__defaults__", (1,))
    counts: list[int] = []
    query = host.run(lambda drivers: counts.append(sum(1 for _ in drivers.batches([rows(50), rows(70)]) or ())))
    assert query.wait(WAIT_S)
    assert [120] == counts
    host.assert_empty()


def test_a_reader_that_wants_no_more_ends_the_drivers(host: Host) -> None:
    """As a LIMIT does: works without an end come to one, and the query succeeds."""

    def endless(_: object) -> Iterator[pa.RecordBatch]:
        while True:
            yield ROWS

    def coordinate(drivers: FragmentDrivers) -> None:
        batches = drivers.batches([endless, endless, rows(1)])
        assert batches is not None
        with closing(batches):
            next(batches)

    query = host.run(coordinate)
    assert query.wait(WAIT_S)
    assert query.error is None
    host.assert_empty()


def test_the_error_of_one_driver_is_that_of_the_coordinator(host: Host) -> None:
    """It may begin again; the other driver is ended."""
    seen: list[BaseException] = []
    begun, blocked = threading.Event(), threading.Event()

    def fails(_: object) -> Iterator[pa.RecordBatch]:
        # One that has not begun would just be left out.
        begun.wait(WAIT_S)
        raise QueryInvalid("no such column")

    def waits(_: object) -> Iterator[pa.RecordBatch]:
        begun.set()
        blocked.wait(WAIT_S)
        yield ROWS

    def coordinate(drivers: FragmentDrivers) -> None:
        try:
            list(drivers.batches([fails, waits]) or ())
        except QueryInvalid as error:
            seen.append(error)

    query = host.run(coordinate)
    # The coordinator waits for the end of what reads its files.
    assert not query.wait(0.2)
    blocked.set()
    assert query.wait(WAIT_S)
    assert ["no such column"] == [str(error) for error in seen]
    assert query.error is None
    host.assert_empty()


def test_a_killed_query_ends_every_driver(host: Host) -> None:
    """Those that run, and one that has not begun for want of a worker."""
    begun = threading.Semaphore(0)

    def endless(_: object) -> Iterator[pa.RecordBatch]:
        begun.release()
        while True:
            yield ROWS

    query = host.run(lambda drivers: [None for _ in drivers.batches([endless] * 3) or ()].clear())
    assert begun.acquire(timeout=WAIT_S)
    host.scheduler.kill("q")
    assert query.wait(WAIT_S)
    assert isinstance(query.error, QueryCancelled)
    host.assert_empty()


def test_a_kill_needs_one_thread_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator waits for the drivers that it added, so these are closed before it."""
    monkeypatch.setattr(scheduler_threads, "WAKE_THREADS", 1)
    host, filled = Host(), threading.Semaphore(0)

    def full(_: object) -> Iterator[pa.RecordBatch]:
        yield ROWS
        filled.release()
        yield from [ROWS] * 1_000_000

    def coordinate(drivers: FragmentDrivers) -> None:
        with closing(cast(Any, drivers.batches([full] * 3))) as found:
            next(found)
            # Nobody takes more: the others are blocked, and so is it.
            drivers._turn.block(Future(), BlockedOn.LOG)

    try:
        query = host.run(coordinate)
        assert filled.acquire(timeout=WAIT_S)
        assert not query.wait(0.2)
        host.scheduler.kill("q")
        assert query.wait(WAIT_S)
        host.assert_empty()
    finally:
        host.threads.close()


@pytest.mark.parametrize(("works", "drivers_max"), [(4, 10), (2, 2)])
def test_without_memory_or_places_nothing_is_begun(works: int, drivers_max: int) -> None:
    """More memory than one query may have, or more drivers than there may be."""
    host, answers = Host(drivers_max), list[object]()
    try:
        query = host.run(lambda drivers: answers.append(drivers.batches([rows(1)] * works)))
        assert query.wait(WAIT_S)
        assert [None] == answers
        host.assert_empty()
    finally:
        host.threads.close()


def test_sessions_are_released_before_the_coordinator_goes_on(host: Host) -> None:
    """What a driver opened is closed when its last batch is there."""
    closed: list[int] = []

    def coordinate(drivers: FragmentDrivers) -> None:
        def opened(resources: ExitStack, turn: Turn, pauses: object) -> Any:
            del turn, pauses
            resources.callback(closed.append, 1)

        drivers._open_session = opened
        list(drivers.batches([rows(1), rows(2)]) or ())
        assert [1, 1] == closed

    query = host.run(coordinate)
    assert query.wait(WAIT_S)
    assert query.error is None


def test_queries_that_have_given_their_answer_claim_no_worker(host: Host) -> None:
    """Whoever has read the last row may ask the next query before the one before has ended."""
    report = SimpleNamespace(id="long", drivers={TaskState.READY: 0, TaskState.RUNNING: 1}, cpu_seconds=60.0)
    found: list[tuple[int, bool]] = []

    def coordinate(drivers: FragmentDrivers) -> None:
        for report.answered in (False, True):
            host.reports = lambda: [report]  # type: ignore[method-assign, list-item]
            found.append((drivers.free_workers(), drivers.alone))

    query = host.run(coordinate)
    assert query.wait(WAIT_S)
    assert query.error is None
    assert [(1, False), (2, True)] == found


@pytest.mark.parametrize(
    ("ready", "running", "blocked", "cpu_s", "free"),
    [(0, 1, 0, 0.05, 2), (0, 1, 0, 60.0, 1), (1, 1, 1, 0.0, 0), (0, 1, 1, 0.0, 1), (0, 0, 3, 60.0, 2)],
)
def test_long_queries_claim_the_workers_that_they_use(
    host: Host, ready: int, running: int, blocked: int, cpu_s: float, free: int
) -> None:
    """Those that have used much time, and those that were divided a moment ago; not what they wait with."""
    states = {TaskState.READY: ready, TaskState.RUNNING: running, TaskState.BLOCKED: blocked}
    report = SimpleNamespace(id="other", drivers=states, cpu_seconds=cpu_s, answered=False)
    host.reports = lambda: [report]  # type: ignore[method-assign, list-item]
    found: list[int] = []
    query = host.run(lambda drivers: found.append(drivers.free_workers()))
    assert query.wait(WAIT_S)
    assert (None, [free]) == (query.error, found)


@pytest.mark.parametrize("long_ones", [1, 2, 3])
def test_long_queries_that_came_meanwhile_leave_no_driver(host: Host, long_ones: int) -> None:
    """A fragment that paid a moment ago is not divided once they claim all workers but one, or more than all."""
    others: list[Any] = []
    found: list[object] = []
    report = SimpleNamespace(
        id="long", drivers={TaskState.READY: 0, TaskState.RUNNING: 1}, cpu_seconds=60.0, answered=False
    )
    host.reports = lambda: others  # type: ignore[method-assign]
    scans = [ScanShare([Path("a"), Path("b")], PARALLEL_VALUES_MIN, ROWS_TABLE)]

    def coordinate(drivers: FragmentDrivers) -> None:
        found.append(drivers.pays(scans, 1))
        others.extend([report] * long_ones)
        found.append(drivers.works(scans, 1, lambda *_: iter(())))

    query = host.run(coordinate)
    assert query.wait(WAIT_S)
    assert query.error is None
    assert [True, []] == found
