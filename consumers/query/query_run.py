"""One query as the work of a driver: fence, plan, scans, views, statement, and its rows into an output.

It has the worker of its driver all the time, but where it waits: for logs, other nodes, files, memory, or its reader.
A query begins with little memory. One that holds many rows exchanges it for more, and begins again; nothing of its
answer was shown until then. `memory_sizes` has the sizes: one that spills is done with the second, and the last is all
that a query may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from headrace.consumers.query.answer_width import WideAnswer
from headrace.consumers.query.attempt import Attempt
from headrace.consumers.query.query_errors import (
    FunctionRefused,
    NotCaughtUp,
    NotReadOnly,
    NotReady,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SlotNotHeld,
    UnknownTable,
)
from headrace.consumers.query.query_host import QueryHost, QueryWanted
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.session import Session
from headrace.consumers.query.table_source import ReadFence
from headrace.consumers.query.top_ranges import HeldOutput, HeldTooLarge, TopRange, ranges_of
from headrace.consumers.query.top_rows import may_want_top
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.threaded_driver import Turn
from headrace.consumers.store import StoreError

SMALL_MB = 32
"""What a query has at first: enough for scans, aggregates of few groups, and sorts of few rows."""
LARGE_SHARE = 4
"""What it has next is this part of all memory, so that several such queries run; see `memory_sizes`."""


def memory_sizes(limit_mb: int, per_query_mb: int) -> tuple[int, ...]:
    """The memory that a query may have, in MB, from the least: it begins with the first, and asks for the next.

    Of less memory than one query may have, the last size leaves a part to others.
    """
    share_mb = limit_mb // LARGE_SHARE
    is_little = share_mb < SMALL_MB
    most_mb = per_query_mb if per_query_mb <= limit_mb else limit_mb if is_little else limit_mb - share_mb
    middle_mb = share_mb if share_mb >= 2 * SMALL_MB else most_mb
    return tuple(sorted({min(size_mb, most_mb) for size_mb in (SMALL_MB, middle_mb, most_mb)}))


class QueryRun:
    """Run by the thread of its driver; `interrupt` may be called by any."""

    def __init__(
        self,
        host: QueryHost,
        query_id: str,
        wanted: QueryWanted,
        timer: QueryTimer,
        sizes_mb: Sequence[int],
        now_us: int,
    ) -> None:
        self.output = QueryOutput()
        self._host = host
        self._id = query_id
        self._wanted = wanted
        self._timer = timer
        self._sizes_mb = sizes_mb
        self._memory_mb = sizes_mb[0]
        self._spilling = False
        self._now_us = now_us
        self._attempt: Attempt | None = None

    def timed_out(self, error: QueryTimeout) -> QueryError:
        """The error of a query whose time is over: what it waited for elsewhere, where that never came."""
        reading = None if self._attempt is None or self.output.begun else self._attempt.reading
        beyond = {} if reading is None else self._host.source.beyond(reading)
        if beyond:
            return NotCaughtUp.to(beyond)
        # A query whose rows are being read computes them.
        awaited = () if self.output.begun else tuple(self._timer.awaited.values())
        return QueryTimeout.after(self._timer.timeout_ms, awaited) if awaited else error

    def interrupt(self) -> None:
        """End what it does, again and again until it has ended."""
        self._timer.cancel()

    def work(self, turn: Turn) -> None:
        """See ThreadedDriver."""
        while True:
            # What the attempt before waited for is no cause of a later end.
            self._timer.awaited.clear()
            fence = self._fence(turn)
            try:
                if not self._ran_on_range(fence, turn):
                    self._try(self._wanted, self.output, fence, turn)
                return
            except (SlotNotHeld, QueryMemory) as error:
                # Nothing of it was shown to anybody.
                if self.output.begun or not self._may_again(error, fence, turn):
                    raise

    def _try(self, wanted: QueryWanted, output: QueryOutput, fence: ReadFence, turn: Turn) -> None:
        """Run a statement once, to its last row."""
        with ExitStack() as resources:
            self._attempt = Attempt(
                self._host,
                self._id,
                wanted,
                self._timer,
                output,
                turn,
                self._memory_mb,
                resources,
                spilling=self._spilling,
                outgrown=self._memory_mb > self._sizes_mb[0],
            )
            self._attempt.run(fence, self._now_us, has_much=self._has_much)

    def _ran_on_range(self, fence: ReadFence, turn: Turn) -> bool:
        """Whether a range of time had all rows that a statement wants, see `top_rows`. Nothing is shown if not."""
        for each in self._ranges(fence, turn):
            held = HeldOutput(self.output)
            try:
                self._try(replace(self._wanted, sql=each.sql), held, fence, turn)
            except (HeldTooLarge, QueryInvalid):
                # The error of a statement shows the text that the user wrote.
                return False
            if held.rows >= each.enough:
                if each.analyzed:
                    self._try(replace(self._wanted, sql=each.analyzed), self.output, fence, turn)
                else:
                    held.show()
                return True
        return False

    def _ranges(self, fence: ReadFence, turn: Turn) -> list[TopRange]:
        if not may_want_top(self._wanted.sql):
            return []
        host = self._host
        with ExitStack() as resources:
            session = Session(
                host.database, resources, fence, self._timer, self._memory_mb, self._now_us, host.on_unreadable, turn
            )
            try:
                return ranges_of(host, session, self._wanted)
            except (QueryInvalid, NotReadOnly, FunctionRefused, UnknownTable, StoreError):
                return []

    def _fence(self, turn: Turn) -> ReadFence:
        # Before anything is read: an answer must contain all that was confirmed until now.
        try:
            return self._host.source.fence(self._wanted.stale_s, 0.0)
        except NotReady:
            with turn.outside(BlockedOn.LOG):
                fence = self._awaited_fence()
            self._timer.awaited.clear()
            return fence

    def _awaited_fence(self) -> ReadFence:
        timer = self._timer
        try:
            return self._host.source.fence(self._wanted.stale_s, timer.left_s, timer.awaited)
        except NotReady as error:
            # Its time is over, perhaps before the scheduler sees that: the same error whichever is first.
            if timer.expired and timer.awaited:
                raise QueryTimeout.after(timer.timeout_ms, tuple(timer.awaited.values())) from error
            raise

    @property
    def _has_much(self) -> bool:
        """Whether it has more than at first, or nothing more can be had."""
        return self._memory_mb > self._sizes_mb[0] or len(self._sizes_mb) == 1

    def _may_again(self, error: SlotNotHeld | QueryMemory, fence: ReadFence, turn: Turn) -> bool:
        """Whether to begin once more: under another slot table, or with more memory."""
        if isinstance(error, SlotNotHeld):
            with turn.outside(BlockedOn.LOG):
                return self._host.source.plans_again(fence, self._timer.left_s)
        # An error of DuckDB, and not of another limit.
        cause = error.__cause__
        least_mb = max(self._memory_mb + 1, cause.needed_mb if isinstance(cause, WideAnswer) else 0)
        more_mb = next((size_mb for size_mb in self._sizes_mb if size_mb >= least_mb), self._sizes_mb[-1])
        had_much, has_all = self._has_much, more_mb == self._memory_mb
        if cause is None or (has_all and self._spilling):
            return False
        # What failed with much memory could not spill as it was.
        self._memory_mb, self._spilling = more_mb, had_much
        if has_all:
            return True
        turn.block(self._host.reserve(self._id, self._memory_mb), BlockedOn.MEMORY)
        return True
