"""What a line of Influx line protocol means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from headrace.connectors.formats import FormatOptions, OptionsError, ParseResult, parse_buffer
from headrace.connectors.formats.interface import LINE_COLUMN
from headrace.schemas.tables import FieldType


def influx(text: str | bytes, options: FormatOptions | None = None, default_time_ns: int | None = None) -> ParseResult:
    """Parse line protocol with line numbers."""
    data = text.encode() if isinstance(text, str) else text
    return parse_buffer("influx", data, options or FormatOptions(), default_time_ns=default_time_ns, keep_lines=True)


def only_row(parsed: ParseResult) -> dict[str, object]:
    """The one row of a parse that refused nothing."""
    assert [] == parsed.rejections()
    (table,) = parsed.tables.values()
    (row,) = table.drop_columns(["__line"]).to_pylist()
    return dict(row)


def reason(text: str | bytes) -> str:
    """Why a single line is refused."""
    (rejected,) = influx(text).rejections()
    return rejected.reason


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("m v=1 5", {"time": 5, "v": 1.0}),
        ("m,host=a v=1 5", {"host": "a", "time": 5, "v": 1.0}),
        ("m v=-3i 5", {"time": 5, "v": -3}),
        ("m v=9223372036854775807i 5", {"time": 5, "v": 2**63 - 1}),
        ("m v=-9223372036854775808i 5", {"time": 5, "v": -(2**63)}),
        ("m v=9223372036854775807u 5", {"time": 5, "v": 2**63 - 1}),
        ("m v=1.5e-3 -5", {"time": -5, "v": 0.0015}),
        ("m v=.5,w=5. 5", {"time": 5, "v": 0.5, "w": 5.0}),
        ("m a=t,b=T,c=true,d=True,e=TRUE 5", {"time": 5, "a": True, "b": True, "c": True, "d": True, "e": True}),
        (
            "m a=f,b=F,c=false,d=False,e=FALSE 5",
            {"time": 5, "a": False, "b": False, "c": False, "d": False, "e": False},
        ),
        ('m s="a, b = c d" 5', {"time": 5, "s": "a, b = c d"}),
        (r'm s="say \"hi\" \\ \n" 5', {"time": 5, "s": r'say "hi" \ \n'}),
        ('m s="" 5', {"time": 5, "s": ""}),
        ('m s="two\nlines" 5', {"time": 5, "s": "two\nlines"}),
        (r"m,a\ b\,c\=d=e\ f\,g\=h v=1 5", {"a b,c=d": "e f,g=h", "time": 5, "v": 1.0}),
        (r"m,path=C:\dir\x v=1 5", {"path": r"C:\dir\x", "time": 5, "v": 1.0}),
        (r"m,a=end\\ v=1 5", {"a": "end\\", "time": 5, "v": 1.0}),
        (r"m f\ i\,e\=ld=1 5", {"time": 5, "f i,e=ld": 1.0}),
        ("m,h=é v=1,ü=2 5", {"h": "é", "time": 5, "v": 1.0, "ü": 2.0}),
        ('m,q=5" v=1 5', {"q": '5"', "time": 5, "v": 1.0}),
        ("  m   v=1   5  ", {"time": 5, "v": 1.0}),
        ("m v=1 5\r\n", {"time": 5, "v": 1.0}),
    ],
)
def test_good_lines(line: str, row: dict[str, object]) -> None:
    """Names, escapes, kinds of values and spaces are read as the protocol defines them."""
    assert row == only_row(influx(line))


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "+Infinity"])
def test_not_finite_numbers_are_kept(word: str) -> None:
    """NaN and infinities are numbers here, although InfluxDB refuses them."""
    value = only_row(influx(f"m v={word} 5"))["v"]
    assert isinstance(value, float)
    assert not math.isfinite(value)
    assert math.isnan(value) == ("n" == word[0].lower())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("m", "no fields"),
        ("m,host=a", "no fields"),
        ("m v 5", "no value"),
        ("m v= 5", "no value"),
        ("m =1 5", "name is empty"),
        ("m v=1, 5", "field is missing"),
        ("m,a=1,a=2 v=1 5", "tag 'a' is given twice"),
        ("m v=1,v=2 5", "field 'v' is given twice"),
        ("m,v=a v=1 5", "both a tag and a field"),
        ("m,a= v=1 5", "tag 'a' has no value"),
        ("m, v=1 5", "tag is missing"),
        ("m,a=b=c v=1 5", "not escaped"),
        (",a=b v=1 5", "measurement is missing"),
        ("m v=1 5 6", "not an integer"),
        ("m v=1 5.5", "not an integer"),
        ("m v=1 9223372036854775808", "does not fit int64"),
        ("m v=9223372036854775808i 5", "does not fit int64"),
        ("m v=18446744073709551615u 5", "does not fit int64"),
        ("m v=-1u 5", "does not fit int64"),
        ("m v=1e400 5", "does not fit float64"),
        ("m v=1_000 5", "no number"),
        ("m v=yes 5", "no number"),
        ('m v="open 5', "not closed"),
        ('m v="a"b 5', "unexpected 'b'"),
        ("m v=1", "no time"),
        ("m time=1 5", "reserved"),
        ("m,time=1 v=1 5", "reserved"),
        ("m __v=1 5", "reserved"),
        (b"m v=\xff 5", "UTF-8"),
        (b"m,h=\xff v=1 5", "UTF-8"),
    ],
)
def test_bad_lines(line: str | bytes, why: str) -> None:
    """A line that is not line protocol is refused with its fault."""
    assert why in reason(line)


def test_the_good_lines_of_a_bad_input_become_rows() -> None:
    """A bad line costs only itself.

    Rejections carry the number of the line, and blank lines and comments count as lines.
    """
    parsed = influx("m v=1 1\n\n# a comment\nbroken\nm v=2 2\nalso broken\n")
    assert [1.0, 2.0] == parsed.tables["m"]["v"].to_pylist()
    assert [0, 4] == parsed.tables["m"]["__line"].to_pylist()
    assert [3, 5] == [rejected.line for rejected in parsed.rejections()]
    assert 6 == parsed.lines


@pytest.mark.parametrize("series", ['m,g=q"q', 'm,g="', 'm,g=3",h=5"""', 'm"', 'm,k"=a', 'm,g=a\\ "b', ' m,g=q"'])
@pytest.mark.parametrize("inner", ["a\nb", "a\nm v=1 5\nb", "\n", 'a\n\\"\nb', "a=\n=b="])
@pytest.mark.parametrize("before", ["", 'f"=1,', 's"="x=",'])
def test_a_quote_outside_of_strings_is_literal(series: str, inner: str, before: str) -> None:
    """In a table, a tag or the name of a field; a string of several lines behind it is one string, and no line inside
    of it is a reading.
    """
    parsed = influx(f'{series} {before}s="{inner}" 7\nm v=2 8\n')
    assert [] == parsed.rejections()
    assert 2 == parsed.rows
    first = min((row for rows in parsed.tables.values() for row in rows.to_pylist()), key=lambda row: row["time"])
    assert (7, inner.replace('\\"', '"')) == (first["time"], first["s"])


def test_an_open_quote_costs_one_line() -> None:
    """A string that is never closed does not swallow the lines that follow it."""
    parsed = influx('m s="open 1\nm s="good" 2\nm s="open 3\nm v=1 4\n')
    assert [0, 2] == [rejected.line for rejected in parsed.rejections()]
    assert [2, 4] == parsed.tables["m"]["time"].to_pylist()


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n\r\n", b"# only a comment", b"   \n"])
def test_an_input_without_a_reading_gives_no_table(data: bytes) -> None:
    """Inputs without a reading give no table and no refusal."""
    parsed = influx(data)
    assert ({}, []) == (parsed.tables, parsed.rejections())


def test_rows_keep_the_order_of_the_lines() -> None:
    """Rows of different shapes have the order of the input, which decides between repeated times."""
    text = "\n".join(f"m {'a' if number % 3 else 'b'}={number}{'' if number % 2 else 'i'} 7" for number in range(200))
    table = influx(text).tables["m"]
    assert list(range(200)) == table["__line"].to_pylist()
    assert [float(number) for number in range(200)] == [
        row["a"] if row["b"] is None else row["b"] for row in table.to_pylist()
    ]


@pytest.mark.parametrize(("unit", "largest"), [("us", 9223372036854775), ("ms", 9223372036854), ("s", 9223372036)])
def test_units_of_time(unit: str, largest: int) -> None:
    """Times are scaled from their unit exactly, and refused where nanoseconds do not fit int64."""
    options = FormatOptions(time_unit=unit)  # type: ignore[arg-type]
    text = "".join(f"m v=1 {time}\n" for time in (largest, largest + 1, -largest, -largest - 1)) * 10
    parsed = influx(text, options)
    scale = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}[unit]
    assert [largest * scale, -largest * scale] * 10 == parsed.tables["m"]["time"].to_pylist()
    assert 20 == parsed.rejected.num_rows


def test_a_default_time_is_taken_where_a_line_has_none() -> None:
    """With a default time lines without one are readings."""
    parsed = influx("m v=1\nm v=2 5\n" * 40, default_time_ns=99)
    assert [99, 5] * 40 == parsed.tables["m"]["time"].to_pylist()


def test_integers_widen_to_floats_and_other_types_clash() -> None:
    """The first line decides the type of a field.

    Integers and floats widen to float64; any other mixture refuses the line.
    """
    parsed = influx('m v=1i 1\nm v=2.5 2\nm v="x" 3\nm v=t 4\nm w=t 5\nm w=1 6\n')
    assert [1.0, 2.5, None] == parsed.tables["m"]["v"].to_pylist()
    reasons = {rejected.line: rejected.reason for rejected in parsed.rejections()}
    assert {2, 3, 5} == set(reasons)
    assert "field 'v' of table 'm' is int64 and the line has string" == reasons[2]
    assert "field 'w' of table 'm' is bool and the line has float64" == reasons[5]


def test_the_declared_type_decides() -> None:
    """A declared type wins over the first line.

    A declared float64 takes integers, a declared int64 with floats becomes float64.
    """
    declared = {"m": {"r": FieldType.FLOAT64, "i": FieldType.INT64, "j": FieldType.INT64, "s": FieldType.STRING}}
    parsed = influx("m r=1i,i=1.5,j=7i 1\nm s=1 2\n", FormatOptions(declared=declared))
    table = parsed.tables["m"]
    assert ["double", "int64", "double"] == [str(table.schema.field(name).type) for name in ("i", "j", "r")]
    assert "field 's' of table 'm' is string and the line has float64" == parsed.rejections()[0].reason


def test_columns_the_cluster_holds_in_another_role_are_refused_by_line() -> None:
    """A tag that is a field of the table, and a field that is a tag of it, cost their line and nothing else."""
    options = FormatOptions(declared={"m": {"v": FieldType.FLOAT64}}, declared_tags={"m": ("host",)})
    parsed = influx("m v=1 1\nm,v=x w=1 2\nm host=1 3\nm,host=a V=2 4\n", options)
    assert [1] == parsed.tables["m"]["time"].to_pylist()
    assert ["field", "tag", "case"] == [
        next(word for word in ("only in case", "is a field", "is a tag") if word in rejected.reason).split()[-1]
        for rejected in parsed.rejections()
    ]


@pytest.mark.parametrize("twins", ["g=1,G=2", "G=1,g=2"])
def test_a_line_with_two_spellings_of_one_name_costs_itself(twins: str) -> None:
    """It is refused whichever is known, so none of its names is one that later lines must have."""
    parsed = influx(f"m {twins},h=5 1\nm g=3 2\nm g=4 3\nm G=4,h=6 4\n", FormatOptions())
    assert [(2, 3.0), (3, 4.0)] == list(
        zip(parsed.tables["m"]["time"].to_pylist(), parsed.tables["m"]["g"].to_pylist(), strict=True)
    )
    assert [
        "fields 'G' and 'g' of table 'm' differ only in case",
        "field 'G' of table 'm' differs from 'g' only in case",
    ] == [each.reason for each in parsed.rejections()]


@pytest.mark.parametrize(
    ("lines", "kept", "why"),
    [
        (
            ("m,p=a v=1", 'm p="x",v=2', "m,p=b v=3"),
            [1, 3],
            "field 'p' of table 'm' is a tag and the line has it as a field",
        ),
        (("m p=5,v=2", "m,p=a v=1", "m,p=b v=3"), [1], "tag 'p' of table 'm' is a field and the line has it as a tag"),
        (("m,p=a v=1", "m,P=b v=2", "m,p=c v=3"), [1, 3], "tag 'P' of table 'm' differs from 'p' only in case"),
        (("m,P=a v=1", "m,p=b v=2", "m,P=c v=3"), [1, 3], "tag 'p' of table 'm' differs from 'P' only in case"),
        (("m,p=a v=1", "m P=5", "m,p=c v=3"), [1, 3], "field 'P' of table 'm' differs from 'p' only in case"),
        (("m,p=a p=1,v=1", "m p=5", "m p=6"), [2, 3], "'p' is both a tag and a field"),
        (("m,p=a,P=b v=1", "m,P=c v=2"), [2], "differs from"),
    ],
)
def test_the_first_line_with_a_name_decides_its_role_and_spelling(
    lines: Sequence[str], kept: list[int], why: str
) -> None:
    """Of a table that is new. A tag that gave way to a field would leave rows of several series as one."""
    parsed = influx("\n".join(f"{line} {number}" for number, line in enumerate(lines, 1)), FormatOptions())
    assert kept == parsed.tables["m"]["time"].to_pylist()
    assert [number - 1 for number in range(1, len(lines) + 1) if number not in kept] == [
        each.line for each in parsed.rejections()
    ]
    assert all(why in each.reason for each in parsed.rejections())
    alone = influx("\n".join(f"{lines[number - 1]} {number}" for number in kept), FormatOptions())
    rows, wanted = (each.tables["m"].drop_columns([LINE_COLUMN]) for each in (parsed, alone))
    assert (wanted.schema, wanted.to_pylist()) == (rows.schema, rows.to_pylist())


def test_the_names_of_a_known_table_decide() -> None:
    """Also where no line of the input has them."""
    options = FormatOptions(declared={"m": {"v": FieldType.FLOAT64}}, declared_tags={"m": ("host",)})
    parsed = influx("m,v=x w=1 1\nm,HOST=a v=1 2\nm,host=a v=2 3\nm,V=a w=1 4\n", options)
    assert [3] == parsed.tables["m"]["time"].to_pylist()
    assert [
        "tag 'v' of table 'm' is a field and the line has it as a tag",
        "tag 'HOST' of table 'm' differs from 'host' only in case",
        "tag 'V' of table 'm' differs from 'v' only in case",
    ] == [each.reason for each in parsed.rejections()]


def test_many_names_in_two_spellings_cost_their_lines() -> None:
    """Each line has a pair of its own: names may be keys that a device makes up."""
    lines = "".join(f"m k{number}=1,K{number}=2 {number + 1}\n" for number in range(1_200))
    parsed = influx(f"{lines}m v=1 5000\n", FormatOptions())
    assert [*range(1_200)] == [each.line for each in parsed.rejections()]
    assert [5_000] == parsed.tables["m"]["time"].to_pylist()


def test_tags_that_are_named_are_refused() -> None:
    """Line protocol marks its own: those that are named would have no effect, without a word."""
    for lines in ("", "m,host=a v=1 1"):
        with pytest.raises(OptionsError, match="marks its own tags"):
            influx(lines, FormatOptions(tags=("host",)))


def test_static_tags_and_a_fixed_table() -> None:
    """Static tags are added where a line lacks them; a table in the options replaces the measurement."""
    options = FormatOptions(table="all", static_tags=(("site", "x"), ("host", "y")))
    parsed = influx("a,host=1 v=1 1\nb v=2 2\n", options)
    assert [("1", "x"), ("y", "x")] == [(row["host"], row["site"]) for row in parsed.tables["all"].to_pylist()]


def test_many_tables_in_one_input() -> None:
    """Lines of the same fields but of different tables go to their own tables."""
    parsed = influx("".join(f"t{number % 50},h=x v={number} {number}\n" for number in range(1000)))
    assert 50 == len(parsed.tables)
    assert list(range(3, 1000, 50)) == parsed.tables["t3"]["time"].to_pylist()


def test_tags_are_dictionaries_of_what_occurs() -> None:
    """Tag columns are dictionary<int32, string> with each value once; a series without the tag has null."""
    column = influx("m,h=a v=1 1\nm,h=b v=1 2\nm v=1 3\nm,h=a v=1 4\n").tables["m"]["h"].combine_chunks()
    assert "dictionary<values=string, indices=int32, ordered=0>" == str(column.type)
    assert (["a", "b"], ["a", "b", None, "a"]) == (column.dictionary.to_pylist(), column.to_pylist())


def test_a_line_of_fifty_megabytes() -> None:
    """A very long line is read like any other."""
    parsed = influx(b'm s="' + b"x, " * 17_000_000 + b'" 5')
    assert 51_000_000 == len(parsed.tables["m"]["s"][0].as_py())


def test_contradictory_options_are_refused() -> None:
    """An unknown unit, and a column that is both time and tag, are errors before any line is read."""
    with pytest.raises(OptionsError, match="time unit"):
        FormatOptions(time_unit="d")  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="both time and a tag"):
        FormatOptions(tags=("time",))
    with pytest.raises(OptionsError, match="unknown format"):
        parse_buffer("xml", b"", FormatOptions())


def test_many_series_are_read_together_as_one_by_one() -> None:
    """Tags of many series are right for one template or several, escapes, other orders and impossible names."""
    kinds = ("host=h{0},site=s", "site=s,host=h{0}", "host=h\\ {0}", "a=b", "host=h{0},time=x", "host=h{0},v=x")
    lines = [f"m,{kinds[number % 6].format(number)} v={number} {number}" for number in range(3000)]
    parsed = influx("\n".join(lines))
    expected = {0: "h{}", 1: "h{}", 2: "h {}", 3: None}
    for row in parsed.tables["m"].to_pylist():
        host = expected[row["time"] % 6]
        assert (host and host.format(row["time"])) == row["host"]
        assert ("s" if row["time"] % 6 < 2 else None) == row["site"]
    assert [4, 5] * 500 == [rejected.line % 6 for rejected in parsed.rejections()]


def test_lines_that_all_have_other_fields() -> None:
    """Fields may differ from line to line; every value is in its row and column."""
    wanted = [{f"f{place}": float(number) for place in range(12) if (number >> place) & 1} for number in range(1, 3000)]
    text = "\n".join(
        "m " + ",".join(f"{name}={value}" for name, value in row.items()) + f" {row_number}"
        for row_number, row in enumerate(wanted)
    )
    rows = influx(text).tables["m"].drop_columns(["time", "__line"]).to_pylist()
    assert wanted == [{name: value for name, value in row.items() if value is not None} for row in rows]
