"""The thread that listens."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from structlog.testing import capture_logs

from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.server import AddressInUse, Server
from tests.unit.serve.conftest import FakeNode
from tests.waiting import eventually


def test_port_0_selects_a_free_port(node: FakeNode) -> None:
    """The address is known when `start` returns, and answers at once."""
    server = Server(create_app(node), "127.0.0.1", 0)
    url = server.start()
    assert url == server.url
    assert 200 == httpx.get(f"{url}/health/live").status_code
    server.stop()


def test_a_taken_address_is_named(node: FakeNode) -> None:
    """An address in use is a typed error with the address in it, and the server on it continues."""
    first = Server(create_app(node))
    port = int(first.start().rsplit(":", 1)[1])
    with pytest.raises(AddressInUse, match=str(port)):
        Server(create_app(node), "127.0.0.1", port).start()
    assert 200 == httpx.get(f"{first.url}/health/live").status_code
    first.stop()


def test_an_address_of_another_machine_is_named(node: FakeNode) -> None:
    """An address that is not one of this machine's is refused the same way."""
    with pytest.raises(AddressInUse, match=r"192\.0\.2\.1"):
        Server(create_app(node), "192.0.2.1", 0).start()


def test_accepted_connections_send_at_once(node: FakeNode) -> None:
    """TCP_NODELAY is set on every accepted connection: no part of an answer waits for an acknowledgement."""
    server = Server(create_app(node))
    with httpx.Client(base_url=server.start()) as client:
        assert 200 == client.get("/health/live").status_code
        assert server._uvicorn is not None
        [connection] = server._uvicorn.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert 0 != accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.stop()


def test_stop_frees_the_port_and_ends_the_thread(node: FakeNode) -> None:
    """After `stop` the port can be taken again, no thread is left, and stopping again is fine."""
    server = Server(create_app(node))
    port = int(server.start().rsplit(":", 1)[1])
    server.stop()
    server.stop()
    assert "http" not in {thread.name for thread in threading.enumerate()}
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_stop_does_not_wait_for_a_client_that_reads_nothing(node: FakeNode) -> None:
    """An answer that no client reads is aborted, and its query ends."""
    server = Server(create_app(node))
    url = server.start()
    with httpx.stream(
        "GET", f"{url}/api/v1/query", params={"q": "SELECT i FROM range(500000000) t(i)"}, timeout=30
    ) as answer:
        assert next(answer.iter_bytes())
        server.stop()
        # On a busy machine a stop may have waited its whole time, and this client still reads nothing.
        eventually(lambda: "http" not in {thread.name for thread in threading.enumerate()}, "the end of the thread")


ENDLESS = {
    "head": b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-long: ",
    "trailer": b"POST /api/v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-long: ",
}


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("field", [b"x-filler: a\r\n", b"a"], ids=["many fields", "one field"])
def test_a_head_without_an_end_is_refused(node: FakeNode, field: bytes, begin: bytes) -> None:
    """One line and the end of the connection: what a client sends before a body takes no memory beyond the limit."""
    server = Server(create_app(node))
    host, port = server.start().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(begin)
        try:
            for _ in range(1_000):
                client.sendall(field * 1_000)
            answer = client.recv(1_000)
        except ConnectionError:
            # The answer was on its way when more came for a connection that is closed.
            answer = b"400 larger"
        assert b"400" in answer
        assert b"larger" in answer
    assert 200 == httpx.get(f"{server.url}/health/live").status_code
    server.stop()


def test_requests_behind_one_another_are_answered(node: FakeNode) -> None:
    """Many on one connection, sent at once and in single bytes, each with its body: none counts for the next one."""
    server = Server(create_app(node))
    host, port = server.start().removeprefix("http://").split(":")
    body = b'{"sql": "SELECT 1 AS x' + b" " * 40_000 + b'"}'
    head = b"POST /api/v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(request * 5)
        for byte in head:
            client.sendall(bytes([byte]))
        client.sendall(request[len(head) :])
        found = b""
        while found.count(b"HTTP/1.1 ") < 6 or not found.endswith(b"\n"):
            part = client.recv(65_536)
            assert part, found
            found += part
    assert 6 == found.count(b"HTTP/1.1 200")
    server.stop()


def test_a_client_that_leaves_amid_its_body_is_no_failure_of_the_node(node: FakeNode) -> None:
    """Nothing is logged as one, its place among the open requests is free again, and nothing of it is written."""
    server = Server(create_app(node))
    host, port = server.start().removeprefix("http://").split(":")
    figures = node.writes.figures
    with capture_logs() as lines:
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"POST /write?db=d HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\ncpu v=1 1\n")
            eventually(lambda: figures.open_requests == 1, "the open request")
        eventually(lambda: figures.open_requests == 0, "the end of the request")
        server.stop()
    assert [] == [line for line in lines if line["log_level"] == "error"]
    assert "d" not in node.writes.schemas().databases


FIRST_LOOK = """
import json, sys, httpx
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from headrace.consumers.serve.server import Server

async def look(request):
    before = set(sys.modules)
    gone = await request.is_disconnected()
    return JSONResponse([gone, sorted(set(sys.modules) - before)])

server = Server(Starlette(routes=[Route("/", look)]))
sys.stdout.write(httpx.get(server.start()).text)
server.stop()
"""


def test_the_first_look_for_a_client_that_has_left_imports_nothing() -> None:
    """It is in the event loop, beside other requests: modules would stop these for as long as they are read."""
    ran = subprocess.run([sys.executable, "-c", FIRST_LOOK], capture_output=True, text=True, timeout=60, check=True)
    assert [False, []] == json.loads(ran.stdout)
