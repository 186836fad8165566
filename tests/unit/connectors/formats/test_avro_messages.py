"""Messages of Avro records: the compiled decoder against fastavro, and what costs a message its rows."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import avro_kernel, avro_rows, schema_store
from headrace.connectors.formats.avro_rows import Payloads, decode_records
from headrace.connectors.formats.avro_schema import (
    DEPTH_MAX,
    OPERATIONS_MAX,
    Op,
    Program,
    SchemaUnusable,
    compile_schema,
    parse_schema,
)
from headrace.connectors.formats.interface import TAG_TYPE, FormatOptions, OptionsError, ParseResult, SchemaPlace
from headrace.connectors.formats.parser import parse_messages
from headrace.connectors.formats.schema_store import RegistryUnavailable, SchemaStore, SchemaUnknown, check_place
from headrace.schemas.tables import FieldType
from tests.schema_registry import schema_registry

T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
T0_NS = int(T0.timestamp()) * 10**9

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "string": ("string", TEXT),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda whole: Decimal(whole).scaleb(-3)),
    ),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[str, ...]], list[dict[str, Any]]]:
    """A schema, the paths of its plain values, and records: nullable values, records in records, arrays and maps."""
    fields: list[dict[str, Any]] = []
    paths: list[tuple[str, ...]] = []
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*SCALARS, "array", "map", "record"]), max_size=6))):
        name = f"f{number}"
        inner, values = SCALARS[draw(st.sampled_from(["int", "string", "double"]))]
        if kind in SCALARS:
            schema, strategy = SCALARS[kind]
            if kind == "enum":
                schema = {**schema, "name": f"E{number}"}
            paths.append((name,))
        elif kind == "array":
            schema, strategy = {"type": "array", "items": inner}, st.lists(values, max_size=4)
        elif kind == "map":
            schema, strategy = {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
        else:
            schema = {"type": "record", "name": f"R{number}", "fields": [{"name": "v", "type": ["null", inner]}]}
            strategy = st.fixed_dictionaries({"v": st.none() | values})
            paths.append((name, "v"))
        union = draw(st.sampled_from(["plain", "first", "last"]))
        if union != "plain":
            schema = ["null", schema] if union == "first" else [schema, "null"]
            strategy = st.none() | strategy
        fields.append({"name": name, "type": schema})
        strategies[name] = strategy
    records = draw(st.lists(st.fixed_dictionaries(strategies), max_size=5))
    return {"type": "record", "name": "T", "fields": fields}, paths, records


def encoded(schema: Any, record: dict[str, Any]) -> bytes:
    """A record as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def program_of(schema: Any, paths: list[tuple[str, ...]] | tuple[()] = ()) -> Program:
    """The program of a schema."""
    return compile_schema(*parse_schema(json.dumps(schema)), paths)


def decoded(program: Program, messages: list[bytes]) -> tuple[list[list[Any]], list[int]]:
    """(the values of each message in order of the columns, the faults)."""
    table, faults = decode_records(Payloads.of(pa.array(messages, pa.binary())), program)
    return [list(row.values()) for row in table.to_pylist()] if table.num_columns else [], faults.tolist()


def at(record: Any, path: tuple[str, ...]) -> Any:
    """The value at a path; None behind a record that is null."""
    for name in path:
        record = None if record is None else record[name]
    return record


@settings(max_examples=150, deadline=None)
@given(cases())
def test_records_are_read_as_fastavro_reads_them(
    case: tuple[dict[str, Any], list[tuple[str, ...]], list[dict[str, Any]]],
) -> None:
    """Every value that a path names, whatever is skipped around it."""
    schema, paths, records = case
    if not paths:
        return
    messages = [encoded(schema, record) for record in records]
    read = [fastavro.schemaless_reader(io.BytesIO(message), schema, None) for message in messages]
    program = program_of(schema, paths)
    assert set(paths) == {column.path for column in program.columns}
    rows, faults = decoded(program, messages)
    assert [0] * len(messages) == faults
    assert [[at(record, column.path) for column in program.columns] for record in read] == rows


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 12))
def test_texts_that_become_tags_are_encoded_in_one_chunk(
    case: tuple[dict[str, Any], list[tuple[str, ...]], list[dict[str, Any]]], cells_max: int
) -> None:
    """The same texts, and nulls where there are none, also of records that are decoded in several slices."""
    schema, paths, records = case
    if not paths:
        return
    program = program_of(schema, paths)
    texts = {column.path for column in program.columns if column.op is Op.TEXT and column.kind == pa.string()}
    messages = [encoded(schema, record) for record in records]
    plain, _ = decoded(program, messages)
    payloads = Payloads.of(pa.array(messages, pa.binary()))
    with mock.patch.object(avro_rows, "CELLS_MAX", cells_max):
        table, faults = decode_records(payloads, program, texts)
    assert not faults.any()
    if plain:
        assert plain == [list(row.values()) for row in table.to_pylist()]
    for column, values in zip(program.columns, table.columns, strict=True):
        if column.path in texts:
            assert TAG_TYPE == values.type
            assert values.num_chunks == 1
            assert values.chunk(0).dictionary.null_count == 0


TAGS = ("a", "b", "c")
TAGGED = {"type": "record", "name": "T", "fields": [{"name": name, "type": "string"} for name in TAGS]}


SHIFTED = [((b"a", b"\2a", b""), (1, 1, 1)), ((b"a\4", b"a", b""), (1, 1, 1))]
"""Two records of TAGGED with the same bytes behind the first length."""


def tagged(texts: Sequence[bytes], widths: Sequence[int]) -> bytes:
    """A record of TAGGED; each length takes that many bytes, which Avro allows and no writer does."""
    parts = []
    for text, width in zip(texts, widths, strict=True):
        length = [2 * len(text) | 0x80, *[0x80] * (width - 2), 0] if width > 1 else [2 * len(text)]
        parts.append(bytes(length) + text)
    return b"".join(parts)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_tags_that_repeat_together_are_those_of_each_record(data: st.DataObject) -> None:
    """Also texts that look like the length of the next one, and lengths of more bytes than they need."""
    texts = st.tuples(*[st.text("\0\2\4\x08a", max_size=4).map(str.encode)] * len(TAGS))
    widths = st.tuples(*[st.sampled_from([1, 1, 1, 2, 3])] * len(TAGS))
    distinct = data.draw(st.lists(st.tuples(texts, widths), max_size=5)) + data.draw(st.sampled_from([[], SHIFTED]))
    if not distinct:
        return
    rows = data.draw(st.lists(st.sampled_from(distinct), min_size=1, max_size=40))
    payloads = Payloads.of(pa.array([tagged(*row) for row in rows], pa.binary()))
    table, faults = decode_records(payloads, program_of(TAGGED), [(name,) for name in TAGS])
    assert not faults.any()
    assert [texts for texts, _ in rows] == [tuple(v.encode() for v in row.values()) for row in table.to_pylist()]
    for column in table.columns:
        dictionary = column.chunk(0).dictionary
        assert len(dictionary) == len(dictionary.unique()), "a text is in its dictionary once"


def test_a_schema_has_a_limit_also_of_doubles() -> None:
    """Doubles side by side are one operation, and each takes memory all the same."""
    fields = [{"name": f"f{number}", "type": "double"} for number in range(OPERATIONS_MAX + 1)]
    with pytest.raises(SchemaUnusable, match="more than 20,000 values"):
        program_of({"type": "record", "name": "T", "fields": fields})
    assert 20_000 == len(program_of({"type": "record", "name": "T", "fields": fields[:-1]}).columns)


def test_a_decimal_beside_tags_stays_a_decimal() -> None:
    """It has its bytes as a text has, and may be a tag as well."""
    decimals = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    fields = [{"name": name, "type": decimals if name == "b" else "string"} for name in TAGS]
    schema = {"type": "record", "name": "T", "fields": fields}
    record = {"a": "x", "b": Decimal("12.30"), "c": "y"}
    payloads = Payloads.of(pa.array([encoded(fastavro.parse_schema(schema), record)] * 4, pa.binary()))
    table, _ = decode_records(payloads, program_of(schema), [(name,) for name in TAGS])
    assert [tuple(record.values())] * 4 == [tuple(row.values()) for row in table.to_pylist()]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_doubles_that_follow_each_other_are_read_one_by_one(data: st.DataObject) -> None:
    """Whichever of them are chosen, whatever stands between them, and wherever the record is cut."""
    kinds = data.draw(st.lists(st.sampled_from(["double", "double", "double", "float", "int"]), min_size=1, max_size=9))
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    schema = {"type": "record", "name": "T", "fields": fields}
    record = {
        each["name"]: float(number + 1) if each["type"] != "int" else number for number, each in enumerate(fields)
    }
    paths: list[tuple[str, ...]] = [(each["name"],) for each in fields if data.draw(st.booleans())]
    message = encoded(schema, record)
    program = program_of(schema, paths)
    rows, faults = decoded(program, [message, *(message[:end] for end in range(len(message))), message])
    expected = [record[column.path[0]] for column in program.columns]
    assert [0, *[1] * len(message), 0] == faults
    assert expected == rows[0] == rows[-1]


def test_a_tag_that_is_no_text_costs_its_message(tmp_path: Path) -> None:
    """Bytes of a tag that are not UTF-8 reject that message, and the others keep their tags."""
    (tmp_path / "7.avsc").write_text(json.dumps(READING), "utf-8-sig")
    good = framed(READING, ROW, 7)
    name = str(ROW["host"]).encode()
    assert good.count(name) == 1
    bad = good.replace(name, b"\xff" * len(name))
    result = parsed("confluent-avro", [good, bad, good], SchemaPlace(str(tmp_path)))
    assert [ROW["host"]] * 2 == result.tables["t"].column("host").to_pylist()
    [refusal] = result.rejections()
    assert (1, True) == (refusal.message, "UTF-8" in refusal.reason)


@settings(max_examples=150, deadline=None)
@given(cases(), st.data())
def test_cut_and_changed_records_never_harm_their_neighbours(
    case: tuple[dict[str, Any], list[tuple[str, ...]], list[dict[str, Any]]], data: st.DataObject
) -> None:
    """A record without its end is a fault, any bytes are either read or a fault, and the records beside are read."""
    schema, paths, records = case
    if not paths or not records:
        return
    message = encoded(schema, records[0])
    cut = message[: data.draw(st.integers(0, max(0, len(message) - 1)))]
    noise = data.draw(st.binary(max_size=40))
    program = program_of(schema, paths)
    alone, _ = decoded(program, [message])
    rows, faults = decoded(program, [message, cut, noise, message + b"\0", message])
    assert faults[0] == faults[4] == 0
    assert alone * 2 == [rows[0], rows[4]]
    assert faults[1] != 0
    assert faults[3] != 0


def test_a_few_bytes_cannot_name_items_without_end() -> None:
    """Arrays whose items take no bytes are bounded by the message."""
    schema = {
        "type": "record",
        "name": "T",
        "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}, {"name": "x", "type": "int"}],
    }
    huge = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F])
    _, faults = decoded(program_of(schema, [("x",)]), [huge + b"\0\2", b"\4\0\2"])
    assert [7, 0] == faults


def test_the_cached_loop_is_that_of_the_operations() -> None:
    """Numba keeps machine code by the file of the loop alone: that file names the operations that it was compiled for."""
    names = " ".join(op.name for op in sorted(Op))
    assert f"{min(Op)}-{max(Op)} {names}; depth {DEPTH_MAX}; doubles have a count" == avro_kernel.LAYOUT


READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "host", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "x", "type": "int"},
    ],
}
LATER = {
    **READING,
    "fields": [*READING["fields"][:2], {"name": "x", "type": ["double", "null"]}, {"name": "on", "type": "boolean"}],
}
MIXED = {"type": "record", "name": "Mixed", "fields": [{"name": "x", "type": ["int", "string"]}]}
ROW = {"host": "a", "time": T0, "x": 3}


def framed(schema: Any, record: dict[str, Any], number: int) -> bytes:
    """A record as Confluent's serializer frames it."""
    return b"\0" + number.to_bytes(4, "big") + encoded(schema, record)


def parsed(form: str, messages: Sequence[bytes | None], place: SchemaPlace, **options: Any) -> ParseResult:
    """The readings of messages of table t, tag host."""
    given = FormatOptions(**{"table": "t", "tags": ("host",), "schemas": place, **options})
    return parse_messages(form, pa.array(messages, pa.binary()), None, given)


def test_schemas_change_from_message_to_message(tmp_path: Path) -> None:
    """Fields meet by name, an int that becomes double widens, and the rows keep the order of the messages."""
    for number, schema in ((7, READING), (9, LATER)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    later = {"host": "b", "time": T0, "x": 0.5, "on": True}
    messages = [framed(READING, ROW, 7), framed(LATER, later, 9), None, b"", framed(READING, ROW, 7)]
    result = parsed("confluent-avro", messages, SchemaPlace(str(tmp_path)))
    assert [(3.0, None), (0.5, True), (3.0, None)] == [(row["x"], row["on"]) for row in result.tables["t"].to_pylist()]
    assert [] == result.rejections()


def test_what_is_wrong_with_a_message_costs_that_message(tmp_path: Path) -> None:
    """Half a message, an id without a schema, no frame, and a union of two types; the others are rows."""
    for number, schema in ((7, READING), (9, MIXED)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    good = framed(READING, ROW, 7)
    messages = [good, good[:-1], good[:4] + b"\x08" + good[5:], b"junk!", framed(MIXED, {"x": 1}, 9), good[:3], good]
    result = parsed("confluent-avro", messages, SchemaPlace(str(tmp_path)))
    assert 2 == result.rows
    words = [(1, "cut"), (2, "no schema 8"), (3, "no Confluent frame"), (4, "union of int and string"), (5, "frame")]
    for (message, word), refusal in zip(words, result.rejections(), strict=True):
        assert message == refusal.message
        assert word in refusal.reason
    sources = tuple(((name,), name) for name in ("host", "time", "x"))
    chosen = parsed("confluent-avro", messages, SchemaPlace(str(tmp_path)), sources=sources)
    assert result.rejections() == chosen.rejections()


def test_plain_records_have_one_schema(tmp_path: Path) -> None:
    """A file, or the only one of a directory; what is wrong with it is an error before the first message."""
    file = tmp_path / "reading.avsc"
    # With the mark that some editors put before a text.
    file.write_text(json.dumps(READING), "utf-8-sig")
    for path in (file, tmp_path):
        result = parsed("avro", [encoded(READING, ROW), encoded(READING, ROW)[:-1]], SchemaPlace(str(path)))
        assert [{"host": "a", "time": T0_NS, "x": 3}] == result.tables["t"].to_pylist()
        assert ["the message is cut: it ends inside of its record"] == [each.reason for each in result.rejections()]
    wrong = SchemaPlace(str(file))
    with pytest.raises(OptionsError, match="did you mean host"):
        parsed("avro", [], wrong, sources=((("hosts",), "host"),))
    several = tmp_path / "several"
    several.mkdir()
    for name in ("mixed", "other"):
        (several / f"{name}.avsc").write_text(json.dumps(MIXED))
    for place, word in (
        (SchemaPlace(str(several)), "2 schemas"),
        (SchemaPlace(str(several / "mixed.avsc")), "union of int and string"),
        (SchemaPlace(str(tmp_path / "none.avsc")), "cannot be read"),
        (SchemaPlace(), "need their schemas"),
        (SchemaPlace(registry="http://r:1"), "no schema ids"),
    ):
        with pytest.raises(OptionsError, match=word):
            parsed("avro", [], place)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ("{", "not JSON"),
        ('"string"', "a reading is a record"),
        ('{"type": "record", "name": "T", "fields": [{"name": "x", "type": "Nope"}]}', "Nope"),
        ('{"type": "record", "name": "T", "fields": [{"name": "x", "type": ["null", "T"]}]}', "a record"),
        ('{"type": "record", "name": "T", "fields": [{"name": "x", "type": "bytes"}]}', "'x' is bytes"),
        (
            '{"type": "record", "name": "T", "fields": [{"name": "x", "type": {"type": "map", "values": "int"}}]}',
            "a map",
        ),
        ('{"type": "record", "name": "T", "fields": [{"name": 1, "type": "int"}]}', "1 is no name"),
        ('{"type": "record", "name": "T", "fields": [{"name": "x", "type": ["null", ["int", "long"]]}]}', "union as a"),
        *(
            (json.dumps({"type": "record", "name": "T", "fields": [{"name": "x", "type": kind}]}), word)
            for kind, word in (
                ({"type": "fixed", "name": "F", "size": "16"}, "'16' is no size"),
                ({"type": "bytes", "logicalType": "decimal", "precision": None}, "'x' is a decimal in bytes"),
            )
        ),
    ],
)
def test_a_schema_without_readings_is_named(schema: str, word: str) -> None:
    """With the field at fault."""
    with pytest.raises(SchemaUnusable) as raised:
        compile_schema(*parse_schema(schema))
    assert word in str(raised.value)


def test_typed_columns_follow_the_rules_of_fields() -> None:
    """A decimal with a fraction is a float, a date is text, and a mapped type decides about an integer."""
    fields = [
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "n", "type": "long"},
    ]
    schema = {"type": "record", "name": "T", "fields": fields}
    message = encoded(schema, {"d": Decimal("-1.25"), "day": datetime.date(2026, 1, 2), "n": 5})
    with schema_registry() as registry:
        number = registry.register(schema)
        frame = b"\0" + number.to_bytes(4, "big")
        given = FormatOptions(table="t", schemas=SchemaPlace(registry=registry.url), typed=(("n", FieldType.FLOAT64),))
        values, times = pa.array([frame + message], pa.binary()), pa.array([1_000], pa.int64())
        [row] = parse_messages("confluent-avro", values, times, given).tables["t"].to_pylist()
    assert {"d": -1.25, "day": "2026-01-02", "n": 5.0, "time": 10**9} == row
    assert isinstance(row["n"], float)


@pytest.mark.parametrize("precision", [1, 18, 19, 20, 37, 38])
def test_decimals_have_up_to_38_digits(precision: int) -> None:
    """Beyond 18 a limit is no int64. A value with more digits than its type costs its row."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 1}
    wide = {**kind, "precision": min(38, precision + 1)}
    whole = [1, -1, 10**precision - 1, 1 - 10**precision, *([10**precision] if precision < 38 else [])]
    schema = {"type": "record", "name": "T", "fields": [{"name": "d", "type": kind}]}
    wider = {**schema, "fields": [{"name": "d", "type": wide}]}
    with schema_registry() as registry:
        frame = b"\0" + registry.register(schema).to_bytes(4, "big")
        given = FormatOptions(table="t", schemas=SchemaPlace(registry=registry.url))
        with decimal.localcontext(prec=60):
            values = [frame + encoded(wider, {"d": Decimal(each).scaleb(-1)}) for each in whole]
        parsed = parse_messages("confluent-avro", pa.array(values, pa.binary()), pa.array([1] * len(values)), given)
    kept = [each for each in whole if abs(each) < 10**precision]
    # One that float64 cannot hold is refused, as everywhere.
    assert [0.1, -0.1] == parsed.tables["t"]["d"].to_pylist()[:2]
    assert len(kept) == 4
    assert parsed.tables["t"].num_rows + parsed.rejected.num_rows == len(whole)


@pytest.mark.parametrize("size", [5, 16, 17, 32])
def test_a_decimal_may_have_more_bytes_than_it_needs(size: int) -> None:
    """Those of a fixed are filled up with the sign; any other byte there makes it a number that is too large."""
    kind = {"type": "fixed", "name": "wide", "size": size, "logicalType": "decimal", "precision": 10, "scale": 2}
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    values = [Decimal("-1.50"), Decimal("0.00"), Decimal("12345678.99"), Decimal("-12345678.99"), Decimal("-0.01")]
    messages = [encoded(schema, {"x": each}) for each in values]
    assert ([[each] for each in values], [0] * len(values)) == decoded(program_of(schema), messages)
    if size > 16:
        other_sign = b"\x80" + messages[1][1:], messages[0][:-16] + b"\x7f" + messages[0][-15:]
        assert [3, 3] == decoded(program_of(schema), [*other_sign])[1]


def test_a_registry_is_asked_once_for_each_schema_and_follows_references() -> None:
    """Types of other subjects are fetched, and an unknown id is a refused message, not an error."""
    point = {"type": "record", "name": "P", "fields": [{"name": "v", "type": "double"}]}
    whole = {"type": "record", "name": "W", "fields": [{"name": "host", "type": "string"}, {"name": "p", "type": "P"}]}
    with schema_registry() as registry:
        registry.register(point, "point-value")
        reference = {"name": "P", "subject": "point-value", "version": 1}
        number = registry.register(whole, "w-value", references=[reference])
        # fastavro itself wants the types in one piece.
        inline = {**whole, "fields": [whole["fields"][0], {"name": "p", "type": point}]}
        good = framed(inline, {"host": "a", "p": {"v": 1.5}}, number)
        options = FormatOptions(
            table="t",
            tags=("host",),
            schemas=SchemaPlace(registry=registry.url),
            sources=((("host",), "host"), (("p", "v"), "v")),
        )
        times = pa.array([1, 1, 1], pa.int64())
        for _ in range(2):
            values = pa.array([good, good[:4] + b"\x63" + good[5:], good], pa.binary())
            result = parse_messages("confluent-avro", values, times, options)
            assert [1.5, 1.5] == result.tables["t"]["v"].to_pylist()
            assert ["the registry has no schema 99"] == [each.reason for each in result.rejections()]
        assert 1 == registry.requests.count(f"/schemas/ids/{number}")


@pytest.mark.parametrize("status", [500, 404, 401])
def test_a_registry_that_does_not_answer_fails_the_input(status: int) -> None:
    """An error of the server, a server that is no registry, and refused access are no fault of the messages."""
    with schema_registry() as registry:
        registry.status = status
        store = SchemaStore(SchemaPlace(registry=registry.url), wait_s=0.0)
        with pytest.raises(RegistryUnavailable):
            store.program(1, ())
    with pytest.raises(RegistryUnavailable, match="gives no schema") as raised:
        SchemaStore(SchemaPlace(registry=registry.url), wait_s=0.0).program(1, ())
    assert raised.value.retriable


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"schema": None},
        [],
        {"schema": '"int"', "references": 5},
        {"schema": '"int"', "references": [{"name": "x"}]},
    ],
)
def test_an_answer_without_a_schema_is_none_of_a_registry(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    """Such as that of a proxy. Messages are not refused for it, and the answer that comes then is taken."""
    with schema_registry() as registry:
        number = registry.register({"type": "record", "name": "R", "fields": [{"name": "v", "type": "double"}]})
        store = SchemaStore(SchemaPlace(registry=registry.url), wait_s=0.0)
        with monkeypatch.context() as patched:
            patched.setattr(type(registry), "answer", lambda *_: (200, answer))
            with pytest.raises(RegistryUnavailable, match="its answer has no schema"):
                store.program(number, ())
        assert 1 == len(store.program(number, ()).columns)


def test_an_unknown_id_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged messages repeat no request, an id that comes is found, and the ids kept are limited."""
    monkeypatch.setattr(schema_store, "UNKNOWN_MAX", 3)
    now = 0.0
    with schema_registry() as registry:
        store = SchemaStore(SchemaPlace(registry=registry.url), clock=lambda: now)

        def ask(number: int) -> None:
            with pytest.raises(SchemaUnknown, match=f"no schema {number}"):
                store.program(number, ())

        for number in (1, 1, 7, 7, 1):
            ask(number)
        assert ["/schemas/ids/1", "/schemas/ids/7"] == registry.requests
        registry.register({"type": "record", "name": "R", "fields": [{"name": "v", "type": "double"}]})
        ask(1)
        now = schema_store.UNKNOWN_AGE_S
        assert ["v"] == [column.path[0] for column in store.program(1, ()).columns]
        for number in (8, 9, 10, 11, 8):
            ask(number)
        assert 3 + 5 == len(registry.requests)


def test_a_registry_gets_the_password_that_it_wants() -> None:
    """User and password of the place, which no text of it shows; without them it refuses access."""
    with schema_registry() as registry:
        registry.login = "reader:s3cret"
        registry.register({"type": "record", "name": "R", "fields": [{"name": "v", "type": "double"}]})
        with pytest.raises(RegistryUnavailable, match=r"refuses access.*ingest\.registry_user"):
            SchemaStore(SchemaPlace(registry=registry.url), wait_s=0.0).program(1, ())
        place = SchemaPlace(registry=registry.url, user="reader", password="s3cret")
        assert 1 == len(SchemaStore(place, wait_s=0.0).program(1, ()).columns)
        assert "s3cret" not in repr(place)
    with pytest.raises(OptionsError, match="must not have a user") as raised:
        check_place(SchemaPlace(registry="http://reader:s3cret@registry"), numbered=True)
    assert "s3cret" not in str(raised.value)
    for url in ("http://r:", "http://r:x", "http://r:70000", "http://[::1]:", "ftp://r"):
        with pytest.raises(OptionsError, match="no URL of a registry"):
            check_place(SchemaPlace(registry=url), numbered=True)
    for url in ("http://r", "https://r:8081/path", "http://[::1]:81", "http://[::1]"):
        check_place(SchemaPlace(registry=url), numbered=True)
