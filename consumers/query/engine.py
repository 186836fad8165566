"""Runs SQL over the unsealed and sealed rows of one node.

A query takes one of a bounded number of permits, is checked (`guard`), and waits for the log offsets that it
must see. Then its table names are resolved (`table_names`), what it reads is narrowed (`planner`), and it
runs in a `session` over scans of the source.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from headrace.connectors.deadline import Deadline
from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.distributed_run import DistributedRun
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.planner import ScanPlan, plan_scans
from headrace.consumers.query.query_errors import (
    NotCaughtUp,
    QueryInvalid,
    QueryTimeout,
    SlotNotHeld,
    TooManyQueries,
)
from headrace.consumers.query.result_stream import Interrupter, ResultStream
from headrace.consumers.query.session import Session, bare_tables, qualified, show_table
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_names import Resolved, TableKey, resolve
from headrace.consumers.query.table_source import ReadFence, Reading, TableSource
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema

__all__ = ["QueryEngine", "QueryStatistics"]


@dataclass(slots=True)
class QueryStatistics:
    """Counters since the start of the engine; `running` is a gauge."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    refused_busy: int = 0
    files_scanned: int = 0
    live_rows_scanned: int = 0
    planning_seconds: float = 0.0
    running_seconds: float = 0.0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a caller of `QueryEngine.query` asks for."""

    sql: str
    after: Mapping[str, int]
    row_limit: int | None
    stale_s: float
    on_start: Callable[[Callable[[], None]], None] | None
    parameters: Mapping[str, Any]


class QueryEngine:
    """Runs reading SQL over a TableSource. Every method may be called from any thread."""

    def __init__(
        self,
        source: TableSource,
        directories: Sequence[Path],
        settings: QuerySettings | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        """`directories` hold the segments, at any depth; queries can open no file outside them.

        `on_unreadable` is called when a segment cannot be read.
        """
        self.settings = settings or QuerySettings()
        self.statistics = QueryStatistics()
        self._source = source
        self._clock_ns = clock_ns
        self.on_unreadable = on_unreadable
        self._permits = threading.BoundedSemaphore(self.settings.queries_max)
        self._lock = threading.Lock()
        self.database = LockedDatabase(directories, self.settings)
        self.interrupter = Interrupter()

    def query(
        self,
        sql: str,
        *,
        after: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        row_limit: int | None = None,
        stale_s: float | None = None,
        on_start: Callable[[Callable[[], None]], None] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> ResultStream:
        """Start a query and return when its first rows are there. The caller closes the result.

        `after` maps groups (see `group_names`) to log offsets that the result must contain. `timeout_ms` bounds the whole query,
        including the reading of its result. `row_limit` cuts the result. A node that does not serve answers from what
        it has if that is at most `stale_s` old; None = `query.stale_max_s`. `on_start` receives a function that
        cancels the query from any thread. `parameters` are the values of the names that the SQL writes as
        `$name`. Raises a QueryError.
        """
        resources = self._take_permit()
        started_s = time.monotonic()
        stale_s = self.settings.stale_max_s if stale_s is None else stale_s
        wanted = _Wanted(sql, after or {}, row_limit, stale_s, on_start, parameters or {})
        try:
            result = self._planned(resources, wanted, timeout_ms)
        except BaseException as error:
            resources.close()
            self._count(failed=1, timed_out=isinstance(error, QueryTimeout))
            raise
        planning_seconds = time.monotonic() - started_s
        self._count(succeeded=1, planning_seconds=planning_seconds, stale=int(result.as_of is not None))
        return result

    def tables(self) -> list[TableSchema]:
        """The newest schema of every table, in order of name."""
        return [self._source.schema(database, table) for database, table in sorted(self._source.tables())]

    def close(self) -> None:
        """Refuse new queries; running ones end when their results are closed."""
        self.database.close()
        self.interrupter.close()

    def _take_permit(self) -> ExitStack:
        # Refused, never queued: the client can ask another node at once, and would only wait in a queue.
        if not self._permits.acquire(blocking=False):
            self._count(refused_busy=1)
            raise TooManyQueries.because(f"{self.settings.queries_max} queries are running already")
        self._count(running=1)
        resources = ExitStack()
        resources.callback(self._release_permit, time.monotonic())
        return resources

    def _release_permit(self, started_s: float) -> None:
        self._count(running=-1, running_seconds=time.monotonic() - started_s)
        self._permits.release()

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)

    def _planned(self, resources: ExitStack, wanted: _Wanted, timeout_ms: int | None) -> ResultStream:
        """Start a query, again while slots change hands under it, within its time."""
        timeout_ms = min(timeout_ms or self.settings.timeout_ms, self.settings.timeout_ms)
        deadline, now_us = Deadline(timeout_ms / 1_000), self._clock_ns() // 1_000
        while True:
            # Before anything is read: an answer must contain all that was confirmed until now.
            fence, attempt = self._source.fence(wanted.stale_s, deadline.left_s()), ExitStack()
            try:
                left_ms = max(1, min(timeout_ms, math.ceil(deadline.left_s() * 1_000)))
                result = self._start(attempt, wanted, fence, left_ms, now_us)
            except SlotNotHeld:
                # Nothing of it was shown to anybody.
                attempt.close()
                if not self._source.plans_again(fence, deadline.left_s()):
                    raise
            except BaseException:
                attempt.close()
                raise
            else:
                resources.push(attempt)
                result.hold(resources)
                return result

    def _start(
        self, resources: ExitStack, wanted: _Wanted, fence: ReadFence, timeout_ms: int, now_us: int
    ) -> ResultStream:
        memory_limit_mb, row_limit = self.settings.memory_limit_mb, wanted.row_limit
        session = Session(
            self.database,
            resources,
            fence,
            self.interrupter,
            memory_limit_mb,
            timeout_ms,
            now_us,
            self.on_unreadable,
        )
        if wanted.on_start is not None:
            wanted.on_start(session.timer.cancel)
        # Checked before the wait: SQL that cannot run is refused at once, not after the offsets have come.
        bound = session.bind(session.check(wanted.sql), wanted.parameters)
        statement = bound.statement
        reading = Reading(fence, _newest(self._source.named(wanted.after), fence.confirmed), session.timer)
        self._wait_for(reading)
        if statement.show:
            session.register(
                "__shown", show_table(statement, {(item.database, item.table): item for item in self.tables()})
            )
            return session.run(f"{statement.explain}FROM __shown", row_limit)
        return self._run(session, resources, bound, row_limit, reading)

    def _wait_for(self, reading: Reading) -> None:
        if not self._source.wait_for(reading):
            raise NotCaughtUp.to(reading.after)

    def _run(
        self, session: Session, resources: ExitStack, bound: BoundStatement, row_limit: int | None, reading: Reading
    ) -> ResultStream:
        statement = bound.statement
        resolved = resolve(statement.tables, statement.cte_names, self._source.tables())
        schemas = {key: self._source.schema(*key) for key in resolved.tables}
        plans = plan_scans(statement, resolved, schemas, session.constant, bound.texts())
        if (divided := self._divided(session, resources, bound, resolved, schemas, reading)) is not None:
            return session.run(divided, row_limit)
        bare = bare_tables(resolved)
        sql = qualified(statement, session.catalog)
        self._create_views(session, resources, schemas, plans, bare, reading)
        try:
            return session.run(sql, row_limit)
        except QueryInvalid as error:
            if not isinstance(error.__cause__, duckdb.BinderException) or all(
                plan.columns is None for plan in plans.values()
            ):
                raise
        # The planner may have left out a column that the SQL names in a way it does not see. With every
        # column in the view the statement runs, or the message names the right candidates.
        self._create_views(session, resources, schemas, dict.fromkeys(plans, ScanPlan()), bare, reading)
        return session.run(sql, row_limit)

    def _divided(
        self,
        session: Session,
        resources: ExitStack,
        bound: BoundStatement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        reading: Reading,
    ) -> str | None:
        """SQL of a statement whose parts run where the rows are; None where it runs over rows, all of them here."""
        statement, fragments = bound.statement, self._source.fragments(reading.fence)
        if not statement.analyzed:
            if fragments is None or statement.explain:
                return None
            return DistributedRun(session, resources, fragments, reading).prepared(bound, resolved, schemas)
        source = self._source.fragments(reading.fence, always=True)
        if source is None:
            return None
        run = DistributedRun(session, resources, source, reading, partial=fragments is not None, profiled=True)
        return run.explained(bound, resolved, schemas)

    def _create_views(
        self,
        session: Session,
        resources: ExitStack,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        bare: frozenset[TableKey],
        reading: Reading,
    ) -> None:
        for key, plan in plans.items():
            try:
                scans = [] if plan.empty else self._scan(resources, schemas[key], plan, reading)
            except StoreError as error:
                raise session.translate(error) from error
            if session.timer.expired:
                raise QueryTimeout.after(session.timer.timeout_ms)
            session.create_view(schemas[key], plan.columns, scans, bare=key in bare)
            self._count(
                files_scanned=sum(len(scan.files) for scan in scans),
                live_rows_scanned=sum(scan.table.num_rows for scan in scans),
            )

    def _scan(self, resources: ExitStack, schema: TableSchema, plan: ScanPlan, reading: Reading) -> list[GroupScan]:
        scans = list(
            self._source.scan(
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
            resources.push(scan)
        return scans


def _newest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each group that one of two mappings names."""
    return {group: max(one.get(group, -1), other.get(group, -1)) for group in one.keys() | other.keys()}
