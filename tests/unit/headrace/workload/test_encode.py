"""User tables as text: what is written reads back as the same table, bit for bit."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.formats.line_protocol import parse_line_protocol
from headrace.connectors.formats.lines import lines_of_buffer
from headrace.schemas.series import parse_series_key
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS
from headrace.workload import cpu, iot
from headrace.workload.checksum import checksums, compare
from headrace.workload.encode import (
    NotEncodable,
    json_lines_bytes,
    line_protocol_bytes,
    to_json_lines,
    to_line_protocol,
)
from headrace.workload.series import ColumnMissing

INT64 = st.integers(-(2**63), 2**63 - 1)
TIME = st.integers(ROW_TIME_MIN_NS, ROW_TIME_MAX_NS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TAG = st.none() | TEXT | st.sampled_from(["a b", "a,b", "a=b", "a\\", "\\", "a\nb", 'a"b', "ü"])
FLOAT = st.floats(width=64)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "host": TAG,
            "a rack": TAG,
            "time": TIME,
            "f": st.none() | FLOAT,
            "i": st.none() | INT64,
            "b": st.none() | st.booleans(),
            "s": st.none() | TEXT.filter(lambda text: "\n" not in text),
        }
    ),
    max_size=12,
)
SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("a rack", pa.string()),
        ("time", pa.int64()),
        ("f", pa.float64()),
        ("i", pa.int64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
    ]
)
TAGS = ["host", "a rack"]
FIELD = re.compile(r'([^=,]+)=("(?:\\.|[^"\\])*"|[^,]+)(?:,|$)')


def bits(value: Any) -> Any:
    """A comparable value: the two zeros differ, all NaNs are equal."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return struct.pack("<d", value) if isinstance(value, float) else value


def parse_value(text: str) -> Any:
    """A field value of line protocol."""
    if text.startswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    return int(text[:-1]) if text.endswith("i") else float(text)


def parse_line(line: str) -> tuple[str, dict[str, Any]]:
    """Table and columns of a line, by a small parser of its own."""
    match = re.fullmatch(r"((?:\\.|[^\\ ])+) (.*) (-?\d+)", line, re.DOTALL)
    assert match is not None, line
    table, tags = parse_series_key(match[1])
    fields = {name: parse_value(value) for name, value in FIELD.findall(match[2])}
    return table, {**tags, "time": int(match[3]), **fields}


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """The values of a row in a text format: no null, no empty tag."""
    return {name: bits(value) for name, value in row.items() if value is not None and (name not in TAGS or value)}


@given(rows=ROWS)
def test_line_protocol_reads_back(rows: list[dict[str, Any]]) -> None:
    """Any tag, integer, float, bool and string is read back unchanged; rows without fields have no line."""
    rows = [{**row, **{tag: row[tag] and row[tag].replace("\n", "") for tag in TAGS}} for row in rows]
    lines = to_line_protocol("my table", pa.Table.from_pylist(rows, SCHEMA), TAGS).to_pylist()
    expected = [columns(row) for row in rows if any(row[name] is not None for name in "fibs")]
    assert all("\n" not in line for line in lines)
    assert [("my table", row) for row in expected] == [
        (table, {name: bits(value) for name, value in row.items()}) for table, row in map(parse_line, lines)
    ]


@given(rows=ROWS, text=st.none() | TEXT)
def test_the_products_parser_reads_the_line_protocol(rows: list[dict[str, Any]], text: str | None) -> None:
    """The parser of the product takes every line and finds the same readings, texts with line ends included."""
    rows = [{**row, **{tag: row[tag] and row[tag].replace("\n", "") for tag in TAGS}, "s": text} for row in rows]
    table = pa.Table.from_pylist([row for row in rows if any(row[name] is not None for name in "fibs")], SCHEMA)
    parsed = parse_line_protocol(lines_of_buffer(line_protocol_bytes("my table", table, TAGS)), FormatOptions(), None)
    assert [] == parsed.rejections()
    for found in parsed.tables.values():
        assert [] == compare(checksums(table, TAGS), checksums(found))
    assert table.num_rows == parsed.rows


@given(rows=ROWS)
def test_json_lines_read_back(rows: list[dict[str, Any]]) -> None:
    """Any tag and value is read back unchanged, floats with all their bits; NaN and infinities are refused."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    if not all(row["f"] is None or math.isfinite(row["f"]) for row in rows):
        with pytest.raises(NotEncodable, match="field 'f'"):
            to_json_lines(table, TAGS)
        return
    lines = to_json_lines(table, TAGS).to_pylist()
    assert all("\n" not in line for line in lines)
    assert [columns(row) for row in rows] == [
        {name: bits(value) for name, value in json.loads(line).items()} for line in lines
    ]


def test_dictionary_columns_are_the_tags() -> None:
    """Without a list of tags the dictionary columns are taken; a list that names no column is refused."""
    table = cpu(1, duration_s=10).read("cpu")
    assert to_line_protocol("cpu", table).equals(to_line_protocol("cpu", table, table.column_names[:10]))
    with pytest.raises(ColumnMissing, match="'rank'"):
        to_line_protocol("cpu", table, ["rank"])


def test_lines_are_pinned() -> None:
    """Tags are in order of name, integers have the suffix i, floats a point, and lines end in a newline."""
    table = pa.table({"b": ["x y"], "a": ["1"], "time": [5], "f": [2.0], "n": [3]})
    assert b"t,a=1,b=x\\ y f=2.0,n=3i 5\n" == line_protocol_bytes("t", table, ["b", "a"])
    assert b'{"b":"x y","a":"1","time":5,"f":2.0,"n":3}\n' == json_lines_bytes(table, ["b", "a"])


@pytest.mark.parametrize(
    ("table_name", "tag", "value", "field"),
    [
        ("", "a", "b", "f"),
        ("#t", "a", "b", "f"),
        ("t\n", "a", "b", "f"),
        ("t", "a\n", "b", "f"),
        ("t", "a", "b", "f\n"),
        ("t", "a", "x\ny", "f"),
    ],
)
def test_line_protocol_refuses_what_it_cannot_carry(table_name: str, tag: str, value: str, field: str) -> None:
    """A line end in a name or tag, and a name that begins a comment, are refused instead of written as something else."""
    with pytest.raises(NotEncodable, match="line protocol cannot carry"):
        to_line_protocol(table_name, pa.table({tag: [value], "time": [1], field: [1.0]}), [tag])


def test_no_tags_no_fields_no_rows() -> None:
    """A table without tags has bare lines, one without fields no lines, one without rows nothing at all."""
    table = pa.table({"time": [1, 2], "f": [0.5, None]})
    assert b"t f=0.5 1\n" == line_protocol_bytes("t", table, [])
    assert b'{"time":1,"f":0.5}\n{"time":2}\n' == json_lines_bytes(table, [])
    assert b"" == line_protocol_bytes("t", table.select(["time"]), [])
    assert b"" == line_protocol_bytes("t", table.slice(0, 0), []) == json_lines_bytes(table.slice(0, 0), [])


def test_slices_encode_as_themselves() -> None:
    """A slice of a table gives exactly the lines of its rows."""
    table = iot(5, duration_s=100, disorder=True).read("readings")
    part = table.slice(11, 7)
    assert line_protocol_bytes("r", table).splitlines()[11:18] == line_protocol_bytes("r", part).splitlines()
    assert json_lines_bytes(table).splitlines()[11:18] == json_lines_bytes(part).splitlines()


@pytest.mark.parametrize("table_name", ["readings", "diagnostics"])
def test_workload_survives_text(table_name: str) -> None:
    """The fleet with disorder has the same checksums after a round trip through either text format."""
    fleet = iot(20, duration_s=500, disorder=True)
    table = fleet.read(table_name)
    lines = [parse_line(line)[1] for line in line_protocol_bytes(table_name, table).decode().splitlines()]
    objects = [json.loads(line) for line in json_lines_bytes(table).splitlines()]
    schema = pa.schema(
        [(field.name, pa.string() if field.name in fleet.tags else field.type) for field in table.schema]
    )
    for rows in (lines, objects):
        assert [] == compare(checksums(table), checksums(pa.Table.from_pylist(rows, schema), fleet.tags))
