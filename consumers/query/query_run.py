"""One query as the work of a driver: fence, plan, scans, views, statement, and its rows into an output.

It has the worker of its driver all the time, but where it waits: for logs, other nodes, files, memory, or its reader.
A query begins with little memory. One that holds many rows exchanges it for all that a query may have, and begins
again; nothing of its answer was shown until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.distributed_run import DistributedRun
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.planner import ScanPlan, plan_scans
from headrace.consumers.query.query_errors import (
    NotCaughtUp,
    NotReady,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SlotNotHeld,
)
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer, ShortTimer
from headrace.consumers.query.remote_rows import check_time
from headrace.consumers.query.result_stream import unique_names
from headrace.consumers.query.session import Session, bare_tables, qualified, show_table
from headrace.consumers.query.table_names import Resolved, TableKey, resolve
from headrace.consumers.query.table_source import ReadFence, Reading, TableSource
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.threaded_driver import Turn
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema

CANCEL_CHECK_S = 0.25
"""A wait that no interrupt ends is looked at so often."""
NO_WAIT_S = 1e-6
SMALL_INPUT_BYTES = 1_000_000
"""Sorts and joins of less are done before anybody could notice."""
SORT_PAUSES = 3
"""A statement that sorts holds many rows from so many blocks of a scan on."""


@dataclass(frozen=True, slots=True)
class QueryWanted:
    """What a caller of `QueryEngine.query` asks for; see there."""

    sql: str
    after: Mapping[str, int] = field(default_factory=dict)
    row_limit: int | None = None
    stale_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)


class QueryHost(Protocol):
    """What a query needs of its engine."""

    source: TableSource
    database: LockedDatabase
    on_unreadable: Callable[[], None]

    def count(self, **amounts: float) -> None:
        """Add to the statistics."""
        ...

    def reserve(self, query_id: str, memory_mb: int) -> Future[None]:
        """Exchange the memory of a running query; done once it has it."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryClasses:
    """What a query has at first, and what it has if it needs more, in MB."""

    small_mb: int
    large_mb: int


class QueryRun:
    """Run by the thread of its driver; `interrupt` may be called by any."""

    def __init__(
        self,
        host: QueryHost,
        query_id: str,
        wanted: QueryWanted,
        timer: QueryTimer,
        memory: MemoryClasses,
        now_us: int,
    ) -> None:
        self.output = QueryOutput()
        self._host = host
        self._id = query_id
        self._wanted = wanted
        self._timer = timer
        self._memory = memory
        self._memory_mb = memory.small_mb
        self._now_us = now_us
        self._attempt: _Attempt | None = None

    def timed_out(self, error: QueryTimeout) -> QueryError:
        """The error of a query whose time is over: what it waited for elsewhere, where that never came."""
        reading = None if self._attempt is None or self.output.begun else self._attempt.reading
        beyond = {} if reading is None else self._host.source.beyond(reading)
        return NotCaughtUp.to(beyond) if beyond else error

    def interrupt(self) -> None:
        """End what it does, again and again until it has ended."""
        self._timer.cancel()

    def work(self, turn: Turn) -> None:
        """See ThreadedDriver."""
        while True:
            fence = self._fence(turn)
            try:
                with ExitStack() as resources:
                    self._attempt = _Attempt(
                        self._host, self._wanted, self._timer, self.output, turn, self._memory_mb, resources
                    )
                    self._attempt.run(fence, self._now_us, has_all=self._memory_mb >= self._memory.large_mb)
                    return
            except (SlotNotHeld, QueryMemory) as error:
                # Nothing of it was shown to anybody.
                if self.output.begun or not self._may_again(error, fence, turn):
                    raise

    def _fence(self, turn: Turn) -> ReadFence:
        # Before anything is read: an answer must contain all that was confirmed until now.
        source, stale_s = self._host.source, self._wanted.stale_s
        try:
            return source.fence(stale_s, 0.0)
        except NotReady:
            with turn.outside(BlockedOn.LOG):
                return source.fence(stale_s, self._timer.left_s)

    def _may_again(self, error: SlotNotHeld | QueryMemory, fence: ReadFence, turn: Turn) -> bool:
        """Whether to begin once more: under another slot table, or with more memory."""
        if isinstance(error, SlotNotHeld):
            with turn.outside(BlockedOn.LOG):
                return self._host.source.plans_again(fence, self._timer.left_s)
        # An error of DuckDB, and not of another limit.
        if self._memory_mb >= self._memory.large_mb or error.__cause__ is None:
            return False
        self._memory_mb = self._memory.large_mb
        turn.block(self._host.reserve(self._id, self._memory_mb), BlockedOn.MEMORY)
        return True


class _Attempt:
    """One run of the statement under one fence. Also the Pauses of its scans."""

    def __init__(
        self,
        host: QueryHost,
        wanted: QueryWanted,
        timer: QueryTimer,
        output: QueryOutput,
        turn: Turn,
        memory_mb: int,
        resources: ExitStack,
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._timer = timer
        self._output = output
        self._turn = turn
        self._memory_mb = memory_mb
        self._resources = resources
        self.reading: Reading | None = None
        """What its scans have in common, once they may begin."""
        self._sorts = False
        self._blocks = 0
        self._input_bytes = 0

    def at_row(self, row: int) -> None:
        """See Pauses."""
        self._turn.pause()
        self._blocks += row > 0
        if self._sorts and self._blocks >= SORT_PAUSES:
            self._turn.set_unbounded()

    def run(self, fence: ReadFence, now_us: int, *, has_all: bool) -> None:
        """Run it to its last row."""
        host, wanted = self._host, self._wanted
        session = Session(
            host.database,
            self._resources,
            fence,
            self._timer,
            self._memory_mb,
            now_us,
            host.on_unreadable,
            self,
        )
        # Checked before the wait: SQL that cannot run is refused at once, not after the offsets have come.
        bound = session.bind(session.check(wanted.sql), wanted.parameters)
        reading = Reading(
            fence, _newest(host.source.named(wanted.after), fence.confirmed), self._timer, waits=self._turn
        )
        self._wait_for(reading)
        self.reading = reading
        statement = bound.statement
        if statement.show:
            schemas = {key: host.source.schema(*key) for key in host.source.tables()}
            session.register("__shown", show_table(statement, schemas))
            self._write(session, fence, f"{statement.explain}FROM __shown")
        else:
            self._answer(session, bound, reading, has_all=has_all)

    def _wait_for(self, reading: Reading) -> None:
        source = self._host.source
        # Most have nothing to wait for, and keep their worker.
        if source.wait_for(replace(reading, timer=ShortTimer(self._timer, NO_WAIT_S))):
            return
        self._output.lacking = reading.after
        with self._turn.outside(BlockedOn.LOG):
            # In parts: nothing ends such a wait but its time.
            while self._timer.left_s > 0:
                if source.wait_for(replace(reading, timer=ShortTimer(self._timer, CANCEL_CHECK_S))):
                    self._output.lacking = {}
                    return
        raise NotCaughtUp.to(reading.after)

    def _answer(self, session: Session, bound: BoundStatement, reading: Reading, *, has_all: bool) -> None:
        statement, source = bound.statement, self._host.source
        resolved = resolve(statement.tables, statement.cte_names, source.tables())
        schemas = {key: source.schema(*key) for key in resolved.tables}
        whole = ScanPlan(empty=self._wanted.row_limit == 0)
        plans: Mapping[TableKey, ScanPlan] = dict.fromkeys(schemas, whole)
        if not whole.empty:
            plans = plan_scans(statement, resolved, schemas, session.constant, bound.texts())
        divided = None if whole.empty else self._divided(session, bound, resolved, schemas, reading)
        if divided is not None:
            self._prepare(statement, has_all=has_all)
            self._write(session, reading.fence, divided)
            return
        bare = bare_tables(resolved)
        sql = qualified(statement, session.catalog)
        self._create_views(session, schemas, plans, bare, reading)
        self._prepare(statement, has_all=has_all)
        try:
            self._write(session, reading.fence, sql)
        except QueryInvalid as error:
            if not isinstance(error.__cause__, duckdb.BinderException) or all(
                plan.columns is None for plan in plans.values()
            ):
                raise
        else:
            return
        # The planner may have left out a column that the SQL names in a way it does not see. With every
        # column in the view the statement runs, or the message names the right candidates.
        self._create_views(session, schemas, dict.fromkeys(plans, whole), bare, reading)
        self._write(session, reading.fence, sql)

    def _divided(
        self,
        session: Session,
        bound: BoundStatement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        reading: Reading,
    ) -> str | None:
        """SQL of a statement whose parts run where the rows are; None where it runs over rows, all of them here."""
        statement, source = bound.statement, self._host.source
        fragments = source.fragments(reading.fence)
        if not statement.analyzed and (fragments is None or statement.explain):
            return None
        used = source.fragments(reading.fence, always=True) if statement.analyzed else fragments
        if used is None:
            return None
        run = DistributedRun(
            session,
            self._resources,
            used,
            reading,
            partial=fragments is not None,
            profiled=statement.analyzed,
        )
        prepared = run.explained if statement.analyzed else run.prepared
        sql = prepared(bound, resolved, schemas)
        self._note(run.scans)
        return sql

    def _note(self, scans: Sequence[GroupScan]) -> None:
        """Count what the statement reads."""
        self._input_bytes += sum(path.stat().st_size for scan in scans for path in scan.files)
        self._input_bytes += sum(scan.table.nbytes for scan in scans)
        self._host.count(
            files_scanned=sum(len(scan.files) for scan in scans),
            live_rows_scanned=sum(scan.table.num_rows for scan in scans),
        )

    def _prepare(self, statement: Statement, *, has_all: bool) -> None:
        """Before a statement with steps that cannot stop, or that holds many rows: a turn and memory for such ones."""
        is_small = self._input_bytes < SMALL_INPUT_BYTES
        if statement.holds_rows and not is_small and not has_all:
            raise QueryMemory.above(self._memory_mb) from MemoryError("the statement holds rows of its tables")
        self._sorts = statement.holds_rows
        if statement.generates_rows or (statement.joins and not is_small):
            self._turn.set_unbounded()

    def _create_views(
        self,
        session: Session,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        bare: frozenset[TableKey],
        reading: Reading,
    ) -> None:
        for key, plan in plans.items():
            try:
                scans = [] if plan.empty else self._scan(schemas[key], plan, reading)
            except StoreError as error:
                raise session.translate(error) from error
            check_time(self._timer)
            session.create_view(schemas[key], plan.columns, scans, bare=key in bare)
            self._note(scans)
            self._turn.pause()

    def _scan(self, schema: TableSchema, plan: ScanPlan, reading: Reading) -> list[GroupScan]:
        scans = list(
            self._host.source.scan(
                schema.database,
                schema.table,
                columns=plan.columns,
                start_ns=plan.start_ns,
                end_ns=plan.end_ns,
                tags=plan.tags or None,
                newest=plan.newest,
                reading=reading,
            )
        )
        for scan in scans:
            self._resources.push(scan)
        return scans

    def _write(self, session: Session, fence: ReadFence, sql: str) -> None:
        """Every row into the output."""
        found, batches = session.run(sql, empty=self._wanted.row_limit == 0)
        names = unique_names(found.names)
        schema = pa.schema([each.with_name(name) for each, name in zip(found, names, strict=True)])
        left = self._wanted.row_limit
        while left != 0 and (batch := next(batches, None)) is not None:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                room = self._output.put(schema, fence, batch)
                if room is not None:
                    self._turn.block(room, BlockedOn.OUTPUT)
            self._turn.pause()
        self._output.end(schema, fence)


def _newest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each group that one of two mappings names."""
    return {group: max(one.get(group, -1), other.get(group, -1)) for group in one.keys() | other.keys()}
