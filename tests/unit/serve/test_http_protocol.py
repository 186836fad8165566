"""What a connection takes for one request, byte for byte."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from headrace.consumers.serve import request_bodies
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
    """The next part of the answers, of which each is sent at once."""
    return connection.recv(65_536)


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


@pytest.mark.parametrize("hosts", [(b"localhost", b"evil.example"), (b"localhost", b"localhost")])
def test_a_request_with_two_names_is_refused(connection: socket.socket, hosts: tuple[bytes, bytes]) -> None:
    """Two Host fields are 400 and the end of the connection: a proxy may have looked at the other one."""
    connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: %s\r\nHost: %s\r\n\r\n" % hosts)
    assert answer(connection).startswith(b"HTTP/1.1 400 ")
    assert answer(connection) == b""


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
