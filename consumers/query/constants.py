"""The values of constants that are written in common ways, without asking DuckDB, which takes a millisecond for each.

Moments without a zone are UTC in all of Headrace. What is not known here is None, and DuckDB computes it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sqlglot import exp

DIGITS_MAX = 19
INT64_MAX = 2**63 - 1
MICROSECONDS_PER_S = 1_000_000
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?)?")
_UNITS_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": MICROSECONDS_PER_S,
    "MINUTE": 60 * MICROSECONDS_PER_S,
    "HOUR": 3_600 * MICROSECONDS_PER_S,
    "DAY": 86_400 * MICROSECONDS_PER_S,
}
_CALENDAR_UNITS = frozenset({"WEEK", "MONTH", "QUARTER", "YEAR"})
_TIMESTAMPS = frozenset(
    {
        exp.DataType.Type.DATE,
        exp.DataType.Type.TIMESTAMP,
        exp.DataType.Type.TIMESTAMPNTZ,
        exp.DataType.Type.TIMESTAMP_NS,
        exp.DataType.Type.TIMESTAMP_MS,
        exp.DataType.Type.TIMESTAMP_S,
    }
)


def whole_number(expression: exp.Expression) -> int | None:
    """The value of an integer."""
    if isinstance(expression, exp.Neg):
        value = whole_number(expression.this)
        return None if value is None else -value
    if isinstance(expression, exp.Literal) and not expression.is_string:
        text = str(expression.this)
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None
        return value if value is None or value <= INT64_MAX else None
    return None


def moment_us(expression: exp.Expression) -> int | None:
    """The microseconds since 1970 of a timestamp, a date, or one of them and an interval."""
    if isinstance(expression, exp.Paren):
        return moment_us(expression.this)
    if isinstance(expression, exp.Add | exp.Sub):
        begin_us, span_us = moment_us(expression.this), _span_us(expression.expression)
        if begin_us is None or span_us is None:
            return None
        return begin_us + (span_us if isinstance(expression, exp.Add) else -span_us)
    if isinstance(expression, exp.Cast):
        is_text = isinstance(expression.this, exp.Literal) and expression.this.is_string
        return _written_us(expression.this, expression.to.this) if is_text else None
    if isinstance(expression, exp.Literal) and expression.is_string:
        return _written_us(expression, exp.DataType.Type.TIMESTAMP)
    if isinstance(expression, exp.Anonymous) and str(expression.name).lower() == "make_timestamp_ns":
        value = whole_number(expression.expressions[0]) if len(expression.expressions) == 1 else None
        return None if value is None else value // 1_000
    return None


def moment_sql(time_ns: int) -> str:
    """SQL of the last microsecond that is not behind a time, in a way that `moment_us` knows."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1_000)
    return f"CAST('{moment:%Y-%m-%d %H:%M:%S.%f}' AS TIMESTAMP)"


def whole_hours(expression: exp.Expression) -> bool:
    """Whether an interval is a number of whole hours, days, or longer units of the calendar."""
    if not isinstance(expression, exp.Interval) or not isinstance(expression.args.get("unit"), exp.Var):
        return False
    if str(expression.args["unit"].name).upper().removesuffix("S") in _CALENDAR_UNITS:
        count = str(expression.this.this) if isinstance(expression.this, exp.Literal) else ""
        return count.isascii() and count.isdigit() and int(count) > 0
    span_us = _span_us(expression)
    return span_us is not None and span_us > 0 and span_us % (3_600 * MICROSECONDS_PER_S) == 0


def _written_us(text: exp.Expression, kind: object) -> int | None:
    match = _MOMENT.fullmatch(str(text.this))
    if match is None or kind not in _TIMESTAMPS:
        return None
    # A date has no time of day, whatever the text has.
    time = "00:00:00" if kind is exp.DataType.Type.DATE else match[2] or "00:00:00"
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{time}").replace(tzinfo=UTC)
    except ValueError:
        return None
    fraction = 0 if kind is exp.DataType.Type.DATE else int((match[3] or "").ljust(6, "0"))
    return int(moment.timestamp()) * MICROSECONDS_PER_S + fraction


def _span_us(expression: exp.Expression) -> int | None:
    """The microseconds of an interval of a fixed length."""
    if not isinstance(expression, exp.Interval) or not isinstance(expression.args.get("unit"), exp.Var):
        return None
    text, unit_us = (
        str(expression.this.this),
        _UNITS_US.get(str(expression.args["unit"].name).upper().removesuffix("S")),
    )
    if not isinstance(expression.this, exp.Literal) or unit_us is None:
        return None
    return int(text) * unit_us if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None
