"""One query's own corner of the shared DuckDB instance: a connection, and a catalog with a view for each of its tables.

The views see one instant, the segment files behind them stay where they are, and two queries never see each other. Everything a session holds is
given back, in the reverse order, when its stack `held` is closed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import duckdb
import pyarrow as pa

from consumers.query import guard
from consumers.query.database import HOME_CATALOG, LockedDatabase, statement_kinds, syntax_tree
from consumers.query.errors import QueryError, SegmentUnreadable
from consumers.query.faults import CATALOG_PREFIX, is_broken, translate
from consumers.query.guard import Statement
from consumers.query.names import Resolved, TableKey
from consumers.query.running import Deadline, QueryResult
from consumers.query.source import Scan
from consumers.query.views import live_table, quoted, view_query
from schemas.tables import TableSchema

BATCH_ROWS = 32_768
AMBIGUOUS_DATABASES = frozenset({"system", "temp", HOME_CATALOG})
"""Databases whose name DuckDB also gives to a catalog of its own."""
BARE_NAMES = "main"
"""The schema where a table stands once more, so that its bare name is found."""

_numbers = itertools.count(1)


class Session:
    """A connection that runs one statement. Used by one thread at a time."""

    def __init__(
        self,
        database: LockedDatabase,
        held: ExitStack,
        memory_limit_mb: int,
        timeout_ms: int,
        now_us: int,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens the connection and its catalog, where `now()` has one value; the deadline starts here. `on_unreadable` is told of segments that
        cannot be read."""
        self._on_unreadable = on_unreadable
        self._database = database
        self._held = held
        self._memory_limit_mb = memory_limit_mb
        self._live = itertools.count()
        self.catalog = f"{CATALOG_PREFIX}{next(_numbers)}"
        self._connection = database.connect()
        held.callback(self._connection.close)
        self._enter_catalog(now_us)
        self.deadline = Deadline(self._connection.interrupt, timeout_ms)
        held.callback(self.deadline.finish)

    def check(self, sql: str) -> Statement:
        """The statement in `sql`, if it may run (see `guard`)."""
        try:
            return guard.check(sql, partial(statement_kinds, self._connection), partial(syntax_tree, self._connection))
        except duckdb.Error as error:
            raise self.translate(error) from error

    def constant(self, expression: str) -> int | None:
        """The value of a constant expression as an integer, None when it has none."""
        try:
            ((value,),) = self._connection.execute(f"SELECT CAST(({expression}) AS HUGEINT)").fetchall()
        except duckdb.Error:
            return None
        return None if value is None else int(value)

    def register(self, name: str, table: pa.Table) -> None:
        """Give the connection an Arrow table under a name."""
        self._connection.register(name, table)

    def create_view(
        self, schema: TableSchema, columns: Sequence[str] | None, scans: Sequence[Scan], *, bare: bool
    ) -> None:
        """Make a table out of scans, replacing the one that stands there; `bare` lets its name alone be enough."""
        live: list[tuple[str, pa.Schema]] = []
        for scan in scans:
            if scan.table.num_rows:
                name = f"__live_{next(self._live)}"
                self.register(name, live_table(scan.table))
                live.append((name, scan.table.schema))
        query = view_query(schema, columns, [path.resolve() for scan in scans for path in scan.files], live)
        places = {schema.database, BARE_NAMES} if bare else {schema.database}
        try:
            for place in sorted(places):
                self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.catalog}.{quoted(place)}")
                self._connection.execute(
                    f"CREATE OR REPLACE VIEW {self.catalog}.{quoted(place)}.{quoted(schema.table)} AS {query}"
                )
        except duckdb.Error as error:
            raise self.translate(error) from error

    def run(self, sql: str, row_limit: int | None) -> QueryResult:
        """Run a checked statement; returns when its first rows are there."""
        try:
            reader = self._connection.sql(sql).to_arrow_reader(BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.translate(error) from error
        self._held.callback(reader.close)
        return QueryResult(reader, self._held, self.deadline, self.translate, row_limit)

    def translate(self, error: Exception) -> QueryError:
        """The condition behind an error of DuckDB."""
        if is_broken(error):
            self._database.reopen()
        deadline = self.deadline
        condition = translate(
            error, timed_out=deadline.expired, timeout_ms=deadline.timeout_ms, memory_limit_mb=self._memory_limit_mb
        )
        if isinstance(condition, SegmentUnreadable):
            self._on_unreadable()
        return condition

    def _enter_catalog(self, now_us: int) -> None:
        now = f"make_timestamp({now_us})"
        self._connection.execute(f"ATTACH ':memory:' AS {self.catalog}")
        self._held.callback(self._connection.execute, f"USE {HOME_CATALOG}.main; DETACH {self.catalog}")
        moments = ("now", "get_current_timestamp", "transaction_timestamp", "current_localtimestamp")
        macros = [f"CREATE MACRO {name}() AS {now}" for name in moments]
        macros += [f"CREATE MACRO {name}() AS CAST({now} AS DATE)" for name in ("current_date", "today")]
        self._connection.execute("; ".join([f"USE {self.catalog}", *macros]))


def qualified(statement: Statement, catalog: str) -> str:
    """The SQL of a statement with the catalog put before the databases that DuckDB would take for catalogs of its own."""
    text = statement.sql.encode()
    if statement.verb and [name.position for name in statement.tables] == [None]:
        (described,) = statement.tables
        if len(described.path) == 2:
            return f"{statement.explain}{statement.verb} {catalog}.{'.'.join(map(quoted, described.path))}"
    for name in sorted(statement.tables, key=lambda item: item.position or 0, reverse=True):
        if len(name.path) == 2 and name.path[0].lower() in AMBIGUOUS_DATABASES and name.position is not None:
            text = text[: name.position] + f"{catalog}.".encode() + text[name.position :]
    return statement.explain + text.decode()


def bare_tables(resolved: Resolved) -> frozenset[TableKey]:
    """The tables that the statement names without their database."""
    return frozenset(key for path, key in resolved.by_path.items() if len(path) == 1)


def shown(statement: Statement, schemas: Mapping[TableKey, TableSchema]) -> pa.Table:
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
