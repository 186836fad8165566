"""Rows of unsealed batches by their tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import batch_columns
from headrace.consumers.store.batch_columns import with_tags
from headrace.schemas.series import parse_series_key, series_key

HOSTS = ("a", "b", "c,d", "e\\")
KEYS = st.builds(
    lambda host, site: series_key("t", {"host": host, **({"site": site} if site else {})}),
    st.sampled_from(HOSTS),
    st.sampled_from(("", "x", "y")),
)


def batch_of(keys: Sequence[str], extra: Sequence[str] = ()) -> pa.RecordBatch:
    """A row for each key; keys of no row may be in the dictionary, too."""
    known = list(dict.fromkeys([*keys, *extra]))
    codes = pa.array(np.array([known.index(key) for key in keys], np.int32))
    series = pa.DictionaryArray.from_arrays(codes, pa.array(known, pa.string()))
    return pa.record_batch([series, pa.array(range(len(keys)), pa.int64())], names=["series", "time"])


@given(st.lists(st.tuples(st.lists(KEYS, max_size=6), st.lists(KEYS, max_size=3)), max_size=6), st.sampled_from(HOSTS))
def test_each_batch_keeps_the_rows_of_the_tags(batches: list[tuple[list[str], list[str]]], host: str) -> None:
    """An absent tag is the empty text. Each batch has a dictionary of its own, or that of the one before."""
    tags = {"host": (host, "b"), "site": ("", "y")}
    found = with_tags([batch_of(keys, extra) for keys, extra in batches], tags)
    expected = [
        [
            row
            for row, key in enumerate(keys)
            if (carried := parse_series_key(key)[1])["host"] in tags["host"] and carried.get("site", "") in tags["site"]
        ]
        for keys, _ in batches
    ]
    assert expected == [rows.column("time").to_pylist() for rows in found]


@pytest.mark.parametrize(("keys_bytes", "expected"), [(1 << 20, [7]), (300, [7] * 4), (1, [1] * 100)])
def test_the_keys_of_many_small_batches_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, keys_bytes: int, expected: list[int]
) -> None:
    """Once for each distinct series of so many bytes of keys, in place of once for each batch."""
    looked: list[int] = []
    mask_of = batch_columns.series_mask

    def counted(keys: pa.StringArray, tags: dict[str, Sequence[str]]) -> batch_columns.Mask:
        looked.append(len(keys))
        return mask_of(keys, tags)

    monkeypatch.setattr(batch_columns, "series_mask", counted)
    monkeypatch.setattr(batch_columns, "KEYS_BYTES_MAX", keys_bytes)
    keys = [series_key("t", {"host": str(number % 7)}) for number in range(100)]
    found = with_tags([batch_of([key]) for key in keys], {"host": ["3"]})
    assert 14 == sum(map(len, found))
    assert expected == looked
