"""The proxy of the fault tests behaves like a network partition."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from headrace.connectors.kafka.broker_process import free_port
from tests.e2e.proxy import Direction, Proxy, running_proxies

SILENCE_S = 0.3
ANSWER_S = 10.0


class Echo(socketserver.BaseRequestHandler):
    """Keeps what it receives and sends it back."""

    received: bytes = b""

    def handle(self) -> None:
        """Serve one connection."""
        while chunk := self.request.recv(1 << 16):
            Echo.received += chunk
            self.request.sendall(chunk)


class EchoServer(socketserver.ThreadingTCPServer):
    """A server whose open connections do not delay its end."""

    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def proxied() -> Iterator[tuple[Proxy, int]]:
    """A proxy in front of an echo server, and its port."""
    Echo.received = b""
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = free_port()
        try:
            with running_proxies({port: server.server_address[1]}) as proxies:
                yield proxies[port], port
        finally:
            server.shutdown()
            thread.join()


def connect(port: int) -> socket.socket:
    """A connection through the proxy."""
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing arrives, not even the end of the connection."""
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(ANSWER_S)
    return False


@pytest.mark.parametrize("direction", list(Direction))
def test_a_cut_is_silent_and_buffered_bytes_arrive_after_it(proxied: tuple[Proxy, int], direction: Direction) -> None:
    """Nothing passes a cut and nothing is reset; afterwards the connection continues without a gap."""
    proxy, port = proxied
    with connect(port) as connection:
        connection.sendall(b"before")
        assert b"before" == connection.recv(100)
        proxy.cut(direction)
        connection.sendall(b"during")
        assert is_silent(connection)
        assert (b"before" if direction is not Direction.FROM_BROKER else b"beforeduring") == Echo.received
        proxy.heal()
        assert b"during" == connection.recv(100)


def test_a_connection_made_during_a_cut_hangs_until_the_cut_is_healed(proxied: tuple[Proxy, int]) -> None:
    """A client that connects to a partitioned address receives nothing."""
    proxy, port = proxied
    proxy.cut(Direction.BOTH)
    with connect(port) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        proxy.heal()
        assert b"hello" == connection.recv(100)


def test_the_end_of_a_connection_is_forwarded(proxied: tuple[Proxy, int]) -> None:
    """Without a cut both ends see the end of a connection."""
    _, port = proxied
    with connect(port) as connection:
        connection.sendall(b"all")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(100):
            received += chunk
        assert b"all" == received
