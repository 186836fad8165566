"""A node of a local cluster whose port another program takes before it listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import IO

import pytest

from headrace.connectors.kafka.broker_process import port_is_free
from headrace.consumers.serve.server import AddressInUse, reserve_address
from headrace.local_cluster import LocalCluster, NodeDied


class Ready(BaseHTTPRequestHandler):
    """Every route answers that the node is ready."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Process:
    """A child that has ended, or runs."""

    pid: int
    code: int | None

    def poll(self) -> int | None:
        """See Child."""
        return self.code


class Cluster(LocalCluster):
    """A cluster of one node, which is a thread; `taken`: how often another program is faster."""

    def __init__(self, directory: Path, taken: int, message: str = "") -> None:
        super().__init__(directory, nodes=1, bootstrap="127.0.0.1:1")
        self.taken = taken
        self.message = message
        self.commands: list[Sequence[str]] = []
        self.servers: list[HTTPServer] = []

    def launch(self, command: Sequence[str], log: IO[bytes]) -> Process:
        """Start the node."""
        self.commands.append(command)
        host, _, port = command[command.index("--http") + 1].rpartition(":")
        # The other program's, or the node's.
        self.servers.append(HTTPServer((host, int(port)), Ready))
        threading.Thread(target=self.servers[-1].serve_forever, daemon=True).start()
        number = 2**30 + len(self.commands)
        if len(self.commands) > self.taken:
            return Process(number, None)
        with pytest.raises(AddressInUse) as refused:
            reserve_address(host, int(port))
        log.write(f"error: {self.message or refused.value}\n".encode())
        return Process(number, 1)


@contextmanager
def cluster(directory: Path, taken: int, message: str = "") -> Iterator[Cluster]:
    """A cluster whose servers end with it."""
    made = Cluster(directory, taken, message)
    try:
        yield made
    finally:
        for server in made.servers:
            server.shutdown()
            server.server_close()


def test_a_node_that_lost_its_port_starts_at_another_one(tmp_path: Path) -> None:
    """As often as that happens and with its arguments, and the progress has a line for each time."""
    said: list[str] = []
    with cluster(tmp_path, taken=2) as started:
        started.start_node("n1", ("--log", "local"), said.append)
        started.wait_ready(on_progress=said.append)
        assert 3 == len(started.commands)
        assert all(command[-2:] == ["--log", "local"] for command in started.commands)
        ports = {command[command.index("--http") + 1] for command in started.commands}
        assert 3 == len(ports)
        assert [True] * 2 == ["another program uses" in line for line in said]
        assert not port_is_free(int(started.node("n1").http.rpartition(":")[2]))


def test_a_node_that_ended_for_another_reason_is_not_started_again(tmp_path: Path) -> None:
    """Its own reason is the error, also when another program has its port by then."""
    with cluster(tmp_path, taken=1, message="the disk is full") as started:
        started.start_node("n1")
        with pytest.raises(NodeDied, match="the disk is full"):
            started.wait_ready()
        assert 1 == len(started.commands)
