"""Runs SQL over the unsealed and sealed rows of one node.

Every query is one submission to the driver scheduler (see `consumers.scheduling`), whose driver runs it to its end on a
thread of its own, whenever it has a worker (`query_run`). The caller reads its rows from a bounded buffer.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.query_errors import QueryCancelled, QueryError, QueryTimeout, TooManyQueries
from headrace.consumers.query.query_host import QueryWanted
from headrace.consumers.query.query_run import SMALL_MB, QueryRun, memory_sizes
from headrace.consumers.query.query_timer import Interrupter, QueryTimer
from headrace.consumers.query.result_stream import ResultStream
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import TableSource
from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.consumers.scheduling.driver import DriverSpec
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.driver_task import QueryReport, ScheduledQuery, Submission
from headrace.consumers.scheduling.memory_pool import BYTES_PER_MB
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_threads import SchedulerThreads
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver
from headrace.schemas.tables import TableSchema

__all__ = ["QueryEngine", "QueryStatistics"]

CLOSE_WAIT_S = 10.0
"""How long the close of a result waits for its query."""


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
    rollups_used: int = 0


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
        self.source = source
        self._clock_ns = clock_ns
        self.on_unreadable = on_unreadable
        self._lock = threading.Lock()
        self._sizes_mb = memory_sizes(self.settings.memory_limit_mb, self.settings.memory_per_query_mb)
        # One that outgrows what it had at first asks for more before it writes to the disk.
        spills_from_mb = self._sizes_mb[1] if len(self._sizes_mb) > 1 else 0
        self.database = LockedDatabase(directories, self.settings, spills_from_mb, self._sizes_mb[0])
        self.interrupter = Interrupter()
        self._threads = SchedulerThreads(scheduler_limits(self.settings))

    @property
    def scheduler(self) -> DriverScheduler:
        """What runs the queries, for those who watch it."""
        return self._threads.scheduler

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
        user: str = "",
    ) -> ResultStream:
        """Start a query and return when its first rows are there. The caller closes the result.

        `on_start` receives a function that cancels the query from any thread. For all else see `begin`. Raises a
        QueryError.
        """
        pending = self.begin(
            sql,
            after=after,
            timeout_ms=timeout_ms,
            row_limit=row_limit,
            stale_s=stale_s,
            parameters=parameters,
            user=user,
        )
        return self._answer_of(pending, on_start)

    def begin(
        self,
        sql: str,
        *,
        after: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        row_limit: int | None = None,
        stale_s: float | None = None,
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> PendingQuery:
        """Start a query, and wait for nothing. The caller takes its result.

        `after` maps groups (see `group_names`) to log offsets that the result must contain. `timeout_ms` bounds the
        whole query, including the reading of its result. `row_limit` cuts the result; 0 = no table is read, and the
        result has its schema alone. A node that does not serve answers from what it has if that is at most `stale_s`
        old; None = `query.stale_max_s`. `parameters` are the values of the names that the SQL writes as `$name`.
        `user` is whose query it is, for `query.queries_per_user_max`. Raises TooManyQueries, and QueryError behind
        `close`.
        """
        stale_s = self.settings.stale_max_s if stale_s is None else stale_s
        wanted = QueryWanted(sql, after or {}, row_limit, stale_s, parameters or {})
        return self._begun(wanted, timeout_ms, user)

    def _begun(self, wanted: QueryWanted, timeout_ms: int | None, user: str) -> PendingQuery:
        most_ms = self.settings.timeout_ms
        pending = PendingQuery(self, wanted, min(timeout_ms or most_ms, most_ms), user)
        try:
            pending.submit()
        except BaseException as error:
            pending.fail(error)
            raise
        return pending

    def parameters(
        self, sql: str, *, timeout_ms: int | None = None, on_start: Callable[[Callable[[], None]], None]
    ) -> pa.Schema:
        """The parameters that a statement names, and the types that it most likely wants. Raises a QueryError.

        It takes the place of a query while it is checked; `on_start`: see `query`.
        """
        pending = self._begun(QueryWanted(sql, row_limit=0, describes_parameters=True), timeout_ms, "")
        with self._answer_of(pending, on_start) as result:
            return result.schema

    def _answer_of(self, pending: PendingQuery, on_start: Callable[[Callable[[], None]], None] | None) -> ResultStream:
        try:
            if on_start is not None:
                on_start(pending.cancel)
        except BaseException:
            pending.fail(None)
            raise
        return pending.result()

    def tables(self) -> list[TableSchema]:
        """The newest schema of every table, in order of name."""
        return [self.source.schema(database, table) for database, table in sorted(self.source.tables())]

    def reports(self) -> list[QueryReport]:
        """The queries that run, in the order in which they came."""
        return self.scheduler.reports()

    def kill(self, query_id: str) -> None:
        """End a query on somebody's word. Raises QueryUnknown."""
        self.scheduler.kill(query_id)

    def close(self) -> None:
        """Refuse new queries, and end those that run."""
        self._threads.close()
        self.database.close()
        self.interrupter.close()

    def submit(self, submission: Submission) -> ScheduledQuery:
        """Take a query, or refuse it. Raises TooManyQueries."""
        try:
            return self.scheduler.submit(submission)
        except TooManyQueries:
            self.count(refused_busy=1)
            raise

    def count(self, **amounts: float) -> None:
        """See QueryHost."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)

    def reserve(self, query_id: str, memory_mb: int) -> Future[None]:
        """See QueryHost."""
        return self.scheduler.reserve(query_id, memory_mb * BYTES_PER_MB)

    @property
    def workers(self) -> int:
        """See DriverHost."""
        return self.scheduler.limits.workers

    def extend(self, query_id: str, drivers: Sequence[DriverSpec], memory_mb: int) -> bool:
        """See DriverHost."""
        return self.scheduler.extend(query_id, drivers, memory_mb * BYTES_PER_MB)

    def run_of(self, query_id: str, wanted: QueryWanted, timer: QueryTimer) -> QueryRun:
        """The work of a query."""
        return QueryRun(self, query_id, wanted, timer, self._sizes_mb, self._clock_ns() // 1_000)

    @property
    def memory_first_bytes(self) -> int:
        """What every query reserves before it runs."""
        return self._sizes_mb[0] * BYTES_PER_MB


class PendingQuery:
    """One query from its submission to its end. Any thread may call every method."""

    def __init__(self, engine: QueryEngine, wanted: QueryWanted, timeout_ms: int, user: str) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.began_s = time.monotonic()
        self._engine = engine
        self._timeout_ms = timeout_ms
        self.timer = QueryTimer(engine.interrupter, timeout_ms)
        self._run = engine.run_of(self.id, wanted, self.timer)
        self.output = self._run.output
        self._sql = wanted.sql
        self._user = user
        self._scheduled: ScheduledQuery | None = None

    def result(self) -> ResultStream:
        """Its result, once the first rows are there. Called once. Raises the QueryError that ended it."""
        try:
            found = ResultStream(self, self.output)
        except BaseException as error:
            self.fail(error)
            raise
        planning_s = time.monotonic() - self.began_s
        self._engine.count(succeeded=1, planning_seconds=planning_s, stale=int(found.as_of is not None))
        return found

    def fail(self, error: BaseException | None) -> None:
        """End it without a result, for this reason."""
        self.end()
        if not isinstance(error, TooManyQueries):
            self._engine.count(failed=1, timed_out=isinstance(error, QueryTimeout))

    def submit(self) -> None:
        """Raises TooManyQueries, and QueryError of an engine that is closed."""
        driver = ThreadedDriver(self._run.work, self._run.interrupt)
        self._engine.count(running=1)
        try:
            self._scheduled = self._engine.submit(
                Submission(
                    self.id,
                    [DriverSpec(driver)],
                    self._timeout_ms,
                    self._engine.memory_first_bytes,
                    self._sql,
                    self._user,
                    watcher=self,
                )
            )
        except BaseException:
            self.ended(None)
            raise

    @property
    def answered(self) -> bool:
        """See EndWatcher."""
        return self.output.complete

    def ended(self, error: QueryError | None) -> None:
        """See EndWatcher."""
        self.timer.finish()
        self._engine.count(running=-1, running_seconds=time.monotonic() - self.began_s)
        if isinstance(error, QueryTimeout):
            error = self._run.timed_out(error)
        self.output.fail(error or QueryCancelled("the query ended without an answer"))

    def cancel(self) -> None:
        """End it; any thread."""
        if self._scheduled is not None:
            self._engine.scheduler.abort(self._scheduled, QueryCancelled("the query was cancelled before its end"))

    def end(self) -> None:
        """See RunningQuery."""
        if self._scheduled is None:
            return
        if not self.output.complete:
            self._engine.scheduler.abort(self._scheduled, QueryCancelled("the result was closed before its end"))
        self._scheduled.wait(CLOSE_WAIT_S)


def scheduler_limits(settings: QuerySettings) -> SchedulerLimits:
    """The limits of a scheduler by the settings of queries."""
    return SchedulerLimits(
        settings.threads,
        settings.slice_ms / 1_000,
        CapacityLimits(settings.queue_max, settings.queries_max, settings.queries_per_user_max),
        settings.memory_limit_mb * BYTES_PER_MB,
        memory_sizes(settings.memory_limit_mb, settings.memory_per_query_mb)[-1] * BYTES_PER_MB,
        SMALL_MB * BYTES_PER_MB,
        short_workers=settings.short_threads,
    )
