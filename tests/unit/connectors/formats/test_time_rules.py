"""Which times a table takes, and which unit the others look like."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.connectors.formats.interface import NS_PER_UNIT, TimeRangeError
from headrace.connectors.formats.time_rules import (
    FIRST_ROWS,
    UNIT_NAMES,
    TimeRules,
    TimesImplausible,
    as_timestamps,
    check_integers,
    check_resolution,
    instant,
    looks_like,
)
from headrace.schemas.tables import TimeResolution

T0_S = 1_767_225_600
T0 = T0_S * 10**9
RULES = TimeRules("pumps", TimeResolution.US)


def rows(*times_ns: int) -> pa.Table:
    """A table of readings at these times."""
    return pa.table({"time": pa.array(times_ns, pa.int64())})


def refused(rules: TimeRules, *times_ns: int) -> dict[int, str]:
    """The reason of each row that is refused, by its number."""
    return {int(number): reason for mask, reason in rules.refusals(rows(*times_ns)) for number in np.flatnonzero(mask)}


def test_good_times_are_taken_without_a_copy() -> None:
    """From the first microsecond of 1980 to the last of 2100, and an empty table."""
    assert [] == RULES.refusals(rows(T0, 315_532_800 * 10**9, 4_133_980_800 * 10**9 - 1_000))
    assert [] == RULES.refusals(rows())
    RULES.check_unit(rows())


def test_a_row_is_refused_once_with_its_first_reason() -> None:
    """A time in another age is that, also where it has nanoseconds; a finer one names the table."""
    found = refused(RULES, T0, T0_S + 1, T0 + 1, 4_133_980_800 * 10**9)
    assert [1, 2, 3] == sorted(found)
    assert found[1].startswith("the time is outside 1980 to 2100: it looks like seconds (`--time-unit s`)")
    assert "the time is outside 1980 to 2100; `--any-time` takes it" == found[3]
    assert found[2].startswith("the time is finer than the microseconds of table 'pumps': round it, or")
    assert "`write.time_resolution=ns`" in found[2]
    assert [2] == sorted(refused(TimeRules("pumps", TimeResolution.US, any_time=True), T0, 0, T0 + 1, -1_000))
    assert {} == refused(TimeRules("pumps", TimeResolution.NS, any_time=True), T0 + 1, -1, 1)


@pytest.mark.parametrize("given", UNIT_NAMES)
@pytest.mark.parametrize("right", UNIT_NAMES)
def test_a_unit_is_recognised_by_the_size_of_its_values(given: str, right: str) -> None:
    """For every pair of units of which the wrong one fits int64; never the one that was given."""
    number = T0 // NS_PER_UNIT[right]
    taken_for = number * NS_PER_UNIT[given]
    if given == right or taken_for >= 2**63:
        return
    assert right == looks_like(taken_for, NS_PER_UNIT[given])
    rules = TimeRules("pumps", TimeResolution.NS, ns_per_unit=NS_PER_UNIT[given])
    with pytest.raises(TimesImplausible, match="these look like") as raised:
        rules.check_unit(rows(taken_for, taken_for + NS_PER_UNIT[given]))
    assert f"--time-unit {right}" in raised.value.action


def test_a_whole_file_is_refused_for_its_first_rows_alone() -> None:
    """One good time among the first means that the unit is right; times of no unit name the years."""
    RULES.check_unit(rows(*[1] * (FIRST_ROWS - 1), T0))
    with pytest.raises(TimesImplausible):
        RULES.check_unit(rows(*[1] * FIRST_ROWS, T0))
    with pytest.raises(TimesImplausible, match="begin at 1969-12-31T23:59:59Z, outside 1980 to 2100"):
        RULES.check_unit(rows(-(10**9)))
    TimeRules("pumps", TimeResolution.US, any_time=True).check_unit(rows(0))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_integers_of_another_unit_are_refused(unit: str, kind: pa.DataType) -> None:
    """Seconds, milliseconds and microseconds of our years would be rows of 1970, all of them in one slice."""
    numbers = pa.array([T0 // NS_PER_UNIT[unit], None, T0 // NS_PER_UNIT[unit] + 60], kind)
    with pytest.raises(TimesImplausible, match=f"looks like {UNIT_NAMES[unit]}"):
        check_integers(pa.table({"time": numbers}))


def test_other_integers_and_timestamps_are_not_doubted() -> None:
    """Nanoseconds, small numbers, a mixture, no row, no time; and what looks like seconds but has its unit."""
    for times in ([T0], [0, 1], [T0_S, 0], [T0_S, T0_S * 1_000], [-T0_S], [], [None]):
        check_integers(pa.table({"time": pa.array(times, pa.int64())}))
    check_integers(pa.table({"v": [T0_S]}))
    check_integers(pa.table({"time": pa.array([T0_S, T0_S], pa.timestamp("ns"))}))
    check_integers(as_timestamps(rows(T0_S)))
    assert [T0_S] == as_timestamps(rows(T0_S))["time"].cast(pa.int64()).to_pylist()


def test_a_writer_names_the_first_finer_row() -> None:
    """How many, which is the first, and its time to the last digit."""
    check_resolution(rows(T0, T0 + 1_000), "db.pumps", TimeResolution.US)
    check_resolution(rows(T0 + 1), "db.pumps", TimeResolution.NS)
    with pytest.raises(TimeRangeError, match=r"2 rows .* row 1 at 2026-01-01T00:00:00.000000001Z"):
        check_resolution(rows(T0, T0 + 1, T0 - 1), "db.pumps", TimeResolution.US)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "1970-01-01T00:00:00Z"), (T0 + 10 * 10**9, "2026-01-01T00:00:10Z"), (-1, "1969-12-31T23:59:59.999999999Z")],
)
def test_an_instant_is_shown_without_zeros_at_its_end(time_ns: int, text: str) -> None:
    """Only zeros of the fraction are left out."""
    assert text == instant(time_ns)
