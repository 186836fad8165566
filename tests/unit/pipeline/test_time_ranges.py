"""A table as ranges of time for the tasks of a batch source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline import time_ranges
from headrace.pipeline.time_ranges import FileSpan, TimeRange, divided

ROWS_PER_RANGE = time_ranges.PARTITION_BYTES // time_ranges.VALUE_BYTES
DAY_NS = 86_400_000_000_000
TIMES = st.integers(-(2**62), 2**62)


@st.composite
def spans(draw: st.DrawFn) -> FileSpan:
    """Any file."""
    start = draw(TIMES)
    return FileSpan(draw(st.integers(1, 5 * ROWS_PER_RANGE)), start, start + draw(st.integers(0, 2**61)))


@given(st.lists(spans(), max_size=8), st.none() | TIMES, st.none() | TIMES)
def test_every_time_is_in_exactly_one_range(files: list[FileSpan], start: int | None, end: int | None) -> None:
    """The ranges follow each other without a gap, from the first wanted time to the last one."""
    wanted = TimeRange(start, end)
    ranges = divided(files, wanted, DAY_NS, 1)
    if wanted.empty:
        assert [] == ranges
        return
    assert (start, end) == (ranges[0].start_ns, ranges[-1].end_ns)
    assert [each.end_ns for each in ranges[:-1]] == [each.start_ns for each in ranges[1:]]
    assert not any(each.empty for each in ranges)


def test_ranges_hold_about_the_same_rows() -> None:
    """A dense hour is divided, and a sparse year is one range."""
    dense = FileSpan(8 * ROWS_PER_RANGE, 0, 3_600_000_000_000 - 1)
    sparse = FileSpan(ROWS_PER_RANGE // 2, DAY_NS, 365 * DAY_NS)
    ranges = divided([dense, sparse], TimeRange(), 3_600_000_000_000, 1)
    inside = [each for each in ranges if each.start_ns is not None and each.start_ns < dense.max_time_ns]
    assert 9 == len(ranges)
    assert len(inside) >= 7


def test_a_cut_is_at_the_end_of_a_slice_where_that_is_near() -> None:
    """Days of equal size are one range each, so that no file is read twice."""
    days = [FileSpan(ROWS_PER_RANGE - 10, day * DAY_NS, (day + 1) * DAY_NS - 1) for day in range(4)]
    cuts = [each.end_ns for each in divided(days, TimeRange(), DAY_NS, 1)[:-1]]
    assert [DAY_NS, 2 * DAY_NS, 3 * DAY_NS] == cuts


def test_a_cut_is_between_files_where_that_is_near() -> None:
    """Within a slice too: seals that were not merged yet follow each other. A file that spans them all is no reason."""
    hour_ns = DAY_NS // 24
    seals = [
        FileSpan(ROWS_PER_RANGE * tenths // 10, hour * hour_ns + 7, (hour + 1) * hour_ns + 6)
        for hour, tenths in enumerate((8, 10, 9, 7, 11))
    ]
    for others in ([], [FileSpan(5, 0, DAY_NS - 1)]):
        cuts = [each.end_ns for each in divided([*seals, *others], TimeRange(), DAY_NS, 1)[:-1]]
        assert [hour * hour_ns + 7 for hour in range(1, 5)] == cuts


def test_columns_decide_how_many_rows_fit() -> None:
    """Two columns of twenty need a tenth of the ranges."""
    files = [FileSpan(ROWS_PER_RANGE - 20, 0, DAY_NS - 1)]
    assert (20, 2, 1) == tuple(len(divided(files, TimeRange(), 1, columns)) for columns in (20, 2, 1))


def test_a_range_is_as_large_as_what_is_wanted_of_a_file() -> None:
    """An hour of a large day is one range."""
    files = [FileSpan(24 * ROWS_PER_RANGE, 0, DAY_NS - 1)]
    assert [TimeRange(0, DAY_NS // 24)] == divided(files, TimeRange(0, DAY_NS // 24), DAY_NS, 1)
