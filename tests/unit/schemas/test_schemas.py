"""Schemas: framing, messages, table schemas and series keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.framing import FormatTooNew, FrameInvalid, check_format, codec
from headrace.schemas.messages import (
    Anchor,
    Body,
    Claim,
    Compact,
    Delete,
    Drop,
    Leadership,
    Message,
    ProducerPosition,
    Seal,
    TableVersion,
    Write,
    body_digest,
    decode_message,
    encode_message,
)
from headrace.schemas.payload import PayloadInvalid, decode_rows, encode_rows, row_schema
from headrace.schemas.records import format_of_change
from headrace.schemas.series import (
    SeriesInvalid,
    check_series_keys,
    parse_series_key,
    series_key,
    series_keys,
    tag_columns,
)
from headrace.schemas.tables import (
    Catalogue,
    DatabaseChange,
    FieldType,
    RecordName,
    RecordRefusal,
    SchemaError,
    TableChange,
    TableSchema,
    TimeResolution,
    TypeClash,
    plan_change,
)

LEADER = Leadership(3, "n1", "abc")
ANCHOR = Anchor(7, 5, b"c" * 16)
BODIES: list[Body] = [
    Write("db", "t", 2, 1, 3, b"rows"),
    Delete("db", "t", {"host": ("a", ""), "zone": ("b",)}, None, 10),
    Seal(LEADER, ANCHOR, (TableVersion("db", "t", 2),)),
    Drop(LEADER, "db", "t", 99),
    Compact(LEADER, "db", "t", ("one", "two")),
    Claim(LEADER, ANCHOR, 10, 20),
]
TAG_NAMES = ("a", "b,", "c=d", "é \n", "x\\")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=8)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_message_survives_a_round_trip(body: Body) -> None:
    """Every kind survives a round trip, with the digest of its body."""
    decoded = decode_message(encode_message(Message(ProducerPosition("p", 4, 9), body)))
    assert Message(ProducerPosition("p", 4, 9), body, body_digest(body)) == decoded


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_truncated_and_foreign_bytes_are_typed_errors(body: Body) -> None:
    """No prefix of a message and no other fingerprint decodes, and none raises anything but FrameInvalid."""
    value = encode_message(Message(ProducerPosition("p", 4, 9), body))
    for length in range(len(value)):
        with pytest.raises(FrameInvalid):
            decode_message(value[:length])
    for foreign in (value + b"x", b"\0" + value[1:], value[:2] + bytes(8) + value[10:], b""):
        with pytest.raises(FrameInvalid):
            decode_message(foreign)


@given(data=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    """Bytes behind a good prefix either decode or give FrameInvalid."""
    try:
        decode_message(codec("forward").prefix + data)
    except FrameInvalid:
        return


def test_a_newer_format_is_distinguished_from_garbage() -> None:
    """A header above the current format is FormatTooNew for any value.

    The current, an older and a malformed one pass.
    """
    with pytest.raises(FormatTooNew, match="format 6"):
        check_format((("format", b"6"),))
    with pytest.raises(FormatTooNew, match="^the record at offset 7 of topic c.table has format 9"):
        check_format((("format", b"9"),), "c.table", 7)
    for headers in ((), (("format", b"1"),), (("format", b"5"),), (("format", b"x"),), (("other", b"9"),)):
        check_format(headers)


def test_the_fingerprint_is_that_of_avro() -> None:
    """The prefix is C3 01 and the little-endian CRC-64-AVRO of the schema's canonical form (value pinned: it is on every topic)."""
    assert codec("status").prefix[:2].hex() == "c301"
    from fastavro.schema import fingerprint

    assert fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"


@given(table=NAMES, tags=st.dictionaries(NAMES, st.one_of(st.none(), st.text(max_size=6)), max_size=4))
def test_a_series_key_gives_back_its_table_and_tags(table: str, tags: dict[str, str | None]) -> None:
    """Escaping loses nothing; null and empty tags are left out."""
    assert (table, {name: value for name, value in tags.items() if value}) == parse_series_key(series_key(table, tags))


@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.text(max_size=5)), st.one_of(st.none(), st.text(max_size=5))), max_size=8
    )
)
def test_keys_of_many_series_are_the_keys_of_each(rows: list[tuple[str | None, str | None]]) -> None:
    """The columnar builder and the single one agree, and tags come back out of the keys."""
    columns = {name: pa.array([row[index] for row in rows], pa.string()) for index, name in enumerate(("b", "a"))}
    keys = series_keys("t x", columns).to_pylist()
    assert [series_key("t x", {"b": row[0], "a": row[1]}) for row in rows] == keys
    back = tag_columns(keys, ("a", "b"))
    assert [(row[0] or None, row[1] or None) for row in rows] == list(
        zip(back["b"].to_pylist(), back["a"].to_pylist(), strict=True)
    )


def test_rows_that_are_no_row_batch_are_refused() -> None:
    """Empty bytes, a stream of another schema, nulls in time, fields out of order and two batches all raise PayloadInvalid."""
    series = pa.array(["t"]).dictionary_encode()
    good = pa.RecordBatch.from_arrays([series, pa.array([1])], schema=row_schema(()))
    assert good.equals(decode_rows(encode_rows(good)))
    bad = [
        pa.RecordBatch.from_pydict({"time": [1]}),
        pa.RecordBatch.from_arrays([series, pa.array([None], pa.int64())], names=["__series", "time"]),
        pa.RecordBatch.from_arrays(
            [series, pa.array([1]), pa.array([1]), pa.array([1])], names=["__series", "time", "b", "a"]
        ),
        pa.RecordBatch.from_arrays([series, pa.array([1]), pa.array([1], pa.int32())], names=["__series", "time", "a"]),
    ]
    for batch in bad:
        with pytest.raises(PayloadInvalid):
            decode_rows(encode_rows(batch))
    for data in (b"", b"garbage", bytes(encode_rows(good))[:-20]):
        with pytest.raises(PayloadInvalid):
            decode_rows(data)


def test_of_two_changes_on_one_version_the_first_counts() -> None:
    """The catalogue is a state machine over its log: the second writer rereads it."""
    catalogue = Catalogue()
    assert not catalogue.apply(TableChange("db", "t", 0, (), (("x", FieldType.INT64),)))
    assert catalogue.apply(DatabaseChange("db"))
    assert not catalogue.apply(DatabaseChange("db", 1, 1))
    assert catalogue.apply(TableChange("db", "t", 0, ("host",), (("x", FieldType.INT64),)))
    assert not catalogue.apply(TableChange("db", "t", 0, (), (("y", FieldType.INT64),)))
    assert catalogue.apply(TableChange("db", "t", 1, (), (("x", FieldType.FLOAT64),)))
    assert [FieldType.INT64, FieldType.FLOAT64] == [catalogue.at("db", "t", v).field_types()["x"] for v in (1, 2)]  # type: ignore[union-attr]
    assert catalogue.at("db", "t", 3) is None


def test_the_first_change_of_a_table_fixes_its_resolution() -> None:
    """Every version has it, a later change that names one does not count, and a table of 0.1.0 has nanoseconds."""
    catalogue = Catalogue()
    catalogue.apply(DatabaseChange("db"))
    for table, resolution in (("us", TimeResolution.US), ("ns", TimeResolution.NS), ("old", None)):
        assert catalogue.apply(TableChange("db", table, 0, resolution=resolution))
        for later in TimeResolution:
            assert not catalogue.apply(TableChange("db", table, 1, ("host",), resolution=later))
        planned = plan_change(catalogue.newest("db", table), ["host"], {}, resolution=TimeResolution.NS)
        assert planned is not None
        assert planned.resolution is None
        assert catalogue.apply(planned)
        assert [resolution] * 2 == [each.recorded_resolution for each in catalogue.tables["db", table]]
        assert (resolution or TimeResolution.NS) is catalogue.newest("db", table).resolution


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("retention_ns", [0, -1, -(2**63)])
def test_a_change_to_a_retention_of_no_time_does_not_count(version: int, retention_ns: int) -> None:
    """Every row is older than it: leaders would drop the whole table. No command makes such a record."""
    catalogue = Catalogue()
    catalogue.apply(DatabaseChange("db"))
    if version:
        assert catalogue.apply(TableChange("db", "t", 0, ("host",), retention_ns=1))
    before = catalogue.newest("db", "t")
    assert not catalogue.apply(TableChange("db", "t", version, ("site",), retention_ns=retention_ns))
    assert before == catalogue.newest("db", "t")


def test_a_change_of_a_table_stops_a_reader_that_does_not_know_resolutions() -> None:
    """It would take the record for garbage, and a later change in its own form for the first one."""
    assert 2 == format_of_change(TableChange("db", "t", 0)) == format_of_change(DatabaseChange("db"))
    assert 1 == format_of_change(RecordRefusal(RecordName("n1", 0, bytes(16)), "db", "t", 1))


def test_clashes_are_errors_and_widening_is_not() -> None:
    """int64 and float64 widen to float64; every other pair, and a tag that is a field, is a typed error."""
    table = TableSchema("db", "t", 1, ("host",), (("x", FieldType.FLOAT64), ("n", FieldType.INT64)))
    assert plan_change(table, ["host"], {"x": FieldType.INT64}) is None
    assert plan_change(table, [], {"n": FieldType.FLOAT64}).fields == (("n", FieldType.FLOAT64),)  # type: ignore[union-attr]
    for tags, fields in (([], {"x": FieldType.STRING}), ([], {"host": FieldType.BOOL}), (["x"], {})):
        with pytest.raises(TypeClash):
            plan_change(table, tags, fields)
    for name in ("", "time", "Time", "__x", "N", "a\x00"):
        with pytest.raises(SchemaError):
            plan_change(table, [], {name: FieldType.BOOL})


@given(
    st.text("ab\\,= \n\té", min_size=1, max_size=5),
    st.lists(
        st.fixed_dictionaries({}, optional={name: st.text("ab\\,= \n\té", max_size=4) for name in TAG_NAMES}),
        min_size=1,
    ),
)
def test_every_key_that_is_written_is_canonical(table: str, series: list[dict[str, str]]) -> None:
    """The check of replicas takes whatever tags a writer has, in one shape or in many."""
    keys = pa.array([series_key(table, tags) for tags in series])
    check_series_keys(table, TAG_NAMES, keys)
    for wrong in (table + "x", "x" + table):
        with pytest.raises(SeriesInvalid):
            check_series_keys(wrong, TAG_NAMES, keys)
    used = {name for tags in series for name, value in tags.items() if value}
    for name in used:
        with pytest.raises(SeriesInvalid):
            check_series_keys(table, set(TAG_NAMES) - {name}, keys)


def test_keys_of_many_shapes_are_checked_together() -> None:
    """More shapes than are matched one by one, and one key among them that is not canonical."""
    names = [f"t{number:02}" for number in range(64)]
    keys = ["t" + "".join(f",{name}=v" for name in names[:count]) for count in range(64)]
    check_series_keys("t", names, pa.array(keys))
    for wrong in ("t,t00=", "t,t01=v,t00=v", "t,other=v", "u", "t,t00=v\\x", ""):
        with pytest.raises(SeriesInvalid):
            check_series_keys("t", names, pa.array([*keys, wrong]))
