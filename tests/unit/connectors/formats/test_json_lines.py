"""What a line of JSON means."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest

from headrace.connectors.formats import FormatOptions, OptionsError, ParseResult, parse_buffer, parse_messages
from headrace.schemas.tables import FieldType

OPTIONS = FormatOptions(table="t", tags=("host",))


def read(text: str | bytes, options: FormatOptions = OPTIONS, default_time_ns: int | None = None) -> ParseResult:
    """Parse JSON lines."""
    data = text.encode() if isinstance(text, str) else text
    return parse_buffer("json", data, options, default_time_ns=default_time_ns)


def rows(parsed: ParseResult) -> list[dict[str, object]]:
    """The rows of table t."""
    return [dict(row) for row in parsed.tables["t"].to_pylist()]


def test_kinds_of_values() -> None:
    """Numbers are float64, texts, booleans and nulls what they are, tags are taken out by name."""
    parsed = read('{"time":5,"host":"a","n":1,"x":2.5e1,"b":true,"s":"x","o":null}')
    assert [{"host": "a", "time": 5, "n": 1.0, "x": 25.0, "b": True, "s": "x"}] == rows(parsed)


def test_numbers_are_integers_where_the_table_declares_them() -> None:
    """A declared int64 is exact up to its limits; whole decimals are integers.

    A fraction makes the column float64; overflow is refused.
    """
    declared = FormatOptions(table="t", declared={"t": {"n": FieldType.INT64, "m": FieldType.INT64}})
    parsed = read(
        '{"time":1,"n":9007199254740993,"m":1}\n{"time":2,"n":3.0,"m":1.5}\n{"time":3,"n":9223372036854775808}',
        declared,
    )
    assert [9007199254740993, 3] == parsed.tables["t"]["n"].to_pylist()
    assert [1.0, 1.5] == parsed.tables["t"]["m"].to_pylist()
    assert "does not fit int64" in parsed.rejections()[0].reason


def test_not_finite_numbers_are_kept() -> None:
    """The words NaN, Infinity and -Infinity, which JSON does not have but many writers do, are numbers."""
    values = read('{"time":1,"v":NaN}\n{"time":2,"v":Infinity}\n{"time":3,"v":-Infinity}').tables["t"]["v"].to_pylist()
    assert math.isnan(values[0])
    assert [math.inf, -math.inf] == values[1:]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ('{"time":1,"v":01}', "not JSON"),
        ('{"time":1,"v":1.}', "not JSON"),
        ('{"time":1,"v":+1}', "not JSON"),
        ('{"time":1,"v":1,}', "not JSON"),
        ('{"time":1,"v":1} x', "not JSON"),
        ("5", "must be a JSON object"),
        ('["a"]', "element 0: a reading must be a JSON object"),
        ('{"time":1,"v":{"a":1}}', "member 'v' is an object"),
        ('{"time":1,"v":[1]}', "member 'v' is an array"),
        ('{"time":1,"v":1,"v":2}', "given twice"),
        ('{"time":1,"host":"a"}', "no field has a value"),
        ('{"time":1,"v":null}', "no field has a value"),
        ('{"v":1}', "no time"),
        ('{"time":null,"v":1}', "no time"),
        ('{"time":true,"v":1}', "the time true"),
        ('{"time":"yesterday","v":1}', "'yesterday' cannot be read"),
        ('{"time":9223372036854775808,"v":1}', "cannot be read"),
        ('{"time":1,"v":1e999}', "does not fit float64"),
        ('{"time":1,"v":"\\ud800"}', "half of a character pair"),
        ('{"time":1,"":1}', "name is empty"),
        ('{"time":1,"__x":1}', "reserved"),
        (b'{"time":1,"v":"\xff"}', "UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ('{"time":1,"v":"a', "not JSON: Unterminated string starting at character 14"),
    ],
)
def test_bad_lines(line: str | bytes, why: str) -> None:
    """A line that is no flat reading is refused with its fault, and the next line becomes a row."""
    parsed = read((line.encode() if isinstance(line, str) else line) + b'\n{"time":7,"w":1}\n')
    assert why in parsed.rejections()[0].reason
    assert [7] == parsed.tables["t"]["time"].to_pylist()


def test_arrays_on_one_line() -> None:
    """A line may be an array of readings; a bad element is refused by its position, and the others become rows."""
    parsed = read('[{"time":1,"v":1},{"time":2},{"time":3,"v":3}]')
    assert [1, 3] == parsed.tables["t"]["time"].to_pylist()
    assert "element 1: no field has a value" == parsed.rejections()[0].reason


def test_strings_with_everything_in_them() -> None:
    """Commas, quotes, escapes and braces in strings are text, in lines of one shape and of several."""
    texts = ["a, b", 'q"uote', "back\\slash", '{"x":1}', "é\n", "", "plain"]
    lines = "\n".join(f'{{"time":{place},"s":{json.dumps(text)}}}' for place, text in enumerate(texts * 20))
    assert texts * 20 == read(lines).tables["t"]["s"].to_pylist()


def test_tags_may_be_any_scalar() -> None:
    """Numbers and booleans as tags keep the text they were written with; null and empty text are no tag."""
    lines = [f'{{"time":1,"host":{host},"v":1}}' for host in ("1.50", "true", "null", '""', '"a"')]
    assert ["1.50", "true", None, None, "a"] == read("\n".join(lines)).tables["t"]["host"].to_pylist()
    assert ["1.50"] * 50 == read("\n".join([lines[0]] * 50)).tables["t"]["host"].to_pylist()


def test_the_table_may_be_named_by_a_member() -> None:
    """A table column names each line's table, and types are declared by table.

    Without a name the fixed table counts.
    """
    options = FormatOptions(table="rest", table_column="kind", declared={"b": {"v": FieldType.INT64}})
    lines = ['{"kind":"a","time":1,"v":1}', '{"kind":"b","time":1,"v":1}', '{"time":1,"v":1}'] * 30
    parsed = read("\n".join(lines), options)
    assert {"a": "double", "b": "int64", "rest": "double"} == {
        name: str(table["v"].type) for name, table in parsed.tables.items()
    }
    assert [30, 30, 30] == [table.num_rows for table in parsed.tables.values()]


def test_a_table_is_required() -> None:
    """JSON does not name a table: the options must."""
    with pytest.raises(OptionsError, match="need a table"):
        read("{}", FormatOptions())


def test_a_static_tag_that_is_also_a_member_refuses_the_line() -> None:
    """A field under the name of a static tag is neither overwritten nor doubled."""
    parsed = read('{"time":1,"site":1,"v":1}\n{"time":2,"v":1}', FormatOptions(table="t", static_tags=(("site", "x"),)))
    assert [{"site": "x", "time": 2, "v": 1.0}] == rows(parsed)
    assert "is a tag" in parsed.rejections()[0].reason


def test_nulls_between_numbers_are_rows_without_that_field() -> None:
    """A null does not change the type of a field nor the shape of the other lines, and clashes with nothing."""
    parsed = read(
        "\n".join(['{"time":1,"v":1,"w":null}', '{"time":2,"v":null,"w":1}', '{"time":3,"v":"x","w":null}'] * 30)
    )
    assert [1.0, None] * 30 == parsed.tables["t"]["v"].to_pylist()
    assert [2, 5, 8] == [rejected.line for rejected in parsed.rejections(3)]


def test_messages_take_the_kafka_time_and_refusals_name_them() -> None:
    """A reading without a time takes that of its message.

    Refusals name message and line; the good lines become rows.
    """
    values = pa.array(
        [b'{"v":1}', b'{"v":2}\nbroken\n{"v":3,"time":9}', None, b"", b'[\n {"v":4},\n {"v":5}\n]'], pa.binary()
    )
    times = pa.array([10, 20, 30, 40, 50], pa.int64())
    parsed = parse_messages("json", values, times, FormatOptions(table="t"), keep_lines=True)
    seen = [(row["__message"], row["__line"], row["time"], row["v"]) for row in rows(parsed)]
    assert [
        (0, 0, 10_000_000, 1.0),
        (1, 0, 20_000_000, 2.0),
        (1, 2, 9, 3.0),
        (4, 0, 50_000_000, 4.0),
        (4, 0, 50_000_000, 5.0),
    ] == seen
    assert [(1, 1)] == [(rejected.message, rejected.line) for rejected in parsed.rejections()]


def test_messages_without_timestamps_must_bring_their_time() -> None:
    """Without a Kafka time, or with one that does not fit, a reading without a time is refused."""
    values = pa.array([b'{"v":1}', b'{"v":1}'], pa.large_binary())
    assert 2 == parse_messages("json", values, None, FormatOptions(table="t")).rejected.num_rows
    late = pa.array([-1, 2**62], pa.timestamp("ms"))
    assert 2 == parse_messages("json", values, late, FormatOptions(table="t")).rejected.num_rows


def test_messages_are_lines_not_files() -> None:
    """Parquet is of files; as messages it is refused before anything is read."""
    with pytest.raises(OptionsError, match="not read from topics"):
        parse_messages("parquet", pa.array([b""], pa.binary()), None, FormatOptions(table="t"))
