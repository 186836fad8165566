"""Values and types in messages of Avro and Arrow that no reading can have: they cost their row, never the job."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats.arrow_tables import normalise
from headrace.connectors.formats.interface import FormatOptions, ParseResult, SchemaPlace
from headrace.connectors.formats.parser import parse_buffer, parse_messages
from headrace.connectors.formats.row_rules import check_arrays
from headrace.schemas.tables import FieldType
from tests.unit.connectors.formats.test_row_rules import parquet

MESSAGE_TIME_NS = 5_000_000
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
TIMES_OF_DAY = (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
FIXED = (
    *TIMES_OF_DAY,
    *(pa.int8(), pa.uint64(), pa.float16(), pa.date32(), pa.date64(), pa.binary(8), pa.uuid()),
    *(pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Nowhere/Land"), pa.duration("ms")),
    *(pa.decimal32(5, 2), pa.decimal64(12, 0), pa.decimal128(38, 3), pa.decimal256(76, 0)),
    pa.month_day_nano_interval(),
)


def bits(kind: pa.DataType, numbers: list[int]) -> pa.Array:
    """Numbers as the bits of another type."""
    width = kind.bit_width // 8
    data = b"".join((number % 2 ** (8 * width)).to_bytes(width, "little") for number in numbers)
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    array = pa.Array.from_buffers(storage, len(numbers), [None, pa.py_buffer(data)])
    return array if storage == kind else pa.ExtensionArray.from_storage(kind, array)


def stream(columns: dict[str, pa.Array]) -> bytes:
    """A message of these columns, which nothing checks."""
    out = io.BytesIO()
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def parsed(form: str, messages: list[bytes], **options: Any) -> ParseResult:
    """The readings of messages that all have one timestamp; every row is one that a log takes."""
    stamps = pa.array([MESSAGE_TIME_NS // 10**6] * len(messages))
    result = parse_messages(form, pa.array(messages, pa.binary()), stamps, FormatOptions(table="t", **options))
    for rows in result.tables.values():
        check_arrays(rows)
    return result


def refused(result: ParseResult) -> list[tuple[int | None, int]]:
    """(message, line) of each refused row."""
    return [(each.message, each.line) for each in result.rejections()]


@pytest.mark.parametrize("logical", ["time-millis", "time-micros"])
@pytest.mark.parametrize("role", ["field", "tag", "time"])
@pytest.mark.parametrize("form", ["plain", "nullable"])
def test_a_time_of_day_of_avro_outside_its_day_costs_its_message(
    tmp_path: Path, logical: str, role: str, form: str
) -> None:
    """As field, tag and time, nullable or not; the messages beside it are rows, and the reason says what is wrong."""
    base, day = ("int", DAY["ms"]) if logical == "time-millis" else ("long", DAY["us"])
    kind: Any = {"type": base, "logicalType": logical}
    name = "time" if role == "time" else "tod"
    own = {"name": name, "type": ["null", kind] if form == "nullable" else kind}
    schema = {"type": "record", "name": "T", "fields": [own, {"name": "v", "type": "double"}]}
    (tmp_path / "t.avsc").write_text(json.dumps(schema))
    bare = {
        **schema,
        "fields": [{"name": name, "type": ["null", base] if form == "nullable" else base}, schema["fields"][1]],
    }
    messages = []
    for number in (0, day, day - 1, -1):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, bare, {name: number, "v": 1.5})
        messages.append(out.getvalue())
    place = SchemaPlace(str(tmp_path))
    result = parsed("avro", messages, schemas=place, tags=("tod",) if role == "tag" else ())
    if role == "time":
        assert [(number, 0) for number in range(4)] == refused(result)
        assert {"the time has type"} == {each.reason[:17] for each in result.rejections()}
        return
    assert [(1, 0), (3, 0)] == refused(result)
    assert {f"{role} 'tod' has times of day outside 00:00 to 24:00"} == {each.reason for each in result.rejections()}
    assert ["00:00:00", "23:59:59"] == [text[:8] for text in result.tables["t"]["tod"].to_pylist()]


@pytest.mark.parametrize("kind", TIMES_OF_DAY)
@pytest.mark.parametrize("role", ["field", "tag", "time"])
@pytest.mark.parametrize("form", ["plain", "encoded", "in a struct"])
def test_a_time_of_day_of_arrow_outside_its_day_costs_its_row(kind: pa.DataType, role: str, form: str) -> None:
    """Plain, in a dictionary and in a struct; the rows beside it in the same message are taken."""
    name = "time" if role == "time" else "tod"
    column: pa.Array = bits(kind, [0, DAY[kind.unit], -1, DAY[kind.unit] - 1])
    options: dict[str, Any] = {"tags": ("tod",) if role == "tag" else ()}
    if form == "encoded":
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3], pa.int8()), column)
    if form == "in a struct":
        column = pa.StructArray.from_arrays([column], [name])
        options["sources"] = (((name, name), name), (("v",), "v"))
    result = parsed("arrow", [stream({name: column, "v": pa.array([1.5] * 4)})], **options)
    if role == "time":
        assert [(0, 0), (0, 1), (0, 2), (0, 3)] == refused(result)
        return
    assert [(0, 1), (0, 2)] == refused(result)
    assert {f"{role} 'tod' has times of day outside 00:00 to 24:00"} == {each.reason for each in result.rejections()}
    assert ["00:00:00", "23:59:59"] == [text[:8] for text in result.tables["t"]["tod"].to_pylist()]


def test_a_dictionary_of_times_of_day_is_still_checked() -> None:
    """An index outside of it beside such a time is found before anything reads it."""
    times = bits(pa.time32("s"), [-1])
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), times, safe=False)
    result = parsed("arrow", [stream({"v": wrong, "x": pa.array([1.5, 2.5])})])
    assert [(0, 0)] == refused(result)
    assert "out of bounds" in result.rejections()[0].reason


def test_a_column_of_such_times_in_parquet_is_named() -> None:
    """Tags of a file are all usable, or the file is refused with what is wrong with them."""
    data = parquet(time=pa.array([1, 2]), tod=bits(pa.time32("ms"), [0, -1]), v=pa.array([1.5, 2.5]))
    with pytest.raises(Exception, match="tag 'tod' has times of day outside"):
        parse_buffer("parquet", data, FormatOptions(table="t", tags=("tod",)))


def test_a_decimal_of_39_digits_costs_its_message(tmp_path: Path) -> None:
    """Sixteen bytes hold them, and no type of Arrow or Avro does; both signs."""
    kind = {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 0}
    schema = {"type": "record", "name": "T", "fields": [{"name": "d", "type": kind}, {"name": "v", "type": "double"}]}
    (tmp_path / "t.avsc").write_text(json.dumps(schema))
    wholes = [7, 10**38, -(10**38), -7]
    messages = [whole.to_bytes(16, "big", signed=True) + bytes(8) for whole in wholes]
    result = parsed("avro", messages, schemas=SchemaPlace(str(tmp_path)))
    assert [7, -7] == result.tables["t"]["d"].to_pylist()
    assert [(1, 0), (2, 0)] == refused(result)


@pytest.mark.parametrize(
    "kind", [pa.decimal128(4, 0), pa.decimal128(18, 0), pa.decimal128(19, 0), pa.decimal256(40, 0)]
)
def test_a_whole_decimal_may_be_null(kind: pa.DataType) -> None:
    """Its row has its other values, whatever digits the type has."""
    columns = {"d": pa.array([None, 7], kind), "v": pa.array([1.5, 2.5])}
    result = parsed("arrow", [stream(columns)])
    assert [] == refused(result)
    assert [(None, 1.5), (7, 2.5)] == [(row["d"], row["v"]) for row in result.tables["t"].to_pylist()]


@pytest.mark.parametrize("kind", [pa.decimal32(4, 0), pa.decimal32(4, -2), pa.decimal64(4, 0), pa.decimal64(4, -2)])
def test_whole_decimals_of_few_bits_are_integers(kind: pa.DataType) -> None:
    """In messages and in files; pyarrow and Spark write them where the precision is small."""
    column, wholes = bits(kind, [-191, 9_999]), [-191 * 10**-kind.scale, 9_999 * 10**-kind.scale]
    assert wholes == parsed("arrow", [stream({"d": column})]).tables["t"]["d"].to_pylist()
    columns = {"time": pa.array([1, 2]), "d": column}
    assert wholes == normalise(pa.table(columns), FormatOptions()).column("d").to_pylist()


@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal256(76, -2)])
def test_a_decimal_of_a_negative_scale_harms_no_other_message(kind: pa.DataType) -> None:
    """As float64, and where one of its values is above int64: Arrow has few functions for such."""
    good, numbers = stream({"v": pa.array([1.5])}), [12, 10**kind.precision - 1]
    bad = stream({"d": bits(kind, numbers)})
    for declared in (FieldType.FLOAT64, FieldType.INT64):
        result = parsed("arrow", [good, bad, good], declared={"t": {"d": declared}})
        assert [1.5, 1.5] == result.tables["t"]["v"].drop_null().to_pylist()
        assert {1} >= {each.message for each in result.rejections()}


UNREADABLE = {
    "binary_view": pa.array([b"x", None], pa.binary_view()),
    "struct": pa.array([{"a": 1}, None]),
    "encoded struct": pa.array([{"a": 1}, None]),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array([1.5, 2.5])]),
    "runs of views": pa.RunEndEncodedArray.from_arrays(
        pa.array([1, 2], pa.int32()), pa.array(["x", None], pa.string_view())
    ),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [1]), pa.array([[1], None], pa.list_(pa.int32(), 1))
    ),
}
UNREADABLE["encoded struct"] = pa.DictionaryArray.from_arrays(
    pa.array([0, None], pa.int32()), UNREADABLE["struct"].slice(0, 1)
)


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("role", ["field", "tag", "time", "table"])
def test_a_column_of_a_type_that_no_reading_has_costs_its_rows(kind: str, role: str) -> None:
    """Whatever it should be; two messages of it and one without, which is written."""
    name = {"field": "x", "tag": "g", "time": "time", "table": "name"}[role]
    good = stream({"v": pa.array([1.5])})
    bad = stream({name: UNREADABLE[kind], "v": pa.array([2.5, 3.5])})
    options = {"tags": ("g",), **({"table_column": "name"} if role == "table" else {})}
    result = parsed("arrow", [good, bad, bad], **options)
    if role == "table":
        # As a name that is null: the table is that of the options.
        assert [] == refused(result)
        return
    # Arrow has no null in a union.
    rows = [0, 1] if kind == "union" else [0]
    assert [(message, row) for message in (1, 2) for row in rows] == refused(result)
    assert all("type" in each.reason for each in result.rejections())
    assert [1.5, *([] if 1 in rows else [3.5, 3.5])] == result.tables["t"]["v"].to_pylist()


def test_encoded_and_repeated_text_is_read_as_polars_writes_it() -> None:
    """Views, dictionaries of views and runs, also of rows beside one that is refused."""
    views = pa.array(["a", "b", None], pa.string_view())
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint32()), views.slice(0, 2))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", "b"]))
    columns = {"g": encoded, "x": encoded, "y": views, "z": runs}
    wrong = pa.array([[1], None, None])
    for more in ({}, {"w": wrong}):
        result = parsed("arrow", [stream({**columns, **more, "v": pa.array([1, 2, 3])})], tags=("g",))
        rows = [("a", "a", "a", "a", 1), ("b", "b", "b", "b", 2), (None, None, None, "b", 3)]
        found = [tuple(row[name] for name in "gxyzv") for row in result.tables["t"].to_pylist()]
        assert rows[1 if more else 0 :] == found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FIXED),
    st.lists(st.integers(-(2**70), 2**70) | st.sampled_from([-1, *DAY.values()]), min_size=1, max_size=4),
    st.sampled_from(["x", "g", "time", "name"]),
    st.booleans(),
)
def test_no_bits_of_a_value_harm_another_message(
    kind: pa.DataType, numbers: list[int], name: str, encoded: bool
) -> None:
    """Whatever is in the columns of one message, the one before and the one behind it are rows."""
    column: pa.Array = bits(kind, numbers)
    if encoded:
        indices = pa.array(np.arange(len(numbers)), pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, column, safe=False)
    good = stream({"v": pa.array([1.5]), "s": pa.array(["x"])})
    bad = stream({name: column, "s": pa.array(["y"] * len(numbers))})
    result = parsed("arrow", [good, bad, good], tags=("g",), table_column="name")
    assert {1} >= {each.message for each in result.rejections()}
    assert [1.5, 1.5] == result.tables["t"]["v"].drop_null().to_pylist()


@pytest.mark.parametrize("unit", ["ns", "s"])
def test_times_are_integers_of_any_width(unit: str) -> None:
    """Also without a sign, as `backfill` takes them; one above int64 costs its row."""
    for kind in (pa.int8(), pa.uint8(), pa.uint32(), pa.uint64()):
        result = parsed("arrow", [stream({"time": pa.array([5, 7], kind), "v": pa.array([1.5, 2.5])})], time_unit=unit)
        factor = 10**9 if unit == "s" else 1
        assert [5 * factor, 7 * factor] == result.tables["t"]["time"].to_pylist()
    times = pa.array([5, 2**63, None, 2**64 - 1], pa.uint64())
    result = parsed("arrow", [stream({"time": times, "v": pa.array([1.5] * 4)})])
    assert [5, MESSAGE_TIME_NS] == result.tables["t"]["time"].to_pylist()
    assert [(0, 1), (0, 3)] == refused(result)
    assert {"the time does not fit int64 nanoseconds"} == {each.reason for each in result.rejections()}
