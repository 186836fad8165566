"""Scans between nodes: a stream that is cut anywhere is an error, and a request from outside is checked."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from headrace.consumers.query.query_errors import (
    AnswerStale,
    NotReady,
    QueryError,
    QueryInvalid,
    QueryMemory,
    UnknownTable,
)
from headrace.consumers.query.scan_request import TAG_TYPE, TAG_VALUES_MAX, RemoteScanRequest, ScanInvalid, wire_schema
from headrace.consumers.query.scan_stream import ScanCut, ScanEncoder, SchemaAhead, error_of, read_scan
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import FieldType, TableSchema

PUMPS = TableSchema("plant", "pumps", 3, ("pump",), (("flow", FieldType.FLOAT64), ("count", FieldType.INT64)))
SCHEMA = wire_schema(PUMPS, ("pump", "time", "count"))
REQUEST = RemoteScanRequest(
    "n2", "plant", "pumps", 3, ("pump", "time"), 0, None, {"pump": ("p1", "")}, after=7, timeout_ms=5, wait_ms=2
)


def batch(first: int, rows: int) -> pa.RecordBatch:
    """Some rows, with a dictionary of their own."""
    numbers = range(first, first + rows)
    tags = pa.array([f"p{number % 7}" for number in numbers]).dictionary_encode()
    columns = [tags.cast(TAG_TYPE), pa.array(numbers, pa.timestamp("ns")), pa.array(numbers, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encoded(*, ends: bool = True) -> bytes:
    """A stream of three batches with marks between them."""
    encoder = ScanEncoder(SCHEMA)
    parts = [encoder.waiting(), encoder.rows(batch(0, 5)), encoder.rows(batch(5, 20)), encoder.waiting()]
    parts.append(encoder.rows(batch(25, 1)))
    return b"".join([*parts, encoder.end() if ends else b""])


def read(data: bytes, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The rows of a stream."""
    return read_scan(io.BytesIO(data), schema, lambda _size: None)


def test_all_rows_arrive_in_order() -> None:
    """Marks of a member that computes are no rows, and dictionaries may differ from batch to batch."""
    reserved: list[int] = []
    table = read_scan(io.BytesIO(encoded()), SCHEMA, reserved.append)
    assert [batch(0, 5), batch(5, 20), batch(25, 1)] == table.to_batches()
    assert 3 == len(reserved)
    assert 0 == read(ScanEncoder(SCHEMA).end()).num_rows


def test_a_stream_that_is_cut_anywhere_is_an_error() -> None:
    """No beginning of a stream passes for the whole, also where Arrow alone sees a regular end."""
    whole, open_ended = encoded(), encoded(ends=False)
    for length in range(len(open_ended) + 1):
        with pytest.raises(ScanCut):
            read(whole[:length])
    # An end of Arrow's own, behind the rows and without the mark.
    with pytest.raises(ScanCut, match="without its end mark"):
        read(open_ended + b"\xff\xff\xff\xff\x00\x00\x00\x00")


def test_an_end_that_counts_other_rows_is_an_error() -> None:
    """A batch that was lost on the way does not go unnoticed."""
    encoder = ScanEncoder(SCHEMA)
    parts = [encoder.waiting(), encoder.rows(batch(0, 5))]
    encoder.rows(batch(5, 5))
    with pytest.raises(ScanCut, match="5 rows of 10"):
        read(b"".join([*parts, encoder.end()]))


def test_the_error_of_a_member_arrives_as_its_own_class() -> None:
    """Also behind rows. The name of a class comes from outside, so only those of query errors count."""
    encoder = ScanEncoder(SCHEMA)
    data = encoder.waiting() + encoder.rows(batch(0, 5)) + encoder.failed(AnswerStale.because("it was stopped"))
    with pytest.raises(AnswerStale, match="it was stopped"):
        read(data)
    assert NotReady is type(error_of({"kind": "NotReady", "message": "m"}))
    for document in ({"kind": "HeadraceError"}, {"kind": "Iterable"}, {}, None, "text"):
        assert QueryError is type(error_of(document))


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (QueryInvalid("Conversion Error: x"), False),
        (QueryMemory("it needs more"), False),
        (AnswerStale.because("it was stopped"), True),
        # A member that is behind does not know each table yet.
        (UnknownTable("no table a.b"), True),
        # Whoever is no query error is one of that member.
        (HeadraceError("the disk is full"), True),
    ],
)
def test_what_no_member_can_answer_is_not_to_be_retried(error: HeadraceError, retriable: bool) -> None:
    """A client that retries would repeat a hopeless query until its time is over. Older members send no flag."""
    with pytest.raises(QueryError) as raised:
        read(ScanEncoder(SCHEMA).failed(error))
    assert retriable is raised.value.retriable
    assert error_of({"kind": type(error).__name__, "message": "m"}).retriable


def test_a_newer_schema_is_not_rounded_to_an_older_one() -> None:
    """A field that is float64 at the member by now is refused by an asker that knows it as integers."""
    encoder = ScanEncoder(pa.schema([("count", pa.float64())]))
    with pytest.raises(SchemaAhead):
        read(encoder.end(), pa.schema([("count", pa.int64())]))


def test_a_request_is_read_as_it_was_sent() -> None:
    """Every part of a request survives its way as JSON values."""
    assert REQUEST == RemoteScanRequest.parse(REQUEST.document())


def test_too_many_values_of_tags_narrow_nothing() -> None:
    """More rows are never wrong, and the body of a request has a limit."""
    many = RemoteScanRequest("g", "d", "t", 1, ("time",), None, None, {"a": tuple(map(str, range(TAG_VALUES_MAX + 1)))})
    assert {} == many.document()["tags"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 5}, "group is not a name"),
        ({"table": ""}, "table is not a name"),
        ({"version": True}, "version is not a whole number"),
        ({"start_ns": 2**63}, "start_ns is not a whole number"),
        ({"after": None}, "after is not a whole number"),
        ({"columns": []}, "columns is not a list of names"),
        ({"columns": ["time", 1]}, "columns is not a list of names"),
        ({"tags": {"pump": "p1"}}, "tags does not map"),
        ({"limit": 5}, "no parameter 'limit'"),
    ],
)
def test_a_bad_request_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    """The error names the parameter that is wrong."""
    with pytest.raises(ScanInvalid, match=message):
        RemoteScanRequest.parse(REQUEST.document() | change)
    with pytest.raises(ScanInvalid, match="not a JSON object"):
        RemoteScanRequest.parse([change])


def test_a_column_that_is_in_no_schema_is_refused() -> None:
    """The name of a column never reaches SQL unless the table has it."""
    with pytest.raises(ScanInvalid, match="no column 'x'"):
        wire_schema(PUMPS, ("time", "x"))
