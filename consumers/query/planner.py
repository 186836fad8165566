"""Plans which part of each table a statement reads: columns, a time range, values of tags.

A pure function of the SQL and the schemas. It narrows what is read and never what the result is, because the
whole statement still runs over what was read. Where it does not understand an expression, it reads
everything.

`sqlglot` parses here; the statement that runs is parsed and checked by DuckDB itself (`guard`). Where the two
see different tables, nothing is narrowed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.consumers.query import intervals
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.newest_rows import of_aggregates, of_rows
from headrace.consumers.query.partial_plan import divide
from headrace.consumers.query.predicates import SLACK_NS, Evaluate, Narrowing, mark_texts, narrow
from headrace.consumers.query.rollup_plan import is_hourly
from headrace.consumers.query.scope import (
    Scope,
    column_names,
    conditions_of,
    joins_many,
    rows_depend_on_each_other,
    select_of,
    sources_of,
)
from headrace.consumers.query.series_plan import SeriesAggregates, series_aggregates
from headrace.consumers.query.sql_nodes import tokens_of, trees_of
from headrace.consumers.query.table_names import Resolved, TableKey, fold
from headrace.schemas.tables import TIME_COLUMN, TableSchema

PLANNED_BYTES_MAX = 8 * 1024
"""Longer SQL is not narrowed: parsing it in Python takes longer than narrowing saves."""

Parsed = Callable[[], AbstractContextManager[exp.Expression | None]]
"""Lends the tree of a statement, as `parse` gives it, where that is cheaper."""

_COLUMNS, _NAMES, _TABLES = "columns", "names", "tables"

# sqlglot warns of syntax that it skips. Here that is no fault: such a statement is run without narrowing.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What to read of one table. None and missing tags mean everything; `empty` means columns without rows.

    `newest`: only the newest row of each series is needed, if these columns are not null there; None: every row.
    `hourly`: rollups may do instead of rows, and it pays to divide the statement for them. `series`: what the statement
    is, where it only aggregates few series of this table.
    """

    columns: tuple[str, ...] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    empty: bool = False
    newest: tuple[str, ...] | None = None
    hourly: bool = field(default=False, compare=False)
    series: SeriesAggregates | None = field(default=None, compare=False)

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Start and end of the times, in ns."""
        return self.start_ns, self.end_ns


class _TreeTables:
    """The uses of tables in one tree."""

    def __init__(self) -> None:
        self.found: Sequence[tuple[tuple[str, ...], exp.Table]] | None = None

    def __deepcopy__(self, memo: object) -> _TreeTables:
        # A copy of the tree has nodes of its own.
        return _TreeTables()


def plan_scans(
    statement: Statement,
    resolved: Resolved,
    schemas: Mapping[TableKey, TableSchema],
    evaluate: Evaluate,
    texts: Mapping[str, str] = MappingProxyType({}),
    parsed: Parsed | None = None,
) -> dict[TableKey, ScanPlan]:
    """A plan for each table of `resolved`; `schemas` has one for each of them, `texts` the variables that are texts."""
    if statement.described:
        return {key: ScanPlan(empty=True) for key in resolved.tables}
    plans = {key: ScanPlan() for key in resolved.tables}
    if not plans:
        return plans
    with tree_of(statement, texts, parsed) as tree:
        if tree is not None:
            mark_texts(tree, texts)
            # Operators that are chained a thousand times make a tree that is as deep.
            with suppress(RecursionError):
                plans |= _plans(tree, resolved, schemas, evaluate)
    return plans


def _plans(
    tree: exp.Expression, resolved: Resolved, schemas: Mapping[TableKey, TableSchema], evaluate: Evaluate
) -> dict[TableKey, ScanPlan]:
    plans = dict[TableKey, ScanPlan]()
    found: dict[TableKey, list[exp.Table]] = {}
    for path, table in _tables_in(tree):
        key = resolved.by_path.get(path)
        if key is not None:
            found.setdefault(key, []).append(table)
    # A name that is also a CTE may mean either in each place, so its table is read whole.
    for key, tables in found.items():
        if key not in resolved.shadowed:
            series = series_aggregates(tree, tables[0], schemas[key]) if len(found) == len(tables) == 1 else None
            if series is None or series.may_be_newest:
                plan = combine([occurrence_of(tree, table, schemas[key], evaluate) for table in tables], schemas[key])
                # The newest rows are in memory.
                plans[key] = replace(plan, series=series if plan.newest is None else None)
            else:
                plans[key] = _of_series(series, _known_columns(tree, tables[0], tree, schemas[key]), schemas[key])
    return plans


def _tables_in(tree: exp.Expression) -> Sequence[tuple[tuple[str, ...], exp.Table]]:
    """The uses of tables by their paths. Kept with the tree: to look for them takes longer than the plan of few series."""
    known = tree.meta.setdefault(_TABLES, _TreeTables())
    if known.found is None:
        known.found = [(path_of(table), table) for table in tree.find_all(exp.Table)]
    found: Sequence[tuple[tuple[str, ...], exp.Table]] = known.found
    return found


def _of_series(series: SeriesAggregates, columns: frozenset[str] | None, schema: TableSchema) -> ScanPlan:
    """The plan of a statement that is understood as a whole, for DuckDB too, which may round its bounds."""
    narrowing = Narrowing()
    if series.start_ns is not None:
        narrowing.from_ns(series.start_ns - SLACK_NS)
    if series.end_ns is not None:
        narrowing.before_ns(series.end_ns + SLACK_NS)
    tags = {tag: tuple(sorted(set(texts))) for tag, texts in sorted(series.tags.items())}
    named = _ordered(columns, schema)
    if narrowing.empty:
        return ScanPlan(named, empty=True, series=series)
    return ScanPlan(named, narrowing.start_ns, narrowing.end_ns, tags, series=series)


def series_of(
    tree: exp.Expression, resolved: Resolved, schemas: Mapping[TableKey, TableSchema]
) -> SeriesAggregates | None:
    """What a statement wants, if it only aggregates few series of its one table, and not by their newest rows."""
    tables = _tables_in(tree)
    key = resolved.by_path.get(tables[0][0]) if len(tables) == 1 else None
    if key is None or key in resolved.shadowed:
        return None
    table, schema = tables[0][1], schemas[key]
    series = series_aggregates(tree, table, schema)
    if series is not None and series.may_be_newest:
        # The newest rows are in memory.
        select = select_of(table)
        return series if select is not None and _newest(select, table, schema) is None else None
    return series


def tree_of(
    statement: Statement, texts: Mapping[str, str], parsed: Parsed | None
) -> AbstractContextManager[exp.Expression | None]:
    """The tree of a statement. What notes `texts` in it (see `mark_texts`) gets one of its own."""
    return nullcontext(parse(statement)) if parsed is None or texts else parsed()


def parse(statement: Statement) -> exp.Expression | None:
    """The tree of a statement, or None where sqlglot fails on it or sees other tables than DuckDB."""
    if len(statement.sql) > PLANNED_BYTES_MAX:
        return None
    try:
        tokens = tokens_of(statement.sql)
        trees = trees_of(tokens, statement.sql) if intervals.are_understood(tokens) else []
    # On SQL that it does not know sqlglot raises more than its own errors. DuckDB decides what is valid, so
    # none of them may fail the query.
    except (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Expression) or not intervals.write_in_full(tree):
        return None
    ours = Counter(path_of(table) for table in tree.find_all(exp.Table))
    theirs = Counter(fold(name.path) for name in statement.tables)
    return tree if ours == theirs else None


def path_of(table: exp.Table) -> tuple[str, ...]:
    """The path of a table as SQL compares it."""
    return fold(part for part in (table.catalog, table.db, table.name) if part)


@dataclass(slots=True)
class Occurrence:
    """What one use of a table in a statement needs of it."""

    columns: frozenset[str] | None
    narrowing: Narrowing
    newest: tuple[str, ...] | None = None
    hourly: bool = False


def combine(occurrences: Sequence[Occurrence], schema: TableSchema) -> ScanPlan:
    """One plan that suffices for every use of a table."""
    columns: set[str] | None = set()
    for occurrence in occurrences:
        columns = None if columns is None or occurrence.columns is None else columns | occurrence.columns
    live = [occurrence.narrowing for occurrence in occurrences if not occurrence.narrowing.empty]
    ordered = _ordered(columns, schema)
    if not live:
        return ScanPlan(columns=ordered, empty=True)
    starts = [item.start_ns for item in live if item.start_ns is not None]
    ends = [item.end_ns for item in live if item.end_ns is not None]
    shared = set.intersection(*(set(item.tags) for item in live))
    newest = [occurrence.newest for occurrence in occurrences]
    return ScanPlan(
        columns=ordered,
        start_ns=min(starts) if len(starts) == len(live) else None,
        end_ns=max(ends) if len(ends) == len(live) else None,
        tags={tag: tuple(sorted(frozenset[str]().union(*(item.tags[tag] for item in live)))) for tag in sorted(shared)},
        newest=_all_newest(newest),
        # Of few series the rows are read before a statement is divided.
        hourly=not shared and any(occurrence.hourly for occurrence in occurrences),
    )


def _ordered(columns: Collection[str] | None, schema: TableSchema) -> tuple[str, ...] | None:
    """The columns in the order of the table, and at least one: rows without any cannot be counted."""
    if columns is None:
        return None
    return tuple(name for name in column_names(schema) if name in columns) or (TIME_COLUMN,)


def _all_newest(wanted: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    if any(each is None for each in wanted):
        return None
    return tuple(sorted({name for each in wanted for name in each or ()}))


def occurrence_of(tree: exp.Expression, table: exp.Table, schema: TableSchema, evaluate: Evaluate) -> Occurrence:
    """What one use of a table in the tree of a statement needs of it."""
    select = select_of(table)
    if select is None or table.alias_column_names or joins_many(select):
        return Occurrence(None, Narrowing())
    columns, narrowing = _known_columns(tree, table, select, schema), Narrowing()
    if not rows_depend_on_each_other(select):
        scope = Scope.of(table, select, schema)
        for condition in conditions_of(select, table):
            narrow(condition, scope.belongs, frozenset(schema.tags), evaluate, narrowing)
    newest = _newest(select, table, schema)
    return Occurrence(columns, narrowing, newest, newest is None and is_hourly(select))


def _newest(select: exp.Select, table: exp.Table, schema: TableSchema) -> tuple[str, ...] | None:
    # Most statements end here: dividing one takes as long as to parse it.
    if any(not isinstance(node, exp.Max | exp.ArgMax | exp.RowNumber) for node in select.find_all(exp.AggFunc)):
        return None
    divided = divide(select, table, schema)
    if divided is not None:
        return of_aggregates(divided, schema)
    return () if of_rows(select, table, schema) else None


def _known_columns(
    tree: exp.Expression, table: exp.Table, select: exp.Expression, schema: TableSchema
) -> frozenset[str] | None:
    # Of the names in a tree alone: a tree that is used again has them still.
    known = table.meta.get(_COLUMNS)
    columns = known[1] if known is not None and known[0] is schema else _columns_used(tree, table, select, schema)
    table.meta[_COLUMNS] = (schema, columns)
    return columns


def _columns_used(
    tree: exp.Expression, table: exp.Table, select: exp.Expression, schema: TableSchema
) -> frozenset[str] | None:
    """Columns whose name occurs anywhere in the statement, or None where every column may be meant."""
    # PIVOT groups by all columns that it does not name.
    if any(source.args.get("pivots") for source in sources_of(select)):
        return None
    if any(_has_star(inner) for inner in select.find_all(exp.Select)):
        return None
    if any(join.method.upper() == "NATURAL" for join in select.args.get("joins") or ()):
        return None
    names = _names_in(tree)
    # `SELECT r FROM readings r` gives the whole row as a struct.
    whole_row = {table.name.lower(), table.alias_or_name.lower(), table.db.lower()}
    if names is None or not whole_row.isdisjoint(names.columns):
        return None
    return frozenset(name for name in column_names(schema) if name.lower() in names.identifiers)


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in a tree, in lower case: of anything, and of columns."""

    identifiers: frozenset[str]
    columns: frozenset[str]


def _names_in(tree: exp.Expression) -> _Names | None:
    """None where columns are meant without their names. Kept with the tree, which many tables of a statement ask."""
    if _NAMES not in tree.meta:
        found = _Names(
            frozenset(identifier.name.lower() for identifier in tree.find_all(exp.Identifier)),
            frozenset(column.name.lower() for column in tree.find_all(exp.Column)),
        )
        tree.meta[_NAMES] = None if tree.find(exp.Columns, exp.PositionalColumn) else found
    names: _Names | None = tree.meta[_NAMES]
    return names


def _has_star(select: exp.Select) -> bool:
    """True if the select list of this SELECT has a star other than that of COUNT(*)."""
    stars = (star for item in select.expressions for star in item.find_all(exp.Star))
    return any(not isinstance(star.parent, exp.Count) for star in stars)
