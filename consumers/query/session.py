"""The session of one query in the shared DuckDB instance: a connection, and a catalog with a view per table.

The views show one instant, and their segment files stay on disk until the session ends. With a catalog each,
queries never see each other's tables. Closing the stack `resources` releases everything in reverse order.

Files of older schema versions may lack columns, or hold int64 where the table is float64 by now. A view gives
every row the newest schema.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.consumers.query import guard
from headrace.consumers.query.database import (
    CATALOG_PREFIX,
    HOME_CATALOG,
    LockedDatabase,
    is_broken,
    statement_kinds,
    syntax_tree,
    translate,
)
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.parameters import BoundStatement, bind
from headrace.consumers.query.query_errors import QueryError, SegmentUnreadable
from headrace.consumers.query.result_stream import Interrupter, QueryTimer, ResultStream
from headrace.consumers.query.table_names import Resolved, TableKey
from headrace.consumers.query.table_source import ReadFence
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

BATCH_ROWS = 32_768
AMBIGUOUS_DATABASES = frozenset({"system", "temp", HOME_CATALOG})
"""Databases whose name DuckDB also gives to a catalog of its own."""
BARE_NAMES = "main"
"""The schema with a second view of each table that the statement names without its database."""
_TIME_TYPE = "TIMESTAMP_NS"
_TAG_TYPE = "VARCHAR"
_FIELD_TYPES = {
    FieldType.FLOAT64: "DOUBLE",
    FieldType.INT64: "BIGINT",
    FieldType.BOOL: "BOOLEAN",
    FieldType.STRING: "VARCHAR",
}

_numbers = itertools.count(1)


class Session:
    """A connection that runs one statement. Used by one thread at a time."""

    def __init__(
        self,
        database: LockedDatabase,
        resources: ExitStack,
        fence: ReadFence,
        interrupter: Interrupter,
        memory_limit_mb: int,
        timeout_ms: int,
        now_us: int,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens the connection and its catalog, and starts the timer.

        `on_unreadable` is called when a query meets a segment that cannot be read.
        """
        self._on_unreadable = on_unreadable
        self._database = database
        self._resources = resources
        self._fence = fence
        self._memory_limit_mb = memory_limit_mb
        self._live = itertools.count()
        self._bound: BoundStatement | None = None
        self.catalog = f"{CATALOG_PREFIX}{next(_numbers)}"
        self._connection = database.connect()
        resources.callback(self._connection.close)
        self.now_us = now_us
        self._enter_catalog()
        self.timer = QueryTimer(interrupter, partial(interrupt, self._connection), timeout_ms)
        resources.callback(self.timer.finish)

    def check(self, sql: str) -> Statement:
        """The statement in `sql`, if it may run (see `guard`)."""
        try:
            kinds, tree = partial(statement_kinds, self._connection), partial(syntax_tree, self._connection)
            statement = guard.check(sql, kinds, tree)
            if statement.names_now:
                self._fix_now()
        except duckdb.Error as error:
            raise self.translate(error) from error
        return statement

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

    def register(self, name: str, table: pa.Table) -> None:
        """Name an Arrow table in this connection."""
        self._connection.register(name, table)

    def register_next(self, table: pa.Table) -> str:
        """Name an Arrow table by a name that no other one has; returns it."""
        name = f"__live_{next(self._live)}"
        self.register(name, table)
        return name

    def create_view(
        self, schema: TableSchema, columns: Sequence[str] | None, scans: Sequence[GroupScan], *, bare: bool
    ) -> None:
        """Create or replace the view of a table over scans; `bare` makes its name without a database enough."""
        query = self.view_of(schema, columns, scans)
        names = {schema.database, BARE_NAMES} if bare else {schema.database}
        # One call: each would be a transaction of its own, and wait for the interpreter's lock.
        statements = [
            statement
            for name in sorted(names)
            for statement in (
                f"CREATE SCHEMA IF NOT EXISTS {self.catalog}.{quoted(name)}",
                f"CREATE OR REPLACE VIEW {self.catalog}.{quoted(name)}.{quoted(schema.table)} AS {query}",
            )
        ]
        self.execute("; ".join(statements))

    def view_of(self, schema: TableSchema, columns: Sequence[str] | None, scans: Sequence[GroupScan]) -> str:
        """The SELECT of a table over scans, whose rows in memory it registers."""
        tables = joined([scan.table for scan in scans if scan.table.num_rows])
        live = [(self.register_next(live_table(table)), table.schema) for table in tables]
        # Resolved, because DuckDB compares paths as text with the directories that it may read.
        return view_query(schema, columns, [path.resolve() for scan in scans for path in scan.files], live)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL of this node's own; its rows."""
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
        """The Arrow schema of the answer to a statement over empty tables."""
        try:
            return self._connection.sql(sql).to_arrow_table().schema
        except duckdb.Error as error:
            raise self.translate(error) from error

    def run(self, sql: str, row_limit: int | None) -> ResultStream:
        """Run a checked statement; returns when its first rows are there."""
        try:
            reader = self._named(self._connection.sql(sql)).to_arrow_reader(BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.translate(error) from error
        self._resources.callback(reader.close)
        return ResultStream(reader, self._resources, self.timer, self.translate, self._fence, row_limit)

    def translate(self, error: Exception) -> QueryError:
        """The query error for an error of DuckDB or of a store."""
        if isinstance(error, StoreError):
            return self._unreadable(SegmentUnreadable.because(error.message))
        # The next query needs an instance that works; this one fails with the error that it met.
        if is_broken(error):
            self._database.reopen()
        timer = self.timer
        condition = translate(
            error,
            names_segment=self._database.names_segment(str(error)),
            timed_out=timer.expired,
            timeout_ms=timer.timeout_ms,
            memory_limit_mb=self._memory_limit_mb,
        )
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

    def _enter_catalog(self) -> None:
        self._connection.execute(f"ATTACH ':memory:' AS {self.catalog}; USE {self.catalog}")
        # A catalog cannot be detached while it is the current one.
        self._resources.callback(self._connection.execute, f"USE {HOME_CATALOG}.main; DETACH {self.catalog}")

    def _fix_now(self) -> None:
        """One value of `now()` for planner and run."""
        # Under `time < now()` a planner that looked at the clock a moment earlier would leave out rows that
        # the run still wants. Not for every statement: the macros take as long as a small query.
        now = f"make_timestamp({self.now_us})"
        moments = ("now", "get_current_timestamp", "transaction_timestamp", "current_localtimestamp")
        macros = [f"CREATE MACRO {name}() AS {now}" for name in moments]
        macros += [f"CREATE MACRO {name}() AS CAST({now} AS DATE)" for name in ("current_date", "today")]
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


def bare_tables(resolved: Resolved) -> frozenset[TableKey]:
    """The tables that the statement names without their database."""
    return frozenset(key for path, key in resolved.by_path.items() if len(path) == 1)


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


def quoted(name: str) -> str:
    """An identifier as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text literal as SQL."""
    return "'" + text.replace("'", "''") + "'"


def interrupt(connection: duckdb.DuckDBPyConnection) -> None:
    """End the statement that runs, if the connection is open."""
    # The end of an engine closes connections of queries that are not finished. An exception would end the thread
    # that interrupts all queries.
    with suppress(duckdb.ConnectionException):
        connection.interrupt()


def column_types(schema: TableSchema, columns: Sequence[str] | None) -> dict[str, str]:
    """SQL type of each wanted column, in the order of `SELECT *`: tags, time, fields."""
    types = dict.fromkeys(schema.tags, _TAG_TYPE) | {TIME_COLUMN: _TIME_TYPE}
    types |= {name: _FIELD_TYPES[kind] for name, kind in schema.fields}
    return types if columns is None else {name: kind for name, kind in types.items() if name in columns}


def view_query(
    schema: TableSchema, columns: Sequence[str] | None, files: Sequence[Path], live: Sequence[tuple[str, pa.Schema]]
) -> str:
    """The SELECT of a table's view; `live` are names and schemas of registered tables (see `live_table`)."""
    types = column_types(schema, columns)
    parts = [_from_files(types, files)] if files else []
    parts += [_from_live(types, frozenset(schema.tags), name, frozenset(arrow.names)) for name, arrow in live]
    return " UNION ALL ".join(parts) if parts else _empty(types)


def joined(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The rows of several groups as few tables, one for each Arrow schema among them, without a copy."""
    # Each table of a view costs DuckDB a plan of its own, which takes longer than to read a small one.
    by_schema: dict[pa.Schema, list[pa.Table]] = {}
    for table in tables:
        by_schema.setdefault(table.schema, []).append(table)
    return [pa.concat_tables(alike) for alike in by_schema.values()]


def live_table(table: pa.Table) -> pa.Table:
    """Unsealed rows with `time` as a timestamp without zone, which DuckDB reads from Arrow without a copy."""
    position = table.schema.get_field_index(TIME_COLUMN)
    if position < 0:
        return table
    return table.set_column(position, TIME_COLUMN, table.column(position).cast(pa.timestamp("ns")))


def _from_files(types: dict[str, str], files: Sequence[Path]) -> str:
    # With a schema given by name DuckDB opens no file before the query reads it; otherwise planning would
    # read the footer of every segment.
    paths = ", ".join(literal(str(path)) for path in files)
    columns = ", ".join(
        f"{literal(name)}: {{name: {literal(name)}, type: {literal(kind)}, default_value: NULL}}"
        for name, kind in types.items()
    )
    return f"SELECT {', '.join(map(quoted, types))} FROM read_parquet([{paths}], schema = MAP {{{columns}}})"


def _from_live(types: dict[str, str], tags: frozenset[str], name: str, present: frozenset[str]) -> str:
    columns = (_live_column(column, kind, column in tags, column in present) for column, kind in types.items())
    return f"SELECT {', '.join(columns)} FROM {quoted(name)}"


def _live_column(name: str, kind: str, is_tag: bool, is_present: bool) -> str:
    value = f"CAST({quoted(name) if is_present else 'NULL'} AS {kind})"
    # Unsealed rows write an absent tag as an empty text; queries show null.
    content = f"NULLIF({value}, '')" if is_tag else value
    return f"{content} AS {quoted(name)}"


def _empty(types: dict[str, str]) -> str:
    return f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {quoted(name)}' for name, kind in types.items())} WHERE false"
