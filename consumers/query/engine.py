"""Answers SQL over the live and sealed rows of one node.

A query takes one of a bounded number of places, waits for the log offsets it must see, is checked (`guard`), has its names resolved (`names`) and its
reading narrowed (`planner`), and runs in a `session` over scans of the source. Later, a coordinator that asks other nodes is another source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb

from consumers.query.database import LockedDatabase, QuerySettings
from consumers.query.errors import NotCaughtUp, QueryInvalid, QueryTimeout, TooManyQueries
from consumers.query.faults import timeout
from consumers.query.guard import Statement
from consumers.query.names import TableKey, resolve
from consumers.query.planner import ScanPlan, plan_scans
from consumers.query.running import Deadline, QueryResult
from consumers.query.session import Session, bare_tables, qualified, shown
from consumers.query.source import Scan, TableSource, WaitingSource
from schemas.tables import TableSchema

RETRY_AFTER_S = 1

__all__ = ["RETRY_AFTER_S", "QueryEngine", "QuerySettings", "QueryStatistics"]


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
        """`directories` hold the segments, at any depth; queries can open no file outside of them. `on_unreadable` is told of segments that cannot
        be read."""
        self.settings = settings or QuerySettings()
        self.statistics = QueryStatistics()
        self._source = source
        self._clock_ns = clock_ns
        self._on_unreadable = on_unreadable
        self._places = threading.BoundedSemaphore(self.settings.queries_max)
        self._lock = threading.Lock()
        self._database = LockedDatabase(directories, self.settings)

    def query(
        self,
        sql: str,
        *,
        after: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        row_limit: int | None = None,
        on_start: Callable[[Callable[[], None]], None] | None = None,
    ) -> QueryResult:
        """Start a query and return when its first rows are there.

        `after` maps groups to log offsets that the answer must contain; `timeout_ms` ends the whole query, reading of the result included;
        `row_limit` cuts the result; `on_start` is given a function that ends the query from any thread. Raises a QueryError. The caller closes
        the result.
        """
        held = self._take_place()
        started_s = time.monotonic()
        try:
            result = self._start(held, sql, after or {}, timeout_ms, row_limit, on_start)
        except BaseException as error:
            held.close()
            self._count(failed=1, timed_out=isinstance(error, QueryTimeout))
            raise
        self._count(succeeded=1, planning_seconds=time.monotonic() - started_s)
        return result

    def tables(self) -> list[TableSchema]:
        """The newest schema of every table, in order of name."""
        return [self._source.schema(database, table) for database, table in sorted(self._source.tables())]

    def close(self) -> None:
        """Refuse later queries; those that run end when their results are closed."""
        self._database.close()

    def _take_place(self) -> ExitStack:
        if not self._places.acquire(blocking=False):
            self._count(refused_busy=1)
            raise TooManyQueries(
                f"{self.settings.queries_max} queries are running already",
                action=f"retry after {RETRY_AFTER_S} s",
                retriable=True,
            )
        self._count(running=1)
        held = ExitStack()
        held.callback(self._give_place, time.monotonic())
        return held

    def _give_place(self, started_s: float) -> None:
        self._count(running=-1, running_seconds=time.monotonic() - started_s)
        self._places.release()

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)

    def _start(
        self,
        held: ExitStack,
        sql: str,
        after: Mapping[str, int],
        timeout_ms: int | None,
        row_limit: int | None,
        on_start: Callable[[Callable[[], None]], None] | None,
    ) -> QueryResult:
        timeout_ms = min(timeout_ms or self.settings.timeout_ms, self.settings.timeout_ms)
        now_us = self._clock_ns() // 1_000
        memory_limit_mb = self.settings.memory_limit_mb
        session = Session(self._database, held, memory_limit_mb, timeout_ms, now_us, self._on_unreadable)
        if on_start is not None:
            on_start(session.deadline.cancel)
        statement = session.check(sql)
        self._await(after, session.deadline)
        if statement.show:
            session.register("__shown", shown(statement, {(item.database, item.table): item for item in self.tables()}))
            return session.run(f"{statement.explain}FROM __shown", row_limit)
        return self._answer(session, held, statement, row_limit)

    def _await(self, after: Mapping[str, int], deadline: Deadline) -> None:
        if after and isinstance(self._source, WaitingSource) and not self._source.wait_for(after, deadline.left_s):
            groups = ", ".join(f"offset {offset} of group {group}" for group, offset in sorted(after.items()))
            raise NotCaughtUp(
                f"this node did not reach {groups} within {deadline.timeout_ms} ms",
                action="retry, or ask another node",
                retriable=True,
            )

    def _answer(self, session: Session, held: ExitStack, statement: Statement, row_limit: int | None) -> QueryResult:
        resolved = resolve(statement.tables, statement.cte_names, self._source.tables())
        schemas = {key: self._source.schema(*key) for key in resolved.tables}
        plans = plan_scans(statement, resolved, schemas, session.constant)
        bare = bare_tables(resolved)
        sql = qualified(statement, session.catalog)
        self._create_views(session, held, schemas, plans, bare)
        try:
            return session.run(sql, row_limit)
        except QueryInvalid as error:
            if not isinstance(error.__cause__, duckdb.BinderException) or all(
                plan.columns is None for plan in plans.values()
            ):
                raise
        # A column was not found. With every column in sight either it is, or the message names the right candidates.
        self._create_views(session, held, schemas, dict.fromkeys(plans, ScanPlan()), bare)
        return session.run(sql, row_limit)

    def _create_views(
        self,
        session: Session,
        held: ExitStack,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        bare: frozenset[TableKey],
    ) -> None:
        for key, plan in plans.items():
            scans = [] if plan.empty else self._scan(held, schemas[key], plan)
            if session.deadline.expired:
                raise timeout(session.deadline.timeout_ms)
            session.create_view(schemas[key], plan.columns, scans, bare=key in bare)
            self._count(
                files_scanned=sum(len(scan.files) for scan in scans),
                live_rows_scanned=sum(scan.table.num_rows for scan in scans),
            )

    def _scan(self, held: ExitStack, schema: TableSchema, plan: ScanPlan) -> list[Scan]:
        scans = list(
            self._source.scan(
                schema.database,
                schema.table,
                columns=plan.columns,
                start_ns=plan.start_ns,
                end_ns=plan.end_ns,
                tags=plan.tags or None,
            )
        )
        for scan in scans:
            held.push(scan)
        return scans
