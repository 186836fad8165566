"""Dates and times that Arrow cannot write as text: infinities, years beyond 32767, and the end of a day.

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
    """Arrow's texts of dates, times or timestamps, in which those that it could not write are replaced."""
    if not pc.any(pc.starts_with(texts, _MARK)).as_py():
        return texts
    bits = 32 if pa.types.is_date32(column.type) or pa.types.is_time32(column.type) else 64
    ticks = column.view(pa.int32() if bits == 32 else pa.int64()).to_pylist()
    write = _writer(column.type)
    pairs = zip(texts.to_pylist(), ticks, strict=True)
    return pa.array([write(tick) if text and text.startswith(_MARK) else text for text, tick in pairs], pa.string())


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
