"""Typed tables as readings."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import random
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.formats import (
    ColumnMissing,
    ColumnTypeError,
    FormatError,
    FormatOptions,
    TimeRangeError,
    normalise,
    parse_buffer,
)
from headrace.schemas.tables import FieldType

OPTIONS = FormatOptions(table="t", tags=("host",))
TIMES = pa.array([1, 2], pa.int64())


def one(column: pa.Array, declared: FieldType | None = None) -> pa.Array:
    """A column `v` after normalising."""
    types = {"t": {"v": declared}} if declared else {}
    return normalise(pa.table({"time": TIMES, "v": column}), FormatOptions(table="t", declared=types))[
        "v"
    ].combine_chunks()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None], pa.int8()), pa.array([1, None], pa.int64())),
        (pa.array([1, 2**32 - 1], pa.uint32()), pa.array([1, 2**32 - 1], pa.int64())),
        (pa.array([1, 2**63 - 1], pa.uint64()), pa.array([1, 2**63 - 1], pa.int64())),
        (pa.array([1.5, None], pa.float32()), pa.array([1.5, None], pa.float64())),
        (pa.array([1.5, 2], pa.float16()), pa.array([1.5, 2], pa.float64())),
        (pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)), pa.array([1.25, None], pa.float64())),
        (pa.array([True, None]), pa.array([True, None])),
        (pa.array(["a", None], pa.large_string()), pa.array(["a", None], pa.string())),
        (pa.array(["a", None], pa.string_view()), pa.array(["a", None], pa.string())),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.array([1, 1]).dictionary_encode(), pa.array([1, 1])),
    ],
)
def test_types_of_fields(column: pa.Array, expected: pa.Array) -> None:
    """Every width of number, text of any kind and dictionaries become the four types of fields, exactly."""
    assert expected.equals(one(column))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2**63], pa.uint64()),
        pa.array([b"x", b"y"]),
        pa.array([[1], [2]]),
        pa.array([{"a": 1}, None]),
        pa.array([dt.timedelta(seconds=1)] * 2),
        pa.array([decimal.Decimal(2**63)] * 2, pa.decimal128(30, 0)),
        pa.array([decimal.Decimal("12345678901234567.89")] * 2, pa.decimal128(30, 2)),
    ],
)
def test_types_no_field_can_have(column: pa.Array) -> None:
    """A type that no field type holds without loss is an error that names the column."""
    with pytest.raises(ColumnTypeError, match="'v'"):
        one(column)


def test_declared_floats_and_columns_of_nulls() -> None:
    """A declared float64 takes integers.

    A column of nulls has its declared type, and is left out where there is none.
    """
    assert pa.array([1.0, None]).equals(one(pa.array([1, None], pa.int32()), FieldType.FLOAT64))
    assert pa.array([None, None], pa.string()).equals(one(pa.nulls(2), FieldType.STRING))
    assert ["time"] == normalise(pa.table({"time": TIMES, "v": pa.nulls(2)}), FormatOptions(table="t")).column_names


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (pa.array([1, -1], pa.timestamp("s")), "ns", [10**9, -(10**9)]),
        (pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")), "ns", [1000, 2000]),
        (pa.array([1, 2], pa.timestamp("ns")), "ns", [1, 2]),
        (pa.array([1, 2], pa.date32()), "ns", [86_400 * 10**9, 2 * 86_400 * 10**9]),
        (pa.array([1, 2], pa.int32()), "ms", [10**6, 2 * 10**6]),
        (pa.array(["1970-01-01T00:00:01Z", "2"]), "s", [10**9, 2 * 10**9]),
    ],
)
def test_times(times: pa.Array, unit: str, expected: list[int]) -> None:
    """Timestamps of any unit and zone, dates, integers in the unit of the options and text become int64 nanoseconds UTC."""
    table = pa.table({"ts": times, "v": [1, 2]})
    options = FormatOptions(table="t", time_column="ts", time_unit=unit)  # type: ignore[arg-type]
    assert pa.array(expected).equals(normalise(table, options)["time"].combine_chunks())


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (pa.array([1, None], pa.timestamp("s")), "1 rows without a time"),
        (pa.array([2**40, 1], pa.timestamp("s")), "outside int64 nanoseconds"),
        (pa.array(["x", "1"]), "'x'"),
    ],
)
def test_times_that_cannot_be(times: pa.Array, why: str) -> None:
    """Absent times and times out of range are an error that names the column."""
    with pytest.raises(TimeRangeError, match=f"'time'.*{why}"):
        normalise(pa.table({"time": times, "v": [1, 2]}), OPTIONS_WITHOUT_TAGS)
    with pytest.raises(ColumnTypeError, match="'time'"):
        normalise(pa.table({"time": [1.5, 2.5], "v": [1, 2]}), OPTIONS_WITHOUT_TAGS)


OPTIONS_WITHOUT_TAGS = FormatOptions(table="t")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (pa.array(["a", ""]), ["a", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.array(["", "b"]).dictionary_encode(), [None, "b"]),
        (pa.array([5, None], pa.int16()), ["5", None]),
        (pa.nulls(2), [None, None]),
    ],
)
def test_tags(tags: pa.Array, expected: list[str | None]) -> None:
    """Tags become dictionary<int32, string>; empty text is no tag; integers are written out."""
    column = normalise(pa.table({"time": TIMES, "host": tags, "v": [1, 2]}), OPTIONS)["host"]
    assert "dictionary<values=string, indices=int32, ordered=0>" == str(column.type)
    assert expected == column.to_pylist()


def test_columns_that_are_missing_or_doubled_or_have_no_usable_name() -> None:
    """Errors in the columns as such name them."""
    with pytest.raises(ColumnMissing, match="'time'"):
        normalise(pa.table({"v": [1]}), OPTIONS_WITHOUT_TAGS)
    with pytest.raises(ColumnMissing, match="'host'"):
        normalise(pa.table({"time": [1], "v": [1]}), OPTIONS)
    with pytest.raises(ColumnTypeError, match="twice"):
        normalise(pa.table([TIMES, TIMES, TIMES], names=["time", "v", "v"]), OPTIONS_WITHOUT_TAGS)
    with pytest.raises(ColumnTypeError, match="reserved"):
        normalise(pa.table({"time": [1], "__v": [1]}), OPTIONS_WITHOUT_TAGS)
    with pytest.raises(ColumnTypeError, match="static tag"):
        normalise(pa.table({"time": [1], "v": [1]}), FormatOptions(table="t", static_tags=(("v", "x"),)))


def test_empty_tables_keep_their_columns() -> None:
    """A table without rows is valid and still has its columns."""
    empty = pa.table(
        {"time": pa.array([], pa.timestamp("ms")), "host": pa.array([], pa.string()), "v": pa.array([], pa.int32())}
    )
    assert ["host", "time", "v"] == normalise(empty, OPTIONS).column_names


def test_parquet() -> None:
    """All rows of a Parquet file are read; rows without a time are refused by number."""
    stream = io.BytesIO()
    times = pa.array([dt.datetime(2020, 1, 1), None, dt.datetime(2020, 1, 2)], pa.timestamp("ms"))
    pq.write_table(pa.table({"time": times, "host": ["a", "b", None], "v": [1, 2, 3]}), stream)
    parsed = parse_buffer("parquet", stream.getvalue(), OPTIONS, keep_lines=True)
    assert [0, 2] == parsed.tables["t"]["__line"].to_pylist()
    assert [(1, "the row has no time")] == [(rejected.line, rejected.reason) for rejected in parsed.rejections()]
    with pytest.raises(FormatError, match="not a Parquet file"):
        parse_buffer("parquet", b"nonsense", OPTIONS)


def test_a_broken_parquet_file_is_let_go_with_its_error() -> None:
    """No thread holds the bytes of a file that was refused: one that does aborts a process that ends."""
    stream, chance, refused = io.BytesIO(), random.Random(1), 0
    pq.write_table(pa.table({"time": range(30), "v": [1.0] * 30, "s": ["x"] * 30}), stream, row_group_size=10)
    for _ in range(200):
        data = bytearray(stream.getvalue())
        for _ in range(2):
            data[chance.randrange(4, len(data) - 8)] ^= 1 << chance.randrange(8)
        with suppress(FormatError):
            parse_buffer("parquet", data, FormatOptions(table="t"))
            continue
        refused += 1
        # Only bytes that nobody holds can grow.
        data.append(0)
    assert refused > 100


@pytest.mark.parametrize("column", ["time", "host", "v"])
def test_a_dictionary_of_nested_values_is_refused_by_name(column: str) -> None:
    """As a time, a tag and a field: Arrow has no way to decode it."""
    nested = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([{"x": 1}]))
    columns = {"time": pa.array([1]), "host": pa.array(["a"]), "v": pa.array([1.0])} | {column: nested}
    with pytest.raises(ColumnTypeError, match=f"column '{column}' has type dictionary"):
        normalise(pa.table(columns), OPTIONS)
