"""Recognises aggregates of few series in a range of time, which are computed without DuckDB. Pure.

Such a statement is one SELECT of aggregates over one table, whose conditions are values of tags and bounds on time, and
nothing else. Everything in it is understood, so its rows are known exactly. All other statements are DuckDB's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.consumers.query.constants import moment_us, whole_number
from headrace.consumers.query.predicates import conjuncts
from headrace.consumers.query.scope import Scope
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

MICROSECOND_NS = 1_000
YEARS_MAX_US = 8_000_000_000_000_000
"""Later moments, of the year 2223, are DuckDB's: sums with them may leave its range."""
_FUNCTIONS: Mapping[type[exp.Expression], str] = {exp.Max: "max", exp.Min: "min", exp.Sum: "sum", exp.Avg: "avg"}
_NUMBERS = (FieldType.INT64, FieldType.FLOAT64)
_MOMENT_TEXT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?")
_TIMESTAMPS = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ, exp.DataType.Type.TIMESTAMP_NS)
_SHAPE = "series_shape"


@dataclass(frozen=True, slots=True)
class SeriesAggregates:
    """What such a statement wants: pairs of a function and a column, of the rows with these tags and times.

    Functions are count, min, max, sum and avg; `count` of "" counts rows. Times are in [start_ns, end_ns). The bounds
    are those of SQL for rows whose times are whole microseconds.
    """

    items: tuple[tuple[str, str], ...]
    tags: Mapping[str, tuple[str, ...]]
    start_ns: int | None
    end_ns: int | None

    @property
    def may_be_newest(self) -> bool:
        """Whether the newest row of each series may be enough."""
        return all(function == "max" for function, _ in self.items)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads beside the time."""
        return tuple(sorted({column for _, column in self.items} - {"", TIME_COLUMN}))


@dataclass(frozen=True, slots=True)
class _Bound:
    """A bound on time. It is exact if `texts` are whole moments, and all of `nanoseconds` whole microseconds."""

    operator: type[exp.Expression]
    moment: exp.Expression
    texts: tuple[exp.Expression, ...]
    nanoseconds: tuple[exp.Expression, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What does not depend on literals; the nodes of these are those of the tree."""

    items: tuple[tuple[str, str], ...]
    tags: tuple[tuple[str, tuple[exp.Expression, ...]], ...]
    bounds: tuple[_Bound, ...]


def series_aggregates(tree: exp.Expression, table: exp.Table, schema: TableSchema) -> SeriesAggregates | None:
    """What a statement wants, by its tree and its only table; None for one that is DuckDB's."""
    # A tree that is used again has other literals and is the same otherwise.
    known = table.meta.get(_SHAPE)
    shape = known[1] if known is not None and known[0] is schema else _shape(tree, table, schema)
    table.meta[_SHAPE] = (schema, shape)
    return None if shape is None else _filled(shape)


def _shape(tree: exp.Expression, table: exp.Table, schema: TableSchema) -> _Shape | None:
    if not isinstance(tree, exp.Select) or {name for name, value in tree.args.items() if value} != {
        *("expressions", "from_", "where")
    }:
        return None
    if {name for name, value in table.args.items() if value} - {"this", "db", "alias"} or table.alias_column_names:
        return None
    if table.parent is not tree.args["from_"]:
        return None
    scope = Scope.of(table, tree, schema)
    items = [_item(each.unalias(), scope, schema) for each in tree.expressions]
    tags, bounds = dict[str, tuple[exp.Expression, ...]](), list[_Bound | None]()
    for condition in conjuncts(tree.args["where"].this):
        column = scope.belongs(condition.this) if isinstance(condition.this, exp.Column) else None
        if column == TIME_COLUMN and (found := _bounds(condition)):
            bounds += [_bound(*each) for each in found]
        elif column in schema.tags and column not in tags and (texts := _texts(condition)):
            tags[str(column)] = texts
        else:
            return None
    if not tags or not items or None in items or None in bounds:
        return None
    exact = tuple(bound for bound in bounds if bound is not None)
    return _Shape(tuple(item for item in items if item is not None), tuple(tags.items()), exact)


def _item(call: exp.Expression, scope: Scope, schema: TableSchema) -> tuple[str, str] | None:
    """The function and the column of an item, "" for all rows."""
    argument = call.this if isinstance(call, exp.Count | exp.Max | exp.Min | exp.Sum | exp.Avg) else None
    if argument is None or {name for name, value in call.args.items() if value} - {"this", "big_int"}:
        return None
    if isinstance(argument, exp.Star):
        plain = isinstance(call, exp.Count) and not any(argument.args.values())
        return ("count", "") if plain else None
    column = scope.belongs(argument) if isinstance(argument, exp.Column) else None
    if column is None or column in schema.tags:
        return None
    kind = schema.field_types().get(column)
    if isinstance(call, exp.Count):
        return None if kind is FieldType.STRING else ("count", column)
    is_time = column == TIME_COLUMN and isinstance(call, exp.Max | exp.Min)
    return (_FUNCTIONS[type(call)], column) if is_time or kind in _NUMBERS else None


def _bounds(condition: exp.Expression) -> list[tuple[type[exp.Expression], exp.Expression]]:
    if isinstance(condition, exp.Between) and not condition.args.get("symmetric"):
        return [(exp.GTE, condition.args["low"]), (exp.LTE, condition.args["high"])]
    if isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE):
        return [(type(condition), condition.expression)]
    return []


def _texts(condition: exp.Expression) -> tuple[exp.Expression, ...]:
    """The texts of which a column has one."""
    given: Sequence[exp.Expression] = ()
    if isinstance(condition, exp.EQ):
        given = [condition.expression]
    elif isinstance(condition, exp.In) and {name for name, value in condition.args.items() if value} == {
        *("this", "expressions")
    }:
        given = condition.expressions
    return tuple(given) if all(isinstance(each, exp.Literal) and each.is_string for each in given) else ()


def _filled(shape: _Shape) -> SeriesAggregates | None:
    """The shape with the literals that the tree has now."""
    start_ns, end_ns = list[int](), list[int]()
    for bound in shape.bounds:
        at_us = _exact_us(bound)
        if at_us is None or not 0 <= at_us < YEARS_MAX_US:
            return None
        at_ns = at_us * MICROSECOND_NS
        if bound.operator in (exp.GT, exp.GTE):
            start_ns.append(at_ns + (bound.operator is exp.GT))
        else:
            end_ns.append(at_ns + (bound.operator is exp.LTE))
    tags = {tag: tuple(str(text.this) for text in texts) for tag, texts in shape.tags}
    # An empty text is how an absent tag is written.
    if not all(text for texts in tags.values() for text in texts):
        return None
    return SeriesAggregates(shape.items, tags, max(start_ns, default=None), min(end_ns, default=None))


def _bound(operator: type[exp.Expression], moment: exp.Expression) -> _Bound | None:
    """The bound of a constant, None if a cast makes it coarser."""
    texts, nanoseconds = list[exp.Expression](), list[exp.Expression]()
    for node in moment.walk():
        if isinstance(node, exp.Cast) and node.to.this not in _TIMESTAMPS:
            return None
        if isinstance(node, exp.Anonymous):
            nanoseconds += node.expressions
        if isinstance(node, exp.Literal) and node.is_string and not isinstance(node.parent, exp.Interval):
            texts.append(node)
    return _Bound(operator, moment, tuple(texts), tuple(nanoseconds))


def _exact_us(bound: _Bound) -> int | None:
    """The microseconds of a constant that has no finer part."""
    is_whole = all(_MOMENT_TEXT.fullmatch(str(text.this)) for text in bound.texts)
    return moment_us(bound.moment) if is_whole and not any(map(_is_fine, bound.nanoseconds)) else None


def _is_fine(nanoseconds: exp.Expression) -> bool:
    value = whole_number(nanoseconds)
    return value is None or value % MICROSECOND_NS != 0
