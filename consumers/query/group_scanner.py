"""Answers scans of other nodes: the merged rows of one group that is in sync here, batch by batch.

The group must serve before the first row and behind the last one, as for a query of this node. The rows pass
through DuckDB in batches, so a scan holds no table in memory but the unsealed rows that are there anyway. Scans
have permits of their own: nodes that wait for each other's rows would otherwise hold the permits of queries that
the other one needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.deadline import Deadline
from headrace.consumers.query.bounds_sql import bounds_sql
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.explain import profiled
from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.group_scans import GroupScan, rollups_of
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.query_errors import NotCaughtUp, QueryError, SlotNotHeld, TooManyScans
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.rollup_plan import RollupPlan, plan_rollup_of
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.scan_request import RemoteScanRequest, ScanInvalid, wire_schema
from headrace.consumers.query.scan_stream import SchemaAhead
from headrace.consumers.query.session import Session, qualified
from headrace.consumers.query.table_names import fold
from headrace.consumers.query.table_source import LocalSource, Reading
from headrace.consumers.query.views import quoted
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TIME_COLUMN, TableSchema

SCAN_MB = 64
"""Memory of one scan: it holds no rows but those on their way."""
FRAGMENT_MB = 256
"""Memory of one that computes: groups of an aggregate, rows of a sort with a limit."""
SCHEMA_WAIT_S = 1.0
"""How long a scan waits for a version of the schema that the asker knows already."""


class SchemaSource(Protocol):
    """The schemas of tables; implemented by `consumers.membership.schema_log.SchemaLog`."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at exactly this version; None when it was not read in time."""
        ...


@dataclass(slots=True)
class ScanStatistics:
    """Counters since the start; `running` is a gauge."""

    running: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    rows: int = 0
    seconds: float = 0.0


class GroupScanner:
    """Opens scans for other nodes. Every method may be called from any thread."""

    def __init__(self, node: str, source: LocalSource, schemas: SchemaSource, engine: QueryEngine) -> None:
        """`engine` lends its DuckDB instance, its timer thread and its limits of memory and time."""
        self.statistics = ScanStatistics()
        self.scans_max = engine.settings.scans_max
        self._node = node
        self._source = source
        self._schemas = schemas
        self._engine = engine
        self._permits = threading.BoundedSemaphore(self.scans_max)
        self._lock = threading.Lock()

    def open(self, request: RemoteScanRequest) -> RunningScan:
        """A scan that may begin. Raises SlotNotHeld, NotReady, TooManyScans, ScanInvalid, NotCaughtUp."""
        try:
            return self._open(request)
        except QueryError:
            self._count(refused=1)
            raise

    def _open(self, request: RemoteScanRequest) -> RunningScan:
        present = list(self._source.groups.items())
        topic = next((key for key, group in present if _is_wanted(group, request)), None)
        if topic is None:
            raise SlotNotHeld.of(request.group, self._node)
        if not self._permits.acquire(blocking=False):
            raise TooManyScans(
                f"{self.scans_max} scans for other nodes are running already", action="retry", retriable=True
            )
        self._count(running=1)
        resources = ExitStack()
        resources.callback(self._release, time.monotonic())
        try:
            fence = LocalFence(self._source.groups, self._source.state, [topic], request.table_version)
            schema = self._schema(request)
            session = self._session(resources, request, fence)
            return RunningScan(resources, session, request, schema, fence, self._source, self._end)
        except BaseException:
            resources.close()
            raise

    def _schema(self, request: RemoteScanRequest) -> TableSchema:
        # Everything from the asker's version on has the columns that it names.
        if self._schemas.wait_for(request.database, request.table, request.version, SCHEMA_WAIT_S) is None:
            raise NotCaughtUp(
                f"it has not read version {request.version} of the schema of {request.database}.{request.table}",
                action="retry, or ask another node",
                retriable=True,
            )
        return self._source.schema(request.database, request.table)

    def _session(self, resources: ExitStack, request: RemoteScanRequest, fence: LocalFence) -> Session:
        engine, fragment = self._engine, request.fragment
        timer = QueryTimer(engine.interrupter, max(1, min(request.timeout_ms, engine.settings.timeout_ms)))
        resources.callback(timer.finish)
        memory_mb = min(SCAN_MB if fragment is None else FRAGMENT_MB, engine.settings.memory_limit_mb)
        now_us = 0 if fragment is None else fragment.now_us
        return Session(engine.database, resources, fence, timer, memory_mb, now_us, engine.on_unreadable)

    def _release(self, began_s: float) -> None:
        self._count(running=-1, seconds=time.monotonic() - began_s)
        self._permits.release()

    def _end(self, rows: int | None) -> None:
        self._count(failed=1) if rows is None else self._count(answered=1, rows=rows)

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)


class RunningScan:
    """One scan. `schema` is that of its batches. It holds files, memory and a permit until it is closed."""

    def __init__(
        self,
        resources: ExitStack,
        session: Session,
        request: RemoteScanRequest,
        schema: TableSchema,
        fence: LocalFence,
        source: LocalSource,
        on_end: Callable[[int | None], None],
    ) -> None:
        fragment = request.fragment
        self._is_of_rows = fragment is None or fragment.schema is None
        self.schema = (
            fragment.schema
            if fragment is not None and fragment.schema is not None
            else wire_schema(schema, request.columns)
        )
        self._resources = resources
        self._session = session
        self._request = request
        self._table = schema
        self._fence = fence
        self._source = source
        self._on_end = on_end
        self.hand_overs = HandOvers()
        self._lock = threading.Lock()
        self._ended = False
        self._figures: ScanFigures | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None once these were all and the group still serves. Raises a QueryError."""
        with self._lock:
            if self._batches is None:
                self._batches = self._run()
            return next(self._batches, None)

    def close(self) -> None:
        """End the scan, also a batch that is being computed. Closing twice is fine."""
        self._session.timer.cancel()
        with self._lock:
            self._end(None)
            self._resources.close()

    def _end(self, rows: int | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(rows)

    def _run(self) -> Iterator[pa.RecordBatch]:
        request, timer = self._request, self._session.timer
        ((name, confirmed),) = self._fence.confirmed.items()
        after = {name: max(request.after, confirmed)}
        deadline = Deadline(min(timer.left_s, request.wait_ms / 1_000))
        waited = self._source.wait(self._fence, after, deadline.left_s())
        if not waited or not self._source.wait_accepted(self._fence, {name: request.accepted}, deadline.left_s()):
            raise NotCaughtUp(
                f"it did not reach offset {after[name]} of group {request.group}, of slot table "
                f"{request.table_version}, in {request.wait_ms} ms",
                action="retry, or ask another node",
                retriable=True,
            )
        # Before the rows are read: they have at least what was accepted by now.
        [group] = self._fence.groups
        self.hand_overs = HandOvers.of(group.applied.changes)
        rows = 0
        for batch in self._batches_of(Reading(self._fence, after, timer, deadline)):
            rows += batch.num_rows
            yield self._wire(batch)
        self._fence.check()
        # Behind the last row, and behind the fence.
        self._end(rows)

    def _batches_of(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        request = self._request
        # Before the rows: what may not run is refused at once.
        sql = self._sql() if request.fragment is None else self._checked(request.fragment)
        rollup = self._rollup(sql)
        try:
            scans = self._source.scan(
                request.database,
                request.table,
                columns=request.columns,
                start_ns=request.start_ns,
                end_ns=request.end_ns,
                tags=request.tags or None,
                newest=request.newest,
                rollup=None if rollup is None else rollup.request,
                reading=reading,
            )
        except StoreError as error:
            raise self._session.translate(error) from error
        for scan in scans:
            self._resources.push(scan)
        columns = tuple({*request.columns, *self._filtered()})
        self._session.create_view(self._table, columns, scans, bare=False)
        sql = self._with_rollups(sql, rollup, scans)
        if request.profiled:
            self._figures = profiled(self._session, sql, scans, request.group)
        found, batches = self._session.run(sql)
        if not self._is_of_rows and not found.equals(self.schema):
            raise SchemaAhead.of_fragment()
        return batches

    def _rollup(self, sql: str) -> RollupPlan | None:
        """How rollups answer the fragment. It was checked, and is what the asker wrote."""
        return None if self._is_of_rows else plan_rollup_of(sql, self._table, self._session.constant)

    def _with_rollups(self, sql: str, rollup: RollupPlan | None, scans: Sequence[GroupScan]) -> str:
        """The fragment over rows, and over the rollups of other rows."""
        found = rollups_of(scans)
        if rollup is None or not found:
            return sql
        _, types = self._session.described(sql)
        rolled = rollup.sql(quoted(self._session.register_next(pa.concat_tables(found))), types)
        return f"{sql} UNION ALL {rolled}" if any(scan.files or scan.table.num_rows for scan in scans) else rolled

    def _checked(self, fragment: FragmentSql) -> str:
        """The SQL of a fragment, as the SQL of a user is checked. It reads the table of its request alone."""
        statement = self._session.check(fragment.sql)
        path = (self._request.database, self._request.table)
        others = {fold(name.path) for name in statement.tables} - {fold(path)}
        if others or not statement.tables or statement.explain or statement.show or statement.verb:
            raise ScanInvalid("the fragment is no SELECT over the table of its request")
        return qualified(self._session.bind(statement, fragment.parameters).statement, self._session.catalog)

    def figures(self) -> Mapping[str, Any]:
        """What was read, if the asker wants to know; see ScanFigures."""
        return {} if self._figures is None else self._figures.document()

    def _filtered(self) -> list[str]:
        """The columns that conditions name."""
        tags = [tag for tag in self._request.tags if tag in self._table.tags]
        return [*tags, TIME_COLUMN]

    def _sql(self) -> str:
        request = self._request
        name = f"{self._session.catalog}.{quoted(request.database)}.{quoted(request.table)}"
        tags = {tag: values for tag, values in request.tags.items() if tag in self._table.tags}
        conditions = bounds_sql(request.start_ns, request.end_ns, tags)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(map(quoted, request.columns))} FROM {name}{where}"

    def _wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with its tags as dictionaries: a third of the bytes, here, on the way and at the asker."""
        if not self._is_of_rows:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        columns = [
            pc.dictionary_encode(column) if pa.types.is_dictionary(field.type) else column
            for field, column in zip(self.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for field, column in zip(self.schema, columns, strict=True)], schema=self.schema
        )


def _is_wanted(group: Group, request: RemoteScanRequest) -> bool:
    """Whether a group is the one that a scan asks for; an asker that names no birth means the one there is."""
    wanted = group.key == request.name if request.birth else group.name == request.group
    return wanted and not group.health.holds(State.LEAVING)
