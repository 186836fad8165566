"""A whole cluster on this machine: one broker and some nodes, each a process of its own, in one directory.

`headrace up`, the demo, the benchmarks and the end-to-end tests run on it. `cluster.json` holds names,
addresses and pids, so a later process can stop what an earlier one started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import write_atomically
from headrace.connectors.http import NodeRefused, NodeUnreachable, call_node
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.schemas.errors import HeadraceError

FILE_NAME = "cluster.json"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class ClusterRunning(HeadraceError):
    """A directory whose cluster runs already."""


class NodeDied(HeadraceError):
    """A node process that ended by itself; the end of its log is in the message."""


class NotReady(HeadraceError):
    """A node that did not become ready in time, with its own reasons."""


@dataclass(slots=True)
class NodeProcess:
    """One node: its process (0 = not running) and the address it serves on."""

    name: str
    http: str
    pid: int = 0

    @property
    def running(self) -> bool:
        """Whether the process exists and is ours."""
        return self.pid > 0 and _is_node(self.pid, self.name)


@dataclass(slots=True)
class ClusterFile:
    """What `cluster.json` holds."""

    cluster: str
    bootstrap: str
    nodes: list[NodeProcess] = field(default_factory=list)


class LocalCluster:
    """Broker and nodes of one directory. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        cluster: str = "headrace",
        nodes: int = 3,
        environment: Mapping[str, str] | None = None,
        bootstrap: str = "",
        bootstraps: Mapping[str, str] | None = None,
    ) -> None:
        """`bootstraps` names nodes that reach Kafka at an address of their own."""
        self.directory = directory.absolute()
        self.environment = dict(environment or {})
        self._own_broker = not bootstrap
        self._bootstraps = dict(bootstraps or {})
        self.broker = EmbeddedBroker(self.directory / "broker")
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.file = ClusterFile(cluster, bootstrap, [NodeProcess(name, "") for name in names])
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @classmethod
    def load(cls, directory: Path) -> LocalCluster:
        """The cluster that another process started in a directory.

        Raises HeadraceError when there is none.
        """
        path = directory / FILE_NAME
        if not path.exists():
            raise HeadraceError(f"no cluster was started in {directory}", action="start one with: headrace up")
        content = json.loads(path.read_text())
        loaded = cls(directory, content["cluster"], 0)
        loaded.file = ClusterFile(
            content["cluster"], content["bootstrap"], [NodeProcess(**node) for node in content["nodes"]]
        )
        return loaded

    @property
    def bootstrap(self) -> str:
        """Kafka's address, empty before `start`."""
        return self.file.bootstrap

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.file.cluster

    def node(self, name: str) -> NodeProcess:
        """One node by its name."""
        return next(node for node in self.file.nodes if node.name == name)

    def data_directory(self, name: str) -> Path:
        """Where a node keeps its data."""
        return self.directory / name

    def start(self, on_progress: Callable[[str], None] = lambda _line: None) -> None:
        """Start the broker, then every node, and wait until all are ready. A failure stops all of them."""
        if any(node.running for node in self.file.nodes):
            raise ClusterRunning(f"the cluster in {self.directory} is running", action="stop it with: headrace down")
        try:
            self._start(on_progress)
        except BaseException:
            # Also for Ctrl-C: processes in sessions of their own do not get it, and nobody would stop them.
            self.stop()
            raise

    def _start(self, on_progress: Callable[[str], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._own_broker:
            on_progress("starting Kafka")
            self.file.bootstrap = self.broker.start().bootstrap
        for node in self.file.nodes:
            on_progress(f"starting node {node.name}")
            self.start_node(node.name)
        self.wait_ready()

    def start_node(self, name: str, extra: Sequence[str] = ()) -> None:
        """Start the process of one node, and return without waiting for it."""
        node = self.node(name)
        if self._alive(node):
            raise ClusterRunning(f"node {name} is running", action="stop it first")
        node.http = node.http or f"127.0.0.1:{free_port()}"
        # Without -P a folder `headrace` in the current directory would be imported instead of this one.
        command = [
            *(sys.executable, "-P", "-m", "headrace", "node", "run", "--cluster", self.cluster, "--id", name),
            *("--nodes", ",".join(each.name for each in self.file.nodes), "--replication", str(len(self.file.nodes))),
            *("--bootstrap", self._bootstraps.get(name, self.bootstrap)),
            *("--data-dir", str(self.data_directory(name)), "--http", node.http),
            *extra,
        ]
        self.data_directory(name).parent.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nodes outlive `headrace up`: Ctrl-C and a closed terminal end only their own session.
                start_new_session=True,
                close_fds=True,
                env={**os.environ, **self.environment},
            )
        self._children[child.pid] = child
        node.pid = child.pid
        self._save()

    def wait_ready(self, names: Sequence[str] | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until nodes serve all their groups. Raises NodeDied, NotReady."""
        deadline = Deadline(timeout_s)
        for node in self.file.nodes:
            if names is None or node.name in names:
                self._wait_ready(node, deadline)

    def _wait_ready(self, node: NodeProcess, deadline: Deadline) -> None:
        reasons: Any = "no answer"
        while not deadline.passed():
            if not self._alive(node):
                raise NodeDied(f"node {node.name} ended: {self.log_tail(node.name)}", action=f"see {node.name}.log")
            ready, reasons = probe(f"http://{node.http}/health/ready")
            if ready:
                return
            time.sleep(0.1)
        raise NotReady(f"node {node.name} is not ready: {reasons}", action=f"see {node.name}.log")

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL is awaited until the process ended, SIGSTOP until all threads stopped."""
        node = self.node(name)
        if not self._alive(node):
            return
        os.kill(node.pid, signal_number)
        if signal_number == signal.SIGKILL:
            self._await_end(node, STOP_TIMEOUT_S)
        elif signal_number == signal.SIGSTOP:
            self._await_stopped(node, STOP_TIMEOUT_S)

    def stop_node(self, name: str) -> None:
        """End a node cleanly, by force when it takes too long."""
        node = self.node(name)
        if self._alive(node):
            # A process that SIGSTOP stopped handles SIGTERM only after it is continued.
            os.kill(node.pid, signal.SIGCONT)
            os.kill(node.pid, signal.SIGTERM)
            if not self._await_end(node, STOP_TIMEOUT_S):
                os.kill(node.pid, signal.SIGKILL)
                self._await_end(node, STOP_TIMEOUT_S)
        node.pid = 0
        self._save()

    def wipe(self, name: str) -> None:
        """Delete a stopped node's data."""
        assert not self.node(name).running, f"node {name} is running"
        shutil.rmtree(self.data_directory(name), ignore_errors=True)

    def stop(self) -> None:
        """Stop every node, then the broker. Data stays."""
        # Signals first, waits second: nodes end in parallel instead of one after the other.
        for node in self.file.nodes:
            if node.running:
                os.kill(node.pid, signal.SIGCONT)
                os.kill(node.pid, signal.SIGTERM)
        for node in self.file.nodes:
            self.stop_node(node.name)
        if self._own_broker:
            self.broker.stop()

    def log_tail(self, name: str, lines: int = 3) -> str:
        """The end of a node's log."""
        path = self.directory / f"{name}.log"
        return " / ".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def url(self, name: str) -> str:
        """Base URL of a node."""
        return f"http://{self.node(name).http}"

    def _alive(self, node: NodeProcess) -> bool:
        """Whether the process of a node runs."""
        # `poll` reaps a child that ended. Until then its /proc entry remains, and its pid looks alive.
        child = self._children.get(node.pid)
        return child.poll() is None if child is not None else node.running

    def _await_end(self, node: NodeProcess, timeout_s: float) -> bool:
        deadline = Deadline(timeout_s)
        while self._alive(node):
            if deadline.passed():
                return False
            time.sleep(0.02)
        return True

    def _await_stopped(self, node: NodeProcess, timeout_s: float) -> None:
        """Return when every thread of a node is stopped. Raises NotReady."""
        # On a busy machine threads run on for a while after SIGSTOP: a node answered a request that came
        # after it.
        deadline = Deadline(timeout_s)
        while not _is_stopped(node.pid):
            if deadline.passed():
                raise NotReady(f"node {node.name} runs on after SIGSTOP", action="look at the load of this machine")
            time.sleep(0.001)

    def _save(self) -> None:
        write_atomically(self.directory / FILE_NAME, json.dumps(asdict(self.file), indent=1).encode())


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped, or it has ended."""
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return {thread.rpartition(")")[2].split()[0] for thread in threads} <= {"T", "Z"}


def probe(url: str, timeout_s: float = 5.0) -> tuple[bool, Any]:
    """(whether a health URL answers 200, its answer)."""
    try:
        return True, call_node(url, timeout_s=timeout_s)
    except NodeRefused as error:
        return False, error.body
    except NodeUnreachable as error:
        return False, error.reason


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    # Another process may take it before the node does; the node then reports AddressInUse.
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


def _is_node(pid: int, name: str) -> bool:
    # The system reuses pids, at the latest after a reboot: signals must not reach a stranger's process.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and b"node" in words and b"--id" in words and name.encode() in words
