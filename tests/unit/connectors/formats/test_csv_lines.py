"""What a line of CSV means."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headrace.connectors.formats import ColumnMissing, FormatOptions, OptionsError, ParseResult, parse_buffer
from headrace.schemas.tables import FieldType

REAL = Path(__file__).resolve().parents[5] / "shared" / "data" / "real"


def read(text: str | bytes, options: FormatOptions | None = None, default_time_ns: int | None = None) -> ParseResult:
    """Parse CSV into table t with tag host."""
    data = text.encode() if isinstance(text, str) else text
    chosen = options or FormatOptions(table="t", tags=("host",))
    return parse_buffer("csv", data, chosen, default_time_ns=default_time_ns, keep_lines=True)


def test_types_come_from_the_first_value() -> None:
    """A column is float64, bool or string as its first cell that is not empty.

    Integers are float64; empty cells are null.
    """
    parsed = read("time,host,n,b,s,e\n1,a,,true,x,\n2,,5,FALSE,1,\n3,b, 2.5 ,,,\n")
    assert [
        {"host": "a", "time": 1, "b": True, "n": None, "s": "x", "__line": 1},
        {"host": None, "time": 2, "b": False, "n": 5.0, "s": "1", "__line": 2},
        {"host": "b", "time": 3, "b": None, "n": 2.5, "s": None, "__line": 3},
    ] == parsed.tables["t"].to_pylist()


def test_declared_types_win() -> None:
    """A declared int64 is exact and takes whole decimals, a fraction makes it float64, a declared string stays text."""
    declared = {"t": {"i": FieldType.INT64, "w": FieldType.INT64, "s": FieldType.STRING}}
    parsed = read(
        "time,i,w,s\n1,9007199254740993,1,5\n2,3.0,1.5,6\n3,9223372036854775808,1,7\n",
        FormatOptions(table="t", declared=declared),
    )
    table = parsed.tables["t"]
    assert ([9007199254740993, 3], [1.0, 1.5], ["5", "6"]) == tuple(table[name].to_pylist() for name in "iws")
    assert [3] == [rejected.line for rejected in parsed.rejections()]


def test_bad_lines_are_refused_by_number() -> None:
    """Wrong numbers of columns, values of another type, bad times and bytes that are no text cost their line only."""
    parsed = read(b"time,host,v\n1,a,1\n2,a\n3,a,x\nt,a,1\n,a,1\n6,\xff,1\n7,a,1,1\n8,a,8\n")
    assert [1, 8] == parsed.tables["t"]["__line"].to_pylist()
    reasons = {rejected.line: rejected.reason for rejected in parsed.rejections()}
    assert {
        2: "2 columns",
        3: "'x' in column 'v'",
        4: "'t' cannot be read",
        5: "no time",
        6: "UTF-8",
        7: "4 columns",
    }.keys() == reasons.keys()
    assert "'x' in column 'v' is no float64" == reasons[3]


def test_quotes() -> None:
    """Quoted cells may hold delimiters, quotes and newlines; a quote that never closes costs one line."""
    parsed = read('time,host,s\n1,"b, c","say ""x"""\n2,a,"two\nlines"\n4,a,"open\n5,a,plain\n')
    assert [("b, c", 'say "x"'), ("a", "two\nlines"), ("a", "plain")] == [
        (row["host"], row["s"]) for row in parsed.tables["t"].to_pylist()
    ]
    assert [4] == [rejected.line for rejected in parsed.rejections()]


def test_not_finite_numbers_are_kept_and_overflow_is_refused() -> None:
    """NaN and infinities written as words are numbers; a number too large for float64 is not infinity."""
    parsed = read("time,v\n1,1\n2,nan\n3,-Infinity\n4,1e400\n", FormatOptions(table="t"))
    values = parsed.tables["t"]["v"].to_pylist()
    assert math.isnan(values[1])
    assert -math.inf == values[2]
    assert [4] == [rejected.line for rejected in parsed.rejections()]


def test_other_delimiters_and_byte_order_marks() -> None:
    """A tab or semicolon may separate the columns, and a byte order mark is not part of the first name."""
    for delimiter in "\t;":
        text = "\ufefftime,v\n1,2\n".replace(",", delimiter)
        assert [2.0] == read(text, FormatOptions(table="t", delimiter=delimiter)).tables["t"]["v"].to_pylist()


def test_the_options_must_fit_the_header() -> None:
    """Columns that the options name must be there, names must be usable and not doubled.

    The error lists the columns.
    """
    for text, options, why in (
        ("a,v\n", FormatOptions(table="t"), "no column 'time'"),
        ("time,v\n", FormatOptions(table="t", tags=("host",)), "no column 'host'"),
        ("time,v,v\n", FormatOptions(table="t"), "twice"),
    ):
        with pytest.raises(ColumnMissing, match=why):
            read(text, options)
    with pytest.raises(OptionsError, match="^field name 'time' is reserved") as reserved:
        read("t,time\n", FormatOptions(table="t", time_column="ts"))
    assert "the time is read from 'ts'; the columns are t, time" == reserved.value.action
    with pytest.raises(OptionsError, match="need a table"):
        read("time,v\n", FormatOptions())


@pytest.mark.parametrize("text", ["", "\n\n", "time,v\n", "time,v"])
def test_an_input_without_rows_gives_no_table(text: str) -> None:
    """Inputs without rows give no table and no refusal."""
    parsed = read(text, FormatOptions(table="t"))
    assert ({}, []) == (parsed.tables, parsed.rejections())


def test_the_table_may_be_named_by_a_column() -> None:
    """Every row goes to the table it names, and types are found by table."""
    parsed = read("time,kind,v\n1,a,1\n2,b,x\n3,a,2\n4,,3\n", FormatOptions(table_column="kind"))
    assert {"a": [1.0, 2.0], "b": ["x"]} == {name: table["v"].to_pylist() for name, table in parsed.tables.items()}
    assert [4] == [rejected.line for rejected in parsed.rejections()]


def test_a_line_without_any_value_is_no_reading() -> None:
    """A line whose fields are all empty is refused; one that has a single value is a row with nulls."""
    parsed = read("time,v,w\n1,,\n2,5,\n", FormatOptions(table="t"))
    assert [{"time": 2, "v": 5.0, "__line": 2}] == parsed.tables["t"].to_pylist()
    assert [(1, "no column of the line has a value")] == [
        (rejected.line, rejected.reason) for rejected in parsed.rejections()
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not on this machine")
@pytest.mark.parametrize(
    ("name", "count", "first", "first_ns"),
    [
        ("nab_machine_temperature_system_failure.csv", 22_695, 73.96732207, 1_386_018_900_000_000_000),
        ("nab_ambient_temperature_system_failure.csv", 7_267, 69.88083514, 1_372_896_000_000_000_000),
    ],
)
@pytest.mark.parametrize("time_format", [None, "%Y-%m-%d %H:%M:%S"])
def test_real_files(name: str, count: int, first: float, first_ns: int, time_format: str | None) -> None:
    """Every line and decimal of real sensor files is read, with or without a time format."""
    options = FormatOptions(table="t", time_column="timestamp", time_format=time_format)
    data = (REAL / name).read_bytes()
    parsed = parse_buffer("csv", data, options)
    table = parsed.tables["t"]
    assert (count, 0) == (table.num_rows, parsed.rejected.num_rows)
    assert (first, first_ns) == (table["value"][0].as_py(), table["time"][0].as_py())
    assert [float(line.split(b",")[1]) for line in data.splitlines()[1:]] == table["value"].to_pylist()
