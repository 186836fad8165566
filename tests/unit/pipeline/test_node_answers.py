"""Answers of nodes: complete or not at all, from whichever node gives one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from headrace.pipeline import node_answers
from headrace.pipeline.node_answers import NodeRefusal, Nodes, NodesSilent

Reply = tuple[int, bytes, int]
ROWS = pa.table({"x": list(range(1_000))})


def answer(cut: int = 0) -> Reply:
    """An Arrow answer; with `cut` the connection ends so many bytes early."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    return 200, sink.getvalue().to_pybytes(), cut


def refusal(status: int, kind: str, *, retriable: bool) -> Reply:
    """An error of a node."""
    error = {"kind": kind, "message": kind, "action": "", "retriable": retriable}
    return status, json.dumps({"error": error}).encode(), 0


@contextmanager
def node(replies: list[Reply], seen: list[dict[str, object]]) -> Iterator[str]:
    """A node that gives these replies, the last one again and again."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            seen.append({**json.loads(sent), "authorization": self.headers.get("authorization")})
            status, body, cut = replies.pop(0) if len(replies) > 1 else replies[0]
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - cut])

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(node_answers, "PAUSE_S", 0.001)
    monkeypatch.setattr(node_answers, "FIND_S", 0.2)


def test_a_node_that_is_lost_midway_is_replaced() -> None:
    """What it sent is dropped: each row of the answer is there once."""
    asked: list[dict[str, object]] = []
    with node([answer(cut=100)], []) as first, node([answer()], asked) as second:
        batches = Nodes((first, second), "t").rows("SELECT 1", {"log": 7})
    assert ROWS == pa.Table.from_batches(batches)
    assert {"sql": "SELECT 1", "format": "arrow", "after": {"log": 7}, "authorization": "Bearer t"} == asked[0]


def test_too_many_queries_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy node is asked again, for longer than a silent one."""
    busy = refusal(503, "TooManyQueries", retriable=True)
    monkeypatch.setattr(node_answers, "FIND_S", 0.05)
    monkeypatch.setattr(node_answers, "PAUSE_MAX_S", 0.03)
    with node([*[busy] * 8, answer()], []) as url:
        assert ROWS == pa.Table.from_batches(Nodes((url,)).rows("SELECT 1", {}))


def test_an_error_in_the_query_ends_it_at_once() -> None:
    """No other node is asked: the answer would be the same."""
    asked: list[dict[str, object]] = []
    refused = refusal(400, "QueryInvalid", retriable=False)
    with (
        node([refused], []) as first,
        node([answer()], asked) as second,
        pytest.raises(NodeRefusal, match="QueryInvalid"),
    ):
        Nodes((first, second)).rows("SELECT", {})
    assert [] == asked


def test_nodes_that_stay_silent_are_an_error() -> None:
    """It has the reason of the last one."""
    with node([refusal(503, "NotReady", retriable=True)], []) as url, pytest.raises(NodesSilent, match="NotReady"):
        Nodes((url,)).rows("SELECT 1", {})


def test_questions_are_spread_over_the_nodes() -> None:
    """Each task begins with another node."""
    seen: tuple[list[dict[str, object]], list[dict[str, object]]] = ([], [])
    with node([answer()], seen[0]) as first, node([answer()], seen[1]) as second:
        for turn in range(4):
            Nodes((first, second)).rows("SELECT 1", {}, turn)
    assert (2, 2) == (len(seen[0]), len(seen[1]))
