"""Series by the values of their tags: what a look at every series finds, without one."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.store.batch_columns import series_mask
from headrace.consumers.store.tag_index import LOOKED_UP_MAX, TagIndex, TagIndices
from headrace.schemas.series import series_key

VALUES = ("", "a", "ab", "b", "B", "ä", "\U0001f600", "a,b", "a=b", "a\\b", "10", "9")


def keys_of(chance: random.Random, count: int) -> pa.StringArray:
    """Series with tags that some of them lack."""
    tags = [{"host": chance.choice(VALUES), "rack": chance.choice(VALUES[:4])} for _ in range(count)]
    return pa.array([series_key("cpu", {name: value for name, value in each.items() if value}) for each in tags])


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_of_a_look_at_every_series(seed: int) -> None:
    """One tag or two, values that no series has, absent tags, and tags that no series carries."""
    chance = random.Random(seed)
    keys = keys_of(chance, chance.choice([0, 1, 50]))
    index = TagIndex(keys)
    for _ in range(20):
        names = chance.sample(["host", "rack", "site"], chance.randrange(3))
        tags = {name: chance.sample([*VALUES, "none"], chance.randrange(4)) for name in names}
        assert np.flatnonzero(series_mask(keys, tags)).tolist() == index.places(tags).tolist()


def test_many_values_are_found_as_few() -> None:
    """A list of more values than are looked up one by one."""
    keys = pa.array([series_key("cpu", {"host": f"h{number}"}) for number in range(1_000)])
    wanted = [f"h{number}" for number in range(0, 1_000, 3)]
    assert len(wanted) > LOOKED_UP_MAX
    assert list(range(0, 1_000, 3)) == TagIndex(keys).places({"host": wanted}).tolist()


def test_an_index_is_kept_as_long_as_its_rows() -> None:
    """The same batch under a name has the same index, another batch under that name has its own."""
    one, other = (pa.record_batch({"key": [series_key("cpu", {"host": name})]}) for name in "ab")
    indices = TagIndices()
    first = indices.of("bucket", one)
    assert first is indices.of("bucket", one)
    assert first is not indices.of("bucket", other)
    assert [] == indices.of("bucket", other).places({"host": ["a"]}).tolist()
