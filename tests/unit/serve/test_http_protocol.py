"""What a connection takes for one request, byte for byte."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import pytest

from headrace.consumers.serve import http_protocol, request_bodies
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.server import Server
from tests.unit.serve.conftest import FakeNode
from tests.waiting import eventually

HEAD = b"POST /write?db=d HTTP/1.1\r\nhost: localhost\r\n"
LINE = b"cpu v=1 1700000000000000000\n"
LENGTH = b"content-length: %d\r\n\r\n"
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
"""Of the first request of Java's HttpClient to each address."""


@pytest.fixture
def connection(node: FakeNode) -> Iterator[socket.socket]:
    """A connection to a node."""
    server = Server(create_app(node))
    host, port = server.start().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        yield opened
    server.stop()


def answer(connection: socket.socket) -> bytes:
    """The next answer with its body, which may arrive behind its head; empty at the end of the connection."""
    found, whole = b"", False
    while not whole and (part := connection.recv(1)):
        found += part
        head, ended, body = found.partition(b"\r\n\r\n")
        if ended and b"transfer-encoding: chunked" in head.lower():
            whole = body.endswith(b"0\r\n\r\n")
        elif ended:
            length = re.search(rb"\r\ncontent-length: (\d+)", head.lower())
            whole = len(body) >= (int(length[1]) if length else 0)
    return found


@pytest.mark.parametrize(
    "offer",
    [OFFER, b"upgrade: websocket\r\nconnection: upgrade\r\nconnection: keep-alive\r\n", b""],
    ids=["h2c", "two fields", "no offer"],
)
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_a_request_that_offers_another_protocol_keeps_its_body(
    node: FakeNode, connection: socket.socket, offer: bytes, chunked: bool, later: bool
) -> None:
    """It is one of HTTP/1.1, also where the body comes later, and so is the next one. Each is answered once."""
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LINE), LINE) if chunked else LINE
    head = HEAD + offer + (b"transfer-encoding: chunked\r\n\r\n" if chunked else LENGTH % len(LINE))
    found = b""
    for _ in range(2):
        if later:
            connection.sendall(head)
            eventually(lambda: node.writes.figures.open_requests == 1, "the head")
            connection.sendall(body)
        else:
            connection.sendall(head + body)
        found += answer(connection)
    assert [b"204", b"204"] == [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert 2 == found.count(b"x-headrace-offsets")
    assert "d" in node.writes.schemas().databases


def test_no_body_becomes_a_request(connection: socket.socket) -> None:
    """A body that looks like a request, behind an offer of another protocol, is a body."""
    inner = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    connection.sendall(HEAD + OFFER + LENGTH % len(inner) + inner)
    assert answer(connection).startswith(b"HTTP/1.1 400 ")
    connection.sendall(HEAD + LENGTH % len(LINE) + LINE)
    assert answer(connection).startswith(b"HTTP/1.1 204 ")


def test_a_tunnel_is_refused(connection: socket.socket) -> None:
    """CONNECT is 400 and the end of the connection, with and without an offer of another protocol."""
    connection.sendall(b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n" + OFFER + b"\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 400 ")
    assert answer(connection) == b""


@pytest.mark.parametrize(
    "fields",
    [
        b"host: localhost\r\nHost: evil.example\r\n",
        b"host: localhost\r\nHost: localhost\r\n",
        b"host: localhost\r\norigin: http://localhost\r\nOrigin: http://evil.example\r\n",
        b"accept: */*\r\n",
    ],
    ids=["two hosts", "a host twice", "two origins", "no host"],
)
def test_a_request_without_one_name_is_refused(connection: socket.socket, fields: bytes) -> None:
    """Two Host or Origin fields are 400 and the end of the connection: a proxy may have looked at the other one.
    So is no Host.
    """
    connection.sendall(b"GET /health/live HTTP/1.1\r\n" + fields + b"\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 400 ")
    assert answer(connection) == b""


def test_a_client_that_waits_to_send_too_much_is_refused_at_once(node: FakeNode, connection: socket.socket) -> None:
    """Without leave to send, and with the end of the connection, as another refusal. A body that fits is asked for."""
    waiting = HEAD + b"expect: 100-Continue\r\n"
    connection.sendall(waiting + LENGTH % len(LINE))
    assert answer(connection).startswith(b"HTTP/1.1 100 ")
    connection.sendall(LINE)
    assert answer(connection).startswith(b"HTTP/1.1 204 ")
    connection.sendall(waiting + LENGTH % (node.writes.settings.http_body_mb_max * 1_000_000 + 1))
    found = answer(connection)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in found
    assert answer(connection) == b""


@pytest.mark.parametrize(
    ("field", "status"),
    [(b"expect: 200-ok", b"417"), (b"transfer-encoding: gzip, chunked", b"400")],
)
def test_what_a_body_is_not_asked_or_unpacked_for_is_named(
    connection: socket.socket, field: bytes, status: bytes
) -> None:
    """Another expectation, and a transfer that is packed: chunks of gzip were taken for text."""
    body = LENGTH % 0 if status == b"417" else b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(LINE), LINE)
    connection.sendall(HEAD + field + b"\r\n" + body)
    found = answer(connection)
    assert found.startswith(b"HTTP/1.1 %s " % status)
    assert field.split(b": ")[1] in found


def test_a_body_that_stops_arriving_is_given_up(
    node: FakeNode, connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free although the connection stays open, and the answer is one to retry. A slow body is waited for."""
    monkeypatch.setattr(request_bodies, "SILENCE_S", 0.5)
    connection.sendall(HEAD + LENGTH % len(LINE))
    for byte in LINE:
        connection.sendall(bytes([byte]))
        time.sleep(0.04)
    assert answer(connection).startswith(b"HTTP/1.1 204 ")
    connection.sendall(HEAD + LENGTH % len(LINE) + LINE[:-1])
    eventually(lambda: node.writes.figures.open_requests == 1, "the request")
    assert answer(connection).startswith(b"HTTP/1.1 503 ")
    assert 0 == node.writes.figures.open_requests


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health/li", b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n1"],
    ids=["nothing", "part of a head", "part of a body that was refused"],
)
def test_a_connection_that_falls_silent_is_closed(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Its client may be gone without a word, and its place is a file of the process."""
    monkeypatch.setattr(http_protocol, "SILENCE_S", 0.2)
    # The first one began to wait before.
    connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(connection.getpeername(), timeout=20) as silent:
        silent.sendall(sent)
        if b"nothing" in sent:
            assert answer(silent).startswith(b"HTTP/1.1 404 ")
            silent.sendall(b"2")
        assert answer(silent) == b""


def test_a_request_that_takes_long_keeps_its_connection(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request that is open its route decides how long it waits."""
    monkeypatch.setattr(http_protocol, "SILENCE_S", 0.01)
    connection.sendall(HEAD + LENGTH % len(LINE) + LINE[:5])
    time.sleep(0.1)
    connection.sendall(LINE[5:])
    assert answer(connection).startswith(b"HTTP/1.1 204 ")


def test_a_client_that_leaves_ends_its_query_with_requests_behind_it(node: FakeNode, connection: socket.socket) -> None:
    """The query ends by that, and not by its time."""
    body = json.dumps({"sql": "SELECT count(*) FROM range(100000) a, range(10000000) b"}).encode()
    field = b"content-type: application/json\r\n"
    connection.sendall(b"POST /api/v1/query HTTP/1.1\r\nhost: localhost\r\n" + field + LENGTH % len(body) + body)
    connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2)
    eventually(lambda: bool(node.engine.reports()), "a query that runs")
    connection.close()
    figures = node.engine.statistics
    eventually(lambda: 1 == figures.failed, "its end")
    assert 0 == figures.timed_out
