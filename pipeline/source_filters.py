"""Spark's filters as SQL for nodes: those on `time` and on tags that mean exactly the same there.

What is pushed is not evaluated by Spark any more, so a doubt leaves a filter to Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.pipeline.time_ranges import TimeRange
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, TIME_COLUMN

VALUES_BYTES_MAX = 4_096
"""Nodes narrow nothing by SQL of more than 8 KiB: a longer list of values is left to Spark."""
_EPOCH = datetime(1970, 1, 1)
_TEXT_FILTERS = (EqualTo, EqualNullSafe, StringStartsWith)


@dataclass(slots=True)
class Pushed:
    """What nodes evaluate: a range of time, and conditions on tags as SQL that are joined by AND."""

    time: TimeRange = field(default_factory=TimeRange)
    conditions: list[str] = field(default_factory=list)


def push(filters: Iterable[Filter], tags: Collection[str], into: Pushed) -> list[Filter]:
    """Add to `into` what nodes can evaluate; returns the filters that Spark must."""
    left: list[Filter] = []
    for each in filters:
        name = _column_of(each)
        narrowed = _time_range(each) if name == TIME_COLUMN else None
        condition = _on_tag(each, name) if name in tags else None
        if narrowed is not None:
            into.time = into.time.both(narrowed)
        elif condition is not None and sum(map(len, into.conditions)) + len(condition.encode()) <= VALUES_BYTES_MAX:
            into.conditions.append(condition)
        else:
            left.append(each)
    return left


def quoted(name: str) -> str:
    """An identifier as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def time_conditions(time: TimeRange) -> list[str]:
    """A range of time as SQL conditions."""
    bounds = ((">=", time.start_ns), ("<", time.end_ns))
    return [f"{quoted(TIME_COLUMN)} {sign} make_timestamp_ns({bound})" for sign, bound in bounds if bound is not None]


def _column_of(each: Filter) -> str:
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return str(path[0]) if len(path) == 1 else ""


def _time_range(each: Filter) -> TimeRange | None:
    """The times that a filter lets through, None where that is not one range."""
    if isinstance(each, IsNotNull):
        return TimeRange()
    if not isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    ns = _ns(each.value)
    if ns is None:
        return None
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return TimeRange(start_ns=ns + isinstance(each, GreaterThan))
    if isinstance(each, LessThan | LessThanOrEqual):
        return TimeRange(end_ns=ns + isinstance(each, LessThanOrEqual))
    return TimeRange(ns, ns + 1)


def _ns(value: Any) -> int | None:
    """A time of Spark in ns, None for one that no row can have."""
    if isinstance(value, datetime) and value.tzinfo is None:
        ns = (value - _EPOCH) // timedelta(microseconds=1) * 1_000
    elif isinstance(value, int) and not isinstance(value, bool):
        ns = value
    else:
        return None
    return ns if ROW_TIME_MIN_NS <= ns <= ROW_TIME_MAX_NS else None


def _on_tag(each: Filter, name: str) -> str | None:
    column = quoted(name)
    if isinstance(each, IsNull | IsNotNull):
        return f"{column} IS {'NOT ' if isinstance(each, IsNotNull) else ''}NULL"
    if isinstance(each, In):
        # A null among the values never matches, and without it the list means the same.
        values = [value for value in each.value if value is not None]
        if values and all(isinstance(value, str) and _is_plain(value) for value in values):
            return f"{column} IN ({', '.join(literal(value) for value in values)})"
        return None
    if not isinstance(each, _TEXT_FILTERS) or not isinstance(each.value, str) or not _is_plain(each.value):
        return None
    if isinstance(each, StringStartsWith):
        return f"starts_with({column}, {literal(each.value)})"
    return f"{column} = {literal(each.value)}"


def _is_plain(text: str) -> bool:
    # A null character ends a text in SQL, and half a surrogate pair is no UTF-8.
    return "\0" not in text and not any(0xD800 <= ord(each) <= 0xDFFF for each in text)
