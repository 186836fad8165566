"""Rows in Python's forms as Arrow tables."""

from __future__ import annotations

from datetime import UTC, datetime

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
