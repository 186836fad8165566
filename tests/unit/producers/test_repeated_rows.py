"""Times that two rows share, found by processes that see a part of the rows each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.producers import repeated_rows
from headrace.producers.repeated_rows import RowsRepeat, TimeSample, refuse_repeats

PARTS = st.lists(st.lists(st.lists(st.integers(-50, 50), max_size=8), max_size=3), max_size=4)


def sample_of(blocks: list[list[int]]) -> TimeSample:
    """The sample of one task."""
    sample = TimeSample()
    for times in blocks:
        sample.add(np.array(times, np.int64))
    return sample


@given(PARTS)
def test_few_times_are_compared_exactly(parts: list[list[list[int]]]) -> None:
    """Within a block, between the blocks of a task, and between tasks."""
    times = [time for blocks in parts for block in blocks for time in block]
    assert TimeSample.of_all(map(sample_of, parts)).repeats == (len(set(times)) < len(times))


@pytest.mark.parametrize("seed", range(5))
def test_of_many_times_a_sample_is_compared(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """It stays small, tasks of any size choose it alike, and distinct times are never taken for equal."""
    monkeypatch.setattr(repeated_rows, "SAMPLE_TIMES_MAX", 1_000)
    chance = np.random.default_rng(seed)
    times = chance.permutation(np.arange(60_000) * 1_000_000_000)
    parts = np.split(times, [500, 700, 20_000, 20_003])
    samples = [sample_of(list(map(list, np.array_split(part, 3)))) for part in parts]
    assert max(len(sample.hashes) for sample in samples) <= 1_000
    assert not TimeSample.of_all(samples).repeats
    again = sample_of([list(chance.choice(times, 6_000, replace=False))])
    assert TimeSample.of_all([*samples, again]).repeats


def test_rows_that_have_replaced_others_are_an_error() -> None:
    """Which names the table, and the way out."""
    refuse_repeats(sample_of([[1], [2]]), "db.t")
    with pytest.raises(RowsRepeat, match=r"new table db\.t share a time.*drop db\.t"):
        refuse_repeats(sample_of([[1], [1]]), "db.t")
