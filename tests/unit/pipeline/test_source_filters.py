"""Spark's filters as SQL: what means the same at a node is pushed, everything else stays with Spark."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from headrace.pipeline.batch_source import TableReader
from headrace.pipeline.source_filters import VALUES_BYTES_MAX, Pushed, push
from headrace.pipeline.source_options import read_options
from headrace.pipeline.time_ranges import TimeRange
from tests.present import present

TIME, TAG = ("time",), ("it's",)
NOON = datetime(1970, 1, 1, 12)
NOON_NS = 43_200_000_000_000


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (EqualTo(TIME, NOON), TimeRange(NOON_NS, NOON_NS + 1)),
        (GreaterThan(TIME, NOON), TimeRange(NOON_NS + 1)),
        (GreaterThanOrEqual(TIME, 5), TimeRange(5)),
        (LessThan(TIME, NOON), TimeRange(None, NOON_NS)),
        (LessThanOrEqual(TIME, 5), TimeRange(None, 6)),
        (IsNotNull(TIME), TimeRange()),
    ],
)
def test_times_become_a_range(each: Filter, wanted: TimeRange) -> None:
    """Bounds on time are exact to the nanosecond, as timestamps and as integers."""
    pushed = Pushed()
    assert ([], wanted) == (push([each], ["it's"], pushed), pushed.time)


def test_ranges_meet() -> None:
    """Several bounds keep only the times that are in all of them."""
    pushed = Pushed(TimeRange(0, 100))
    push([GreaterThan(TIME, 4), LessThan(TIME, 50), LessThan(TIME, 70)], [], pushed)
    assert TimeRange(5, 50) == pushed.time


VALUES: list[Any] = ["a", "it's", "A", "ab", None]


@pytest.mark.parametrize(
    ("each", "kept"),
    [
        (EqualTo(TAG, "it's"), ["it's"]),
        (EqualNullSafe(TAG, "a"), ["a"]),
        (In(TAG, ("a", "ab", None)), ["a", "ab"]),
        (IsNull(TAG), [None]),
        (IsNotNull(TAG), ["a", "it's", "A", "ab"]),
        (StringStartsWith(TAG, "a"), ["a", "ab"]),
    ],
)
def test_tags_are_compared_as_spark_does(each: Filter, kept: list[str | None]) -> None:
    """Pushed conditions keep the rows that Spark would, with quotes in names and values."""
    pushed = Pushed()
    assert [] == push([each], ["it's"], pushed)
    rows = pa.table({"it's": VALUES})
    found = present(duckdb.sql(f"SELECT * FROM rows WHERE {pushed.conditions[0]}")).fetchall()
    assert kept == [value for (value,) in found], rows


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("flow",), 5),
        Not(EqualTo(TAG, "a")),
        StringEndsWith(TAG, "a"),
        EqualTo(TAG, "a\0b"),
        EqualTo(("it's", "x"), "a"),
        In(TIME, (1, 2)),
        EqualNullSafe(TAG, None),
        IsNull(TIME),
        GreaterThan(TIME, datetime(1, 1, 1)),
        In(TAG, tuple("x" * 100 for _ in range(VALUES_BYTES_MAX // 50))),
    ],
)
def test_doubtful_filters_stay_with_spark(each: Filter) -> None:
    """Fields, negations, odd texts and long lists are Spark's to evaluate."""
    pushed = Pushed()
    assert [each] == push([each], ["it's"], pushed)
    assert Pushed() == pushed


def test_a_reader_pushes_only_where_spark_asks() -> None:
    """Spark finds no pushFilters in the class, which it would refuse by default, and can call it all the same. A
    DataFrame that may be read again takes none.
    """
    given, wanted = {"table": "d.t", "node": "h:1"}, EqualTo(("pump",), "p")
    reader = TableReader(read_options(given), pa.schema([("flow", pa.float64())]), ["pump"])
    assert [wanted] == list(reader.pushFilters([wanted]))
    assert 'SELECT "flow" FROM "d"."t"' == reader.sql(TimeRange())
    options = read_options({**given, "pushfilters": "true"})
    reader = TableReader(options, pa.schema([("flow", pa.float64())]), ["pump"])
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    reader = pickle.loads(pickle.dumps(reader))
    assert [] == list(reader.pushFilters([EqualTo(("pump",), "p"), GreaterThanOrEqual(TIME, 7)]))
    assert 'SELECT "flow" FROM "d"."t" WHERE "time" >= make_timestamp_ns(7) AND "pump" = \'p\'' == reader.sql(
        TimeRange(7)
    )
