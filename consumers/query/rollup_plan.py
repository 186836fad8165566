"""Which fragments the rollups of segments can answer, and their SQL over them. Pure.

A rollup has one row for each series and hour. It answers a fragment whose keys and conditions are the same for all rows
of one series in one hour, and whose aggregates follow from those of such rows. Then the fragment over rows and the one
over rollups give parts of one answer, each from other segments. What is not in the lists here is computed from rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.consumers.query.aggregates import SPELLINGS
from headrace.consumers.query.constants import whole_hours
from headrace.consumers.query.partial_plan import KEY_PREFIX, DividedSelect
from headrace.consumers.query.predicates import Evaluate, conjuncts
from headrace.consumers.query.scope import sources_of
from headrace.consumers.query.sql_nodes import is_of_row, parsed_expression, sql_of
from headrace.consumers.store.rollup_columns import HOUR_NS, ROLLUP_PREFIX, Rolled, RollupColumn, RollupRequest
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

_UNITS = frozenset({"HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"})
"""Units of `date_trunc` whose periods begin with an hour."""
_FROM_HOUR: dict[type[exp.Expression], str] = {
    exp.GTE: "this",
    exp.LT: "this",
    exp.LTE: "expression",
    exp.GT: "expression",
}
"""Comparisons that are the same for a whole hour when `time` is on this side, and the begin of an hour on the other."""
_NUMBERS = frozenset({FieldType.FLOAT64, FieldType.INT64})
_WHOLE_HOUR = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:00:00(?:\.0+)?)?")
_TIMESTAMPS = "'TIMESTAMP', 'TIMESTAMP_NS', 'TIMESTAMP_MS', 'TIMESTAMP_S', 'DATE'"
_AGGREGATES = (
    *(exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg, exp.ArgMin, exp.ArgMax),
    *(exp.LogicalAnd, exp.LogicalOr),
)


class _NotRolled(Exception):
    """A part of a fragment that rollups do not answer. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class RollupPlan:
    """A fragment over rollups: what it wants of them, and the SQL of its columns over that."""

    request: RollupRequest
    names: tuple[str, ...]
    expressions: tuple[str, ...]
    keys: int
    condition: str

    def sql(self, table: str, types: Sequence[str]) -> str:
        """The fragment over a table of rollups, by its SQL name, with the types of its columns over rows."""
        listed = ", ".join(
            f'CAST({each} AS {kind}) AS "{name}"'
            for each, kind, name in zip(self.expressions, types, self.names, strict=True)
        )
        columns = ", ".join(
            [f"CAST({_quoted(tag)} AS VARCHAR) AS {_quoted(tag)}" for tag in self.request.tags]
            + [f"CAST({_quoted(TIME_COLUMN)} AS TIMESTAMP_NS) AS {_quoted(TIME_COLUMN)}"]
            + [_quoted(self.request.name(place)) for place in range(len(self.request.columns))]
        )
        where = f" WHERE {self.condition}" if self.condition else ""
        by = ", ".join(str(number) for number in range(1, self.keys + 1))
        return f"SELECT {listed} FROM (SELECT {columns} FROM {table}){where}{f' GROUP BY {by}' if by else ''}"


def is_hourly(select: exp.Select) -> bool:
    """Whether rollups may answer a SELECT of one table: a cheap test that most statements fail."""
    if len(sources_of(select)) != 1 or select.args.get("joins"):
        return False
    found = False
    for node in select.walk():
        if isinstance(node, exp.DateBin | exp.TimestampTrunc | exp.DateTrunc):
            if not _cuts_at_hours(node):
                return False
        elif isinstance(node, exp.AggFunc):
            if type(node) not in _AGGREGATES or not isinstance(node.this, exp.Column | exp.Star | exp.Literal | None):
                return False
            found = True
        elif isinstance(node, exp.Anonymous) and node.name.lower() in SPELLINGS:
            found = True
    return found or bool(select.args.get("distinct"))


def plan_rollup(divided: DividedSelect, schema: TableSchema, evaluate: Evaluate) -> RollupPlan | None:
    """How rollups answer a divided SELECT; None where they cannot."""
    try:
        return _Plan(schema, evaluate).of(divided.columns, divided.partials, divided.keys, divided.condition)
    except _NotRolled:
        return None


def plan_rollup_of(fragment: str, schema: TableSchema, evaluate: Evaluate) -> RollupPlan | None:
    """The same for the SQL of a fragment that another node has written by `DividedSelect.fragment`."""
    try:
        select = parsed_expression(fragment)
        names, expressions, condition = _parts_of(select)
        keys = sum(name.startswith(KEY_PREFIX) for name in names)
        return _Plan(schema, evaluate).of(names, expressions, keys, condition)
    # What it cannot parse it did not write.
    except (_NotRolled, SqlglotError, RecursionError):
        return None


def _parts_of(select: exp.Expression) -> tuple[list[str], list[exp.Expression], exp.Expression | None]:
    """Names and expressions of a fragment, keys first, and its condition."""
    _require(isinstance(select, exp.Select) and all(_is_plain(each) for each in sources_of(select)))
    items = select.expressions
    _require(all(isinstance(item, exp.Alias) for item in items))
    given = {name for name, value in select.args.items() if value}
    _require(not given - {"kind", "expressions", "from_", "where", "group"} and not select.args.get("kind"))
    names = [item.alias for item in items]
    keys = [name for name in names if name.startswith(KEY_PREFIX)]
    group = select.args.get("group")
    grouped = [sql_of(each) for each in group.expressions] if group is not None else []
    _require(names[: len(keys)] == keys and grouped == [str(number) for number in range(1, len(keys) + 1)])
    where = select.args.get("where")
    return names, [item.this for item in items], where.this if where is not None else None


def _is_plain(source: exp.Expression) -> bool:
    """Whether a source is a table and nothing else: no alias, no sample, no subquery."""
    return isinstance(source, exp.Table) and not {k for k, v in source.args.items() if v} - {"this", "db", "catalog"}


@dataclass(slots=True)
class _Plan:
    """The work on one fragment."""

    schema: TableSchema
    evaluate: Evaluate
    _columns: dict[RollupColumn, int] = field(default_factory=dict)

    @property
    def _types(self) -> dict[str, FieldType]:
        return self.schema.field_types()

    def of(
        self,
        names: Sequence[str],
        expressions: Sequence[exp.Expression],
        keys: int,
        condition: exp.Expression | None,
    ) -> RollupPlan:
        _require(not any(name.lower().startswith(ROLLUP_PREFIX) for name in (*self.schema.tags, *self._types)))
        _require(all(self._of_hour(each) for each in expressions[:keys]))
        _require(condition is None or self._of_hour(condition))
        found = [sql_of(each) for each in expressions[:keys]] + [self._rolled(each) for each in expressions[keys:]]
        named = {column.name for each in (*expressions, condition) if each for column in each.find_all(exp.Column)}
        request = RollupRequest(tuple(tag for tag in self.schema.tags if tag in named), tuple(self._columns))
        written = "" if condition is None else sql_of(condition)
        return RollupPlan(request, tuple(names), tuple(found), keys, written)

    def _of_hour(self, node: exp.Expression) -> bool:
        """Whether an expression has one value for all rows of a series in an hour: that at its begin."""
        if isinstance(node, exp.Column):
            return node.name in self.schema.tags
        if isinstance(node, exp.DateBin | exp.TimestampTrunc | exp.DateTrunc) and _is_time(_truncated(node)):
            return _cuts_at_hours(node)
        if isinstance(node, exp.Cast) and _is_time(node.this):
            return bool(node.to.this == exp.DType.DATE)
        side = _FROM_HOUR.get(type(node))
        if side is not None and _is_time(node.args[side]):
            other = node.args["expression" if side == "this" else "this"]
            return self._begins_hour(other)
        return is_of_row(node) and all(self._of_hour(child) for child in node.iter_expressions())

    def _begins_hour(self, constant: exp.Expression) -> bool:
        """Whether a constant is the begin of an hour, to the nanosecond."""
        if constant.find(exp.Column):
            return False
        text = constant.this if isinstance(constant, exp.Cast) else constant
        if isinstance(text, exp.Literal) and text.is_string and _is_timestamp(constant):
            return bool(_WHOLE_HOUR.fullmatch(str(text.this)))
        sql = sql_of(constant)
        moment = f"CASE WHEN typeof({sql}) IN ({_TIMESTAMPS}) THEN epoch_ns(CAST({sql} AS TIMESTAMP_NS)) END"
        value = self.evaluate(moment)
        return value is not None and value % HOUR_NS == 0

    def _rolled(self, partial: exp.Expression) -> str:
        """A partial aggregate over the rows of rollups."""
        call, condition = (
            (partial.this, partial.expression.this) if isinstance(partial, exp.Filter) else (partial, None)
        )
        kept = conjuncts(condition) if condition is not None else []
        argument = _argument(call)
        # The time of a value; the table of aggregates writes it as that of the rows that have one.
        valued = ""
        if _is_time(argument):
            kept, valued = _field_with_value(kept, self._types)
        _require(all(self._of_hour(each) for each in kept))
        if valued:
            return self._time(call, valued, kept)
        if argument is None or isinstance(argument, exp.Star):
            _require(isinstance(call, exp.Count))
            return self._count(RollupColumn(Rolled.ROWS), kept)
        if _is_time(argument):
            return self._time(call, "", kept)
        if isinstance(argument, exp.Column) and argument.name in self._types:
            return self._of_field(call, argument.name, kept)
        _require(self._of_hour(argument))
        return self._of_constant(call, argument, kept)

    def _time(self, call: exp.Expression, of_field: str, kept: Sequence[exp.Expression]) -> str:
        if isinstance(call, exp.Count) and not of_field:
            return self._count(RollupColumn(Rolled.ROWS), kept)
        _require(isinstance(call, exp.Min | exp.Max) and not call.args.get("expressions"))
        is_first = isinstance(call, exp.Min)
        name = self._column(Rolled.FIRST_TIME if is_first else Rolled.LAST_TIME, of_field)
        return f"{'MIN' if is_first else 'MAX'}({name}){_filter(kept)}"

    def _of_constant(self, call: exp.Expression, argument: exp.Expression, kept: Sequence[exp.Expression]) -> str:
        """An aggregate of what is the same in all rows of a series and hour."""
        if isinstance(call, exp.Count):
            present = parsed_expression(f"({sql_of(argument)}) IS NOT NULL")
            return self._count(RollupColumn(Rolled.ROWS), [*kept, present])
        _require(isinstance(call, exp.Min | exp.Max) and not call.args.get("expressions"))
        return f"{'MIN' if isinstance(call, exp.Min) else 'MAX'}({sql_of(argument)}){_filter(kept)}"

    def _of_field(self, call: exp.Expression, name: str, kept: Sequence[exp.Expression]) -> str:
        kind, where = self._types[name], _filter(kept)
        if isinstance(call, exp.Count):
            return self._count(RollupColumn(Rolled.COUNT, name), kept)
        _require(kind is not FieldType.STRING)
        if isinstance(call, exp.Min | exp.Max):
            _require(not call.args.get("expressions"))
            function, part = ("MIN", Rolled.MIN) if isinstance(call, exp.Min) else ("MAX", Rolled.MAX)
            return f"{function}({self._column(part, name)}){where}"
        if isinstance(call, exp.LogicalAnd | exp.LogicalOr):
            _require(kind is FieldType.BOOL)
            is_and = isinstance(call, exp.LogicalAnd)
            part = Rolled.MIN if is_and else Rolled.MAX
            return f"{'BOOL_AND' if is_and else 'BOOL_OR'}({self._column(part, name)}){where}"
        if isinstance(call, exp.ArgMin | exp.ArgMax):
            _require(_is_time(call.expression))
            is_first = isinstance(call, exp.ArgMin)
            value = self._column(Rolled.FIRST if is_first else Rolled.LAST, name)
            time = self._column(Rolled.FIRST_TIME if is_first else Rolled.LAST_TIME, name)
            return f"{'ARG_MIN' if is_first else 'ARG_MAX'}({value}, {time}){where}"
        _require(isinstance(call, exp.Sum) and kind in _NUMBERS)
        if kind is FieldType.FLOAT64:
            return f"SUM({self._column(Rolled.SUM, name)}){where}"
        high, low = (self._column(part, name) for part in (Rolled.SUM_HIGH, Rolled.SUM_LOW))
        return f"(SUM({high}){where} * 4294967296 + SUM({low}){where})"

    def _count(self, column: RollupColumn, kept: Sequence[exp.Expression]) -> str:
        return f"COALESCE(SUM({self._column(column.kind, column.field)}){_filter(kept)}, 0)"

    def _column(self, kind: Rolled, name: str) -> str:
        place = self._columns.setdefault(RollupColumn(kind, name), len(self._columns))
        return _quoted(RollupRequest.name(place))


def _argument(call: exp.Expression) -> exp.Expression | None:
    """The first argument of an aggregate; sqlglot writes a cast around those of booleans."""
    argument: exp.Expression | None = call.this
    if isinstance(call, exp.LogicalAnd | exp.LogicalOr) and isinstance(argument, exp.Cast):
        return argument.this if argument.to.this == exp.DType.BOOLEAN else argument
    return argument


def _filter(kept: Sequence[exp.Expression]) -> str:
    return f" FILTER (WHERE {' AND '.join(f'({sql_of(each)})' for each in kept)})" if kept else ""


def _field_with_value(
    conditions: Sequence[exp.Expression], types: Mapping[str, FieldType]
) -> tuple[list[exp.Expression], str]:
    """Conditions without the one that a field is not null, and that field; without such a one "" and all of them."""
    for place, each in enumerate(conditions):
        test = each.this if isinstance(each, exp.Not) else None
        subject = test.this.unnest() if isinstance(test, exp.Is) and isinstance(test.expression, exp.Null) else None
        if isinstance(subject, exp.Column) and subject.name in types:
            return [*conditions[:place], *conditions[place + 1 :]], subject.name
    return list(conditions), ""


def _truncated(node: exp.Expression) -> exp.Expression:
    found: exp.Expression = node.expression if isinstance(node, exp.DateBin) else node.this
    return found


def _cuts_at_hours(node: exp.Expression) -> bool:
    """Whether a call of `time_bucket` or `date_trunc` cuts time at whole hours only."""
    given = {name for name, value in node.args.items() if value is not None}
    if isinstance(node, exp.DateBin):
        # The origin of DuckDB's buckets is a midnight, unless another one is given.
        return given <= {"this", "expression"} and whole_hours(node.this)
    unit = node.args.get("unit")
    return given <= {"this", "unit", "unabbreviate"} and unit is not None and str(unit.name).upper() in _UNITS


def _is_time(node: object) -> bool:
    return isinstance(node, exp.Column) and node.name == TIME_COLUMN


def _is_timestamp(constant: exp.Expression) -> bool:
    if not isinstance(constant, exp.Cast):
        return True
    return constant.to.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMP_NS, exp.DType.DATE)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require(condition: bool) -> None:
    if not condition:
        raise _NotRolled
