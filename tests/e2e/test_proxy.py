"""The proxy that cuts nodes off from Kafka does what a partition does."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from connectors.kafka.broker_process import free_port
from tests.e2e.proxy import Proxy, Way, running_proxies

SILENCE_S = 0.3
ANSWER_S = 10.0


class Echo(socketserver.BaseRequestHandler):
    """Notes what it hears and says it again."""

    heard: bytes = b""

    def handle(self) -> None:
        """One connection."""
        while piece := self.request.recv(1 << 16):
            Echo.heard += piece
            self.request.sendall(piece)


class EchoServer(socketserver.ThreadingTCPServer):
    """A server whose connections do not hold up its end."""

    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def proxied() -> Iterator[tuple[Proxy, int]]:
    """A proxy before an echo server, and its port."""
    Echo.heard = b""
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
    """Whether nothing comes, not even the end of the connection."""
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(ANSWER_S)
    return False


@pytest.mark.parametrize("way", list(Way))
def test_a_cut_is_silence_and_what_was_sent_arrives_when_it_is_healed(proxied: tuple[Proxy, int], way: Way) -> None:
    """Nothing passes a cut and nothing is reset; afterwards the connection goes on without a hole."""
    proxy, port = proxied
    with connect(port) as connection:
        connection.sendall(b"before")
        assert b"before" == connection.recv(100)
        proxy.cut(way)
        connection.sendall(b"during")
        assert is_silent(connection)
        assert (b"before" if way is not Way.FROM_BROKER else b"beforeduring") == Echo.heard
        proxy.heal()
        assert b"during" == connection.recv(100)


def test_a_connection_made_during_a_cut_hangs_until_it_is_healed(proxied: tuple[Proxy, int]) -> None:
    """Who connects to a partitioned address hears nothing."""
    proxy, port = proxied
    proxy.cut(Way.BOTH)
    with connect(port) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        proxy.heal()
        assert b"hello" == connection.recv(100)


def test_the_end_of_either_side_reaches_the_other(proxied: tuple[Proxy, int]) -> None:
    """Without a cut a closed connection is seen as closed."""
    _, port = proxied
    with connect(port) as connection:
        connection.sendall(b"all")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(100):
            received += piece
        assert b"all" == received
