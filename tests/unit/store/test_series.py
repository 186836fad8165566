"""Tags read out of series keys."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import batch_columns
from headrace.consumers.store.batch_columns import repeated_tags, series_mask, tag_columns, tag_values, values_of_tags
from headrace.schemas.series import series_key

TEXT = st.text(st.sampled_from("ab,= \\\nö."), max_size=5)
TAGS = st.dictionaries(st.text(st.sampled_from("ab,= \\ö."), min_size=1, max_size=3), TEXT, max_size=4)


@given(series=st.lists(TAGS, min_size=1, max_size=6), data=st.data())
def test_every_tag_is_found_again(series: list[dict[str, str]], data: st.DataObject) -> None:
    """The value of a tag read from keys is the encoded value, for any characters in names and values.

    Empty is absent.
    """
    names = sorted({name for tags in series for name in tags}) or ["a"]
    tag = data.draw(st.sampled_from(names))
    keys = pa.array([series_key("t", tags) for tags in series])
    assert [tags.get(tag) or None for tags in series] == tag_values(keys, tag).to_pylist()
    column = tag_columns(keys, [tag], np.arange(len(series))[::-1])[tag]
    assert [tags.get(tag) or None for tags in reversed(series)] == column.to_pylist()
    every = repeated_tags(values_of_tags(keys, names), np.arange(len(series)) + 1)
    for name in names:
        expected = [tags.get(name) or None for number, tags in enumerate(series) for _ in range(number + 1)]
        assert expected == every[name].to_pylist()


@given(series=st.lists(TAGS, min_size=1, max_size=6), allowed=st.lists(TEXT, max_size=3))
def test_the_mask_is_the_predicate(series: list[dict[str, str]], allowed: list[str]) -> None:
    """A series matches when its value is allowed, where the empty text allows absence; no predicate matches all."""
    keys = pa.array([series_key("t", tags) for tags in series])
    assert [tags.get("a", "") in allowed for tags in series] == series_mask(keys, {"a": allowed}).tolist()
    assert [True] * len(series) == series_mask(keys, {}).tolist()


def test_a_tag_is_not_found_inside_another() -> None:
    """Neither a longer tag name nor a value that looks like a pair is taken for the tag."""
    keys = pa.array(
        [series_key("t", {"xhost": "1", "b": "2"}), series_key("t", {"b": ",host=9"}), series_key("t,host=3", {})]
    )
    assert [None, None, None] == tag_values(keys, "host").to_pylist()
    assert [None] == values_of_tags(pa.array(["host=3"]), ["host"])["host"].to_pylist()
    plain = pa.array([series_key("t", {"xhost": "1"}), series_key("t", {"host": "2", "xhost": "3"})])
    assert [None, "2"] == values_of_tags(plain, ["host"])["host"].to_pylist()


@given(series=st.lists(TAGS, min_size=1, max_size=12), wanted=st.dictionaries(st.sampled_from("ab"), st.lists(TEXT)))
def test_the_mask_is_the_same_where_texts_are_looked_for(
    series: list[dict[str, str]], wanted: dict[str, list[str]]
) -> None:
    """The text of a pair may be part of a longer value, or of another pair."""
    keys = pa.array([series_key("t", tags) for tags in series])
    with patch.object(batch_columns, "SOUGHT_KEYS_MIN", 1):
        found = series_mask(keys, wanted).tolist()
    assert [all(tags.get(tag, "") in each for tag, each in wanted.items()) for tags in series] == found
