"""Writing, deleting and listing through one node: the client without Kafka."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace import _node_access
from headrace._node_access import repeated
from headrace.client import Client, ConnectionAmbiguous
from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.interface import ColumnTypeError, TimeRangeError
from headrace.connectors.formats.time_rules import TimesImplausible
from headrace.connectors.http import NodeRefused, NodeUnreachable
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.server import Server
from headrace.node_client import NodeAddressInvalid
from headrace.producers.acks import QuorumTimeout, QuorumTooLarge
from headrace.producers.deletes import DeleteInvalid
from headrace.producers.repeated_rows import RowsRepeat
from headrace.producers.router import RowTooLarge
from headrace.producers.sender import WriteFailed, WriteUnknown
from headrace.producers.writer import ResolutionFixed
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Delete, Write, decode_message
from headrace.schemas.tables import KEEP_FOREVER_NS, TypeClash
from tests.unit.serve.conftest import TOPICS, FakeNode
from tests.unit.serve.test_write_routes import written

T0_NS = 1_700_000_000_000_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node whose log is in memory."""
    (tmp_path / "segments").mkdir()
    made = FakeNode(tmp_path / "segments")
    try:
        yield made
    finally:
        made.engine.close()
        made.writes.close()


@pytest.fixture
def url(node: FakeNode) -> Iterator[str]:
    """Its address."""
    server = Server(create_app(node))
    yield server.start()
    server.stop()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of it."""
    with headrace.connect(node=url) as connected:
        yield connected


def bodies(node: FakeNode) -> list[Any]:
    """What its log has."""
    records = node.writes._log.topic(TOPICS.forward("n1")).records  # type: ignore[attr-defined]
    return [decode_message(record.value).body for record in records]


def test_rows_of_every_kind_reach_the_log_with_their_offsets(client: Client, node: FakeNode) -> None:
    """As over Kafka: counts, offsets for `after`, tags with any name, and columns that come later."""
    with client.writer("plant", "pumps", tags=["pu,mp"]) as writer:
        writer.write([{"time": T0_NS, "pu,mp": "a", "flow": 1.5}])
        writer.write([{"time": T0_NS + 1_000, "pu,mp": "b", "flow": 2.5, "on": True}])
        writer.write([])
        assert {TOPICS.forward("n1"): 1} == writer.flush()
    assert (2, 3) == (writer.rows, writer.points)
    rows = [("plant", "pumps", T0_NS, {"flow": 1.5}), ("plant", "pumps", T0_NS + 1_000, {"flow": 2.5, "on": True})]
    assert rows == written(node)
    (table,) = client.tables()
    assert ("plant", "pumps", ("pu,mp",), 2) == (table.database, table.table, table.tags, table.version)
    assert {TOPICS.forward("n1"): 1} == client.flush()


def test_tables_are_deleted_from_dropped_and_kept_for_a_time(client: Client, node: FakeNode) -> None:
    """The node appends what the client asks for; an unknown table is refused with the names it may have meant."""
    client.writer("plant", "pumps", tags=["pump"]).write([{"time": T0_NS, "pump": "a", "flow": 1.5}])
    client.delete("plant", "pumps", {"pump": "a"}, start=T0_NS, end=T0_NS + 1)
    assert Delete("plant", "pumps", {"pump": ("a",)}, T0_NS, T0_NS + 1) == bodies(node)[-1]
    with pytest.raises(DeleteInvalid, match=r"did you mean plant\.pumps"):
        client.delete("plant", "pump", {"pump": "a"})
    with pytest.raises(DeleteInvalid, match="no tag 'site'"):
        client.delete("plant", "pumps", {"site": "a"})
    # A filter that came out empty must not end a table.
    for tags in (None, dict[str, str]()):
        with pytest.raises(DeleteInvalid, match="every row"):
            client.delete("plant", "pumps", tags)
    client.set_retention("plant", "pumps", None)
    client.drop_table("plant", "pumps")
    assert Delete("plant", "pumps", {}) == bodies(node)[-1]
    assert node.writes.schemas().is_dropped("plant", "pumps")


def test_times_in_another_unit_are_refused_and_a_timestamp_is_not(client: Client, node: FakeNode) -> None:
    """Seconds as the begin of a delete would be in 1970: every later row would go. A timestamp of that year is one."""
    writer = client.writer("plant", "pumps", tags=["pump"])
    early = np.datetime64("1970-01-01T00:00:02", "ns")
    writer.write(pa.table({"time": pa.array([early]), "pump": ["a"], "flow": [1.5]}))
    assert [("plant", "pumps", 2 * 10**9, {"flow": 1.5})] == written(node)
    count = len(bodies(node))
    with pytest.raises(TimesImplausible, match="looks like milliseconds"):
        writer.write([{"time": T0_NS // 10**6, "pump": "a", "flow": 1.5}])
    for bound in ("start", "end"):
        with pytest.raises(DeleteInvalid, match="looks like seconds"):
            client.delete("plant", "pumps", {"pump": "a"}, **{bound: T0_NS // 10**9})
    assert count == len(bodies(node))


def test_a_dropped_table_has_no_retention(client: Client, node: FakeNode) -> None:
    """It would remove the rows of a later table of this name, which were acknowledged."""
    rows = [{"time": T0_NS, "pump": "a", "flow": 1.0}]
    client.writer("plant", "pumps", tags=["pump"]).write(rows)
    client.set_retention("plant", "pumps", timedelta(days=1))
    client.drop_table("plant", "pumps")
    client.writer("plant", "pumps", tags=["pump"]).write(rows)
    assert KEEP_FOREVER_NS == node.writes.schemas().newest("plant", "pumps").retention_ns


def test_errors_have_the_classes_that_they_have_over_kafka(client: Client, node: FakeNode) -> None:
    """What can be known here is refused here, before anything is sent; the rest comes back under its own class."""
    writer = client.writer("plant", "pumps", tags=["pump"])
    writer.write([{"time": T0_NS, "pump": "a", "flow": 1.5}])
    sent = len(bodies(node))
    with pytest.raises(TypeClash, match="flow"):
        writer.write([{"time": T0_NS, "pump": "a", "flow": "x"}])
    with pytest.raises(ColumnTypeError, match="flow"):
        writer.write(pa.table({"time": [T0_NS], "pump": ["a"], "flow": [[1]]}))
    with pytest.raises(TimeRangeError):
        writer.write([{"time": T0_NS + 1, "pump": "a", "flow": 1.0}])
    with pytest.raises(QuorumTooLarge, match="1 members"):
        client.writer("plant", "pumps", quorum=2).write([{"time": T0_NS, "pump": "a", "flow": 1.0}])
    with pytest.raises(ResolutionFixed):
        client.writer("plant", "pumps", resolution="ns").write([{"time": T0_NS, "pump": "a", "flow": 1.0}])
    assert sent == len(bodies(node))


def test_rows_of_a_new_table_that_share_a_time_need_tags(client: Client, node: FakeNode) -> None:
    """Forgotten tags would cost all rows of a time but one; `tags=[]` shows that there are none."""
    rows = [{"time": T0_NS, "pump": pump, "flow": 1.0} for pump in ("a", "b")]
    with pytest.raises(RowsRepeat, match="1 of 2 rows for the new table plant.pumps"):
        client.writer("plant", "pumps").write(rows)
    assert [] == written(node)
    client.writer("plant", "logs", tags=[]).write(rows)
    client.writer("plant", "pumps", tags=["pump"]).write(rows)
    # The table is there, and so are its tags.
    client.writer("plant", "pumps").write(rows)
    assert 6 == len(written(node))


def test_many_rows_are_sent_in_requests_that_the_node_takes(
    client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node takes 1 MB: larger requests are refused, and sent again in parts, with the tags that they need."""
    count = 200_000
    rows = pa.table(
        {
            "time": pa.array(range(T0_NS, T0_NS + count * 1_000, 1_000)),
            "pump": pa.array([f"p{number}" for number in range(count)]).dictionary_encode(),
            "flow": pa.array([float(number) for number in range(count)]),
        }
    )
    with client.writer("plant", "pumps", tags=["pump"]) as writer:
        writer.write(rows)
    assert (count, count) == (writer.rows, sum(each.row_count for each in bodies(node) if isinstance(each, Write)))


def test_a_row_that_no_request_holds_leaves_the_writer_as_it_was(client: Client, node: FakeNode) -> None:
    """It is refused by the error of a row, as over Kafka, and later rows are sent together as before."""
    with client.writer("plant", "pumps", tags=["pump"]) as writer:
        rows = [{"time": T0_NS + number * 1_000, "pump": "a", "text": "x"} for number in range(100)]
        with pytest.raises(RowTooLarge, match="a row of plant.pumps"):
            writer.write([*rows, {"time": T0_NS, "pump": "b", "text": "x" * 2_000_000}])
        count = len(bodies(node))
        writer.write(rows)
        assert count + 1 == len(bodies(node))


@pytest.mark.parametrize("others", [{"bootstrap": "b"}, {"cluster": "c"}, {"nodes": "127.0.0.1:1"}, {"linger_ms": 5}])
def test_a_client_has_one_node_or_kafka(others: dict[str, Any]) -> None:
    """Both are an error, and never one of them silently."""
    with pytest.raises(ConnectionAmbiguous):
        headrace.connect(node="127.0.0.1:1", **others)


def test_addresses_that_no_node_has_are_errors_at_once() -> None:
    """One that nobody listens at, one that is none, and one at which something else answers."""
    with pytest.raises(NodeUnreachable, match="127.0.0.1:1"):
        headrace.connect(node="127.0.0.1:1")
    with pytest.raises(NodeAddressInvalid):
        headrace.connect(node="ftp://x")
    with answering([(200, {}, {"hello": 1})]) as other, pytest.raises(NodeRefused, match="not as a node"):
        headrace.connect(node=other)
    with answering([(404, {}, {})]) as other, pytest.raises(NodeRefused, match="HTTP 404"):
        headrace.connect(node=other)


class answering:  # noqa: N801 - used as a function
    """A server that gives these answers, (status, headers, document), one after another; the last one for ever."""

    def __init__(self, answers: list[tuple[int, dict[str, str], Any]]) -> None:
        self.asked = 0
        answering = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, document = answers[min(answering.asked, len(answers) - 1)]
                answering.asked += 1
                self.rfile.read(int(self.headers.get("content-length", 0)))
                body = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def refusal(kind: str, **flags: bool) -> dict[str, Any]:
    """The document of an error."""
    return {"error": {"kind": kind, "message": "not now", "action": "", "retriable": False, **flags}}


SCHEMAS: dict[str, Any] = {"databases": [], "tables": []}
WRITTEN = {"rows": 1, "points": 1, "offsets": {"t": 3}}


def test_a_write_is_repeated_until_it_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind `Retry-After`, and when the node does not know whether it was written: writing again is safe."""
    monkeypatch.setattr(_node_access, "RETRY_PAUSE_S", 0.01)
    # The client looks for the table at its start, before it makes one, and before it compares the times of its rows.
    answers = [
        *[(200, {}, SCHEMAS)] * 3,
        (503, {"retry-after": "0"}, refusal("WritesWaiting", retriable=True)),
        (503, {}, refusal("WriteUnknown", state_unknown=True)),
        (200, {}, WRITTEN),
        (200, {}, SCHEMAS),
    ]
    server = answering(answers)
    with server as url, headrace.connect(node=url) as client:
        writer = client.writer("d", "t")
        writer.write([{"time": T0_NS, "v": 1.0}])
        assert (7, 1, {"t": 3}) == (server.asked, writer.rows, writer.flush())


def test_a_quorum_that_is_late_is_reported_and_not_repeated() -> None:
    """The rows are in the log: only the members are late."""
    found: tuple[int, dict[str, str], dict[str, Any]] = (200, {}, SCHEMAS)
    server = answering([found, found, found, (503, {}, refusal("QuorumTimeout", state_unknown=True))])
    with server as url, headrace.connect(node=url) as client, pytest.raises(QuorumTimeout):
        client.writer("d", "t").write([{"time": T0_NS, "v": 1.0}])
    assert 4 == server.asked


@pytest.mark.parametrize("kind", ["QuorumTimeout", "WriteFailed"])
def test_an_error_of_a_node_counts_the_rows(kind: str) -> None:
    """As the same error over Kafka: programs read the number, and not the message."""
    found: tuple[int, dict[str, str], dict[str, Any]] = (200, {}, SCHEMAS)
    with answering([found, found, found, (503, {}, refusal(kind))]) as url, headrace.connect(node=url) as client:
        with pytest.raises((QuorumTimeout, WriteFailed)) as raised:
            client.writer("d", "t").write([{"time": T0_NS + number * 1_000, "v": 1.0} for number in range(3)])
        assert isinstance(raised.value, QuorumTimeout | WriteFailed)
        assert (kind, 3) == (type(raised.value).__name__, raised.value.rows)


def test_the_members_that_lag_are_known_through_a_node(client: Client, node: FakeNode) -> None:
    """As over Kafka: programs read them, and not the message. Nobody follows this log."""
    writer = client.writer("d", "t", quorum=1)
    missed = QuorumTimeout("1 rows are in the log", rows=1, lagging={"n1": {"n1": "has sent no status"}})

    def write(*_: Any) -> None:
        raise missed

    node.writes.write = write  # type: ignore[method-assign, assignment]
    with pytest.raises(QuorumTimeout) as raised:
        writer.write([{"time": T0_NS, "v": 1.0}])
    assert (missed.lagging, 1) == (raised.value.lagging, raised.value.rows)


def test_an_error_of_a_node_has_also_the_rows_that_were_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is several requests: behind one that fails, none is sent."""
    monkeypatch.setattr(_node_access, "ROWS_MAX", 2)
    found: tuple[int, dict[str, str], Any] = (200, {}, SCHEMAS)
    answers = [found, found, found, (200, {}, WRITTEN), (503, {}, refusal("WriteFailed"))]
    with answering(answers) as url, headrace.connect(node=url) as client:
        with pytest.raises(WriteFailed, match="not now; the 3 rows behind them were not written") as raised:
            client.writer("d", "t").write([{"time": T0_NS + number * 1_000, "v": 1.0} for number in range(7)])
        assert 5 == raised.value.rows


def test_connecting_to_a_silent_node_ends_within_its_timeout() -> None:
    """As over Kafka: a node that is stopped takes connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        deadline = Deadline(2.0)
        with pytest.raises(NodeUnreachable, match="within 1 s"):
            headrace.connect(node=f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)
    assert not deadline.passed()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NodeUnreachable("gone", sent=False), WriteFailed),
        (NodeUnreachable("gone", sent=True), WriteUnknown),
        (NodeRefused("busy", retriable=True), WriteFailed),
        (WriteUnknown("unknown", rows=1), WriteUnknown),
        (TypeClash("no"), TypeClash),
    ],
)
def test_a_write_that_stays_without_an_answer_says_what_is_known(
    error: HeadraceError, raised: type[HeadraceError]
) -> None:
    """Certainly not written, or perhaps; an error that no time mends is raised as it is."""

    def fails() -> None:
        raise error

    with pytest.raises(raised):
        repeated(fails, 1, timeout_s=0)
