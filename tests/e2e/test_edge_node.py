"""A node without Kafka: written over HTTP by many clients, killed, restarted, queried, sealed and verified."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.connectors.http import NodeUnreachable
from headrace.local_cluster import free_port
from headrace.node_client import NodeClient
from tests.waiting import eventually

WRITERS, VALUES, PARTS = 1_600, 60, 3
CONNECTIONS = 32
KILLS = 2
MEMORY_KB_MAX = 450 * 1024
"""About half of it is code: the compiled parser, polars and DuckDB."""
FIRST_S = 1_700_000_000


class EdgeNode:
    """A process `headrace node run --log local` that a test kills and starts again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.memory_kb = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *extra: str) -> None:
        """Start, and wait until it serves."""
        command = [sys.executable, "-m", "headrace", "node", "run", "--log", "local", "--cluster", "edge"]
        command += ["--id", "e1", "--data-dir", str(self.directory), "--http", f"127.0.0.1:{self.port}", *extra]
        with (self.directory.parent / "node.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self.is_ready, "a node that serves", timeout_s=60)

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory.parent / "node.log").read_text()[-2_000:]
        try:
            return NodeClient(self.url).status()["ready"] is True
        except NodeUnreachable:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; its exit code."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        self.memory_kb = max(self.memory_kb, int(peak.split()[1]))
        os.kill(self.process.pid, number)
        code = self.process.wait(30)
        self.process = None
        return code

    def query(self, sql: str) -> list[dict[str, object]]:
        """The rows of an answer."""
        rows: list[dict[str, object]] = json.loads(b"".join(NodeClient(self.url).query(sql, format="json")))
        return rows


@contextmanager
def edge_node(directory: Path) -> Iterator[EdgeNode]:
    """A node that is stopped at the end."""
    node = EdgeNode(directory / "data")
    try:
        yield node
    finally:
        if node.process is not None:
            node.stop(signal.SIGKILL)


class Client:
    """Some of the writers, over one connection. Each request is sent until it is acknowledged."""

    def __init__(self, node: EdgeNode, first: int) -> None:
        self._node = node
        self._writers = range(first, WRITERS, CONNECTIONS)
        self.acknowledged = 0
        self.sent_again = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        """Write all values of all writers, part by part."""
        connection = http.client.HTTPConnection("127.0.0.1", self._node.port, timeout=30)
        each = VALUES // PARTS
        for part in range(PARTS):
            for writer in self._writers:
                body = "\n".join(
                    f"m,writer=w{writer} v={writer * VALUES + value}i {FIRST_S + value}"
                    for value in range(part * each, (part + 1) * each)
                )
                while not self._acknowledges(connection, body):
                    self.sent_again += 1
                    connection.close()
                    time.sleep(0.05)
                self.acknowledged += each
        connection.close()

    def _acknowledges(self, connection: http.client.HTTPConnection, body: str) -> bool:
        try:
            connection.request("POST", "/write?db=d&precision=s", body)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return False
        if answer.status not in (204, 503):
            self.wrong.append(f"{answer.status} {text}")
        return answer.status == 204


@pytest.mark.slow(40)
def test_every_acknowledged_value_survives_kills(tmp_path: Path) -> None:
    """1,600 writers send 60 values each and repeat what was not acknowledged, while the node is killed twice.

    Each value is there once, and the memory of the node does not grow with what was written.
    """
    with edge_node(tmp_path) as node:
        node.start()
        clients = [Client(node, first) for first in range(CONNECTIONS)]
        threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for kill in range(1, KILLS + 1):
            share = WRITERS * VALUES * kill // (KILLS + 1)
            eventually(lambda: sum(each.acknowledged for each in clients) >= share, "values", timeout_s=120)  # noqa: B023
            node.stop(signal.SIGKILL)
            node.start()
        for thread in threads:
            thread.join(180)
        assert [] == [wrong for each in clients for wrong in each.wrong]
        assert WRITERS * VALUES == sum(each.acknowledged for each in clients)
        assert sum(each.sent_again for each in clients) > 0
        expected = [{"rows": WRITERS * VALUES, "total": sum(range(WRITERS * VALUES)), "writers": WRITERS}]
        sums = "SELECT count(*) AS rows, sum(v) AS total, count(DISTINCT writer) AS writers FROM d.m"
        assert expected == node.query(sums)
        assert 0 == node.stop()
        node.start()
        assert expected == node.query(sums)
        assert 0 == node.stop()
        assert node.memory_kb < MEMORY_KB_MAX
