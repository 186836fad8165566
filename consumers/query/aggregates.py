"""The aggregates that are computed where the rows are, and how the partial results become the final one. Pure.

A table by aggregate: the columns that a fragment computes, and the expression over the columns of all fragments. What
is not in the table is computed at the coordinator from rows. Partial results are plain columns, never a state of
DuckDB's own: it combines the states of `count(DISTINCT)` to a wrong number without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.consumers.query.sql_nodes import parsed_expression, sql_of

_SUM = "SUM({0})"


@dataclass(frozen=True, slots=True)
class AggregateRule:
    """How one aggregate is divided.

    `partials` are SQL templates of the columns of a fragment over the arguments `{0}`, `{1}`. `final` is a template
    over these columns. `arguments` tells how many there are. A partial template that ends in ` ?{n}` counts only rows
    whose argument n is not null.
    """

    partials: tuple[str, ...]
    final: str
    arguments: int = 1


AGGREGATES: Mapping[type[exp.Expression], AggregateRule] = {
    # Of no fragment, and of fragments without rows, a count is 0 and a sum null.
    exp.Count: AggregateRule(("COUNT({0})",), "CAST(COALESCE(SUM({0}), 0) AS BIGINT)"),
    # Null where no condition is true or false, as a sum.
    exp.CountIf: AggregateRule(("COUNT_IF({0})",), "SUM({0})"),
    exp.Sum: AggregateRule(("SUM({0})",), _SUM),
    exp.Min: AggregateRule(("MIN({0})",), "MIN({0})"),
    exp.Max: AggregateRule(("MAX({0})",), "MAX({0})"),
    exp.Avg: AggregateRule(("SUM({0})", "COUNT({0})"), "(SUM({0}) / SUM({1}))"),
    exp.LogicalAnd: AggregateRule(("BOOL_AND({0})",), "BOOL_AND({0})"),
    exp.LogicalOr: AggregateRule(("BOOL_OR({0})",), "BOOL_OR({0})"),
    # The time beside the value: that of the row which the value is of, so of one that has the value.
    exp.ArgMin: AggregateRule(("ARG_MIN({0}, {1})", "MIN({1}) ?{0}"), "ARG_MIN({0}, {1})", 2),
    exp.ArgMax: AggregateRule(("ARG_MAX({0}, {1})", "MAX({1}) ?{0}"), "ARG_MAX({0}, {1})", 2),
}
SPELLINGS: Mapping[str, type[exp.Expression]] = {"mean": exp.Avg}
"""Names of DuckDB that sqlglot does not take for those of an aggregate of the table."""


@dataclass(frozen=True, slots=True)
class Divided:
    """One aggregate of a statement: SQL of its columns in a fragment, and `final(names)` over the columns of all."""

    partials: tuple[str, ...]
    final: Callable[[Sequence[str]], exp.Expression]


def divided(node: exp.Expression, is_time: Callable[[exp.Expression], bool]) -> Divided | None:
    """An aggregate call, with its FILTER, as the table has it; None for one that it has not.

    Columns in `node` are those of the table itself. `is_time`: whether an expression is the time column.
    """
    call, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
    kind = SPELLINGS.get(call.name.lower()) if isinstance(call, exp.Anonymous) else type(call)
    rule = AGGREGATES.get(kind) if kind is not None else None
    arguments = _arguments(call)
    if rule is None or arguments is None or len(arguments) != rule.arguments:
        return None
    if rule.arguments == 2 and not is_time(arguments[1]):
        return None
    texts = [sql_of(argument) for argument in arguments]
    partials = tuple(_partial(template, texts, condition) for template in rule.partials)
    return Divided(partials, lambda names: parsed_expression(rule.final.format(*names)))


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a call of an aggregate, with or without FILTER, that the table may have."""
    if isinstance(node, exp.Filter):
        return is_aggregate(node.this)
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.lower() in SPELLINGS)


def _arguments(call: exp.Expression) -> list[exp.Expression] | None:
    """The plain arguments of a call: none with DISTINCT, an order, or any other addition."""
    if isinstance(call, exp.Anonymous):
        return list(call.expressions)
    extra = {name for name, value in call.args.items() if value} - {"this", "expression", "big_int"}
    arguments = [value for value in (call.args.get("this"), call.args.get("expression")) if value is not None]
    if isinstance(call, exp.Count) and not arguments:
        arguments = [exp.Star()]
    if extra or any(isinstance(each, exp.Distinct | exp.Order | exp.Limit) for each in arguments):
        return None
    return arguments


def _partial(template: str, texts: Sequence[str], condition: exp.Expression | None) -> str:
    call, _, counted = template.partition(" ?")
    conditions = [f"({sql_of(condition)})"] if condition is not None else []
    conditions += [f"({counted.format(*texts)}) IS NOT NULL"] if counted else []
    where = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    return call.format(*texts) + where
