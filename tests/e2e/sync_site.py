"""Sites of the tests of sync: an edge node, its sender, and what was written to it. Receivers of a centre."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.connectors.http import NodeUnreachable
from headrace.connectors.kafka.broker_process import free_port
from headrace.consumers.sync.state_directory import STATUS_FILE
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from tests.forked import Forked, parent, run_forked
from tests.waiting import eventually

FIRST_S = 1_700_000_000
DAY_S = 86_400
END_TIMEOUT_S = 60.0


def fork(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """A process of `headrace` with a log."""
    with Path(os.devnull).open("rb") as nothing, log.open("ab") as file:
        return parent().fork(arguments, [nothing, file, file], {**os.environ, **environment})


class SyncSite:
    """One edge. What it must have is in `values`: (device, second) to value."""

    def __init__(self, directory: Path, name: str, bootstrap: str, centre: str, seed: int) -> None:
        """`bootstrap` is the one that its sender uses."""
        self.name, self.tag, self.directory = name, name, directory
        self.values: dict[tuple[str, int], int] = {}
        self.rows_written = 0
        self.port = free_port()
        self._bootstrap, self._centre = bootstrap, centre
        self._random = random.Random(seed)
        self._node: Forked | None = None
        self._sender: Forked | None = None
        directory.mkdir(parents=True)

    @property
    def url(self) -> str:
        """Of its node."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> Path:
        """The state directory of its sender."""
        return self.directory / "state"

    def start(self) -> None:
        """Start the node, and wait until it serves."""
        arguments = ["node", "run", "--log", "local", "--cluster", self.name, "--id", "e1"]
        arguments += ["--data-dir", str(self.directory / "data"), "--http", f"127.0.0.1:{self.port}"]
        self._node = fork(arguments, self.directory / "node.log", {})
        eventually(self._serves, f"node {self.name} that serves", timeout_s=120)

    def start_sender(self, *extra: str, **environment: str) -> None:
        """Start `headrace sync send`."""
        variables = {f"HEADRACE__{name.replace('_', '__', 1).upper()}": value for name, value in environment.items()}
        self._sender = fork(self.send_command(*extra), self.directory / "sender.log", variables)

    def send_command(self, *extra: str) -> list[str]:
        """The arguments of its sender."""
        arguments = ["sync", "send", "--node", self.url, "--to-bootstrap", self._bootstrap, "--name", self.name]
        arguments += ["--to-cluster", self._centre, "--data-dir", str(self.state), "--seal-age-s", "0", "--json"]
        return [*arguments, *extra]

    def send_once(self, *extra: str, code: int = 0) -> dict[str, Any]:
        """One round; its counts."""
        done = run_forked(*self.send_command("--once", *extra))
        assert code == done.returncode, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def end_sender(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the sender, and wait for its end."""
        return self._end("_sender", number)

    def end_node(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the node, and wait for its end."""
        return self._end("_node", number)

    def kill(self) -> None:
        """Kill what runs."""
        for each in ("_sender", "_node"):
            if getattr(self, each) is not None:
                self._end(each, signal.SIGKILL)

    def write(self, rows: int, text_bytes: int, first: int, devices: int = 4) -> None:
        """Rows from a second on, each with a value and a text that no codec makes smaller; late ones are replaced."""
        lines = []
        for number in range(first, first + rows):
            device, second = f"d{number % devices}", FIRST_S + number
            value, text = self._random.randrange(1 << 40), self._random.randbytes(text_bytes // 2).hex()
            self.values[device, second] = value
            lines.append(f'm,site={self.tag},dev={device} v={value}i,t="{text}" {second}')
        self.post("/write?db=plant&precision=s", "\n".join(lines))

    def write_devices(self, devices: Sequence[str], first: int, rows: int) -> None:
        """Rows of each device, one a second from a second on."""
        lines = [
            f"m,site={self.tag},dev={device} v={second}i {FIRST_S + second}"
            for device in devices
            for second in range(first, first + rows)
        ]
        self.post("/write?db=plant&precision=s", "\n".join(lines))

    def delete(self, device: str, start: int, end: int) -> None:
        """A user's delete of one device between two seconds from the first one."""
        tags = {"site": self.tag, "dev": device}
        bounds = {"start": (FIRST_S + start) * 10**9, "end": (FIRST_S + end) * 10**9}
        body = {"database": "plant", "table": "m", "tags": tags, **bounds}
        self.post("/api/v1/delete", json.dumps(body), "application/json")
        for key in [key for key in self.values if key[0] == device and start <= key[1] - FIRST_S < end]:
            del self.values[key]

    def post(self, path: str, body: str, kind: str = "text/plain") -> None:
        """One request to the node that must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, body, {"content-type": kind})
        answer = connection.getresponse()
        assert answer.status in (200, 204), answer.read()
        connection.close()

    def document(self) -> dict[str, Any]:
        """What its sender shows of itself."""
        # Without the lock of the directory, which a sender that starts at this moment needs.
        try:
            return dict(json.loads((self.state / STATUS_FILE).read_bytes()))
        except OSError:
            return {"files": [], "waiting": -1, "sender": ""}

    @property
    def sender(self) -> str:
        """The UUID of its sender."""
        return str(self.document()["sender"])

    def is_sending(self) -> bool:
        """Whether a file is in its middle."""
        return any(each["state"] == "sending" and each["chunk"] > 0 for each in self.document()["files"])

    def verify(self, cluster: LocalCluster, *options: str) -> tuple[int, dict[str, Any]]:
        """Exit code and document of `headrace sync verify`."""
        where = ("--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, *options)
        done = run_forked("sync", "verify", "--node", self.url, *where, "--json")
        return done.returncode, json.loads(done.stdout or done.stderr)

    def _serves(self) -> bool:
        assert self._node is not None
        assert self._node.poll() is None, (self.directory / "node.log").read_text()[-2_000:]
        try:
            return NodeClient(self.url).status()["ready"] is True
        except NodeUnreachable:
            return False

    def _end(self, which: str, number: int) -> int:
        process: Forked = getattr(self, which)
        setattr(self, which, None)
        if process.poll() is None:
            os.kill(process.pid, number)
        return process.wait(END_TIMEOUT_S)
