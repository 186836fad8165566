"""Rows of one write that replace each other are counted, whatever their order and their block."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace._replaced_rows import COMPARED_ROWS_MAX, RepeatedTimes, ReplacedRows


def rows(readings: Sequence[tuple[str | None, int]]) -> pa.Table:
    """Rows of (host, time)."""
    hosts = pa.array([host for host, _ in readings], pa.string()).dictionary_encode()
    return pa.table({"host": hosts, "time": pa.array([time for _, time in readings], pa.int64())})


@pytest.mark.parametrize("rows_max", [16, 800, COMPARED_ROWS_MAX])
def test_the_count_is_that_of_a_set(rows_max: int) -> None:
    """Blocks of random series and times, two tables: rows less distinct (table, series, time), in memory or on disk."""
    source = random.Random(7)
    counted, distinct, total = ReplacedRows(rows_max), set(), 0
    for _ in range(20):
        table = source.choice(("a", "b"))
        readings = [(source.choice((None, "x", "y", "x,y")), source.randrange(-50, 50) * 1_000) for _ in range(40)]
        counted.add(table, rows(readings), ["host"])
        distinct |= {(table, *reading) for reading in readings}
        total += len(readings)
    assert (total - len(distinct), True) == (counted.finish(), counted.exact)


@pytest.mark.parametrize(("place", "compared"), [("/nowhere", 3), ("/dev/full", 0)])
def test_without_space_for_more_the_count_is_a_lower_bound(
    monkeypatch: pytest.MonkeyPatch, place: str, compared: int
) -> None:
    """A full temporary disk fails no write: rows behind are not compared, and the result shows that it is not exact."""
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_options: Path(place).open("r+b"))  # noqa: SIM115
    counted = ReplacedRows(rows_max=3)
    for _ in range(3):
        counted.add("t", rows([("x", 1), ("x", 1)]), ["host"])
    assert (compared, False) == (counted.finish(), counted.exact)


def test_no_rows_replace_nothing() -> None:
    """Neither no block nor an empty one."""
    counted = ReplacedRows()
    counted.add("t", rows([]), ["host"])
    assert (0, True) == (counted.finish(), counted.exact)


def test_a_repeated_time_is_found_across_blocks() -> None:
    """In order, out of order, within a block, and far behind."""
    for blocks, repeated in (
        ([[1, 2], [3, 4], [5]], None),
        ([[1, 2], [2, 3]], 2),
        ([[4, 5], [1, 2], [7, 5]], 5),
        ([[4, 5], [1, 2], [7, 6]], None),
        ([[1], [], [9, 3, 9]], 9),
        ([[]], None),
    ):
        times = RepeatedTimes()
        found = [times.add(np.array(block, np.int64)) for block in blocks]
        assert repeated == (found[-1] if found[-1] is not None else times.finish())
        assert [None] * (len(found) - 1) == found[:-1]


def test_a_repeated_time_is_found_behind_the_limit() -> None:
    """With more times than memory may hold: in order none, in any other order exactly as a set finds them."""
    source = random.Random(11)
    for repeats in (False, True):
        for shuffled in (False, True):
            times = list(range(1_000, 1_500))
            if shuffled:
                source.shuffle(times)
            if repeats:
                times[-1] = times[3]
            found = RepeatedTimes(rows_max=16)
            known = [found.add(np.array(times[start : start + 7], np.int64)) for start in range(0, 500, 7)]
            assert (times[3] if repeats else None) == next((each for each in known if each is not None), found.finish())


def test_times_far_back_are_compared_within_memory() -> None:
    """The block with an earlier time is not compared with what is on disk at once; the end finds it."""
    found = RepeatedTimes(rows_max=4)
    assert [None] * 3 == [found.add(np.array(block, np.int64)) for block in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [2])]
    assert 2 == found.finish()
