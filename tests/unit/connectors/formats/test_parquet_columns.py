"""Parquet files with columns that no field can hold as they are."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.formats import ColumnTypeError, FormatOptions, TimeRangeError, iterate_file, parse_buffer

DAY = dt.date(2026, 1, 31)
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 123456)


def read(table: pa.Table, *tags: str) -> tuple[pa.Table, dict[str, str]]:
    """The rows of a Parquet file, and its refused columns."""
    stream = io.BytesIO()
    pq.write_table(table, stream)
    stream.seek(0)
    blocks = list(iterate_file(stream, "parquet", FormatOptions(table="t", tags=tags)))
    refused = [dict(block.refused_columns) for block in blocks]
    assert all(not each for each in refused[1:])
    return pa.concat_tables(block.parsed.tables["t"] for block in blocks), refused[0]


def one(column: pa.Array) -> tuple[list[Any] | None, dict[str, str]]:
    """The values of one column beside a good one, None when it is left out."""
    rows, refused = read(pa.table({"time": pa.array([1, 2]), "good": [1.5, 2.5], "v": column}))
    assert [1.5, 2.5] == rows["good"].to_pylist()
    return (rows["v"].to_pylist() if "v" in rows.column_names else None), refused


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([DAY, None]), ["2026-01-31", None]),
        (pa.array([dt.time(1, 2, 3), None], pa.time64("us")), ["01:02:03.000000", None]),
        (pa.array([NOON, None], pa.timestamp("us")), ["2026-01-31 12:00:00.123456", None]),
        (pa.array([NOON, None], pa.timestamp("us", "Europe/Berlin")), ["2026-01-31 12:00:00.123456Z", None]),
        (pa.array([Decimal(7), Decimal(-3)], pa.decimal128(10, 0)), [7, -3]),
        (pa.array([Decimal("0.10"), Decimal("-2.25")], pa.decimal128(10, 2)), [0.1, -2.25]),
    ],
)
def test_what_is_cast_without_loss(column: pa.Array, expected: list[Any]) -> None:
    """Dates, times of day and timestamps become text, whole decimals integers, other decimals floats."""
    assert (expected, {}) == one(column)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([[1], [2]]), "it has type list<"),
        (pa.array([{"a": 1}, None]), "it has type struct<"),
        (pa.array([b"x", b"y"]), "it has type binary"),
        (pa.array([dt.timedelta(1)] * 2), "it has type duration"),
        (pa.array([Decimal("12345678901234567.89")] * 2, pa.decimal128(30, 2)), "float64 cannot hold"),
        (pa.array([Decimal(2**63)] * 2, pa.decimal128(30, 0)), "int64 cannot hold"),
        (pa.array([1, 2**63], pa.uint64()), "do not fit int64"),
        (pa.array([1, 2**62], pa.timestamp("ms", "UTC")), "outside the years"),
    ],
)
def test_other_columns_are_left_out_by_name(column: pa.Array, reason: str) -> None:
    """A column that no field can hold is left out, with its reason, and the rest of the file is read."""
    values, refused = one(column)
    assert values is None
    assert ["v"] == list(refused)
    assert reason in refused["v"]


def test_a_column_is_in_all_rows_or_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decimal in the last batch that does not fit leaves the column out from the first row on."""
    monkeypatch.setattr("headrace.connectors.formats.parquet_columns.PARQUET_BATCH_ROWS", 2)
    prices = [Decimal("1.25")] * 4 + [Decimal("12345678901234567.89")]
    table = pa.table({"time": range(5), "v": range(5), "price": pa.array(prices, pa.decimal128(30, 2))})
    rows, refused = read(table)
    assert ["time", "v"] == rows.column_names
    assert 5 == rows.num_rows
    assert ["price"] == list(refused)


def test_tags_may_be_dates_and_decimals() -> None:
    """Tags are text, so every value that has one text can be one."""
    table = pa.table({"time": [1], "day": [DAY], "lot": pa.array([Decimal("1.50")], pa.decimal128(5, 2)), "v": [1]})
    rows, _ = read(table, "day", "lot")
    assert ["2026-01-31", "1.50"] == [rows[name].cast(pa.string()).to_pylist()[0] for name in ("day", "lot")]


def test_a_file_without_a_usable_column() -> None:
    """Where no column is left the file is refused, and the error names each of them."""
    with pytest.raises(ColumnTypeError, match=r"column 'a': it has type list.*column 'b'"):
        read(pa.table({"time": [1], "a": [[1]], "b": [b"x"]}))


def as_int96(table: pa.Table) -> io.BytesIO:
    """A Parquet file whose timestamps are of 96 bits, as Spark writes them unless it is set otherwise."""
    stream = io.BytesIO()
    pq.write_table(table, stream, use_deprecated_int96_timestamps=True)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("day", [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), dt.datetime(2599, 1, 1)])
def test_an_int96_timestamp_beyond_nanoseconds_is_refused(day: dt.datetime) -> None:
    """Arrow reads it as another time, without an error: as a field it is left out, as the time or a tag it is an error."""
    days = pa.array([NOON, day], pa.timestamp("us"))
    table = pa.table({"time": [1, 2], "good": [1.5, 2.5], "until": days})
    (block,) = iterate_file(as_int96(table), "parquet", FormatOptions(table="t"))
    assert ["time", "good"] == block.parsed.tables["t"].column_names
    assert {"until": "it has INT96 times outside the years 1677 to 2262"} == dict(block.refused_columns)
    for options in (FormatOptions(table="t", time_column="until"), FormatOptions(table="t", tags=("until",))):
        with pytest.raises(TimeRangeError, match=r"column 'until' has INT96 times outside the years"):
            list(iterate_file(as_int96(table), "parquet", options))
    with pytest.raises(TimeRangeError, match=r"column 'until' has INT96 times"):
        parse_buffer("parquet", as_int96(table).getvalue(), FormatOptions(table="t"))


def test_int96_timestamps_keep_their_digits() -> None:
    """Times of 96 bits between the years 1677 and 2262 are read to the nanosecond, null too."""
    table = pa.table(
        {"time": pa.array([1, 10**18 + 7], pa.timestamp("ns")), "v": pa.array([1, None], pa.timestamp("ns"))}
    )
    (block,) = iterate_file(as_int96(table), "parquet", FormatOptions(table="t"))
    assert {} == dict(block.refused_columns)
    rows = block.parsed.tables["t"]
    assert [1, 10**18 + 7] == rows["time"].to_pylist()
    assert ["1970-01-01 00:00:00.000000001", None] == rows["v"].to_pylist()
