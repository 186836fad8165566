"""Dates and times that Arrow does not write as DuckDB means them: infinities, years beyond 32767, and the end of a day.

One value at a time: no reading has such a time, so they come from expressions, in few rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_DAY_S = 86_400
_INFINITY_DAYS = 2**31 - 1
_INFINITY_TICKS = 2**63 - 1
"""What DuckDB writes to Arrow for `infinity`; `-infinity` is its negative."""
_MARK = "<value out of range"
"""How Arrow's text begins for these."""


def with_far_values(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Arrow's texts of dates (date32), times or timestamps, in which those that it could not write are replaced."""
    kind = column.type
    ticks = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # These have a text: the last nanosecond of int64.
        ends = pc.min_max(ticks).as_py()
        is_far = _INFINITY_TICKS in (ends["max"], -(ends["min"] or 0))
        far = pc.equal(pc.abs(ticks), _INFINITY_TICKS) if is_far else None
    else:
        far = pc.starts_with(texts, _MARK)
    if far is None or not pc.any(far).as_py():
        return texts
    write = _writer(kind)
    rows = zip(far.to_pylist(), texts.to_pylist(), ticks.to_pylist(), strict=True)
    return pa.array([write(tick) if is_far else text for is_far, text, tick in rows], pa.string())


def _writer(kind: pa.DataType) -> Callable[[int], str]:
    if pa.types.is_date(kind):
        return _date
    digits = _UNIT_DIGITS[kind.unit]
    return (lambda tick: _time(tick, digits)) if pa.types.is_time(kind) else (lambda tick: _timestamp(tick, digits))


def _date(days: int) -> str:
    return _infinity(days) if abs(days) == _INFINITY_DAYS else _day(days)


def _timestamp(ticks: int, digits: int) -> str:
    if abs(ticks) == _INFINITY_TICKS:
        return _infinity(ticks)
    days, rest = divmod(ticks, _DAY_S * 10**digits)
    return f"{_day(days)} {_time(rest, digits)}"


def _infinity(value: int) -> str:
    return "infinity" if value > 0 else "-infinity"


def _time(ticks: int, digits: int) -> str:
    seconds, fraction = divmod(ticks, 10**digits)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:0{digits}}" if digits else text


def _day(days: int) -> str:
    """The day of the proleptic Gregorian calendar that is so many days behind 1970-01-01."""
    # Eras of 400 years from 0000-03-01 on, so that a leap day is the last day of its year.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year += 400 * era + (month <= 2)
    return f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day_of_month:02}"
