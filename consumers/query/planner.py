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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import sqlglot
from sqlglot import exp
from sqlglot.dialects import DuckDB
from sqlglot.errors import SqlglotError

from headrace.consumers.query.guard import Statement
from headrace.consumers.query.predicates import Evaluate, Narrowing, mark_texts, narrow
from headrace.consumers.query.table_names import Resolved, TableKey, fold
from headrace.schemas.tables import TIME_COLUMN, TableSchema

PLANNED_BYTES_MAX = 8 * 1024
"""Longer SQL is not narrowed: parsing it in Python takes longer than narrowing saves."""

# Loaded with this module: under its name sqlglot would load it in the first query, which takes 0.2 s.
_DIALECT = DuckDB

# sqlglot warns of syntax that it skips. Here that is no fault: such a statement is run without narrowing.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What to read of one table. None and missing tags mean everything; `empty` means columns without rows."""

    columns: tuple[str, ...] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    empty: bool = False


def plan_scans(
    statement: Statement,
    resolved: Resolved,
    schemas: Mapping[TableKey, TableSchema],
    evaluate: Evaluate,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> dict[TableKey, ScanPlan]:
    """A plan for each table of `resolved`; `schemas` has one for each of them, `texts` the variables that are texts."""
    if statement.described:
        return {key: ScanPlan(empty=True) for key in resolved.tables}
    plans = {key: ScanPlan() for key in resolved.tables}
    tree = _parse(statement) if plans else None
    if tree is None:
        return plans
    mark_texts(tree, texts)
    found: dict[TableKey, list[exp.Table]] = {}
    for table in tree.find_all(exp.Table):
        key = resolved.by_path.get(_path(table))
        if key is not None:
            found.setdefault(key, []).append(table)
    # A name that is also a CTE may mean either in each place, so its table is read whole.
    for key, tables in found.items():
        if key not in resolved.shadowed:
            plans[key] = _combine([_occurrence(tree, table, schemas[key], evaluate) for table in tables], schemas[key])
    return plans


def _parse(statement: Statement) -> exp.Expression | None:
    """The tree of a statement, or None where sqlglot fails on it or sees other tables than DuckDB."""
    if len(statement.sql) > PLANNED_BYTES_MAX:
        return None
    try:
        tree = sqlglot.parse_one(statement.sql, dialect=_DIALECT)
    # On SQL that it does not know sqlglot raises more than its own errors. DuckDB decides what is valid, so
    # none of them may fail the query.
    except (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return None
    ours = Counter(_path(table) for table in tree.find_all(exp.Table))
    theirs = Counter(fold(name.path) for name in statement.tables)
    return tree if isinstance(tree, exp.Expression) and ours == theirs else None


def _path(table: exp.Table) -> tuple[str, ...]:
    return fold(part for part in (table.catalog, table.db, table.name) if part)


@dataclass(slots=True)
class _Occurrence:
    columns: frozenset[str] | None
    narrowing: Narrowing


def _combine(occurrences: Sequence[_Occurrence], schema: TableSchema) -> ScanPlan:
    """One plan that suffices for every use of a table."""
    columns: set[str] | None = set()
    for occurrence in occurrences:
        columns = None if columns is None or occurrence.columns is None else columns | occurrence.columns
    live = [occurrence.narrowing for occurrence in occurrences if not occurrence.narrowing.empty]
    ordered = (
        None if columns is None else tuple(name for name in column_names(schema) if name in columns) or (TIME_COLUMN,)
    )
    if not live:
        return ScanPlan(columns=ordered, empty=True)
    starts = [item.start_ns for item in live if item.start_ns is not None]
    ends = [item.end_ns for item in live if item.end_ns is not None]
    shared = set.intersection(*(set(item.tags) for item in live))
    return ScanPlan(
        columns=ordered,
        start_ns=min(starts) if len(starts) == len(live) else None,
        end_ns=max(ends) if len(ends) == len(live) else None,
        tags={tag: tuple(sorted(frozenset[str]().union(*(item.tags[tag] for item in live)))) for tag in sorted(shared)},
    )


def column_names(schema: TableSchema) -> tuple[str, ...]:
    """The columns of a table in the order in which `SELECT *` gives them: tags, time, fields."""
    return (*schema.tags, TIME_COLUMN, *(name for name, _ in schema.fields))


def _occurrence(tree: exp.Expression, table: exp.Table, schema: TableSchema, evaluate: Evaluate) -> _Occurrence:
    select = _select_of(table)
    if select is None or table.alias_column_names:
        return _Occurrence(None, Narrowing())
    columns = _columns_used(tree, table, select, schema)
    narrowing = Narrowing()
    if not _rows_depend_on_each_other(select):
        spelled = {name.lower(): name for name in column_names(schema)}
        scope = _Scope(table, select, spelled)
        for condition in _conditions(select, table):
            narrow(condition, scope.belongs, frozenset(schema.tags), evaluate, narrowing)
    return _Occurrence(columns, narrowing)


def _select_of(table: exp.Table) -> exp.Select | None:
    """The SELECT whose FROM or JOIN names the table directly."""
    clause = table.parent
    select = clause.parent if isinstance(clause, exp.From | exp.Join) else None
    return select if isinstance(select, exp.Select) else None


def _rows_depend_on_each_other(select: exp.Select) -> bool:
    """True where leaving out a row that WHERE rejects changes which other rows are joined or sampled."""
    if select.args.get("sample") or any(
        source.args.get("sample") or source.args.get("pivots") for source in _sources(select)
    ):
        return True
    return any(join.method.upper() in ("ASOF", "POSITIONAL") for join in select.args.get("joins") or ())


def _sources(select: exp.Select) -> list[exp.Expression]:
    clause = select.args.get("from_") or select.args.get("from")
    first = [clause.this] if clause is not None else []
    return [*first, *(join.this for join in select.args.get("joins") or ()), *(select.args.get("laterals") or ())]


def _conditions(select: exp.Select, table: exp.Table) -> list[exp.Expression]:
    """Conditions that hold for every row that is used of `table` in `select`."""
    where = select.args.get("where")
    found = [where.this] if where is not None else []
    for join in select.args.get("joins") or ():
        condition = join.args.get("on")
        kind, side, method = join.kind.upper(), join.side.upper(), join.method.upper()
        if condition is None or method or kind not in ("", "INNER", "CROSS", "OUTER"):
            continue
        # An ON condition of an outer join drops rows only of the side that may be null.
        if (not side and kind != "OUTER") or (side == "LEFT" and join.this is table):
            found.append(condition)
    return found


@dataclass(slots=True)
class _Scope:
    """Decides whether a column name inside `select` means a column of `table`."""

    table: exp.Table
    select: exp.Select
    spelled: Mapping[str, str]

    def belongs(self, column: exp.Column) -> str | None:
        """The catalogue's spelling of the column, None when it is or may be one of another table."""
        name = self.spelled.get(column.name.lower())
        if name is None or column.args.get("catalog"):
            return None
        if column.table:
            return name if self._qualified(column) else None
        alone = len(_sources(self.select)) == 1
        return name if alone and not self._shadowed(column.name.lower()) else None

    def _qualified(self, column: exp.Column) -> bool:
        exposed = self.table.alias_or_name.lower()
        if sum(source.alias_or_name.lower() == exposed for source in _sources(self.select)) != 1:
            return False
        database = self.table.db.lower() if not self.table.alias else ""
        return column.table.lower() == exposed and (not column.db or column.db.lower() == database)

    def _shadowed(self, name: str) -> bool:
        """True if the select list gives the name another meaning, which DuckDB also accepts in WHERE."""
        return any(isinstance(item, exp.Alias) and item.alias.lower() == name for item in self.select.expressions)


def _columns_used(
    tree: exp.Expression, table: exp.Table, select: exp.Select, schema: TableSchema
) -> frozenset[str] | None:
    """Columns whose name occurs anywhere in the statement, or None where every column may be meant."""
    if tree.find(exp.Columns, exp.PositionalColumn) or any(_has_star(inner) for inner in select.find_all(exp.Select)):
        return None
    if any(join.method.upper() == "NATURAL" for join in select.args.get("joins") or ()):
        return None
    names = {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}
    # `SELECT r FROM readings r` gives the whole row as a struct.
    whole_row = {table.name.lower(), table.alias_or_name.lower(), table.db.lower()}
    if any(column.name.lower() in whole_row for column in tree.find_all(exp.Column)):
        return None
    return frozenset(name for name in column_names(schema) if name.lower() in names)


def _has_star(select: exp.Select) -> bool:
    """True if the select list of this SELECT has a star other than that of COUNT(*)."""
    stars = (star for item in select.expressions for star in item.find_all(exp.Star))
    return any(not isinstance(star.parent, exp.Count) for star in stars)
