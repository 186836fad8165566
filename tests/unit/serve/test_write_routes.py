"""Writing over HTTP as clients of InfluxDB do, as Arrow streams, and deletes; everything else is refused by name."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
import zlib
from concurrent.futures import Future
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from headrace.connectors.log.port import AccessDenied
from headrace.consumers.serve.request_bodies import BodyRoom, RequestInvalid, RequestTooLarge, decompressed
from headrace.producers.acks import QuorumTooLarge
from headrace.producers.line_requests import LineAnswer
from headrace.producers.sender import WriteFailed
from headrace.producers.writer import WriterClosed
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Delete, Write, decode_message
from headrace.schemas.payload import SERIES_COLUMN, decode_rows
from tests.unit.serve.conftest import TOPICS, FakeNode

SECOND_NS = 1_700_000_000_000_000_000
LINE = b"cpu,host=a usage=1.5 1700000000"


def written(node: FakeNode) -> list[tuple[str, str, int, dict[str, Any]]]:
    """(database, table, time, fields) of every row in the log, in order."""
    found = []
    for record in node.writes._log.topic(TOPICS.forward("n1")).records:  # type: ignore[attr-defined]
        body = decode_message(record.value).body
        if isinstance(body, Write):
            for row in decode_rows(body.rows).to_pylist():
                row.pop(SERIES_COLUMN)
                found.append((body.database, body.table, row.pop("time"), row))
    return found


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    """An Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("url", "line", "database"),
    [
        ("/write?db=d&precision=s", LINE, "d"),
        ("/write?db=d&rp=autogen&precision=s&u=x&p=y", LINE, "d"),
        ("/write?db=d&rp=week&precision=s", LINE, "d/week"),
        ("/write?db=d&precision=n", LINE + b"000000000", "d"),
        ("/write?db=d&precision=u", LINE + b"000000", "d"),
        ("/write?db=d", LINE + b"000000000", "d"),
        ("/write?db=d&precision=h", b"cpu,host=a usage=1.5 472222", "d"),
        ("/api/v2/write?bucket=d&org=o&precision=ms", LINE + b"000", "d"),
        ("/api/v2/write?bucket=d/week&org=o&precision=us", LINE + b"000000", "d/week"),
        ("/api/v2/write?bucket=d/autogen&org=o", LINE + b"000000000", "d"),
        ("/api/v3/write_lp?db=d&precision=second", LINE, "d"),
        ("/api/v3/write_lp?db=d&precision=auto", LINE + b"000", "d"),
        ("/api/v3/write_lp?db=d&accept_partial=false", LINE, "d"),
    ],
)
def test_each_route_takes_its_parameters(
    client: httpx.Client, node: FakeNode, url: str, line: bytes, database: str
) -> None:
    """An answer of 204, and the row with the time that the precision means."""
    assert (204, b"") == ((answer := client.post(url, content=line)).status_code, answer.content)
    time = 472_222 * 3_600 * 10**9 if "precision=h" in url else SECOND_NS
    assert [(database, "cpu", time, {"usage": 1.5})] == written(node)
    assert {TOPICS.forward("n1"): 0} == json.loads(answer.headers["x-headrace-offsets"])


def test_gzip_bodies_of_one_and_several_members(client: httpx.Client, node: FakeNode) -> None:
    """As `gzip` and `cat a.gz b.gz` make them."""
    body = gzip.compress(LINE + b"\n") + gzip.compress(b"cpu,host=b usage=2 1700000000\n")
    answer = client.post("/write?db=d&precision=s", content=body, headers={"content-encoding": "gzip"})
    assert (204, 2) == (answer.status_code, len(written(node)))


def test_good_lines_are_written_and_bad_ones_listed(client: httpx.Client, node: FakeNode) -> None:
    """400 with the first line, and all of them up to a hundred."""
    body = b"\n".join([LINE, b"bad", *[b"cpu usage=oops 1"] * 150])
    answer = client.post("/api/v2/write?bucket=d&precision=s", content=body)
    found = answer.json()
    assert (400, "invalid", 2, 100) == (answer.status_code, found["code"], found["line"], len(found["rejected"]))
    assert [2, 3, 4] == [each["line"] for each in found["rejected"][:3]]
    assert all(each["reason"] for each in found["rejected"])
    assert "1 row was written" in found["message"]
    assert 1 == len(written(node))


def test_without_accept_partial_a_bad_line_writes_nothing(client: httpx.Client, node: FakeNode) -> None:
    """400, and the line is named all the same."""
    answer = client.post("/api/v3/write_lp?db=d&accept_partial=false", content=LINE + b"\nbad")
    assert (400, 2, []) == (answer.status_code, answer.json()["line"], written(node))
    assert "x-headrace-offsets" not in answer.headers


@pytest.mark.parametrize(
    ("url", "content", "headers", "status", "named"),
    [
        ("/write?precision=s", LINE, {}, 400, "db is missing"),
        ("/api/v2/write?org=o", LINE, {}, 400, "bucket is missing"),
        ("/write?db=d&precision=day", LINE, {}, 400, "precision 'day' is unknown"),
        ("/api/v2/write?bucket=d&precision=m", LINE, {}, 400, "precision 'm' is unknown"),
        ("/api/v3/write_lp?db=d&precision=h", LINE, {}, 400, "precision 'h' is unknown"),
        ("/api/v3/write_lp?db=d&accept_partial=maybe", LINE, {}, 400, "accept_partial 'maybe' is unknown"),
        ("/write?db=d&db=e", LINE, {}, 400, "db is given twice"),
        ("/write?db=.d", LINE, {}, 400, "reserved prefix"),
        # Latin-1: of names that differ in such a letter alone, all rows would be in one database.
        ("/write?db=b%FCro", LINE, {}, 400, "the parameters are not UTF-8"),
        ("/api/v2/write?bucket=b%F6ro", LINE, {}, 400, "the parameters are not UTF-8"),
        ("/write?db=d", b"no gzip", {"content-encoding": "gzip"}, 400, "not gzip"),
        ("/write?db=d", gzip.compress(LINE, mtime=0)[:-9], {"content-encoding": "gzip"}, 400, "ends early"),
        ("/write?db=d", LINE, {"content-encoding": "br"}, 400, "'br' is unknown"),
        ("/write?db=d", b"x" * 1_000_001, {}, 413, "larger than 1 MB"),
        (
            "/write?db=d",
            gzip.compress(bytes(50_000_000), mtime=0),
            {"content-encoding": "gzip"},
            413,
            "larger than 1 MB",
        ),
    ],
)
def test_bad_requests_are_named(
    client: httpx.Client, node: FakeNode, url: str, content: bytes, headers: dict[str, str], status: int, named: str
) -> None:
    """An error as clients of InfluxDB read it, and nothing written."""
    answer = client.post(url, content=content, headers=headers)
    assert (status, []) == (answer.status_code, written(node))
    assert named in answer.json()["message"] == answer.json()["error"]


@pytest.mark.parametrize(
    "error",
    [
        WriterClosed("the node is stopping"),
        WriteFailed("1 rows are not in the log: Kafka refuses this account", rows=1),
        AccessDenied("Kafka refuses this account the access to every topic"),
        QuorumTooLarge("quorum 3 is more than the 2 members of a group"),
    ],
)
def test_what_is_no_fault_of_the_lines_is_503(
    client: httpx.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch, error: HeadraceError
) -> None:
    """Although only an operator may mend it: clients drop rows that are answered with 400, and send others again."""

    def submit(_request: object) -> Future[LineAnswer]:
        raise error

    monkeypatch.setattr(node.writes, "submit", submit)
    answer = client.post("/write?db=d&precision=s", content=LINE)
    assert (503, "unavailable") == (answer.status_code, answer.json()["code"])
    assert "retry-after" in answer.headers
    assert error.message in answer.json()["error"]


def test_a_node_that_stops_drops_nobodys_lines(client: httpx.Client, node: FakeNode) -> None:
    """What comes behind the end of its writer is to be sent again."""
    node.writes.close()
    assert 503 == client.post("/write?db=d&precision=s", content=LINE).status_code
    rows = stream_of(pa.table({"time": [1], "v": [1]}))
    refused = client.post("/api/v1/write?database=d&table=t&tags=", content=rows)
    assert (503, True) == (refused.status_code, refused.json()["error"]["retriable"])
    assert [] == written(node)


def test_a_bomb_is_not_unpacked() -> None:
    """Decompression ends behind the limit, however much would come."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    assert len(bomb) < 1 << 20
    with pytest.raises(RequestTooLarge):
        decompressed(bomb, 1_000_000, RequestTooLarge("too large"))


def test_many_members_are_unpacked_in_time() -> None:
    """The work is that of the bytes, not of the bytes behind each member; a cut at any place is an error."""
    noise = random.Random(1).randbytes(50_000)
    packed = gzip.compress(noise)
    begin_s = time.process_time()
    refusal = RequestTooLarge("too large")
    assert noise * 2 == decompressed(gzip.compress(b"") * 200_000 + packed + packed, 100_000, refusal)
    assert time.process_time() - begin_s < 5.0
    for cut in (1, 10, 16_384, len(packed) - 1):
        with pytest.raises(RequestInvalid, match="ends early"):
            decompressed(packed[:cut], 100_000, refusal)


def test_more_open_requests_than_the_limit_get_503(client: httpx.Client, node: FakeNode) -> None:
    """With the time to retry; the next one is taken."""
    node.writes.figures.open_requests = node.writes.settings.http_requests_max
    answer = client.post("/write?db=d&precision=s", content=LINE)
    assert (503, "unavailable", True) == (answer.status_code, answer.json()["code"], "retry-after" in answer.headers)
    node.writes.figures.open_requests = 0
    assert 204 == client.post("/write?db=d&precision=s", content=LINE).status_code
    assert (0, 1) == (node.writes.figures.open_requests, node.writes.figures.refused_requests)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_bodies_that_are_here_together_have_a_limit(client: httpx.Client, node: FakeNode, packed: bool) -> None:
    """Thousands of clients send at once, or their bodies unpack to a thousand times as much: 503, with the time to retry.

    A body that is alone is bounded by its own limit. None of them is counted behind its end.
    """
    bodies, others = node.writes.figures.bodies, node.writes.settings.http_waiting_mb_max * 1_000_000 - 50_000
    lines = b"\n".join(b"cpu,host=a usage=1.5 %d" % (1_700_000_000 + second) for second in range(5_000))
    sent, headers = (gzip.compress(lines), {"content-encoding": "gzip"}) if packed else (lines, {})
    assert len(gzip.compress(lines)) < 50_000 < len(lines)
    times = pa.array(range(SECOND_NS, SECOND_NS + 10_000_000, 1_000))
    arrow = stream_of(pa.table({"time": times, "v": times}))
    bodies.held_bytes = others
    answer = client.post("/write?db=d&precision=s", content=sent, headers=headers)
    assert (503, "unavailable", True) == (answer.status_code, answer.json()["code"], "retry-after" in answer.headers)
    answer = client.post("/api/v1/write?database=d&table=t", content=arrow)
    assert (503, "WritesWaiting") == (answer.status_code, answer.json()["error"]["kind"])
    assert (others, 2, []) == (bodies.held_bytes, node.writes.figures.refused_requests, written(node))
    bodies.held_bytes = 0
    assert 204 == client.post("/write?db=d&precision=s", content=sent, headers=headers).status_code
    assert 200 == client.post("/api/v1/write?database=d&table=t", content=arrow).status_code
    assert (0, 15_000) == (bodies.held_bytes, len(written(node)))


def test_a_body_that_is_alone_has_room() -> None:
    """A limit below its size would refuse it for ever. Two are refused while their sum is above it."""
    room = BodyRoom()
    with room.share(100) as first, room.share(100) as second:
        assert first.grow(70)
        assert first.grow(70)
        assert not second.grow(1)
        assert 140 == room.held_bytes
        first.release()
        assert second.grow(60)
        assert first.grow(40)
        assert not first.grow(1)
        assert 60 == room.held_bytes
    assert 0 == room.held_bytes


def test_an_arrow_bomb_is_not_unpacked(client: httpx.Client, node: FakeNode) -> None:
    """Of some KB that take 100 MB once they are decoded, or of as many nulls."""
    many = 100_000_000 // 8
    for rows in (pa.table({"time": pa.array(np.zeros(many, np.int64))}), pa.table({"time": pa.nulls(8 * many)})):
        body = stream_of(rows, compression="zstd")
        assert len(body) < 100_000
        answer = client.post("/api/v1/write?database=d&table=t", content=body)
        assert (413, "RequestTooLarge") == (answer.status_code, answer.json()["error"]["kind"])
        assert "is the most of either" in answer.json()["error"]["message"]
    assert [] == written(node)


def test_ping_answers_as_influxdb_does(client: httpx.Client) -> None:
    """Clients look at it before they write."""
    assert [204, 204] == [client.get("/ping").status_code, client.head("/ping").status_code]


def test_an_arrow_stream_is_written_as_one_table(client: httpx.Client, node: FakeNode) -> None:
    """Rows and field values are counted, and the answer has the offsets to read them by."""
    rows = pa.table({"host": ["a", "b"], "time": pa.array([1_000, 2_000]), "v": [1.0, None]})
    answer = client.post("/api/v1/write?database=d&table=t&tags=host", content=stream_of(rows))
    assert (200, 2, 1) == (answer.status_code, answer.json()["rows"], answer.json()["points"])
    assert {TOPICS.forward("n1")} == answer.json()["offsets"].keys()
    assert [("d", "t", 1_000, {"v": 1.0}), ("d", "t", 2_000, {"v": None})] == written(node)


def test_rows_of_a_new_table_that_share_a_time_need_tags(client: httpx.Client, node: FakeNode) -> None:
    """They are of several series, and all but one would be lost. An empty list of tags shows that they are not."""
    rows = stream_of(pa.table({"host": ["a", "b"], "time": pa.array([1_000, 1_000]), "v": [1.0, 2.0]}))
    refused = client.post("/api/v1/write?database=d&table=t", content=rows)
    assert (400, "RowsRepeat") == (refused.status_code, refused.json()["error"]["kind"])
    assert [] == written(node)
    assert 200 == client.post("/api/v1/write?database=d&table=t&tags=", content=rows).status_code
    assert 2 == len(written(node))


def test_times_are_compared_once_they_are_known_to_be_times(client: httpx.Client, node: FakeNode) -> None:
    """Any function of Arrow may end the process on an array that breaks its rules, and a time has many forms."""
    good = stream_of(pa.table({"time": ["aaaaa", "bbbbb"], "v": [1.0, 2.0]}))
    offsets, broken = (np.array([0, 5, end], np.int32).tobytes() for end in (10, 1_900_000_000))
    assert 1 == good.count(offsets)
    times = pa.array([1_700_000_000_000_000, 1_700_000_000_000_000], pa.timestamp("us"))
    forms = [times.cast(pa.string()).dictionary_encode(), times.cast(pa.string()), times]
    for body, kind in [
        (good.replace(offsets, broken), "ArrayInvalid"),
        (stream_of(pa.table({"time": pa.nulls(2), "v": [1.0, 2.0]})), "TimeRangeError"),
        *((stream_of(pa.table({"time": form, "v": [1.0, 2.0]})), "RowsRepeat") for form in forms),
    ]:
        refused = client.post("/api/v1/write?database=d&table=t", content=body)
        assert (400, kind) == (refused.status_code, refused.json()["error"]["kind"])
    assert [] == written(node)


@pytest.mark.parametrize(
    ("url", "content", "named"),
    [
        ("/api/v1/write?table=t", b"", "no database"),
        ("/api/v1/write?database=d", b"", "no table"),
        ("/api/v1/write?database=d&table=t", b"nonsense", "no Arrow stream"),
        ("/api/v1/write?database=d&table=t", stream_of(pa.table({"time": [1], "v": [1]}))[:-8], "the body is cut"),
        ("/api/v1/write?database=d&table=t&quorum=x", b"", "quorum 'x'"),
        ("/api/v1/write?database=d&table=t&quorum=5", None, "5"),
        ("/api/v1/write?database=d&table=t&quorum_timeout_ms=0", b"", "quorum_timeout_ms 0 is too small"),
        ("/api/v1/write?database=d&table=t&tag_columns=host", None, "no parameter 'tag_columns'"),
    ],
)
def test_bad_arrow_requests_are_named(
    client: httpx.Client, node: FakeNode, url: str, content: bytes | None, named: str
) -> None:
    """A typed error with its message, and nothing written."""
    body = stream_of(pa.table({"time": [1], "v": [1]})) if content is None else content
    answer = client.post(url, content=body)
    assert (400, []) == (answer.status_code, written(node))
    assert named in answer.json()["error"]["message"]


def test_a_retention_is_named(client: httpx.Client) -> None:
    """Left out by mistake it would end the one that there is; null means for ever."""
    client.post("/write?db=d&precision=s", content=LINE)
    for document, named in (({}, "no keep_ns"), ({"keep_ns": "1d"}, "keep_ns"), ({"keep_ns": 10**30}, "292 years")):
        answer = client.post("/api/v1/retention", json={"database": "d", "table": "cpu", **document})
        assert (400, True) == (answer.status_code, named in answer.json()["error"]["message"]), answer.text
    assert 200 == client.post("/api/v1/retention", json={"database": "d", "table": "cpu", "keep_ns": None}).status_code


def test_rows_are_deleted_by_tags_and_times(client: httpx.Client, node: FakeNode) -> None:
    """ISO 8601 or nanoseconds; the message is in the log of every group."""
    client.post("/write?db=d&precision=s", content=LINE)
    wanted = {"database": "d", "table": "cpu", "tags": {"host": ["a"]}, "start": "1970-01-01T00:00:01Z", "end": 10**18}
    answer = client.post("/api/v1/delete", json=wanted)
    assert (200, True) == (answer.status_code, answer.json()["deleted"])
    log = node.writes._log.topic(TOPICS.forward("n1"))  # type: ignore[attr-defined]
    body = decode_message(log.records[answer.json()["offsets"][TOPICS.forward("n1")]].value).body
    assert isinstance(body, Delete)
    assert ("d", "cpu", 10**9, 10**18) == (body.database, body.table, body.start_ns, body.end_ns)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"table": "t"}, "no database"),
        ({"database": "d", "table": "t", "where": 1}, "no parameter 'where'"),
        ({"database": "d", "table": "t", "tags": ["a"]}, "tags"),
        ({"database": "d", "table": "t", "start": True}, "start is no time"),
        ({"database": "d", "table": "missing", "start": 1}, "missing"),
        ({"database": "d", "table": "t"}, "every row"),
        ({"database": "d", "table": "t", "start": -(2**63)}, "no row can have"),
        ({"database": "d", "table": "t", "start": 2**63, "end": 5}, "start is no time"),
        ({"database": "d", "table": "t", "end": 10**30}, "end is no time"),
        ({"database": "d", "table": "t", "tags": {"host": "\ud800"}}, "tags"),
        ({"database": "d", "table": "\ud800", "end": 5}, "no table"),
        ({"database": "d", "table": "t", "tags": {}, "start": None}, "every row"),
    ],
)
def test_bad_deletes_are_named(client: httpx.Client, wanted: dict[str, Any], named: str) -> None:
    """An unknown table too: a delete that can match no row is a mistake."""
    answer = client.post("/api/v1/delete", content=json.dumps(wanted), headers={"content-type": "application/json"})
    assert 400 == answer.status_code
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    ['{"database":"d","table":"a","table":"cpu"}', '{"tags":{"host":"a","host":"b"},"database":"d","table":"cpu"}'],
)
def test_a_member_that_is_given_twice_is_refused(client: httpx.Client, text: str) -> None:
    """The last one would win, and rows be deleted that nobody meant."""
    answer = client.post("/api/v1/delete", content=text, headers={"content-type": "application/json"})
    assert (400, True) == (answer.status_code, "given twice" in answer.json()["error"]["message"])
