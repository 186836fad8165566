"""Times that a table does not take: outside the years that readings come from, or finer than its resolution.

The years find a wrong unit: seconds, milliseconds and microseconds that are read as nanoseconds are all in 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import NS_PER_UNIT, FormatError, TimeRangeError
from headrace.schemas.tables import TIME_COLUMN, TimeResolution

FIRST_YEAR, LAST_YEAR = 1980, 2100
_FIRST_NS = int(np.datetime64(f"{FIRST_YEAR}", "ns").astype(np.int64))
_END_NS = int(np.datetime64(f"{LAST_YEAR + 1}", "ns").astype(np.int64))
# A unit is refused as a whole when all of the first rows are outside. A few rows may be of a device whose clock was
# not set, and are refused one by one.
FIRST_ROWS = 1_000
_OUTSIDE = f"the time is outside {FIRST_YEAR} to {LAST_YEAR}"
_TAKEN = "; `--any-time` takes it"
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
"""The units that a time is guessed to be in; nobody writes minutes or hours by mistake."""

_GUESSED = {unit: NS_PER_UNIT[unit] for unit in ("ns", "us", "ms", "s")}
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class TimesImplausible(FormatError):
    """Readings whose first times are all in another age: nearly always in another unit than they are read in."""

    exit_code = 3


_RESOLVED = ": round it, or write a new table with `write.time_resolution=ns`"


@dataclass(frozen=True, slots=True)
class TimeRules:
    """What the times of one table may be; `ns_per_unit` is the unit that integers were read in."""

    table: str
    resolution: TimeResolution
    any_time: bool = False
    ns_per_unit: int = 1

    def refusals(self, rows: pa.Table) -> list[tuple[Mask, str]]:
        """The rows that the table does not take, with the reason; no row twice."""
        times = _times(rows)
        found: list[tuple[Mask, str]] = []
        outside = None if self.any_time else _outside(times)
        if outside is not None:
            found += self._by_guess(times, outside)
        finer = finer_times(times, self.resolution)
        if finer is not None and outside is not None:
            finer &= ~outside
        if finer is not None and finer.any():
            reason = f"the time is finer than the {self.resolution.unit}s of table {self.table!r}{_RESOLVED}"
            found.append((finer, reason))
        return found

    def check_unit(self, rows: pa.Table) -> None:
        """Raises TimesImplausible when all of the first times are outside the years of readings."""
        first = _times(rows.slice(0, FIRST_ROWS))
        outside = None if self.any_time or not len(first) else _outside(first)
        if outside is None or not outside.all():
            return
        unit = looks_like(int(first[0]), self.ns_per_unit)
        raise TimesImplausible(
            f"the times of table {self.table!r} begin at {instant(first[0])}"
            + (f": these look like {UNIT_NAMES[unit]}" if unit else f", outside {FIRST_YEAR} to {LAST_YEAR}"),
            action=(f"use `--time-unit {unit}`, or " if unit else "give ") + "`--any-time` if the times are right",
        )

    def _by_guess(self, times: Times, outside: Mask) -> list[tuple[Mask, str]]:
        """The times that are outside, by the unit that they look like."""
        given, rest, found = times // self.ns_per_unit, outside.copy(), []
        for unit, factor in _GUESSED.items():
            alike = rest & (given >= _FIRST_NS // factor) & (given < _END_NS // factor)
            if alike.any():
                found.append((alike, f"{_OUTSIDE}: it looks like {UNIT_NAMES[unit]} (`--time-unit {unit}`){_TAKEN}"))
                rest &= ~alike
        return [*found, (rest, f"{_OUTSIDE}{_TAKEN}")] if rest.any() else found


def looks_like(time_ns: int, ns_per_unit: int = 1) -> str | None:
    """The unit in which a number would be a time of our years, given the time that it was taken for; None for none.

    The ranges of the units are far apart, so there is never a choice.
    """
    given = time_ns // ns_per_unit
    fitting = (name for name, factor in _GUESSED.items() if _FIRST_NS <= given * factor < _END_NS)
    return next(fitting, None)


def check_integers(rows: pa.Table) -> None:
    """Integer times are nanoseconds. Raises TimesImplausible when all of the first ones look like another unit.

    A timestamp has its unit with it, and is not doubted.
    """
    place = rows.schema.get_field_index(TIME_COLUMN)
    if place < 0 or not pa.types.is_integer(rows.schema.field(place).type):
        return
    first = rows.column(place).slice(0, FIRST_ROWS)
    ends = pc.min_max(first).as_py()
    units = {None if each is None else looks_like(each) for each in ends.values()}
    unit = units.pop()
    if units or unit in (None, "ns"):
        return
    raise TimesImplausible(
        f"integer times are nanoseconds, and {ends['min']} looks like {UNIT_NAMES[unit]}",
        action="give timestamps, which have their unit with them, or nanoseconds",
    )


def as_timestamps(rows: pa.Table) -> pa.Table:
    """Rows whose times were checked, with their unit: `check_integers` would doubt them once more."""
    place = rows.schema.get_field_index(TIME_COLUMN)
    times = rows.column(place).cast(pa.timestamp("ns"))
    return rows.set_column(place, rows.schema.field(place).with_type(times.type), times)


def finer_times(times_ns: Times, resolution: TimeResolution) -> Mask | None:
    """Which times have digits below the resolution; None for no time."""
    if resolution is TimeResolution.NS:
        return None
    finer: Mask = times_ns % resolution.nanoseconds != 0
    return finer if finer.any() else None


def check_resolution(rows: pa.Table, name: str, resolution: TimeResolution) -> None:
    """Raises TimeRangeError, which names the first row, for a normalised table with finer times."""
    times = _times(rows)
    finer = finer_times(times, resolution)
    if finer is None:
        return
    count, first = int(finer.sum()), int(np.argmax(finer))
    raise TimeRangeError(
        f"{count} rows have a time finer than the {resolution.unit}s that {name} keeps, "
        f"the first is row {first} at {instant(times[first])}",
        action="round the times, or write a new table with the resolution ns",
    )


def instant(time_ns: int) -> str:
    """A time in ISO 8601, without zeros at its end."""
    text = np.datetime_as_string(np.datetime64(int(time_ns), "ns"))
    return f"{str(text).rstrip('0').rstrip('.')}Z"


def _times(rows: pa.Table) -> Times:
    return np.asarray(rows.column(TIME_COLUMN))


def _outside(times: Times) -> Mask | None:
    """Which times are in no year of readings; None for no time."""
    outside: Mask = (times < _FIRST_NS) | (times >= _END_NS)
    return outside if outside.any() else None
