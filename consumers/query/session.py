"""The session of one query in a DuckDB instance: a catalog with a view per table.

The views show one instant, and their segment files stay on disk until the session ends. Closing the stack `resources`
releases everything in reverse order, and empties the instance for the next query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import structlog

from headrace.consumers.query import guard
from headrace.consumers.query.answer_types import check_types
from headrace.consumers.query.database import (
    CATALOG,
    HOME_CATALOG,
    PAUSE_ROWS,
    PAUSE_ROWS_JOINED,
    LockedDatabase,
    Pauses,
    statement_kinds,
    streamed,
    syntax_tree,
)
from headrace.consumers.query.database_errors import is_broken, translate
from headrace.consumers.query.file_pauses import step_values_max
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.parameters import BoundStatement, bind
from headrace.consumers.query.planner import Parsed, ScanPlan
from headrace.consumers.query.query_errors import (
    QueryCancelled,
    QueryError,
    QueryMemory,
    QueryTimeout,
    SegmentUnreadable,
)
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.table_names import TableKey
from headrace.consumers.query.table_source import ReadFence, Waits
from headrace.consumers.query.views import (
    FilePauses,
    PausingRows,
    column_types,
    joined,
    live_table,
    pause_table,
    quoted,
    view_query,
)
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema

BATCH_ROWS = 32_768
_log = structlog.get_logger(__name__)
AMBIGUOUS_DATABASES = frozenset({"system", "temp", HOME_CATALOG})
"""Databases whose name DuckDB also gives to a catalog of its own."""
BARE_NAMES = "main"
"""The schema with a second view of each table that the statement names without its database."""


class Session:
    """An instance that runs one statement. Used by one thread at a time."""

    def __init__(
        self,
        database: LockedDatabase,
        resources: ExitStack,
        fence: ReadFence,
        timer: QueryTimer,
        memory_mb: int,
        now_us: int,
        on_unreadable: Callable[[], None],
        waits: Waits,
        pauses: Pauses | None = None,
    ) -> None:
        """Takes an instance of `memory_mb`, whose scans call `pauses`, and waits for it under `waits`.

        `timer` interrupts its statements. `on_unreadable` is called when a query meets a segment that cannot be read.
        """
        self._on_unreadable = on_unreadable
        self._database = database
        self._fence = fence
        self._memory_mb = memory_mb
        self._registered: list[str] = []
        self._bound: BoundStatement | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._is_clean, self._is_reusable, self._pausing = True, True, pauses is not None
        self.catalog = CATALOG
        self.divisions = database.divisions
        self.now_us = now_us
        self.timer = timer
        self._instance = database.lease(memory_mb, partial(waits.outside, BlockedOn.INSTANCE))
        self._instance.pauses = pauses
        self._connection = self._instance.connection
        resources.callback(self._give_back)
        # Behind this no interrupt comes any more, which would end a statement of the next query.
        resources.enter_context(timer.interrupts(partial(interrupt, self._connection)))

    def _give_back(self) -> None:
        reusable = False
        self._instance.pauses = None
        try:
            if self._is_reusable:
                self._clear()
                reusable = True
        except duckdb.Error as error:
            _log.warning("query instance not used again", error=str(error))
        finally:
            self._database.give_back(self._instance, reusable=reusable)

    def _clear(self) -> None:
        if self._reader is not None:
            self._reader.close()
        for name in self._registered:
            self._connection.unregister(name)
        if self._bound is not None and self._bound.names:
            self._connection.execute("; ".join(f"RESET VARIABLE {name}" for name in self._bound.variable_names()))
        if not self._is_clean:
            self._instance.clear()

    def check(self, sql: str) -> Statement:
        """The statement in `sql`, if it may run (see `guard`)."""
        try:
            # A function of the text alone, which takes a third of a small query.
            statement = self._database.checked.get(sql)
            if statement is None:
                kinds, tree = partial(statement_kinds, self._connection), partial(syntax_tree, self._connection)
                check = partial(guard.check, kinds=kinds, tree=tree)
                statement = check(sql)
                self._database.checked.put(sql, statement, check)
            if statement.names_now:
                self._fix_now()
        except duckdb.Error as error:
            raise self.translate(error) from error
        return statement

    def parsed(self, statement: Statement) -> Parsed:
        """What lends the planner's tree of a statement."""
        return partial(self._database.checked.tree, statement)

    def bind(self, statement: Statement, values: Mapping[str, Any]) -> BoundStatement:
        """The statement with `values` bound to its parameters (see `parameters`)."""
        bound = self._bound = bind(statement, values)
        try:
            for sql, value in bound.variables():
                self._connection.execute(sql, [value])
        except (duckdb.Error, OverflowError) as error:
            raise self.translate(error) from error
        return bound

    def constant(self, expression: str) -> int | None:
        """The value of a constant expression as an integer, None when it has none."""
        try:
            ((value,),) = self._connection.execute(f"SELECT CAST(({expression}) AS HUGEINT)").fetchall()
        except duckdb.Error:
            return None
        return None if value is None else int(value)

    def register(self, name: str, rows: pa.Table | PausingRows) -> None:
        """Name rows in this connection."""
        self._registered.append(name)
        try:
            self._connection.register(name, rows)
        except duckdb.Error as error:
            # DuckDB binds the rows, which the end of the query's time may interrupt.
            raise self.translate(error) from error

    def register_next(self, table: pa.Table) -> str:
        """Name an Arrow table by a name that no other one has; returns it."""
        name = f"__live_{len(self._registered)}"
        self.register(name, PausingRows(table, self._instance))
        return name

    def create_view(
        self,
        schema: TableSchema,
        plan: ScanPlan,
        scans: Sequence[GroupScan],
        *,
        bare: bool,
        parts: int = 1,
    ) -> None:
        """Create or replace the view of a table over scans; see `create_view_as` and `view_of`."""
        self.create_view_as(schema, self.view_of(schema, plan, scans, parts=parts), bare=bare)

    def create_view_as(self, schema: TableSchema, select: str, *, bare: bool) -> None:
        """Create or replace the view of a table; `bare` makes its name without a database enough."""
        names = {schema.database, BARE_NAMES} if bare else {schema.database}
        # One call: each would be a transaction of its own, and wait for the interpreter's lock.
        statements = [
            statement
            for name in sorted(names)
            for statement in (
                f"CREATE SCHEMA IF NOT EXISTS {self.catalog}.{quoted(name)}",
                f"CREATE OR REPLACE VIEW {self.catalog}.{quoted(name)}.{quoted(schema.table)} AS {select}",
            )
        ]
        self.execute("; ".join(statements))

    def view_of(
        self,
        schema: TableSchema,
        plan: ScanPlan,
        scans: Sequence[GroupScan],
        *,
        times: int = 0,
        statement: Statement | None = None,
        parts: int = 1,
        alone: bool = False,
    ) -> str:
        """The SELECT of a table over scans by a plan, whose rows in memory it registers.

        `times` is how often the statement reads it, 0 = unknown: few values are read in one step, without a pause.
        `statement`: where it may join or sort the rows, or hold them otherwise. `parts` is into how many pauses behind
        files divide it, if the statement gives rows as they are found (see `file_pauses`). `alone`: no other query runs.
        """
        tables = joined([scan.table for scan in scans if scan.table.num_rows])
        live = [(self.register_next(live_table(table)), table.schema) for table in tables]
        files = [self._database.readable(path) for scan in scans for path in scan.files]
        values = file_values(schema, plan.columns, scans)
        select = partial(view_query, schema, plan.columns, files, live, bounds=plan.bounds)
        if not self._pausing or (times and values * times <= step_values_max(alone=alone)):
            return select()
        joins, held = (statement.joins, statement.holds_rows) if statement is not None else (False, False)
        select = partial(select, pause_rows=PAUSE_ROWS_JOINED if joins else PAUSE_ROWS)
        # A sort of rows of several parts does not spill; see `spilling`.
        if held or (parts == 1 and times <= 1):
            return select()
        behind = FilePauses(-(-len(files) // parts), self.register_next(pause_table(schema, plan.columns)))
        return select(behind=behind)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL of this node's own; its rows."""
        self._is_clean = False
        try:
            return self._connection.execute(sql).fetchall()
        except duckdb.Error as error:
            raise self.translate(error) from error

    def described(self, sql: str) -> tuple[list[str], list[str]]:
        """Names and types of the columns that a statement would give."""
        try:
            relation = self._connection.sql(sql)
        except duckdb.Error as error:
            raise self.translate(error) from error
        return relation.columns, [str(kind) for kind in relation.types]

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The Arrow schema of the answer to a statement over empty tables. Raises QueryInvalid as for any answer."""
        try:
            relation = self._connection.sql(sql)
            check_types(relation.description)
            return relation.to_arrow_table().schema
        except duckdb.Error as error:
            raise self.translate(error) from error

    def run(self, sql: str, *, empty: bool = False) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Run a checked statement: its schema and its rows, which it computes as they are taken. They raise QueryError.

        `empty`: the schema alone is wanted.
        """
        try:
            self._reader = self._read(sql, empty=empty)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.translate(error) from error
        return self._reader.schema, self._batches(self._reader)

    def _read(self, sql: str, *, empty: bool) -> pa.RecordBatchReader:
        if not empty and (self._bound is None or not self._bound.names):
            return streamed(self._connection, sql, BATCH_ROWS)
        relation = self._named(self._connection.sql(sql))
        check_types(relation.description)
        # To bind a statement takes as long as to read its first rows.
        if self._instance.pauses is not None:
            self._instance.pauses.at_row(0)
        # With no row to find DuckDB computes nothing, whatever the statement is.
        return (relation.limit(0) if empty else relation).to_arrow_reader(BATCH_ROWS)

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            # Between two batches no statement runs that could be interrupted.
            try:
                if self.timer.expired or self.timer.cancelled:
                    raise duckdb.InterruptException("INTERRUPT Error: before the next batch")
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self.translate(error) from error
            yield batch

    def held_bytes(self) -> int:
        """The memory that the statement holds now, between two of its batches."""
        return self._instance.held_bytes()

    def translate(self, error: Exception) -> QueryError:
        """The query error for an error of DuckDB or of a store."""
        if isinstance(error, StoreError):
            return self._unreadable(SegmentUnreadable.because(error.message))
        timer = self.timer
        condition = translate(
            error,
            names_segment=self._database.names_segment(str(error)),
            timed_out=timer.expired,
            timeout_ms=timer.timeout_ms,
            memory_limit_mb=self._memory_mb,
        )
        # The next query needs an instance that works, and has memory; this one fails with the error that it met.
        if is_broken(error) or isinstance(condition, QueryMemory | QueryCancelled | QueryTimeout):
            self._is_reusable = False
        if self._bound is not None:
            condition.message = self._bound.shown(condition.message)
        return self._unreadable(condition) if isinstance(condition, SegmentUnreadable) else condition

    def _named(self, relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """The relation, with columns that are parameters named as the user wrote them."""
        if self._bound is None or not self._bound.names:
            return relation
        shown = [self._bound.shown(name) for name in relation.columns]
        if shown == relation.columns:
            return relation
        return relation.project(", ".join(f"#{number} AS {quoted(name)}" for number, name in enumerate(shown, 1)))

    def _unreadable(self, condition: SegmentUnreadable) -> QueryError:
        """A segment that cannot be read, unless it is not one of this node's any more."""
        try:
            self._fence.check()
        except QueryError as stale:
            return stale
        self._on_unreadable()
        return condition

    def _fix_now(self) -> None:
        """One value of `now()` for planner and run."""
        # Under `time < now()` a planner that looked at the clock a moment earlier would leave out rows that
        # the run still wants. Not for every statement: the macros take as long as a small query.
        now = f"make_timestamp({self.now_us})"
        moments = ("now", "get_current_timestamp", "transaction_timestamp", "current_localtimestamp")
        macros = [f"CREATE MACRO {name}() AS {now}" for name in moments]
        macros += [f"CREATE MACRO {name}() AS CAST({now} AS DATE)" for name in ("current_date", "today")]
        self._is_clean = False
        self._connection.execute("; ".join(macros))


def qualified(statement: Statement, catalog: str) -> str:
    """The SQL of a statement, with the catalog before each database that DuckDB takes for its own catalog."""
    # Positions of the parser count bytes, not characters.
    text = statement.sql.encode()
    if statement.verb and [name.position for name in statement.tables] == [None]:
        # DESCRIBE and SUMMARIZE of a bare table reference give no position, so the statement is written anew.
        (described,) = statement.tables
        if len(described.path) == 2:
            return f"{statement.explain}{statement.verb} {catalog}.{'.'.join(map(quoted, described.path))}"
    # From the last to the first, so that an insertion moves no position that is still needed.
    for name in sorted(statement.tables, key=lambda item: item.position or 0, reverse=True):
        if len(name.path) == 2 and name.path[0].lower() in AMBIGUOUS_DATABASES and name.position is not None:
            text = text[: name.position] + f"{catalog}.".encode() + text[name.position :]
    return statement.explain + text.decode()


def show_table(statement: Statement, schemas: Mapping[TableKey, TableSchema]) -> pa.Table:
    """The answer to SHOW TABLES or SHOW DATABASES."""
    wanted = [schema for key, schema in sorted(schemas.items()) if statement.show_database in (None, key[0])]
    if statement.show == "databases":
        return pa.table({"database": pa.array(sorted({schema.database for schema in wanted}), pa.string())})
    return pa.table(
        {
            "database": pa.array([schema.database for schema in wanted], pa.string()),
            "table": pa.array([schema.table for schema in wanted], pa.string()),
            "tags": pa.array([list(schema.tags) for schema in wanted], pa.list_(pa.string())),
            "fields": pa.array(
                [[f"{name} {kind}" for name, kind in schema.fields] for schema in wanted], pa.list_(pa.string())
            ),
            "version": pa.array([schema.version for schema in wanted], pa.int64()),
        }
    )


def interrupt(connection: duckdb.DuckDBPyConnection) -> None:
    """End the statement that runs, if the connection is open."""
    # The end of an engine closes connections of queries that are not finished. An exception would end the thread
    # that interrupts all queries.
    with suppress(duckdb.ConnectionException):
        connection.interrupt()


def file_values(schema: TableSchema, columns: Sequence[str] | None, scans: Sequence[GroupScan]) -> int:
    """The values that scans read from files."""
    return sum(scan.file_rows for scan in scans) * len(column_types(schema, columns))
