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
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.main import build_app
from headrace.connectors.http import NodeUnreachable
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.kafka.broker_process import free_port
from headrace.node_client import NodeClient
from tests.e2e.test_sync_receive import MEMBERS, centre
from tests.forked import run_forked
from tests.waiting import eventually

WRITERS, VALUES, PARTS = 1_600, 60, 3
CONNECTIONS = 32
KILLS = 2
MEMORY_KB_MAX = 256 * 1024
"""The bar of a small site."""
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
        eventually(self.is_ready, "a node that serves", timeout_s=120)

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


def command(*words: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a command that runs in this process."""
    done = CliRunner().invoke(build_app(words), [*words, "--json"])
    assert code == done.exit_code, done.stderr
    return dict(json.loads(done.stdout or done.stderr))


@pytest.mark.slow(20)
def test_commands_and_the_client_work_through_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, seal, verify and delete need no Kafka; a query contains what was acknowledged before it; a changed file is
    found.
    """
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.lp"
    file.write_text("".join(f"m,h=h{row % 7} v={row}i {FIRST_S + row}\n" for row in range(5_000)) + "bad\n")
    with edge_node(tmp_path) as node:
        node.start()
        through = ("--node", node.url)
        wrote = command("write", str(file), "--database", "d", "--time-unit", "s", *through, code=3)
        assert (5_000, 5_000, 1) == (wrote["rows"], wrote["points"], wrote["rejected"])
        # No query here names an offset.
        assert [{"n": 5_000}] == node.query("SELECT count(*) AS n FROM d.m")
        for row in range(20):
            answer = httpx.post(f"{node.url}/write?db=d&precision=s", content=f"lines v={row}i {FIRST_S + row}")
            assert ["edge.forward.e1.1"] == list(json.loads(answer.headers["x-headrace-offsets"]))
            assert [{"n": row + 1}] == node.query("SELECT count(*) AS n FROM d.lines")
        assert ["e1"] == command("seal", *through)["groups"][0]["members"]
        with headrace.connect(node=node.url) as client:
            writer = client.writer("d", "m", tags=["h"])
            for row in range(20):
                writer.write([{"time": (FIRST_S + 9_000 + row) * 10**9, "h": "new", "v": row}])
                found = client.query("SELECT count(*) AS n FROM d.m WHERE h = 'new'").to_dicts()
                assert [{"n": row + 1}] == found
            client.delete("d", "m", {"h": "new"})
            assert [{"n": 0}] == client.query("SELECT count(*) AS n FROM d.m WHERE h = 'new'").to_dicts()
        command("delete", "--database", "d", "--table", "m", "--tag", "h=h0", *through)
        assert [{"n": 4_285}] == node.query("SELECT count(*) AS n FROM d.m")
        (group,) = command("verify", *through)["groups"]
        assert (True, True) == (group["files_read"] == group["segments"] > 0, group["records_read"] > 0)
        # In a table of its own: the delete has the files of the other one merged at some moment.
        with headrace.connect(node=node.url) as client, client.writer("d", "whole", tags=["h"]) as writer:
            writer.write([{"time": FIRST_S * 10**9, "h": "a", "v": 1}])
        command("seal", *through)
        (changed,) = (tmp_path / "data" / "segments").rglob("whole/**/*.parquet")
        data = bytearray(changed.read_bytes())
        data[len(data) // 2] ^= 1
        changed.write_bytes(data)
        wrong = command("verify", *through, code=1)["groups"][0]
        assert (False, True) == (wrong["ok"], changed.name in wrong["differences"][0])
        assert 0 == node.stop()


@pytest.mark.slow(35)
def test_every_acknowledged_value_survives_kills(tmp_path: Path, broker: BrokerInfo) -> None:
    """1,600 writers send 60 values each and repeat what was not acknowledged, while the node is killed twice.

    Each value is there once, and once at the centre that it is sent to. The memory of the node does not grow with what
    was written.
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
        with centre(tmp_path, broker, "writersc") as (cluster, receivers):
            receivers.start("r1")
            where = ("--bootstrap", cluster.bootstrap, "--cluster", cluster.cluster)
            to = ("--to-bootstrap", cluster.bootstrap, "--to-cluster", cluster.cluster)
            state = ("--data-dir", str(tmp_path / "state"), "--seal-age-s", "0")
            done = run_forked("sync", "send", "--node", node.url, *to, *state, "--once")
            assert 0 == done.returncode, done.stderr
            for name in MEMBERS:
                found = NodeClient(cluster.url(name))
                eventually(lambda found=found: json.loads(b"".join(found.query(sums))) == expected, f"all at {name}")
            verified = run_forked("sync", "verify", "--node", node.url, *where)
            assert (0, True) == (verified.returncode, "nothing waits" in verified.stdout), verified.stdout
        assert 0 == node.stop()
        print(f"peak of the node: {node.memory_kb / 1024:.0f} MB")
        assert node.memory_kb < MEMORY_KB_MAX
