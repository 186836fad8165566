"""The HTTP client of nodes against a server with every answer that a node or something else may give."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.connectors.http import CHUNK_BYTES, AnswerCut, NodeRefused, NodeUnreachable, call_node, request_node

FILE = bytes(range(256)) * (CHUNK_BYTES // 256 + 3)
REFUSAL = {"error": {"kind": "NotLeader", "message": "not the leader", "action": "ask n2"}}

LONG = "x" * 200_000


class Answers(BaseHTTPRequestHandler):
    """One answer per path."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output of tests is their own."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/file":
            self.answer(200, FILE)
        elif path == "/short":
            self.answer(200, FILE[:100], length=len(FILE))
        elif path == "/page":
            self.answer(502, b"<html>bad gateway</html>")
        elif path == "/long":
            self.answer(400, json.dumps({"error": {"kind": "UnknownTable", "message": LONG}}).encode())
        elif path == "/not-json":
            self.answer(200, b"<html>")
        else:
            self.answer(200, json.dumps({"path": self.path}).encode())

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/refused":
            self.answer(409, json.dumps(REFUSAL).encode())
        else:
            self.answer(200, json.dumps({"sent": sent.decode(), "type": self.headers["content-type"]}).encode())

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def answer(self, status: int, body: bytes, length: int | None = None) -> None:
        """Send an answer; its Content-Length may be wrong."""
        self.send_response(status)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_json_calls_by_every_method(url: str) -> None:
    """The query string arrives as it was given, a document is sent as JSON, and an answer without a body is None."""
    assert {"path": "/a%20b?group=n1"} == call_node(f"{url}/a%20b?group=n1")
    assert {"path": "/"} == call_node(url)
    assert {"sent": "", "type": None} == call_node(f"{url}/seal", method="POST")
    with request_node(f"{url}/query", method="POST", document={"sql": "SELECT 1"}) as answer:
        assert {"sent": '{"sql": "SELECT 1"}', "type": "application/json"} == answer.json()
    assert call_node(f"{url}/snapshots/1", method="DELETE") is None


def test_a_refusal_has_the_nodes_message_and_action(url: str) -> None:
    """Message, action, status and document come from the answer; a page of something else is quoted."""
    with pytest.raises(NodeRefused) as refused:
        call_node(f"{url}/refused", method="POST")
    assert f"{url}/refused: not the leader (ask n2)" == refused.value.message
    assert (409, True, REFUSAL["error"]) == (refused.value.status, refused.value.retriable, refused.value.document)
    with pytest.raises(NodeRefused, match="bad gateway") as page:
        request_node(f"{url}/page")
    assert (502, False, {}) == (page.value.status, page.value.retriable, page.value.document)


def test_a_long_refusal_keeps_its_kind(url: str) -> None:
    """A message that quotes a long query is read whole, so that its kind is known."""
    with pytest.raises(NodeRefused) as refused:
        request_node(f"{url}/long")
    assert {"kind": "UnknownTable", "message": LONG} == refused.value.document


def test_a_file_streams_in_chunks_and_in_views(url: str) -> None:
    """Chunks and views give every byte; views share one buffer."""
    assert FILE == b"".join(request_node(f"{url}/file").chunks())
    with request_node(f"{url}/file") as answer:
        copied = [(bytes(view), view.obj) for view in answer.views()]
    assert FILE == b"".join(content for content, _ in copied)
    assert len(copied) > 1
    assert 1 == len({id(buffer) for _, buffer in copied})


def test_an_answer_that_ends_early_is_cut(url: str) -> None:
    """A client never accepts a part of an answer as complete; a receiver of a file compares the length itself."""
    with pytest.raises(AnswerCut):
        list(request_node(f"{url}/short").chunks())
    with pytest.raises(NodeUnreachable):
        call_node(f"{url}/short")
    with request_node(f"{url}/short") as answer:
        assert FILE[:100] == b"".join(map(bytes, answer.views()))


def test_a_node_that_does_not_answer_is_unreachable(url: str) -> None:
    """No listener, no answer in time, no JSON and an invalid address are one error, with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NodeUnreachable, match="it took too long"):
            call_node(slow, timeout_s=0.05)
    with pytest.raises(NodeUnreachable, match="does not answer: Connection refused") as refused:
        call_node(slow)
    assert refused.value.retriable
    for address in (f"{url}/not-json", "", "ftp://x", "http://", "http://127.0.0.1:99999", "http://127.0.0.1/a b"):
        with pytest.raises(NodeUnreachable):
            call_node(address)


@pytest.mark.parametrize(("timeout_s", "wait_s"), [(30.0, 5.0), (0.5, 0.5)])
def test_whoever_may_stop_waits_for_no_connection_for_long(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, wait_s: float
) -> None:
    """A host that drops packets held the stop of a node for 30 s: while it connects nobody is asked."""
    waits = list[float]()

    def connect(_address: object, timeout: float, *_: object) -> socket.socket:
        waits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for on_silence in (None, lambda _left_s: None):
        with pytest.raises(NodeUnreachable, match="it took too long"):
            call_node("http://127.0.0.1:9", timeout_s=timeout_s, on_silence=on_silence)
    assert [timeout_s, wait_s] == waits


def test_no_proxy_comes_between_nodes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the environment is ignored."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert {"path": "/x"} == call_node(f"{url}/x")
