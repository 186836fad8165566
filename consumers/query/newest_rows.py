"""Which statements need only the newest row of each series of a table. Pure.

The index has those rows, so that such a statement reads no segment. A condition must hold for all rows of a series or
for none, or be a lower bound of time: then the newest row that fulfils it is the newest one of all.
"""

from __future__ import annotations

from sqlglot import exp

from headrace.consumers.query.partial_plan import DividedSelect
from headrace.consumers.query.predicates import conjuncts
from headrace.consumers.query.scope import Scope, sources_of
from headrace.consumers.query.sql_nodes import is_of_row, sql_of
from headrace.schemas.tables import TIME_COLUMN, TableSchema

_TIME = f'"{TIME_COLUMN}"'
_LATER: dict[type[exp.Expression], bool] = {exp.GT: True, exp.GTE: True, exp.LT: False, exp.LTE: False}
"""Whether a comparison bounds its left side from below."""


def of_aggregates(divided: DividedSelect, schema: TableSchema) -> tuple[str, ...] | None:
    """The columns that must not be null in the newest rows, for them to suffice; None where they never do."""
    keys, partials = divided.partials[: divided.keys], divided.partials[divided.keys :]
    tags = frozenset(schema.tags)
    if not all(_columns(key) <= tags for key in keys) or not _keeps_newest(divided.condition, tags):
        return None
    # By their SQL: the partial columns are of our own writing.
    wanted = {sql_of(partial) for partial in partials} - {f"MAX({_TIME})"}
    needed: list[str] = []
    for name in (*schema.tags, *(name for name, _ in schema.fields)):
        quoted = sql_of(exp.column(name, quoted=True))
        value, time = f"ARG_MAX({quoted}, {_TIME})", f"MAX({_TIME}) FILTER(WHERE NOT ({quoted}) IS NULL)"
        if value in wanted:
            needed.append(name)
            wanted -= {value, time}
    # A tag is the same in every row of its series.
    return None if wanted else tuple(name for name in needed if name not in tags)


def of_rows(select: exp.Select, table: exp.Table, schema: TableSchema) -> bool:
    """Whether a SELECT is DISTINCT ON tags, or numbers rows by tags, and takes the newest row of each."""
    extra = {name for name in ("group", "having", "joins", "laterals", "sample", "windows") if select.args.get(name)}
    if extra or len(sources_of(select)) != 1 or table.alias_column_names:
        return False
    if any(isinstance(node, exp.AggFunc | exp.Anonymous) for node in select.find_all(exp.Func)):
        return False
    scope, tags = Scope.of(table, select, schema), frozenset(schema.tags)
    where = select.args.get("where")
    condition = where.this if where is not None else None
    if condition is not None and not _keeps_newest(condition, tags, scope):
        return False
    return _is_distinct_on(select, scope, tags) or _is_numbered(select, scope, tags)


def _is_distinct_on(select: exp.Select, scope: Scope, tags: frozenset[str]) -> bool:
    distinct, order = select.args.get("distinct"), select.args.get("order")
    on = distinct.args.get("on") if distinct is not None else None
    if on is None or order is None or select.args.get("qualify") or list(select.find_all(exp.Window)):
        return False
    names = {_column(each, scope) for each in (on.expressions if isinstance(on, exp.Tuple) else [on])}
    if not names <= tags:
        return False
    # Tags first, in any order, then time: the first row of each is its newest.
    for each in order.expressions:
        name = _column(each.this, scope)
        if name == TIME_COLUMN:
            return bool(each.args.get("desc"))
        if name not in names:
            return False
    return False


def _is_numbered(select: exp.Select, scope: Scope, tags: frozenset[str]) -> bool:
    qualify, windows = select.args.get("qualify"), list(select.find_all(exp.Window))
    if qualify is None or select.args.get("distinct") or len(windows) != 1:
        return False
    condition = qualify.this
    if not (isinstance(condition, exp.EQ) and condition.this is windows[0] and sql_of(condition.expression) == "1"):
        return False
    window = windows[0]
    order = window.args.get("order")
    if not isinstance(window.this, exp.RowNumber) or window.args.get("spec") or order is None or not order.expressions:
        return False
    first = order.expressions[0]
    partition = {_column(each, scope) for each in window.args.get("partition_by") or ()}
    return partition <= tags and _column(first.this, scope) == TIME_COLUMN and bool(first.args.get("desc"))


def _column(node: exp.Expression, scope: Scope) -> str | None:
    return scope.belongs(node) if isinstance(node, exp.Column) else None


def _columns(node: exp.Expression) -> set[str]:
    return {column.name for column in node.find_all(exp.Column)}


def _keeps_newest(condition: exp.Expression | None, tags: frozenset[str], scope: Scope | None = None) -> bool:
    parts = conjuncts(condition) if condition is not None else []
    return all(_is_of_tags(part, tags, scope) or _is_lower_bound(part, scope) for part in parts)


def _is_of_tags(part: exp.Expression, tags: frozenset[str], scope: Scope | None) -> bool:
    names = {_name(column, scope) for column in part.find_all(exp.Column)}
    return bool(names) and names <= tags and is_of_row(part)


def _is_lower_bound(part: exp.Expression, scope: Scope | None) -> bool:
    if type(part) not in _LATER or not is_of_row(part):
        return False
    later, earlier = (part.this, part.expression) if _LATER[type(part)] else (part.expression, part.this)
    return isinstance(later, exp.Column) and _name(later, scope) == TIME_COLUMN and not earlier.find(exp.Column)


def _name(column: exp.Column, scope: Scope | None) -> str | None:
    return column.name if scope is None else scope.belongs(column)
