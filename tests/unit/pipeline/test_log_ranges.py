"""How the records of logs are divided over tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.log_ranges import task_ranges

RANGES = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)).map(lambda found: (found[0], found[0] + found[1])),
)


@given(RANGES, st.integers(1, 50))
def test_every_record_is_in_one_task(ranges: dict[str, tuple[int, int]], tasks_min: int) -> None:
    """Tasks of a log follow one another in its order, and none is empty."""
    found: dict[str, list[int]] = {}
    for log, (begin, end) in task_ranges(ranges, tasks_min):
        assert begin < end
        found.setdefault(log, []).extend(range(begin, end))
    assert {log: list(range(*each)) for log, each in ranges.items() if each[0] < each[1]} == found


def test_tasks_go_to_the_longest_logs() -> None:
    """One each by default; more by their share of the records."""
    ranges = {"a": (10, 16), "b": (0, 2), "c": (5, 5), "d": (0, 1)}
    # An end that is before the begin is no range.
    assert [] == list(task_ranges({"a": (5, 3)}, 4))
    assert [("a", (10, 16)), ("b", (0, 2)), ("d", (0, 1))] == list(task_ranges(ranges, 1))
    assert [("a", (10, 12)), ("a", (12, 14)), ("a", (14, 16)), ("b", (0, 2)), ("d", (0, 1))] == list(
        task_ranges(ranges, 5)
    )
