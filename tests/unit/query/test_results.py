"""Answers as bytes: JSON, CSV and Arrow."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.query.database import streamed
from headrace.consumers.query.query_errors import QueryInvalid
from headrace.consumers.query.result_formats import FormatUnknown, encode, plain_text
from tests.present import present

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encoded(name: str, table: pa.Table, batch_rows: int = 3) -> bytes:
    """A table in a format, encoded from small batches."""
    return b"".join(encode(name, table.schema, table.to_batches(max_chunksize=batch_rows)))


def json_of(table: pa.Table) -> list[dict[str, object]]:
    """The rows that a JSON reader finds; decimals stay exact."""
    return list(json.loads(encoded("json", table), parse_float=Decimal))


def duckdb_result(sql: str) -> pa.Table:
    """What DuckDB itself gives for a statement."""
    return duckdb.connect(":memory:").sql(sql).to_arrow_table()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 9223372036854775807 x", 9223372036854775807),
        ("SELECT 18446744073709551615::UBIGINT x", 18446744073709551615),
        ("SELECT sum(i) x FROM range(3) t(i)", 3),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT x", 170141183460469231731687303715884105727),
        ("SELECT 1.50::DECIMAL(10, 2) x", Decimal("1.50")),
        ("SELECT 0.0000001::DECIMAL(10, 7) x", Decimal("0.0000001")),
        ("SELECT true x", True),
        ("SELECT NULL x", None),
        ("SELECT 'NaN'::DOUBLE x", None),
        ("SELECT '-inf'::DOUBLE x", None),
        ("SELECT 1e300::DOUBLE x", Decimal("1e300")),
        ("SELECT 0.1::DOUBLE x", Decimal("0.1")),
        ("SELECT 0.1::FLOAT x", Decimal("0.1")),
        ("SELECT TIMESTAMP_NS '2026-01-31 12:00:00.123456789' x", "2026-01-31T12:00:00.123456789Z"),
        ("SELECT TIMESTAMP '2026-01-31 12:00:00.5' x", "2026-01-31T12:00:00.500000000Z"),
        ("SELECT TIMESTAMP_MS '2026-01-31 12:00:00.5' x", "2026-01-31T12:00:00.500000000Z"),
        ("SELECT TIMESTAMP_S '2026-01-31 12:00:00' x", "2026-01-31T12:00:00.000000000Z"),
        ("SELECT '2026-01-31 12:00:00+02:00'::TIMESTAMPTZ x", "2026-01-31T10:00:00.000000000Z"),
        ("SELECT TIMESTAMP '1900-01-01 00:00:00.000001' x", "1900-01-01T00:00:00.000001000Z"),
        ("SELECT DATE '2026-01-31' x", "2026-01-31"),
        ("SELECT TIME '12:00:00' x", "12:00:00.000000"),
        ("SELECT INTERVAL '1 month 2 days 3 seconds' x", "P1M2DT3S"),
        ("SELECT '\\x00\\xFFa'::BLOB x", base64.b64encode(b"\x00\xffa").decode()),
        ("SELECT 'a\"b\\c' || chr(10) || chr(1) || 'ü€😀' x", 'a"b\\c\n\x01ü€😀'),
        ("SELECT '' x", ""),
        ("SELECT 'a'::ENUM('a', 'b') x", "a"),
        ("SELECT uuid '5b1f4f3e-0000-4000-8000-000000000001' x", "5b1f4f3e-0000-4000-8000-000000000001"),
        ("SELECT [1, NULL, 3] x", [1, None, 3]),
        ("SELECT [[1], [], NULL] x", [[1], [], None]),
        ("SELECT [1, 2]::INT[2] x", [1, 2]),
        ("SELECT []::INT[] x", []),
        (
            "SELECT {'a': 1, 'b': {'c': [TIMESTAMP '2026-01-31']}} x",
            {"a": 1, "b": {"c": ["2026-01-31T00:00:00.000000000Z"]}},
        ),
        ("SELECT MAP {'k\"': 1, 'l': NULL} x", {'k"': 1, "l": None}),
        ("SELECT MAP {1.5: 'x'} x", {"1.5": "x"}),
        ("SELECT {'n': 'NaN'::DOUBLE} x", {"n": None}),
        ("SELECT TIMESTAMP 'infinity' x", "infinity"),
        ("SELECT TIMESTAMP_S '-infinity' x", "-infinity"),
        ("SELECT TIMESTAMP_NS 'infinity' x", "infinity"),
        ("SELECT TIMESTAMP_NS '-infinity' x", "-infinity"),
        ("SELECT make_timestamp_ns(9223372036854775806) x", "2262-04-11T23:47:16.854775806Z"),
        ("SELECT TIMESTAMPTZ '-infinity' x", "-infinity"),
        ("SELECT DATE 'infinity' x", "infinity"),
        ("SELECT DATE '-infinity' x", "-infinity"),
        ("SELECT TIMESTAMP '290000-02-29 23:00:00.5' x", "290000-02-29T23:00:00.500000000Z"),
        ("SELECT DATE '290001-03-01' x", "290001-03-01"),
        ("SELECT TIMESTAMP_MS '0044-03-15 (BC) 12:00:00' x", "-0043-03-15T12:00:00.000000000Z"),
        ("SELECT TIME '24:00:00' x", "24:00:00.000000"),
        (
            "SELECT {'a': [TIME '24:00:00', NULL, TIME '01:00:00']} x",
            {"a": ["24:00:00.000000", None, "01:00:00.000000"]},
        ),
    ],
)
def test_values_as_json(sql: str, expected: object) -> None:
    """Every type has one form in JSON: numbers stay exact numbers, times have nine digits, values without a JSON form are null."""
    assert [{"x": expected}] == json_of(duckdb_result(sql))


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.list_(pa.float64())])
def test_a_negative_zero_keeps_its_sign(rows: int, kind: pa.DataType) -> None:
    """A reader of JSON finds a float; other whole floats are written without a point."""
    values: list[Any] = [-0.0, 3.0] * (rows // 2)
    nested = pa.types.is_list(kind)
    table = pa.table({"x": pa.array([[value] for value in values] if nested else values, kind)})
    text = encoded("json", table, rows).decode()
    assert (rows // 2, rows // 2) == (text.count("-0.0"), text.count("3]" if nested else ":3}"))


def test_times_past_the_year_9999_stay_readable() -> None:
    """Years of more or fewer digits, among ordinary ones, still end in time and Z."""
    table = pa.table({"x": pa.array([datetime(2026, 1, 31), None], pa.timestamp("us"))})
    table = pa.concat_tables(
        [table, pa.table({"x": pa.array([253_402_300_800_000_000, -62_200_000_000_000_000], pa.timestamp("us"))})]
    )
    found = [row["x"] for row in json_of(table.combine_chunks())]
    assert ["2026-01-31T00:00:00.000000000Z", None] == found[:2]
    assert "10000-01-01T00:00:00.000000000Z" == found[2]
    assert str(found[3]).endswith("T14:13:20.000000000Z")


@given(days=st.integers(-2_147_483_646, 2_147_483_646))
@settings(deadline=None)
def test_a_day_of_any_year_is_the_one_that_duckdb_names(days: int) -> None:
    """Also where Arrow writes no text. DuckDB gives years before 1 another form: year 0 is 1 BC."""
    table = pa.table({"x": pa.array([days, 0], pa.int32()).view(pa.date32())})
    with duckdb.connect() as connection:
        ((shown,),) = connection.from_arrow(table).project("CAST(x AS VARCHAR)").limit(1).fetchall()
    day, _, era = shown.partition(" ")
    if era == "(BC)":
        year, rest = day.split("-", 1)
        before = int(year) - 1
        day = f"{'-' if before else ''}{before:04}-{rest}"
    assert [{"x": day}, {"x": "1970-01-01"}] == json_of(table)


@pytest.mark.parametrize("value", ["'1'::BIT", "1::UHUGEINT", "'1'::BIGNUM", "TIMETZ '12:00:00+01'", "1::VARIANT"])
@pytest.mark.parametrize("shape", ["{}", "[{}]", "{{'a': {}}}", "MAP {{1: {}}}", "[{}]::{}[1]"])
def test_a_type_that_no_answer_holds_is_refused(value: str, shape: str) -> None:
    """DuckDB writes these to Arrow as other values, or as its own bytes. Text is the way out, and the error names it."""
    kind = present(duckdb.sql(f"SELECT typeof({value})")).fetchall()[0][0]
    sql = f"SELECT 1 AS a, {shape.format(value, kind)} AS v"
    with duckdb.connect() as connection:
        with pytest.raises(QueryInvalid, match="column 'v'") as raised:
            streamed(connection, sql, 10)
        assert "CAST" in raised.value.action
        assert 1 == streamed(connection, f"SELECT CAST(v AS VARCHAR) AS v FROM ({sql})", 10).read_all().num_rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM range(70_000) r(x), (SELECT 'a' || chr(0) y, NULL::VARCHAR z)",
        "SELECT x, [{'a': 'é', 'b': [x]}] y, MAP {'k': x} z FROM range(3) r(x)",
        "SELECT x, ('b')::ENUM('a', 'b') y FROM range(40_000) r(x)",
        "SELECT x, [{'a': MAP {'k': ('b')::ENUM('a', 'b')}}] y FROM range(3) r(x)",
    ],
)
def test_any_columns_come_back_from_an_arrow_stream(sql: str) -> None:
    """Also nested ones, and texts of a fixed set, which Arrow writes as dictionaries, wherever they stand."""
    with duckdb.connect() as connection:
        reader = connection.sql(sql).to_arrow_reader(32_768)
        schema, batches = reader.schema, list(reader)
    stream = b"".join(encode("arrow", schema, batches))
    assert pa.Table.from_batches(batches, schema).equals(pa.ipc.open_stream(stream).read_all())


@pytest.mark.parametrize("name", ["json", "csv", "arrow"])
def test_an_answer_without_rows_is_complete(name: str) -> None:
    """No rows: an empty array, a header, an empty stream."""
    table = pa.schema([("a", pa.int64()), ("b, c", pa.string())]).empty_table()
    found = encoded(name, table)
    if name == "arrow":
        assert table.equals(pa.ipc.open_stream(found).read_all())
    else:
        assert {"json": b"[]\n", "csv": b'a,"b, c"\n'}[name] == found


def test_csv_quotes_what_needs_it() -> None:
    """RFC 4180: quotes doubled, commas and line ends quoted, nothing for null, `""` for empty text.

    Nested values as JSON.
    """
    table = duckdb_result(
        "SELECT * FROM (VALUES ('a,b', 'say \"x\"', NULL, [1, 2], 1.5), ('', 'two' || chr(10) || 'lines', 'plain', NULL, NULL)) t(a, b, c, d, e)"
    )
    assert b'a,b,c,d,e\n"a,b","say ""x""",,"[1,2]",1.5\n"","two\nlines",plain,,\n' == encoded("csv", table)


def test_arrow_has_the_rows_unchanged(tmp_path: object) -> None:
    """An Arrow answer has equal rows and types."""
    table = duckdb_result("SELECT i, 'x' || i AS s, [i] AS l, make_timestamp_ns(i) AS t FROM range(10) t(i)")
    assert table.equals(pa.ipc.open_stream(encoded("arrow", table)).read_all())


def test_an_unknown_format_is_refused() -> None:
    """The message lists the formats."""
    with pytest.raises(FormatUnknown, match="xml") as raised:
        encode("xml", pa.schema([]), [])
    assert "json, csv, arrow" in raised.value.action


def test_an_answer_is_streamed() -> None:
    """The first bytes of an answer are sent before its last row is computed."""
    batch = pa.record_batch({"a": pa.array(range(1_000))})

    def endless() -> object:
        while True:
            yield batch

    for name in ("json", "csv", "arrow"):
        pieces = encode(name, batch.schema, endless())  # type: ignore[arg-type]
        assert all(len(next(pieces)) < 100_000 for _ in range(5))


def test_plain_text_is_for_people() -> None:
    """A table on a terminal shows times without needless digits and text without quotes."""
    moments = pa.array([0, 1_500_000_000, 60_000_000_001, None], pa.timestamp("ns"))
    assert ["1970-01-01 00:00:00", "1970-01-01 00:00:01.5", "1970-01-01 00:01:00.000000001", ""] == plain_text(
        moments
    ).to_pylist()
    assert ["a, b", ""] == plain_text(pa.array([["a", "b"], None])).to_pylist()
    for texts in (["a", None], ["a, b", "c"], ["", "c"], ['"']):
        assert [texts] == [json.loads(each) for each in plain_text(pa.array([texts])).to_pylist()]
    assert ["a\n", ""] == plain_text(pa.array(["a\n", None])).to_pylist()
    assert ["nan", "1.5", ""] == plain_text(pa.array([math.nan, 1.5, None])).to_pylist()


tables = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8),
            "tag": st.none() | st.sampled_from(["a", 'b"', "c\\", "é", ""]),
            "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
            "real": st.none() | st.floats(),
            "flag": st.none() | st.booleans(),
            "time": st.none() | st.integers(-(2**62), 2**62),
            "bytes": st.none() | st.binary(max_size=5),
            "list": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
            "struct": st.none()
            | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.lists(st.integers(0, 3), max_size=2)}),
        }
    ),
    max_size=9,
)
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("tag", pa.dictionary(pa.int32(), pa.string())),
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("time", pa.timestamp("ns")),
        ("bytes", pa.binary()),
        ("list", pa.list_(pa.string())),
        ("struct", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])),
    ]
)


def modelled(row: dict[str, object]) -> dict[str, object]:
    """A row as JSON should read back."""
    real, moment, raw = row["real"], row["time"], row["bytes"]
    assert real is None or isinstance(real, float)
    return row | {
        "real": real if real is not None and math.isfinite(real) else None,
        "time": None if not isinstance(moment, int) else iso(moment),
        "bytes": base64.b64encode(raw).decode() if isinstance(raw, bytes) else None,
    }


def iso(moment_ns: int) -> str:
    """ISO-8601 with nine digits."""
    seconds, rest = divmod(moment_ns, 1_000_000_000)
    return f"{(EPOCH + timedelta(seconds=seconds)):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


@settings(max_examples=60)
@given(tables, st.integers(1, 4))
def test_any_rows_read_back_from_json(rows: list[dict[str, object]], batch_rows: int) -> None:
    """For any values in any batches a JSON reader finds the rows."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    assert [modelled(row) for row in rows] == json.loads(encoded("json", table, batch_rows))


@settings(max_examples=40)
@given(tables, st.integers(1, 4))
def test_any_rows_read_back_from_csv(rows: list[dict[str, object]], batch_rows: int) -> None:
    """A CSV reader finds as many rows and columns as there are, and every text as it was."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    text = encoded("csv", table, batch_rows).decode()
    header, *found = csv.reader(io.StringIO(text, newline=""))
    assert SCHEMA.names == header
    assert [(row["text"] or "", row["tag"] or "") for row in rows] == [(cells[0], cells[1]) for cells in found]
    assert all(len(cells) == len(SCHEMA.names) for cells in found)
