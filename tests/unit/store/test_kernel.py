"""The sort of the store against a plain Python one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.store.batch_columns import field_column, gather, unify_series
from headrace.consumers.store.row_order import order_rows, parts_of
from headrace.schemas.series import bucket_of
from headrace.schemas.tables import FieldType

BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(-50, 50)), max_size=12), min_size=1, max_size=5
)


def batch_of(rows: list[tuple[str, int]], **fields: pa.Array) -> pa.RecordBatch:
    """A row batch of (series, time)."""
    series = pa.array([key for key, _ in rows], pa.string()).dictionary_encode()
    times = pa.array([time for _, time in rows], pa.int64())
    return pa.RecordBatch.from_arrays([series, times, *fields.values()], names=["__series", "time", *fields])


@given(batches=BATCHES, slice_ns=st.sampled_from((None, 7, 20, 1_000)), buckets=st.sampled_from((1, 3)))
@settings(max_examples=150)
def test_rows_are_ordered_and_the_last_of_equal_ones_stays(
    batches: list[list[tuple[str, int]]], slice_ns: int | None, buckets: int
) -> None:
    """Rows come in order of (slice, bucket, series, time), and of equal (series, time) the last in the input is kept."""
    flat = [row for batch in batches for row in batch]
    winners = {row: index for index, row in enumerate(flat)}

    def slice_and_bucket(row: tuple[str, int]) -> tuple[int, int, str, int]:
        return row[1] // slice_ns if slice_ns else 0, bucket_of(row[0], buckets), row[0], row[1]

    ordered = sorted(winners, key=slice_and_bucket)
    ordering = order_rows([batch_of(batch) for batch in batches], slice_ns, buckets)
    assert [winners[row] for row in ordered] == ordering.rows.tolist()
    assert [row[1] for row in ordered] == ordering.times.tolist()

    parts = list(parts_of(ordering))
    places = sorted({slice_and_bucket(row)[:2] for row in winners})
    assert places == [(part.slice_number, part.bucket) for part in parts]
    rows_of_parts = [
        (ordering.keys[int(series)].as_py(), length)
        for part in parts
        for series, length in zip(part.series, part.lengths, strict=True)
    ]
    assert sum(length for _, length in rows_of_parts) == len(ordered)
    assert [key for key, length in rows_of_parts for _ in range(length)] == [row[0] for row in ordered]


@pytest.mark.parametrize(("series", "slices"), [(300, 400), (70_000, 2)])
def test_more_codes_than_a_radix_pass_holds(series: int, slices: int) -> None:
    """Sorting is the same when slice × series needs more than 16 bits."""
    generator = np.random.default_rng(7)
    codes, times = generator.integers(0, series, 200_000), generator.integers(0, slices * 10, 200_000)
    keys = pa.array([f"k{number:06}" for number in range(series)])
    column = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), keys)
    batch = pa.RecordBatch.from_arrays([column, pa.array(times)], names=["__series", "time"])
    ordering = order_rows([batch], 10, 1)
    order = np.lexsort((times, codes, times // 10))
    last = np.append((np.diff(times[order]) != 0) | (np.diff(codes[order]) != 0), True)
    assert order[last].tolist() == ordering.rows.tolist()


def test_dictionaries_are_unified() -> None:
    """Equal keys of different dictionaries, and twice in one dictionary, are one series."""
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["x", "y", "x"]))
    batch = pa.RecordBatch.from_arrays([twice, pa.array([1, 2, 3])], names=["__series", "time"])
    keys, codes = unify_series([batch])
    assert ["x", "y", "x"] == [keys[int(code)].as_py() for code in codes]
    assert len(set(keys.to_pylist())) == len(keys)
    keys, codes = unify_series([batch, batch_of([("y", 4), ("z", 5)])])
    assert ["x", "y", "x", "y", "z"] == [keys[int(code)].as_py() for code in codes]
    assert len(set(keys.to_pylist())) == len(keys)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (FieldType.INT64, [1, None, -(2**62), 4]),
        (FieldType.FLOAT64, [1.5, None, float("nan"), -0.0]),
        (FieldType.FLOAT64, [1.5, 2.5, float("nan"), -0.0]),
        (FieldType.BOOL, [True, None, False, True]),
        (FieldType.STRING, ["a", None, "", "ö"]),
    ],
)
def test_gather_keeps_values_and_nulls(kind: FieldType, values: list[Any]) -> None:
    """Taking rows moves every value and null of every type unchanged, NaN stays NaN, also out of a sliced column."""
    column = pa.concat_arrays([pa.array([None], kind.arrow), pa.array(values, kind.arrow)]).slice(1)
    taken = gather(column, np.array([3, 0, 1, 2, 2])).to_pylist()
    assert repr([values[i] for i in (3, 0, 1, 2, 2)]) == repr(taken)


def test_columns_are_laid_end_to_end() -> None:
    """A batch without the field gives nulls, and int64 is widened where the field is float64."""
    whole, none = batch_of([("a", 1)], v=pa.array([2])), batch_of([("a", 2)])
    real = batch_of([("a", 3)], v=pa.array([0.5]))
    assert [2.0, None, 0.5] == field_column([whole, none, real], "v", FieldType.FLOAT64).to_pylist()
