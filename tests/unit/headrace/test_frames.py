"""Rows in Python's forms as Arrow tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
import polars as pl
import pytest

from headrace._frames import RowsInvalid, arrow_table
from headrace.connectors.formats.interface import ColumnTypeError, TimeRangeError
from headrace.connectors.formats.time_rules import check_integers
from headrace.producers.writer import normal_rows

T0_NS = 1_700_000_000_000_000_000


def test_a_polars_type_that_arrow_lacks_names_its_column() -> None:
    """In a frame and in a dict of columns, as for any other type that cannot be stored."""
    wide = pl.Series("wide", [1], dtype=pl.Int128)
    for data in (pl.DataFrame({"time": [1], "wide": wide}), {"time": [1], "wide": wide}):
        with pytest.raises(ColumnTypeError, match="column 'wide'"):
            arrow_table(data)
    assert [{"time": 1}] == arrow_table(pl.DataFrame({"time": [1]})).to_pylist()


def test_python_objects_of_polars_are_refused() -> None:
    """Arrow takes the addresses of such objects for their values."""
    with pytest.raises(ColumnTypeError, match="column 'o'"):
        arrow_table(pl.DataFrame({"time": [1], "o": pl.Series([object()], dtype=pl.Object)}))


def test_a_stream_that_cannot_be_read_is_refused() -> None:
    """Also of an object of another library, by the error of the writer."""

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise RuntimeError("nothing to give")

    with pytest.raises(RowsInvalid, match="nothing to give"):
        arrow_table(Stream())


@pytest.mark.parametrize("other", [1_700_000_000, T0_NS])
def test_integers_beside_datetimes_are_refused(other: int) -> None:
    """Arrow takes them for microseconds there: seconds and nanoseconds would be other times without a word."""
    times = [datetime(2026, 1, 1, tzinfo=UTC), other]
    for data in ([{"time": each} for each in times], {"time": times}, [{"time": each} for each in reversed(times)]):
        with pytest.raises(ColumnTypeError, match="integers beside other times"):
            arrow_table(data)


def test_timestamps_of_pandas_are_exact_beside_datetimes() -> None:
    """To the nanosecond, in every zone; one that is not there stays so, and early ones are no other unit."""
    stamp = pd.Timestamp(T0_NS + 7, tz="Europe/Berlin")
    times = [stamp, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), None, pd.NaT]
    for data in ([{"time": each} for each in times], {"time": times}):
        assert [T0_NS + 7, 2 * 10**9, None, None] == arrow_table(data)["time"].cast("int64").to_pylist()
    check_integers(arrow_table({"time": [pd.Timestamp(2 * 10**9)]}))


def test_a_time_of_pandas_that_is_not_there_is_none_beside_datetimes() -> None:
    """So that the rows are refused for their missing time, and not for the type of it."""
    times = [pd.NaT, datetime(2026, 1, 1, tzinfo=UTC)]
    for data in (
        [{"time": each} for each in times],
        {"time": times},
        {"time": [*times, float("nan"), pd.Timestamp(0)]},
    ):
        table = arrow_table(data)
        assert [None, 1_767_225_600 * 10**9] == table["time"].cast("timestamp[ns]").cast("int64").to_pylist()[:2]
        with pytest.raises(TimeRangeError, match="rows without a time"):
            normal_rows(table, "t", ())


@pytest.mark.parametrize("values", ["p1", b"p1", {0: "p1", 1: "p2"}, {"p1", "p2"}])
def test_a_column_without_one_value_a_row_in_order_is_refused(values: Any) -> None:
    """Letters of a text, keys of a dict (as `frame.to_dict()` gives it) and a set would be other rows without a word."""
    times = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]
    with pytest.raises(ColumnTypeError, match=f"column 'pump' is a {type(values).__name__}"):
        arrow_table({"time": times, "pump": values})


@pytest.mark.parametrize("name", ["time", "made"])
def test_dates_beside_times_are_refused(name: str) -> None:
    """Arrow takes the date of each time there, and its time of day is lost without a word."""
    times = [date(2026, 1, 1), datetime(2026, 1, 1, 7, 30, tzinfo=UTC)]
    for data in (
        [{name: each} for each in times],
        [{name: each} for each in reversed(times)],
        {name: times},
        {name: pd.Series(times, dtype=object)},
        pd.DataFrame({name: pd.Series(times, dtype=object)}),
    ):
        with pytest.raises(ColumnTypeError, match=f"column '{name}' has dates beside other times"):
            arrow_table(data)


@pytest.mark.parametrize("name", ["time", "made"])
def test_timestamps_among_python_objects_are_exact(name: str) -> None:
    """In every column and every form: Arrow cuts their nanoseconds, and a finer time must be an error."""
    stamp = pd.Timestamp(T0_NS + 7, tz="UTC")
    objects = pd.Series([stamp, pd.NaT], dtype=object)
    for data in ([{name: stamp}, {name: None}], {name: list(objects)}, {name: objects}, pd.DataFrame({name: objects})):
        assert [T0_NS + 7, None] == arrow_table(data)[name].cast("int64").to_pylist()


def test_a_number_beside_timestamps_is_no_time() -> None:
    """It would be so many nanoseconds since 1970."""
    with pytest.raises(ColumnTypeError, match="numbers beside other times"):
        arrow_table([{"time": pd.Timestamp(T0_NS)}, {"time": 1.5}])


def test_a_timestamp_beyond_nanoseconds_is_an_error_that_names_the_column() -> None:
    """And not one of pandas."""
    for data in ([{"time": pd.Timestamp("3000-01-01")}], {"time": [pd.Timestamp("3000-01-01")]}):
        with pytest.raises(ColumnTypeError, match="column 'time'"):
            arrow_table(data)


def test_an_index_that_is_a_column_as_well_is_refused_by_name() -> None:
    """And not by an error of pandas."""
    frame = pd.DataFrame({"time": [T0_NS], "pump": ["p1"]})
    for name in frame.columns:
        with pytest.raises(ColumnTypeError, match=f"'{name}' is the index"):
            arrow_table(frame.set_index(name, drop=False))


@pytest.mark.parametrize(
    "data",
    [
        [{"time": T0_NS, 1: 5, "1": 6}],
        [{"time": T0_NS, 1: 5}, {"time": T0_NS, "1": 6}],
        [{"time": T0_NS, b"1": 5}, {"time": T0_NS, "1": 6}],
        {"time": [T0_NS], 1: [5], "1": [6]},
    ],
)
def test_two_keys_of_one_name_are_refused(data: Any) -> None:
    """One of the values would be the column, and the other lost without a word."""
    with pytest.raises(ColumnTypeError, match="column '1' is there twice"):
        arrow_table(data)


@pytest.mark.parametrize("key", [1, b"1"])
def test_a_key_that_is_no_text_is_a_name(key: Any) -> None:
    """In rows and in columns alike. One that is not UTF-8 is refused, and not by an error of Python."""
    for data in ([{"time": T0_NS, key: 5}], {"time": [T0_NS], key: [5]}):
        assert [{"time": T0_NS, "1": 5}] == arrow_table(data).to_pylist()
    with pytest.raises(ColumnTypeError, match="not UTF-8"):
        arrow_table([{"\ud800": 1}])


@pytest.mark.parametrize("values", [[1.5, True], [True, 1.5], [None, 0.0, False], [1.0, 1.5, True]])
def test_booleans_beside_decimals_are_refused(values: list[Any]) -> None:
    """As beside whole numbers: Arrow takes True for 1.0 in some orders and forms, without a word."""
    for data in (
        [{"v": each} for each in values],
        {"v": values},
        {"v": pd.Series(values, index=range(7, 7 + len(values)), dtype=object)},
        pd.DataFrame({"v": pd.Series(values, dtype=object)}),
    ):
        with pytest.raises(ColumnTypeError, match=r"column '?v"):
            arrow_table(data)
    numbers = [float(value or 0) for value in values]
    assert numbers == arrow_table([{"v": each} for each in numbers])["v"].to_pylist()
