"""Runs a large fragment as several drivers of its query, so that one query alone uses every worker.

The driver of the query, its coordinator, waits for them without a worker. Each has a session of its own with the memory
that a query has at first. Which rows each reads is decided before: no row belongs to two of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Protocol

import pyarrow as pa

from headrace.consumers.query.database import Pauses
from headrace.consumers.query.exchange import Exchange
from headrace.consumers.query.file_shares import shares_of
from headrace.consumers.query.group_scans import GroupScan, rows_near
from headrace.consumers.query.query_errors import QueryCancelled, QueryMemory
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.session import Session
from headrace.consumers.scheduling.driver import BlockedOn, DriverSpec
from headrace.consumers.scheduling.driver_task import QueryReport
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn

PARALLEL_VALUES_MIN = 4 * 1024 * 1024
"""Values that a fragment reads: fewer are read before several drivers pay."""
LONG_CPU_S = 0.1
"""Queries that have used more keep their workers: no other one has several drivers for the sake of these."""
DRIVERS_MAX = 16
"""The most drivers of one fragment."""
ANSWER_BYTES_MAX = 16_000_000
"""Partial aggregates of one fragment that are held: more are left to one driver, which can spill them."""


Work = Callable[[Session], Iterator[pa.RecordBatch]]
SessionMaker = Callable[[ExitStack, Turn, Pauses], Session]


class DriverHost(Protocol):
    """What the drivers of fragments need of their engine."""

    @property
    def workers(self) -> int:
        """The workers of the scheduler."""
        ...

    def reports(self) -> Sequence[QueryReport]:
        """The queries that run."""
        ...

    def extend(self, query_id: str, drivers: Sequence[DriverSpec], memory_mb: int) -> bool:
        """Add drivers to a running query, which has so much memory then; False changes nothing."""
        ...


class FragmentDrivers:
    """Used by the thread of one query's coordinator."""

    def __init__(
        self,
        host: DriverHost,
        query_id: str,
        timer: QueryTimer,
        turn: Turn,
        memory_mb: int,
        open_session: SessionMaker,
    ) -> None:
        """`memory_mb` is that of each session. `open_session` makes one that runs parts of the query's statement."""
        self._host = host
        self._id = query_id
        self._timer = timer
        self._turn = turn
        self._memory_mb = memory_mb
        self._open_session = open_session

    def free_workers(self) -> int:
        """How many drivers the query may have: workers that no long query claims. 0 or less where there are none."""
        # One that has several drivers is long as well. Else eight that come together would each have as many, and make
        # instances for all of them.
        claimed = sum(
            each.drivers[TaskState.READY] + each.drivers[TaskState.RUNNING]
            for each in self._others()
            if each.cpu_seconds > LONG_CPU_S or sum(each.drivers.values()) > 1
        )
        return min(self._host.workers - claimed, DRIVERS_MAX)

    @property
    def alone(self) -> bool:
        """Whether no other query runs at this moment."""
        return not self._others()

    def _others(self) -> list[QueryReport]:
        # Whoever has its answer often asks the next query before the one before has closed what it held.
        return [each for each in self._host.reports() if each.id != self._id and not each.answered]

    def pays(self, scans: Sequence[GroupScan], columns: int) -> bool:
        """Whether several drivers may pay for a fragment over scans, of so many columns at most, at this moment."""
        return rows_near(scans) * columns >= PARALLEL_VALUES_MIN and self.free_workers() > 1

    def batches(self, works: Sequence[Work]) -> Generator[pa.RecordBatch, None, None] | None:
        """What several works give, in any order; None where there are no places or no memory for their drivers.

        Whoever reads only a part closes the iterator, which ends the drivers. Raises a QueryError.
        """
        exchange = Exchange(len(works))
        parts = [_Part(work, exchange, self._open_session) for work in works]
        specs = [DriverSpec(ThreadedDriver(part.work, self._timer.cancel)) for part in parts]
        # The coordinator has its own beside them.
        if not self._host.extend(self._id, specs, (len(parts) + 1) * self._memory_mb):
            return None
        return self._read(exchange, parts)

    def answers(
        self,
        scans: Sequence[GroupScan],
        columns: int,
        fragment: Callable[[Session, Sequence[GroupScan]], Iterator[pa.RecordBatch]],
    ) -> list[pa.Table] | None:
        """What a fragment gives over shares of the rows of scans; None where one driver does it as well.

        `fragment` runs it in a session over some scans, of so many columns. Raises a QueryError: QueryMemory for
        answers that are large themselves.
        """
        works = self.works(scans, columns, fragment)
        found = self.batches(works) if len(works) > 1 else None
        if found is None:
            return None
        batches, size_bytes = list[pa.RecordBatch](), 0
        with closing(found):
            for batch in found:
                batches.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > ANSWER_BYTES_MAX:
                    raise QueryMemory.above(self._memory_mb) from MemoryError("the answers of its fragments are large")
        return [pa.Table.from_batches(batches)] if batches else []

    def works(
        self,
        scans: Sequence[GroupScan],
        columns: int,
        fragment: Callable[[Session, Sequence[GroupScan]], Iterator[pa.RecordBatch]],
    ) -> list[Work]:
        """A fragment over each share of the rows of scans; none where these are few."""
        # Asked again: long queries may have come since `pays`, and claim every worker.
        number = self.free_workers()
        if number < 2 or rows_near(scans) * columns < PARALLEL_VALUES_MIN:
            return []
        shares = shares_of(scans, number, lambda path: path.stat().st_size)
        return [partial(_over, fragment, share) for share in shares]

    def _read(self, exchange: Exchange, parts: Sequence[_Part]) -> Generator[pa.RecordBatch, None, None]:
        try:
            while (found := exchange.take()) is not None:
                if isinstance(found, Future):
                    self._turn.block(found, BlockedOn.DRIVER)
                else:
                    yield found
        finally:
            exchange.stop()
            for part in parts:
                self._await(part)

    def _await(self, part: _Part) -> None:
        """Wait until a part reads no more: its files may go then."""
        part.forgo()
        if not part.ended.done():
            # Of a query that was cancelled the scheduler ends all drivers, whether they have a worker or not. It gives
            # this one no other turn, so that it must not wait for one.
            with suppress(QueryCancelled):
                self._turn.pause()
                self._turn.block(part.ended, BlockedOn.DRIVER)
        part.ended.result()


def _over(
    fragment: Callable[[Session, Sequence[GroupScan]], Iterator[pa.RecordBatch]],
    share: Sequence[GroupScan],
    session: Session,
) -> Iterator[pa.RecordBatch]:
    return fragment(session, share)


class _Part:
    """One driver's share of a fragment: run once by the thread of its driver, unless it is forgone before."""

    def __init__(self, work: Work, exchange: Exchange, open_session: SessionMaker) -> None:
        self.ended = Future[None]()
        self._work = work
        self._exchange = exchange
        self._open_session = open_session
        self._lock = threading.Lock()
        self._taken = False

    def _take(self) -> bool:
        with self._lock:
            was_taken, self._taken = self._taken, True
        return not was_taken

    def forgo(self) -> None:
        """Never begin, if it has not begun."""
        if self._take():
            self.ended.set_result(None)

    def work(self, turn: Turn) -> None:
        """See ThreadedDriver. The coordinator gets its errors, and may begin again."""
        if not self._take():
            return
        error: BaseException | None = None
        try:
            with ExitStack() as resources:
                self._run(resources, turn)
        except BaseException as found:
            error = found
        self._exchange.end(error)
        self.ended.set_result(None)

    def _run(self, resources: ExitStack, turn: Turn) -> None:
        session = self._open_session(resources, turn, _PartPauses(turn, self._exchange))
        try:
            for batch in self._work(session):
                if self._exchange.stopped:
                    return
                room = self._exchange.put(batch) if batch.num_rows else None
                if room is not None:
                    turn.block(room, BlockedOn.OUTPUT)
                turn.pause()
        except BaseException:
            # Of rows that nobody wants no error is one of the query.
            if not self._exchange.stopped:
                raise


class _PartPauses:
    """See Pauses: the turns of a part, which ends at the next one once nobody reads its rows."""

    def __init__(self, turn: Turn, exchange: Exchange) -> None:
        self._turn = turn
        self._exchange = exchange

    def at_row(self, row: int) -> None:
        """See Pauses."""
        del row
        if self._exchange.stopped:
            raise QueryCancelled("nobody wants more rows")
        self._turn.pause()
