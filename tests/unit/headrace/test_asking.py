"""One query of a client to several nodes: some are stopped, some are slow, and time is limited."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace import _asking, _silence
from headrace._asking import Question, ask
from headrace._nodes import NodeDirectory
from headrace._silence import SilentNode
from headrace.connectors import patient_socket
from headrace.connectors.http import QUERY_ID_HEADER, NodeUnreachable
from headrace.consumers.query.query_errors import NotCaughtUp, QueryTimeout

LONG_S = 60.0
"""Far below the time that a client waits for a node that lives, and far above what a test needs."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silences are noticed soon."""
    monkeypatch.setattr(patient_socket, "SILENCE_S", 0.05)
    monkeypatch.setattr(_silence, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(_asking, "RETRY_S", 0.01)


@pytest.fixture
def stopped() -> Iterator[str]:
    """The address of a process that is stopped: the kernel accepts connections and what they send."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class Node:
    """Answers queries by a function of the request, and signs of life as long as it has some."""

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, bytes]], lives: bool = True) -> None:
        self.asked: list[dict[str, Any]] = []
        self.probes = threading.Semaphore(0)
        self.answer, self.lives = answer, lives
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node.probes.release()
                self._send(200 if node.lives else 500, b"{}")

            def do_POST(self) -> None:
                node.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._send(*node.answer(node.asked[-1]))

            def _send(self, status: int, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-length", str(len(body)))
                    self.send_header(QUERY_ID_HEADER, "q1")
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Node:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def rows(_request: dict[str, Any]) -> tuple[int, bytes]:
    """An answer of one row."""
    table, sink = pa.table({"n": [15]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return 200, sink.getvalue().to_pybytes()


def refusing(status: int, kind: str) -> Callable[[dict[str, Any]], tuple[int, bytes]]:
    """An error that may be repeated."""
    error = {"kind": kind, "message": "not now", "action": "", "retriable": True}
    return lambda _request: (status, json.dumps({"error": error}).encode())


def asked(*urls: str, timeout_ms: int | None = None, default_ms: int = 60_000) -> list[dict[str, Any]]:
    """The rows that a client of these nodes gets."""
    closed: Any = SimpleNamespace(is_open=False)
    question = Question("SELECT 1", {}, {}, timeout_ms, None, default_ms)
    return ask(NodeDirectory(closed, urls), question, None, "c").to_dicts()


def test_a_node_that_is_stopped_is_left_for_the_next_one(stopped: str) -> None:
    """It takes the connection and the query, and would keep the client waiting for minutes."""
    began_s = time.monotonic()
    with Node(rows) as other:
        assert [{"n": 15}] == asked(stopped, other.url)
    assert time.monotonic() - began_s < LONG_S


def test_a_node_that_stops_amid_its_answer_is_left_as_well() -> None:
    """What it has sent is no answer: the next node gives a whole one."""
    with socket.create_server(("127.0.0.1", 0)) as listening, Node(rows) as other:

        def begin() -> None:
            connection, _ = listening.accept()
            connections.append(connection)
            head = f"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n{QUERY_ID_HEADER}: q1\r\n\r\n"
            connection.sendall(head.encode() + b"begin")

        connections: list[socket.socket] = []
        thread = threading.Thread(target=begin, daemon=True)
        thread.start()
        began_s = time.monotonic()
        assert [{"n": 15}] == asked(f"http://127.0.0.1:{listening.getsockname()[1]}", other.url)
        assert time.monotonic() - began_s < LONG_S
        thread.join(LONG_S)
        connections[0].close()


def test_a_node_that_works_in_silence_is_waited_for() -> None:
    """Its sign of life is enough, however long the query takes; no other node is asked."""

    def works(request: dict[str, Any]) -> tuple[int, bytes]:
        for _ in range(2 * _silence.MISSED_MAX + 1):
            assert node.probes.acquire(timeout=LONG_S)
        return rows(request)

    with Node(works) as node, Node(rows) as other:
        assert [{"n": 15}] == asked(node.url, other.url)
    assert [] == other.asked


def test_new_statuses_are_signs_of_life(stopped: str) -> None:
    """A node that sends them is not asked for another one: over Kafka a long query costs no requests."""
    statuses = iter(range(1_000))
    silent = SilentNode(stopped, lambda _url: next(statuses))
    for _ in range(10):
        silent.look()


def test_a_node_is_gone_without_status_and_answer(stopped: str) -> None:
    """At once when its status shows it offline, else at the second request that it misses."""
    shown = iter([7, -1, -1])
    with pytest.raises(NodeUnreachable, match="no sign of life"):
        SilentNode(stopped, lambda _url: next(shown)).look()
    unknown = SilentNode(stopped, lambda _url: -1)
    unknown.look()
    with pytest.raises(NodeUnreachable):
        unknown.look()
    # The same status again shows nothing, and one that the node misses may be the machine's fault.
    same = SilentNode(stopped, lambda _url: 7)
    same.look()
    with pytest.raises(NodeUnreachable):
        same.look()


def test_a_node_that_refuses_to_say_how_it_is_lives() -> None:
    """An answer of any kind is a sign of life."""
    with Node(rows, lives=False) as node:
        silent = SilentNode(node.url, lambda _url: -1)
        for _ in range(2 * _silence.MISSED_MAX):
            silent.look()


def test_a_query_of_little_time_does_not_wait_for_a_sign_of_life(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time, and the grace that the node has, bound the call: a look that takes longer would not help it."""
    monkeypatch.setattr(_silence, "PROBE_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(_asking, "GRACE_S", 0.2)
    began_s = time.monotonic()
    with pytest.raises(QueryTimeout, match="within 100 ms"):
        asked(stopped, timeout_ms=100)
    assert time.monotonic() - began_s < LONG_S / 2


def test_a_query_that_ran_out_of_time_is_not_repeated() -> None:
    """Neither there nor elsewhere, though a node calls it an error to retry: that is for whoever has more time."""
    with Node(refusing(504, "QueryTimeout")) as node, Node(rows) as other:
        for timeout_ms in (50, None):
            with pytest.raises(QueryTimeout, match="not now"):
                asked(node.url, other.url, timeout_ms=timeout_ms)
    assert (2, 0) == (len(node.asked), len(other.asked))


def test_each_attempt_gets_the_time_that_is_left() -> None:
    """The limit is that of the call: a node that is behind is asked again within it only."""
    began_s = time.monotonic()
    with Node(refusing(503, "NotCaughtUp")) as node, pytest.raises(NotCaughtUp):
        asked(node.url, timeout_ms=700)
    assert time.monotonic() - began_s < LONG_S
    given = [request["timeout_ms"] for request in node.asked]
    assert len(given) > 1
    assert 700 == given[0]
    assert sorted(set(given), reverse=True) == given


def test_a_node_that_fell_behind_for_its_whole_time_ends_the_query() -> None:
    """Without a limit of the call that of the node counts once, and not once at every node."""

    def behind(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(0.1)
        return refusing(503, "NotCaughtUp")(request)

    with Node(behind) as node, Node(rows) as other, pytest.raises(NotCaughtUp):
        asked(node.url, other.url, default_ms=50)
    assert [] == other.asked


def test_a_silent_node_cannot_exceed_the_time_of_a_query(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the time, and names the node, though nobody has found out yet that it is stopped."""
    monkeypatch.setattr(_asking, "GRACE_S", 0.1)
    monkeypatch.setattr(patient_socket, "SILENCE_S", LONG_S)
    began_s = time.monotonic()
    with pytest.raises(QueryTimeout, match=rf"within 200 ms: the node at {stopped} has not answered") as raised:
        asked(stopped, timeout_ms=200)
    assert time.monotonic() - began_s < LONG_S
    # Nobody knows that it does not run.
    assert "running" not in str(raised.value)
    assert "longer timeout" in raised.value.action


def test_a_node_that_nobody_runs_is_not_late() -> None:
    """Where nobody takes the connection the question is whether a node runs there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(QueryTimeout, match=f"no node answers at {url}") as raised:
        asked(url, timeout_ms=100)
    assert "is it running there" in raised.value.action
