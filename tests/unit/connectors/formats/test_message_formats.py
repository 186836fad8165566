"""Messages of CSV, Arrow streams, framed and nested JSON, and the mappings that choose their values."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats.interface import FormatOptions, OptionsError, ParseResult
from headrace.connectors.formats.json_paths import flat_messages
from headrace.connectors.formats.mapping import MappingInvalid, read_mapping
from headrace.connectors.formats.parser import check_options, parse_messages
from headrace.schemas.tables import FieldType

SOURCES = ((("meta", "id"), "host"), (("ts",), "time"), (("v", "x"), "x"), (("s",), "s"))
MAPPED = FormatOptions(table="t", tags=("host",), sources=SOURCES)


def parsed(form: str, messages: Sequence[bytes | None], options: FormatOptions) -> ParseResult:
    """The readings of messages without timestamps."""
    return parse_messages(form, pa.array(messages, pa.binary()), None, options)


def rows_of(result: ParseResult) -> list[dict[str, Any]]:
    """The rows of table t without nulls."""
    rows = result.tables["t"].to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def refusals(result: ParseResult) -> list[tuple[int | None, int, str]]:
    """(message, line, reason) of each refused line."""
    return [(each.message, each.line, each.reason) for each in result.rejections()]


def test_paths_take_values_out_of_nested_json() -> None:
    """Objects, arrays of objects, objects over several lines, escaped keys; digits stay as they are written."""
    messages = [
        b'{"ts":1767225600000000001,"meta":{"id":"a","junk":[1,{"ts":2}]},"v":{"x":1.5,"y":{}},"s":"q\\n"}',
        b'[{"ts":6,"v":{"x":2}},\n {"ts":7,"v":{"x":3}}]',
        b'{"\\u0074s":8,"v":{"x":4}}',
        b'{\n "ts": 9,\n "v": {"x": 5}\n}\n{"ts":10,"v":{"x":6}}',
        None,
    ]
    result = parsed("json", messages, MAPPED)
    assert [] == refusals(result)
    assert {"host": "a", "time": 1767225600000000001, "x": 1.5, "s": "q\n"} == rows_of(result)[0]
    assert [6, 7, 8, 9, 10] == [row["time"] for row in rows_of(result)[1:]]


@pytest.mark.parametrize("extra", [b"", b'"km\\/h":1,', b'"\\u00e9":{},'])
@pytest.mark.parametrize("between", [b"", b" ", b"\r\n\t", b"\n\n"])
@pytest.mark.parametrize("indent", [b"", b"\n  "])
def test_objects_behind_each_other_are_read_in_either_way(extra: bytes, between: bytes, indent: bytes) -> None:
    """An escaped key takes the loop's way from a message, and a value of a wrong kind costs its own object."""
    good, wrong = (b"{" + extra + indent + b'"ts":1,"v":' + value + indent + b"}" for value in (b'{"x":2}', b"[2]"))
    result = parsed("json", [between.join([good, wrong, good]) + between, good], MAPPED)
    assert [2, 2, 2] == [row["x"] for row in rows_of(result)]
    assert ["member 'v' is an array: a path leads into it"] == [each.reason for each in result.rejections()]


def test_reasons_name_the_paths_of_the_input() -> None:
    """Of a mapping the names of our own columns are in no message, and no user knows them."""
    mapping = """
        [topics.raw]
        table_path = "meta.kind"
        time = { path = "meta.ts" }
        fields = { x = "x" }
    """
    options = read_mapping(mapping, "raw").options
    result = parsed("json", [b'{"x":1,"meta":{"kind":"t"}}', b'{"x":1,"meta":{"ts":1}}'], options)
    reasons = [each.reason for each in result.rejections()]
    assert ["the line has no time (member 'meta.ts')", "member 'meta.kind' does not name a table"] == reasons


def test_what_is_wrong_in_nested_json_costs_its_line() -> None:
    """The lines beside are rows, and a refused line has its message, its number and the reason."""
    messages = [
        b'{"ts":1,"v":{"x":{}}}',
        b'{"ts":2,"v":{"x":1}}\n{"ts":3,"v":{"x":2\n{"ts":4,"v":{"x":3}}',
        b'{"ts":5',
        b'{"ts":6,"v":{"x":1},"v":{"x":2}}',
        b"\xff",
        b"7",
        b'{"ts":7,"meta":"a","v":{"x":1}}',
        b'{"ts":8,"meta":{"id":"b"},"v":[{"x":1}]}\n{"ts":9,"meta":null,"v":{"x":1}}',
    ]
    result = parsed("json", messages, MAPPED)
    assert [2, 4, 9] == [row["time"] for row in rows_of(result)]
    words = [
        (0, 0, "an object"),
        (1, 1, "not JSON"),
        (2, 0, "not JSON"),
        (3, 0, "twice"),
        (4, 0, "UTF-8"),
        (5, 0, "JSON"),
        (6, 0, "'meta' is no object: a path leads into it"),
        (7, 0, "'v' is an array: a path leads into it"),
    ]
    for (message, line, word), (found, at, reason) in zip(words, refusals(result), strict=True):
        assert (message, line) == (found, at)
        assert word in reason


@pytest.mark.parametrize(
    ("form", "options", "text"),
    [
        ("influx", FormatOptions(), b"t,host=a x=1 1"),
        ("json", FormatOptions(table="t", tags=("host",)), b'{"host":"a","x":1,"time":1}'),
    ],
    ids=["influx", "json"],
)
def test_a_byte_order_mark_is_no_part_of_a_message(form: str, options: FormatOptions, text: bytes) -> None:
    """It would become part of the name of a table."""
    messages = [b"\xef\xbb\xbf" + text, None, text, b"\xef\xbb"]
    result = parsed(form, messages, options)
    assert 2 * [{"host": "a", "time": 1, "x": 1.0}] == rows_of(result)
    assert [(3, 0)] == [each[:2] for each in refusals(result)]


LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=5)
NAMES = st.sampled_from(["meta", "id", "ts", "v", "x", "s", 'q"\\', "é"])
NESTED = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=15
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, NESTED, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_flat_json_has_the_values_of_the_paths(document: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    """As Python finds them; an object or array where a value is wanted, or a value in their place, is refused."""
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    flat, rejected = flat_messages(pa.array([text], pa.binary()), SOURCES)
    expected: dict[str, Any] = {}
    misplaced = False
    for path, name in SOURCES:
        value: Any = document
        for part in path:
            misplaced |= not isinstance(value, dict) and value not in (None, ...)
            value = value.get(part, ...) if isinstance(value, dict) else ...
        misplaced |= isinstance(value, dict | list)
        if value is not ...:
            expected[name] = value
    if misplaced:
        assert 1 == rejected.num_rows
    else:
        assert 0 == rejected.num_rows
        assert expected == json.loads(flat[0].as_py())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=30), st.integers(0, 40))
def test_any_bytes_are_read_or_refused_and_harm_no_neighbour(noise: bytes, cut: int) -> None:
    """Between two good messages."""
    good = b'{"ts":1,"meta":{"id":"a"},"v":{"x":2}}'
    result = parsed("json", [good, noise, good[:cut], good], MAPPED)
    assert [1, 1] == [row["time"] for row in rows_of(result) if row.get("host") == "a"][:2]
    assert {each[0] for each in refusals(result)} <= {1, 2}


def test_csv_messages_bring_their_header() -> None:
    """Columns may differ from message to message; one line alone is refused, for it may be no header."""
    messages = [
        b"host,time,x\na,1,2\nb,2,3\n",
        b"x,time,host,y\r\n1,4,d,z\r\n1,5",
        b"host,time,x\n",
        b"q,x\n1,2",
        b'host,time,x\n"a\nb",9,1',
    ]
    result = parsed("csv", messages, FormatOptions(table="t", tags=("host",)))
    assert [("a", 1, 2.0), ("b", 2, 3.0), ("d", 4, 1.0), ("a\nb", 9, 1.0)] == [
        (row["host"], row["time"], row["x"]) for row in rows_of(result)
    ]
    words = [(1, 2, "2 columns"), (2, 0, "its header"), (3, 0, "no column 'host'")]
    for (message, line, word), (found, at, reason) in zip(words, refusals(result), strict=True):
        assert (message, line) == (found, at)
        assert word in reason


def test_csv_without_headers_has_the_named_columns() -> None:
    """Every line is a record; with paths columns get other names, and those that no path names are left out."""
    messages: list[bytes | None] = [b"a,1,2,9", b"b,2,3,9\nc,3"]
    named = FormatOptions(table="t", tags=("host",), columns=("host", "time", "x", "y"))
    assert [{"host": "a", "time": 1, "x": 2.0, "y": 9.0}] == rows_of(parsed("csv", messages, named))[:1]
    sources = ((("h",), "host"), (("at",), "time"), (("v",), "x"))
    renamed = FormatOptions(table="t", tags=("host",), columns=("h", "at", "v", "w"), sources=sources)
    result = parsed("csv", messages, renamed)
    assert [{"host": "a", "time": 1, "x": 2.0}, {"host": "b", "time": 2, "x": 3.0}] == rows_of(result)
    assert [(1, 1)] == [each[:2] for each in refusals(result)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tss", {"time_column": "tss"}),
        ("tss", {"sources": ((("tss",), "time"), (("v",), "x"))}),
        ("w", {"sources": ((("ts",), "time"), (("w",), "x"))}),
        ("v.w", {"sources": ((("v", "w"), "x"),)}),
        ("hosts", {"sources": ((("hosts",), "host"), (("v",), "x")), "tags": ("host",)}),
    ],
)
def test_a_column_that_csv_without_headers_lacks_is_an_error(name: str, options: dict[str, Any]) -> None:
    """Before the first message: no row would have it, and each would silently have the time of its message."""
    given = FormatOptions(table="t", columns=("ts", "v", "host"), **options)
    with pytest.raises(OptionsError, match=rf"no column {name!r} \(the columns are ts, v, host\)"):
        check_options("csv", given)


def stream(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def test_arrow_streams_are_rows_and_cut_ones_are_not() -> None:
    """Arrow itself takes a cut between two batches for the end of a stream."""
    good = stream(pa.table({"host": ["a", "b"], "time": [1, 2], "x": [1, 2]}))
    other = stream(pa.table({"host": ["c"], "time": pa.array([3], pa.timestamp("ns")), "x": [0.5]}))
    messages = [good, good[:-8], other, good[: len(good) // 2], good + b"x", b"junk", None]
    result = parsed("arrow", messages, FormatOptions(table="t", tags=("host",)))
    assert [("a", 1.0), ("b", 2.0), ("c", 0.5)] == [(row["host"], row["x"]) for row in rows_of(result)]
    assert [1, 3, 4, 5] == [message for message, _, _ in refusals(result)]
    assert "cut" in refusals(result)[0][2]


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())])
@pytest.mark.parametrize(
    "dictionaries",
    [
        [["a", "b"], ["b", "", "c"], [None, "a"], []],
        [["a", "b"]] * 3 + [["b", "a"]] * 3 + [["a", "b"]] * 2,
        [["a", "", "c"]] * 4,
        [["a", None, "c"]] * 4,
    ],
)
def test_encoded_text_is_the_text(kind: pa.DataType, dictionaries: list[list[str | None]]) -> None:
    """Tags and fields that are dictionaries: another one in each message, the same in several;
    of nulls, of empty texts, with nulls inside.
    """
    plain, encoded = [], []
    for number, words in enumerate(dictionaries):
        indices = [0, 1, None, len(words) - 1] if words else [None] * 4
        texts = pa.DictionaryArray.from_arrays(pa.array(indices, kind.index_type), pa.array(words, kind.value_type))
        rest = {"time": [4 * number + each for each in range(4)], "x": [1, 2, 3, 4]}
        encoded.append(stream(pa.table({"host": texts, "note": texts, **rest})))
        decoded = texts.cast(pa.string())
        plain.append(stream(pa.table({"host": decoded, "note": decoded, **rest})))
    options = FormatOptions(table="t", tags=("host",))
    assert rows_of(parsed("arrow", plain, options)) == rows_of(parsed("arrow", encoded, options))
    assert 4 * len(dictionaries) == len(rows_of(parsed("arrow", encoded, options)))


def test_a_row_of_a_stream_costs_itself() -> None:
    """Its number is that in its message; members of structs are values of paths."""
    table = pa.table({"h": ["a", None], "at": [1, 2], "n": [{"x": 1.5}, None]})
    sources = ((("h",), "host"), (("at",), "time"), (("n", "x"), "x"))
    result = parsed("arrow", [stream(table)] * 2, FormatOptions(table="t", tags=("host",), sources=sources))
    assert [{"host": "a", "time": 1, "x": 1.5}] * 2 == rows_of(result)
    assert [(0, 1, "no field has a value"), (1, 1, "no field has a value")] == refusals(result)


def test_a_path_to_one_of_two_members_is_no_row() -> None:
    """A struct with a name twice refuses its message, as columns do. Both of its values were left out."""
    twins = pa.StructArray.from_arrays([pa.array([1.5]), pa.array([2.5])], ["x", "x"])
    table = pa.table({"at": [1], "v": [7.5], "n": twins})
    sources = ((("at",), "time"), (("v",), "v"), (("n", "x"), "x"))
    result = parsed("arrow", [stream(table)], FormatOptions(table="t", sources=sources))
    assert [(0, 0, "column 'x' is there twice")] == refusals(result)


@pytest.mark.parametrize(
    ("good", "bad", "kind", "word"),
    [
        (1, 2**63, pa.uint64(), "int64"),
        (Decimal("1.25"), Decimal("12345678901234567.89"), pa.decimal128(30, 2), "float64"),
        (Decimal(7), Decimal(2**63), pa.decimal128(30, 0), "int64"),
        (Decimal(-(2**63)), Decimal(-(2**63) - 1), pa.decimal256(60, 0), "int64"),
        (0, 2**62, pa.timestamp("ms"), "outside the years"),
        (0, -(2**62), pa.timestamp("us", "UTC"), "outside the years"),
        (0, 2**31 - 1, pa.date32(), "outside the years"),
    ],
)
def test_a_value_that_does_not_fit_costs_its_row(good: Any, bad: Any, kind: pa.DataType, word: str) -> None:
    """Not those of the messages beside it; and no text that is no date is written in its place."""
    values = [pa.array([each], kind) if isinstance(each, Decimal) else as_kind(each, kind) for each in (good, bad)]
    messages = [stream(pa.table({"time": [number], "v": each, "w": [1.5]})) for number, each in enumerate(values)]
    result = parsed("arrow", messages, FormatOptions(table="t"))
    assert [0] == [row["time"] for row in rows_of(result)]
    [(message, line, reason)] = refusals(result)
    assert (1, 0) == (message, line)
    assert word in reason
    as_tag = parsed("arrow", messages, FormatOptions(table="t", tags=("v",)))
    assert (1 if "years" in word else 2) == as_tag.rows


def as_kind(number: int, kind: pa.DataType) -> pa.Array:
    """A number as the bits of another type."""
    return pa.array([number], pa.int32() if pa.types.is_date32(kind) else kind).cast(kind)


def test_framed_json_is_json_behind_its_frame() -> None:
    """A message without a frame is refused, a short one too."""
    frame = b"\0\0\0\0\1"
    messages = [frame + b'{"time":1,"x":2}', b'{"time":1,"x":2}', b"\0", frame, None]
    result = parsed("confluent-json", messages, FormatOptions(table="t"))
    assert [{"time": 1, "x": 2.0}] == rows_of(result)
    assert [1, 2] == [message for message, _, _ in refusals(result)]


MAPPING = """
[topics.raw]
database = "plant"
table = "pumps"
tags = { site = "meta.site", pump = 'meta."pump.id"' }
static_tags = { region = "north" }
time = { path = "ts", unit = "ms" }
[topics.raw.fields]
flow = { path = "v.flow", type = "float64" }
state = "v.state"
[topics.plain]
table_path = "kind"
tags = ["site"]
"""


def test_a_mapping_names_what_is_read() -> None:
    """Paths with their names, types, the unit of the time; without fields every member is read."""
    found = read_mapping(MAPPING, "raw")
    assert "plant" == found.database
    assert ("pumps", ("site", "pump"), (("region", "north"),), "ms") == (
        found.options.table,
        found.options.tags,
        found.options.static_tags,
        found.options.time_unit,
    )
    assert {
        "site": ("meta", "site"),
        "pump": ("meta", "pump.id"),
        "flow": ("v", "flow"),
        "state": ("v", "state"),
        "time": ("ts",),
    } == {name: path for path, name in found.options.sources}
    assert (("flow", FieldType.FLOAT64),) == found.options.typed
    plain = read_mapping(MAPPING, "plain").options
    assert ((), "kind", ("site",)) == (plain.sources, plain.table_column, plain.tags)
    message = b'{"ts":1767225600000,"meta":{"site":"s","pump.id":7},"v":{"flow":1}}'
    [row] = parsed("json", [message], found.options).tables["pumps"].to_pylist()
    assert {"pump": "7", "region": "north", "site": "s", "time": 1767225600000 * 10**6, "flow": 1.0} == row


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("influx", MAPPED),
        ("json", FormatOptions(table="t", columns=("a",))),
        *((form, FormatOptions()) for form in ("csv", "arrow", "avro", "json")),
    ],
)
def test_options_that_do_not_fit_the_format_are_errors_before_the_first_message(
    form: str, options: FormatOptions
) -> None:
    """Paths for line protocol, columns for JSON, and readings without a table."""
    with pytest.raises(OptionsError):
        parsed(form, [], options)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[topics.raw", "not TOML"),
        ("[topic.raw]", "did you mean topics"),
        ("[topics.raws]", "did you mean raws"),
        ("[topics.raw]\ntabel = 't'", "did you mean table"),
        ("[topics.raw]\ntime = { units = 'ms' }", "did you mean unit"),
        ("[topics.raw]\ntime = { unit = 'weeks' }", "weeks"),
        ("[topics.raw]\n[topics.raw.fields]\nx = { pat = 'a' }", "did you mean path"),
        ("[topics.raw]\n[topics.raw.fields]\nx = { type = 'float' }", "did you mean float64"),
        ("[topics.raw]\n[topics.raw.fields]\nx = 'a..b'", "no path"),
        ("[topics.raw]\n[topics.raw.fields]\nx = 5", "field 'x'"),
        ("[topics.raw]\n[topics.raw.fields]\nx = 'a'\ny = 'a'", "twice"),
        ("[topics.raw]\n[topics.raw.fields]\nx = 'a'\nX = 'b'", "'x' and 'X', which differ only in case"),
        ("[topics.raw]\ntags = { P = 'a' }\n[topics.raw.fields]\np = 'b'", "'P' and 'p', which differ only in case"),
        ("[topics.raw]\n[topics.raw.fields]\nx = 'a'\ny = 'a.b'", "inside of it"),
        ("[topics.raw]\n[topics.raw.fields]\ntime = 'a'", "time"),
        ("[topics.raw]\ntags = { host = 'meta.host' }", "name its fields"),
        ("[topics.raw]\ntags = 5", "tags of topic"),
        ('[topics.t]\ntags = ["h"]\n[topics.t.fields]\nh = "x"', "as a tag and as a field"),
        ('[topics.t]\nstatic_tags = { h = "a" }\n[topics.t.fields]\nh = "x"', "as a tag and as a field"),
        ('[topics.t]\nstatic_tags = { time = "a" }', "topic 't': tag name 'time' is reserved"),
        ('[topics.t]\nstatic_tags = { "" = "a" }', "topic 't': a tag name is empty"),
    ],
)
def test_a_wrong_mapping_is_named(text: str, word: str) -> None:
    """With what would be right."""
    with pytest.raises(MappingInvalid) as raised:
        read_mapping(text, "raw")
    assert word in str(raised.value)
