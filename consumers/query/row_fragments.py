"""What other nodes may leave out of the rows that they send: rows that WHERE rejects, and those behind a LIMIT. Pure.

The whole statement runs over what they send, so the result is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from headrace.consumers.query.predicates import conjuncts
from headrace.consumers.query.scope import Scope, conditions_of, rows_depend_on_each_other, sources_of
from headrace.consumers.query.sql_nodes import is_of_row, quoted_column
from headrace.schemas.tables import TableSchema

LIMIT_MAX = 1_000_000
"""A higher LIMIT is not sent along: sorting that many rows at each member is no gain."""
_CLAUSES_OF_ROWS = frozenset({"kind", "hint", "expressions", "from_", "where", "order", "limit", "offset"})


@dataclass(frozen=True, slots=True)
class RowFragment:
    """Conditions over columns of the table that all must hold; then the first `limit` rows in `order`, None: all."""

    conditions: tuple[exp.Expression, ...] = ()
    order: tuple[exp.Expression, ...] = ()
    limit: int | None = None


def row_fragment(select: exp.Select, table: exp.Table, schema: TableSchema) -> RowFragment:
    """What is wanted of the rows of a table that only this SELECT names."""
    scope = Scope.of(table, select, schema)
    if rows_depend_on_each_other(select) or not _only_inner(select):
        return RowFragment()
    parts = [part for condition in conditions_of(select, table) for part in conjuncts(condition)]
    resolved = [_resolved(part, scope) for part in parts]
    conditions = tuple(each for each in resolved if each is not None)
    limit = _limit(select) if len(conditions) == len(parts) else None
    order = None if limit is None else _order(select, scope)
    return RowFragment(conditions) if order is None else RowFragment(conditions, order, limit)


def is_filter(select: exp.Select) -> bool:
    """Whether a SELECT gives one row for each row of its only source that fulfils its WHERE, of that row alone."""
    clauses = {name for name, value in select.args.items() if value}
    if clauses != {"expressions", "from_", "where"} or len(sources_of(select)) != 1:
        return False
    condition = select.args["where"].this
    return not rows_depend_on_each_other(select) and is_of_row(condition) and all(map(_is_plain, select.expressions))


def _only_inner(select: exp.Select) -> bool:
    # A row that an outer join leaves without its partner has nulls there, which a condition may want.
    joins = select.args.get("joins") or ()
    return all(not join.side and not join.method and join.kind.upper() in ("", "INNER", "CROSS") for join in joins)


def _resolved(part: exp.Expression, scope: Scope) -> exp.Expression | None:
    """A condition over the columns of the table alone, each by its exact name; None for any other."""
    if not is_of_row(part) or not part.find(exp.Column):
        return None
    holder = exp.Paren(this=part.copy())
    for column in list(holder.find_all(exp.Column)):
        name = scope.belongs(column)
        if name is None:
            return None
        column.replace(quoted_column(name))
    found: exp.Expression = holder.this
    return found


def _limit(select: exp.Select) -> int | None:
    """How many rows of a group a SELECT of plain rows wants at most."""
    if {name for name, value in select.args.items() if value} - _CLAUSES_OF_ROWS or select.args.get("kind"):
        return None
    # A list that names no aggregate, no window and no row generator: each row of the table is one of the result.
    if len(sources_of(select)) != 1 or not all(_is_plain(item) for item in select.expressions):
        return None
    numbers = [_number(select.args.get(clause)) for clause in ("limit", "offset")]
    if numbers[0] is None or (numbers[1] is None and select.args.get("offset") is not None):
        return None
    total = numbers[0] + (numbers[1] or 0)
    return total if total <= LIMIT_MAX else None


def _is_plain(item: exp.Expression) -> bool:
    content = item.this if isinstance(item, exp.Alias) else item
    return type(content) is exp.Star or is_of_row(content)


def _number(clause: exp.Expression | None) -> int | None:
    if clause is None or {name for name, value in clause.args.items() if value} - {"expression"}:
        return None
    number = clause.expression
    digits = str(number.this) if isinstance(number, exp.Literal) and not number.is_string else ""
    return int(digits) if digits.isdigit() else None


def _order(select: exp.Select, scope: Scope) -> tuple[exp.Expression, ...] | None:
    """The order of the rows that a LIMIT counts, None where it is not understood."""
    order, found = select.args.get("order"), list[exp.Expression]()
    for each in order.expressions if order is not None else ():
        # Of a number or a list item only DuckDB knows what it means here.
        content = _resolved(each.this, scope) if isinstance(each, exp.Ordered) else None
        if content is None or each.args.get("with_fill"):
            return None
        ordered = each.copy()
        ordered.set("this", content)
        found.append(ordered)
    return tuple(found)
