"""The statement of a scan for another node: rows of a group as they are, or a fragment over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.query.bounds_sql import bounds_sql
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.explain import profiled
from headrace.consumers.query.file_pauses import parts_of_rows, parts_of_statement
from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.group_scans import GroupScan, rollups_of, rows_of
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.rollup_plan import RollupPlan, plan_rollup_of
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.scan_memory import FRAGMENT_MB
from headrace.consumers.query.scan_request import RemoteScanRequest, ScanInvalid
from headrace.consumers.query.scan_stream import SchemaAhead
from headrace.consumers.query.session import Session, file_values, qualified
from headrace.consumers.query.table_names import fold
from headrace.consumers.query.table_source import Reading
from headrace.consumers.query.views import quoted
from headrace.consumers.query.whole_sorts import sorted_whole
from headrace.consumers.scheduling.threaded_driver import Turn
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TIME_COLUMN, TableSchema

SMALL_INPUT_ROWS = 250_000
"""A sort of less is done before anybody could notice."""


class ScanStatement:
    """Used by one thread. What it reads and holds is released with `resources`. Also the Pauses of its scans."""

    def __init__(
        self,
        engine: QueryEngine,
        request: RemoteScanRequest,
        table: TableSchema,
        timer: QueryTimer,
        fence: LocalFence,
        turn: Turn,
        resources: ExitStack,
        memory_mb: int,
    ) -> None:
        fragment = request.fragment
        now_us = 0 if fragment is None else fragment.now_us
        self._request = request
        self._is_large = memory_mb > FRAGMENT_MB
        self._table = table
        self._turn = turn
        self._resources = resources
        self._session = Session(
            engine.database, resources, fence, timer, memory_mb, now_us, engine.on_unreadable, turn, self
        )
        self.figures: ScanFigures | None = None
        """What was read, if the asker wants to know."""

    def at_row(self, row: int) -> None:
        """See Pauses."""
        del row
        self._turn.pause()

    def batches(self, source: LocalSource, reading: Reading, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The answer, in the form in which it travels. Raises a QueryError."""
        request = self._request
        # Before the rows: what may not run is refused at once.
        statement = None if request.fragment is None else self._checked(request.fragment)
        sql = self._rows_sql() if statement is None else qualified(statement, self._session.catalog)
        rollup = None if self._gives_rows else plan_rollup_of(sql, self._table, self._session.constant)
        scans = self._opened(source, reading, rollup)
        if statement is not None and statement.holds_rows and rows_of(scans) >= SMALL_INPUT_ROWS:
            self._turn.set_unbounded()
        columns = tuple({*request.columns, *self._filtered()})
        values = file_values(self._table, columns, scans)
        parts = (
            parts_of_rows(values, alone=False)
            if statement is None
            else parts_of_statement(statement, values, alone=False)
        )
        plan = ScanPlan(columns, request.start_ns, request.end_ns)
        self._session.create_view(self._table, plan, scans, bare=False, parts=parts)
        sql = self._with_rollups(sql, rollup, scans)
        if self._is_large:
            sql = sorted_whole(sql)
        if request.profiled:
            self.figures = profiled(self._session, sql, scans, request.group)
        found, batches = self._session.run(sql)
        if self._gives_rows:
            return (_with_dictionaries(batch, schema) for batch in batches)
        if not found.equals(schema):
            raise SchemaAhead.of_fragment()
        return (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)

    @property
    def _gives_rows(self) -> bool:
        """Whether the answer has columns of the table."""
        return self._request.fragment is None or self._request.fragment.schema is None

    def _opened(self, source: LocalSource, reading: Reading, rollup: RollupPlan | None) -> list[GroupScan]:
        request = self._request
        try:
            scans = source.scan(
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
        return list(scans)

    def _with_rollups(self, sql: str, rollup: RollupPlan | None, scans: Sequence[GroupScan]) -> str:
        """The fragment over rows, and over the rollups of other rows."""
        found = rollups_of(scans)
        if rollup is None or not found:
            return sql
        _, types = self._session.described(sql)
        rolled = rollup.sql(quoted(self._session.register_next(pa.concat_tables(found))), types)
        return f"{sql} UNION ALL {rolled}" if any(scan.files or scan.table.num_rows for scan in scans) else rolled

    def _checked(self, fragment: FragmentSql) -> Statement:
        """A fragment, checked as the SQL of a user is. It reads the table of its request alone."""
        statement = self._session.check(fragment.sql)
        path = (self._request.database, self._request.table)
        others = {fold(name.path) for name in statement.tables} - {fold(path)}
        if others or not statement.tables or statement.explain or statement.show or statement.verb:
            raise ScanInvalid("the fragment is no SELECT over the table of its request")
        return self._session.bind(statement, fragment.parameters).statement

    def _filtered(self) -> list[str]:
        """The columns that conditions name."""
        tags = [tag for tag in self._request.tags if tag in self._table.tags]
        return [*tags, TIME_COLUMN]

    def _rows_sql(self) -> str:
        request = self._request
        name = f"{self._session.catalog}.{quoted(request.database)}.{quoted(request.table)}"
        tags = {tag: values for tag, values in request.tags.items() if tag in self._table.tags}
        conditions = bounds_sql(request.start_ns, request.end_ns, tags)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(map(quoted, request.columns))} FROM {name}{where}"


def _with_dictionaries(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with its tags as dictionaries: a third of the bytes, here, on the way and at the asker."""
    columns = [
        pc.dictionary_encode(column) if pa.types.is_dictionary(field.type) else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for field, column in zip(schema, columns, strict=True)], schema=schema
    )
