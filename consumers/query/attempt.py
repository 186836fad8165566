"""One run of a statement under one fence: plan, scans, views, and its rows into an output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

import duckdb
import pyarrow as pa

from headrace.consumers.query.answer_width import check_width
from headrace.consumers.query.database import Pauses
from headrace.consumers.query.distributed_run import DistributedRun
from headrace.consumers.query.file_pauses import parts_of_statement
from headrace.consumers.query.fragment_drivers import FragmentDrivers
from headrace.consumers.query.group_scans import GroupScan, rows_of
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.inlining import inlined
from headrace.consumers.query.log_waits import begin_reading
from headrace.consumers.query.long_steps import LongSteps
from headrace.consumers.query.parallel_run import ParallelRun
from headrace.consumers.query.parameters import BoundStatement, described
from headrace.consumers.query.planner import ScanPlan, plan_scans
from headrace.consumers.query.query_errors import (
    QueryInvalid,
    QueryMemory,
)
from headrace.consumers.query.query_host import QueryHost, QueryWanted
from headrace.consumers.query.query_output import BUFFER_BYTES, QueryOutput
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.remote_rows import check_time
from headrace.consumers.query.result_stream import unique_names
from headrace.consumers.query.series_run import SeriesRun
from headrace.consumers.query.session import Session, file_values, qualified, show_table
from headrace.consumers.query.table_names import Resolved, TableKey, fold, resolve
from headrace.consumers.query.table_source import ReadFence, Reading
from headrace.consumers.query.views import SCANNED_COLUMN, spilling
from headrace.consumers.query.whole_sorts import sorted_whole
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.threaded_driver import Turn
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema

SMALL_INPUT_ROWS = 250_000
"""Sorts and joins of less are done before anybody could notice."""
NOT_BOUND = (duckdb.BinderException, duckdb.ParserException, duckdb.SyntaxException, duckdb.CatalogException)
"""Errors of a statement before it reads anything."""


class Attempt:
    """One run of the statement under one fence. Also the Pauses of its scans."""

    def __init__(
        self,
        host: QueryHost,
        query_id: str,
        wanted: QueryWanted,
        timer: QueryTimer,
        output: QueryOutput,
        turn: Turn,
        memory_mb: int,
        resources: ExitStack,
        *,
        spilling: bool = False,
        outgrown: bool = False,
    ) -> None:
        """`outgrown`: the statement did not fit into what a query has at first. `spilling`: nor into more, and takes
        the time to write all rows to disk.
        """
        self._spilling = spilling
        self._outgrown = outgrown
        self._host = host
        self._id = query_id
        self._wanted = wanted
        self._timer = timer
        self._output = output
        self._turn = turn
        self._memory_mb = memory_mb
        self._resources = resources
        self.reading: Reading | None = None
        """What its scans have in common, once they may begin."""
        self._drivers: FragmentDrivers | None = None
        self._on_schema: Callable[[pa.Schema], None] | None = None
        self._steps = LongSteps(turn, wanted.sql)
        self._has_much = False
        self._input_rows = 0

    def at_row(self, row: int) -> None:
        """See Pauses."""
        self._steps.at_row(row)

    def run(self, fence: ReadFence, now_us: int, *, has_much: bool) -> None:
        """Run it to its last row."""
        host, wanted = self._host, self._wanted

        def opened(resources: ExitStack, turn: Turn, pauses: Pauses) -> Session:
            return Session(
                host.database, resources, fence, self._timer, self._memory_mb, now_us, host.on_unreadable, turn, pauses
            )

        def bound_in(resources: ExitStack, turn: Turn, pauses: Pauses) -> Session:
            session = opened(resources, turn, pauses)
            session.bind(session.check(wanted.sql), wanted.parameters)
            return session

        self._has_much = has_much
        few = SeriesRun.of(host, wanted)
        if few is not None:
            self.reading = begin_reading(host.source, fence, wanted.after, self._timer, self._turn, self._output)
            if few.answered(self.reading, self._output):
                return
            self._turn.pause()
        session = opened(self._resources, self._turn, self)
        # What outgrew the memory of a small query needs all that it has in one place.
        if not self._outgrown:
            self._drivers = FragmentDrivers(host, self._id, self._timer, self._turn, self._memory_mb, bound_in)
        self._steps.before_plan()
        # Checked before the wait: SQL that cannot run is refused at once, not after the offsets have come.
        statement = session.check(wanted.sql)
        if wanted.describes_parameters:
            self._output.end(described(statement, host.source), fence)
            return
        bound = session.bind(statement, wanted.parameters)
        # Between the parts of the set-up, which together take longer than a slice.
        self._turn.pause()
        self.reading = begin_reading(host.source, fence, wanted.after, self._timer, self._turn, self._output)
        statement = bound.statement
        if statement.show:
            shown = show_table(statement, {key: host.source.schema(*key) for key in host.source.tables()})
            session.register("__shown", shown)
            self._write(session, fence, f"{statement.explain}FROM __shown")
        else:
            self._answer(session, bound, self.reading)

    def _answer(self, session: Session, bound: BoundStatement, reading: Reading) -> None:
        statement, source = bound.statement, self._host.source
        resolved = resolve(statement.tables, statement.cte_names, source.tables())
        schemas = {key: source.schema(*key) for key in resolved.tables}
        whole = ScanPlan(empty=self._wanted.row_limit == 0)
        plans: Mapping[TableKey, ScanPlan] = dict.fromkeys(schemas, whole)
        if not whole.empty:
            self._steps.before_plan()
            parsed = session.parsed(statement)
            plans = plan_scans(statement, resolved, schemas, session.constant, bound.texts(), parsed)
            self._turn.pause()
            self._steps.before_plan()
        hourly = [key for key, plan in plans.items() if plan.hourly]
        divided = None if whole.empty else self._divided(session, bound, resolved, schemas, reading, hourly=hourly)
        if divided is not None:
            self._prepare(statement)
            self._write(session, reading.fence, divided)
            return
        self._learn_schema(statement, schemas, plans)
        scans = self._scans(session, schemas, plans, reading)
        if self._drivers is not None:
            run = ParallelRun(self._drivers, bound, resolved, schemas, plans, scans)
            if self._ran_parallel(session, run, reading, statement):
                return
            self._turn.pause()
        reads = self._selects(session, statement, resolved, schemas, plans, scans)
        self._turn.pause()
        self._prepare(statement)
        if self._ran_inlined(session, statement, resolved, reads, reading.fence):
            return
        try:
            self._write_over_views(session, bound, resolved, schemas, reads, reading.fence)
        except QueryInvalid as error:
            is_narrow = any(plan.columns is not None for plan in plans.values())
            if not is_narrow or not isinstance(error.__cause__, duckdb.BinderException):
                raise
        else:
            return
        # The planner may have left out a column that the SQL names in a way it does not see. With every
        # column in the view the statement runs, or the message names the right candidates.
        plans = dict.fromkeys(plans, whole)
        scans = self._scans(session, schemas, plans, reading)
        reads = self._selects(session, statement, resolved, schemas, plans, scans)
        self._write_over_views(session, bound, resolved, schemas, reads, reading.fence)

    def _learn_schema(
        self, statement: Statement, schemas: Mapping[TableKey, TableSchema], plans: Mapping[TableKey, ScanPlan]
    ) -> None:
        """Remember the names and types that DuckDB gives to the answer, for later statements of the template."""
        checked = self._host.database.checked
        for key, plan in plans.items():
            if plan.series is not None and self._wanted.row_limit is None and statement.is_plain:
                self._on_schema = partial(checked.put_answer_schema, statement, schemas[key])

    def _write_over_views(
        self,
        session: Session,
        bound: BoundStatement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        reads: Mapping[TableKey, str],
        fence: ReadFence,
    ) -> None:
        bare, statement = resolved.bare, bound.statement
        for key, select in reads.items():
            session.create_view_as(schemas[key], select, bare=key in bare)
        uses = _uses(statement, resolved)
        viewed = sum(select.count(SCANNED_COLUMN) * uses[key] for key, select in reads.items())
        self._write(session, fence, qualified(statement, session.catalog), viewed)

    def _ran_inlined(
        self,
        session: Session,
        statement: Statement,
        resolved: Resolved,
        reads: Mapping[TableKey, str],
        fence: ReadFence,
    ) -> bool:
        """Whether the statement ran with what it reads in the place of its tables. Nothing is shown if not."""
        sql = inlined(statement, resolved, reads)
        if sql is None:
            return False
        try:
            self._write(session, fence, sql)
        except QueryInvalid as error:
            # It may name a table by its database, which only a view has; and an error must show what the user wrote.
            if self._output.begun or not isinstance(error.__cause__, NOT_BOUND):
                raise
            return False
        return True

    def _divided(
        self,
        session: Session,
        bound: BoundStatement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        reading: Reading,
        *,
        hourly: Sequence[TableKey],
    ) -> str | None:
        """SQL of a statement whose parts run where the rows are; None where it runs over rows, all of them here."""
        statement, source = bound.statement, self._host.source
        fragments = source.fragments(reading.fence, hourly=hourly)
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
            drivers=None if statement.analyzed else self._drivers,
        )
        sql = (run.explained if statement.analyzed else run.prepared)(bound, resolved, schemas)
        self._note(run.scans)
        self._input_rows = run.input_rows
        return sql

    def _ran_parallel(self, session: Session, run: ParallelRun, reading: Reading, statement: Statement) -> bool:
        """Whether the statement ran as several drivers. Nothing is shown if not."""
        if not run.pays:
            return False
        self._steps.before_plan()
        sql = run.prepared(session, self._resources, reading)
        if sql is not None:
            self._input_rows = run.input_rows
            self._prepare(statement)
            self._write(session, reading.fence, sql)
            return True
        filtered = run.filtered(session)
        if filtered is None:
            return False
        with closing(filtered[1]):
            self._put(session, reading.fence, *filtered, is_divided=True)
        return True

    def _note(self, scans: Sequence[GroupScan]) -> None:
        """Count what the statement reads."""
        self._input_rows += rows_of(scans)
        self._host.count(
            files_scanned=sum(len(scan.files) for scan in scans),
            live_rows_scanned=sum(scan.table.num_rows for scan in scans),
            rollups_used=sum(scan.figures.rolled_up for scan in scans),
        )

    def _prepare(self, statement: Statement) -> None:
        """Before a statement with steps that cannot stop, or that holds many rows: a turn and memory for such ones."""
        is_small = self._input_rows < SMALL_INPUT_ROWS
        if statement.holds_rows and not is_small and not self._has_much:
            raise QueryMemory.above(self._memory_mb) from MemoryError("the statement holds rows of its tables")
        self._steps.before_rows(statement, is_small=is_small, outgrown=self._outgrown)

    def _scans(
        self,
        session: Session,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        reading: Reading,
    ) -> dict[TableKey, list[GroupScan]]:
        """The scans of each table."""
        found = dict[TableKey, list[GroupScan]]()
        for key, plan in plans.items():
            try:
                found[key] = [] if plan.empty else self._scan(schemas[key], plan, reading)
            except StoreError as error:
                raise session.translate(error) from error
            check_time(self._timer)
            self._note(found[key])
            self._turn.pause()
        return found

    def _selects(
        self,
        session: Session,
        statement: Statement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        scans: Mapping[TableKey, Sequence[GroupScan]],
    ) -> dict[TableKey, str]:
        """The SELECT of each table over its rows."""
        uses, found = _uses(statement, resolved), dict[TableKey, str]()
        alone = self._drivers is not None and self._drivers.alone
        view = partial(session.view_of, statement=statement, alone=alone)
        for key, plan in plans.items():
            # What computes without reading may read a table any number of times.
            often = 0 if statement.generates_rows else uses[key]
            values = file_values(schemas[key], plan.columns, scans[key])
            parts = parts_of_statement(statement, values, session.parsed(statement), alone=alone)
            select = view(schemas[key], plan, scans[key], times=often, parts=parts)
            found[key] = spilling(select) if self._spilling and scans[key] else select
        return found

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

    def _write(self, session: Session, fence: ReadFence, sql: str, viewed: int = 0) -> None:
        """Every row into the output. `viewed` are the columns of scans in the views that it names."""
        self._steps.before_bind(sql, viewed)
        sql = sorted_whole(sql) if self._spilling else sql
        self._put(session, fence, *session.run(sql, empty=self._wanted.row_limit == 0))

    def _put(
        self,
        session: Session,
        fence: ReadFence,
        found: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        *,
        is_divided: bool = False,
    ) -> None:
        """Every row that is wanted, of columns as they are found, into the output.

        `is_divided`: sessions of other drivers give the rows, so that this one holds nothing.
        """
        names = unique_names(found.names)
        schema = pa.schema([each.with_name(name) for each, name in zip(found, names, strict=True)])
        left = self._wanted.row_limit
        # Here: what fails behind its first rows cannot begin again.
        if left != 0 and not self._has_much:
            check_width(schema, self._memory_mb)
        while left != 0 and (batch := next(batches, None)) is not None:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                room = self._output.put(schema, fence, batch)
                if room is not None:
                    # What the statement could still take is of use to others until its reader comes.
                    held_bytes = 0 if is_divided else session.held_bytes()
                    self._turn.block(room, BlockedOn.OUTPUT, held_bytes + BUFFER_BYTES)
            self._turn.pause()
        if self._on_schema is not None:
            self._on_schema(schema)
        self._output.end(schema, fence)


def _uses(statement: Statement, resolved: Resolved) -> Counter[TableKey | None]:
    """How often a statement names each table."""
    return Counter(resolved.by_path.get(fold(name.path)) for name in statement.tables)
