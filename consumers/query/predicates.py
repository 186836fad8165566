"""Bounds on time and tags that follow from one condition of a WHERE clause.

Every doubt keeps more rows: a bound is widened by a second, and a condition that is not understood gives no
bound. Each condition that is understood is false or null for a row without the column. That makes it safe on
the nullable side of an outer join.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from headrace.consumers.query.constants import moment_us, whole_number
from headrace.consumers.query.parameters import READER
from headrace.schemas.tables import TIME_COLUMN

SLACK_NS = 1_000_000_000
"""How far a bound is widened: SQL compares times at several precisions and rounds between them."""
MICROSECOND_NS = 1_000
DAY_NS = 86_400_000_000_000
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# The longest that each unit can be: `date_trunc` moves a time back by less than this.
_TRUNCATION_NS = {
    "MICROSECOND": MICROSECOND_NS,
    "MILLISECOND": 1_000_000,
    "SECOND": 1_000_000_000,
    "MINUTE": 60_000_000_000,
    "HOUR": 3_600_000_000_000,
    "DAY": DAY_NS,
    "WEEK": 7 * DAY_NS,
    "MONTH": 31 * DAY_NS,
    "QUARTER": 92 * DAY_NS,
    "YEAR": 366 * DAY_NS,
}
_EPOCH_FUNCTIONS_NS = {"epoch_ns": 1, "epoch_us": MICROSECOND_NS, "epoch_ms": 1_000_000, "epoch": 1_000_000_000}
# Allow lists, not deny lists: an expression counts as constant only if every part of it is known to be.
_CONSTANT_FUNCTIONS = frozenset(
    {READER, "now", "today", "make_timestamp", "make_timestamp_ns", "make_timestamp_ms", "make_date", "date"}
)
_CONSTANT_NODES = (
    exp.Literal,
    exp.Cast,
    exp.Interval,
    exp.Var,
    exp.DataType,
    exp.DataTypeParam,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Neg,
    exp.Paren,
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.TimestampTrunc,
    exp.DateTrunc,
    exp.TimestampFromParts,
    exp.UnixToTime,
)
_TEXT = "text"
_FLIPPED: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}

Evaluate = Callable[[str], int | None]
"""The value of a constant SQL expression of an integer type, None when it has none."""
Belongs = Callable[[exp.Column], str | None]
"""The catalogue's spelling of a column of the table in question, None for other columns."""


@dataclass(slots=True)
class Narrowing:
    """What is known of the rows of one table: time in [start_ns, end_ns), and allowed values of some tags."""

    start_ns: int | None = None
    end_ns: int | None = None
    tags: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True when no row can be kept."""
        return self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns

    def from_ns(self, bound_ns: int) -> None:
        """Keep only rows at or after a time."""
        if bound_ns > INT64_MIN:
            bound_ns = min(bound_ns, INT64_MAX)
            self.start_ns = bound_ns if self.start_ns is None else max(self.start_ns, bound_ns)

    def before_ns(self, bound_ns: int) -> None:
        """Keep only rows before a time."""
        if bound_ns <= INT64_MAX:
            bound_ns = max(bound_ns, INT64_MIN)
            self.end_ns = bound_ns if self.end_ns is None else min(self.end_ns, bound_ns)

    def only(self, tag: str, values: frozenset[str]) -> None:
        """Keep only rows whose tag has one of these values."""
        # Contradicting conditions leave no value. An empty set would not restrict, so the first one is kept.
        both = self.tags.get(tag, values) & values
        self.tags[tag] = both or self.tags[tag]


def narrow(
    condition: exp.Expression, belongs: Belongs, tags: frozenset[str], evaluate: Evaluate, into: Narrowing
) -> None:
    """Add to `into` the bounds on one table that follow from a condition that must hold."""
    for part in conjuncts(condition):
        if isinstance(part, exp.Between):
            _narrow_time(exp.GTE, part.this, part.args["low"], belongs, evaluate, into)
            _narrow_time(exp.LTE, part.this, part.args["high"], belongs, evaluate, into)
        elif isinstance(part, exp.In):
            _narrow_in(part, belongs, tags, into)
        elif type(part) in _FLIPPED:
            _narrow_time(type(part), part.this, part.expression, belongs, evaluate, into)
            _narrow_time(_FLIPPED[type(part)], part.expression, part.this, belongs, evaluate, into)
            if isinstance(part, exp.EQ):
                _narrow_tag(part.this, part.expression, belongs, tags, into)
                _narrow_tag(part.expression, part.this, belongs, tags, into)


def conjuncts(condition: exp.Expression) -> list[exp.Expression]:
    """The conditions that all hold when `condition` holds."""
    found: list[exp.Expression] = []
    # No recursion: a client chooses how many conditions are chained.
    stack = [condition]
    while stack:
        item = stack.pop()
        if isinstance(item, exp.Paren):
            stack.append(item.this)
        elif isinstance(item, exp.And):
            stack += [item.expression, item.this]
        else:
            found.append(item)
    return found


def _narrow_in(part: exp.In, belongs: Belongs, tags: frozenset[str], into: Narrowing) -> None:
    values = part.args.get("expressions") or []
    tag = belongs(part.this) if isinstance(part.this, exp.Column) else None
    texts = [_text(value) for value in values]
    if tag in tags and texts and all(texts):
        assert tag is not None
        into.only(tag, frozenset(text for text in texts if text))


def _narrow_tag(
    column: exp.Expression, value: exp.Expression, belongs: Belongs, tags: frozenset[str], into: Narrowing
) -> None:
    tag = belongs(column) if isinstance(column, exp.Column) else None
    text = _text(value)
    if tag in tags and text:
        assert tag is not None
        into.only(tag, frozenset({text}))


def mark_texts(tree: exp.Expression, texts: Mapping[str, str]) -> None:
    """Note the value of each variable that is a text at the nodes that read it."""
    # In the metadata: a value that were a part of the tree could come into a text that is parsed again.
    for node in tree.find_all(exp.Anonymous) if texts else ():
        if str(node.name).lower() == READER and len(node.expressions) == 1:
            node.meta[_TEXT] = texts.get(node.expressions[0].name)


def _text(value: exp.Expression) -> str | None:
    """The text of a literal or a variable. None or empty where an absent tag may equal it."""
    # An empty text is how an absent tag is written, so it never restricts.
    if isinstance(value, exp.Literal):
        return str(value.this) if value.is_string else None
    text = value.meta.get(_TEXT) if isinstance(value, exp.Anonymous) else None
    return text if isinstance(text, str) else None


def _narrow_time(
    operator: type[exp.Expression],
    side: exp.Expression,
    other: exp.Expression,
    belongs: Belongs,
    evaluate: Evaluate,
    into: Narrowing,
) -> None:
    measure = time_measure(side, belongs, evaluate)
    if measure is None or not _is_constant(other):
        return
    unit_ns, width_ns = measure
    # What is not written in a common way DuckDB computes itself, so every form of a time that it accepts counts.
    if unit_ns:
        value = whole_number(other)
        value = evaluate(other.sql(dialect="duckdb")) if value is None else value
    else:
        unit_ns, value = MICROSECOND_NS, moment_us(other)
        value = evaluate(f"epoch_us(CAST({other.sql(dialect='duckdb')} AS TIMESTAMP))") if value is None else value
    if value is None:
        return
    slack_ns = max(SLACK_NS, width_ns)
    if operator in (exp.GT, exp.GTE, exp.EQ):
        into.from_ns(value * unit_ns - slack_ns)
    if operator in (exp.LT, exp.LTE, exp.EQ):
        into.before_ns(value * unit_ns + slack_ns + 1)


def time_measure(side: exp.Expression, belongs: Belongs, evaluate: Evaluate) -> tuple[int, int] | None:
    """How `side` measures the time column: (ns per unit, 0 for a timestamp; width of its rounding in ns)."""
    if isinstance(side, exp.Paren):
        return time_measure(side.this, belongs, evaluate)
    if _is_time(side, belongs):
        return 0, 0
    if isinstance(side, exp.Cast) and _is_time(side.this, belongs):
        return _cast_measure(side)
    if isinstance(side, exp.TimestampTrunc | exp.DateTrunc) and _is_time(side.this, belongs):
        width_ns = _TRUNCATION_NS.get(str(side.args["unit"].name).upper())
        return (0, width_ns) if width_ns else None
    if (
        isinstance(side, exp.DateBin)
        and _is_time(side.expression, belongs)
        and set(_given(side)) == {"this", "expression"}
    ):
        seconds = (
            evaluate(f"ceil(epoch({side.this.sql(dialect='duckdb')}))") if isinstance(side.this, exp.Interval) else None
        )
        return (0, 2 * seconds * 1_000_000_000) if seconds and seconds > 0 else None
    name, argument = _epoch_call(side)
    if name in _EPOCH_FUNCTIONS_NS and argument is not None and _is_time(argument, belongs):
        return _EPOCH_FUNCTIONS_NS[name], 0
    return None


def _cast_measure(side: exp.Cast) -> tuple[int, int] | None:
    target = side.to.this
    if target == exp.DataType.Type.DATE:
        return 0, DAY_NS
    if target in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ, exp.DataType.Type.TIMESTAMP_NS):
        return 0, 0
    return None


def _epoch_call(side: exp.Expression) -> tuple[str, exp.Expression | None]:
    """The name and argument of a call that turns a time into a number; sqlglot renames some of them."""
    if isinstance(side, exp.Anonymous) and len(side.expressions) == 1:
        return str(side.name).lower(), side.expressions[0]
    if isinstance(side, exp.TimeToUnix):
        return "epoch", side.this
    if isinstance(side, exp.UnixToTime) and side.args.get("scale") == exp.UnixToTime.MILLIS:
        return "epoch_ms", side.this
    return "", None


def _given(expression: exp.Expression) -> Mapping[str, object]:
    return {name: value for name, value in expression.args.items() if value is not None}


def _is_time(side: exp.Expression, belongs: Belongs) -> bool:
    return isinstance(side, exp.Column) and belongs(side) == TIME_COLUMN


def _is_constant(expression: exp.Expression) -> bool:
    """True if the value depends on nothing but the moment of the query."""
    return all(
        isinstance(node, _CONSTANT_NODES)
        or (isinstance(node, exp.Anonymous) and str(node.name).lower() in _CONSTANT_FUNCTIONS)
        for node in expression.walk()
    )
