"""A whole cluster on this machine: one broker and some nodes, each a process of its own, in one directory.

`headrace up`, the demo, the benchmarks and the end-to-end tests run on it. `cluster.json` holds names,
addresses and pids, so a later process can stop what an earlier one started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from headrace.cluster_file import ClusterFile, read_cluster_file, write_cluster_file
from headrace.connectors.deadline import Deadline
from headrace.connectors.files import create_directories
from headrace.connectors.held_signals import signals_held
from headrace.connectors.kafka.broker import BrokerAlreadyRunning, BrokerPortInUse, EmbeddedBroker, NotABrokerDirectory
from headrace.connectors.kafka.broker_errors import BrokerLost
from headrace.node_log import has_left, log_tail, lost_address, reports_removal, start_line
from headrace.node_probe import first_reason, is_joining, is_leaving, probe
from headrace.node_process import NodeProcess, ask_to_end, free_address, is_stopped, send_signal
from headrace.schemas.errors import HeadraceError

KAFKA = "kafka"
"""The broker's name beside those of the nodes."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
NOTE_INTERVAL_S = 3.0
Progress = Callable[[str], None]


def _quiet(_line: str) -> None:
    """Progress that nobody follows."""


class Child(Protocol):
    """A process that this one has started, as `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""


class ClusterRunning(HeadraceError):
    """A node that runs already."""


class NodeDied(HeadraceError):
    """A node process that ended by itself; the end of its log is in the message."""


class NotReady(HeadraceError):
    """A node that did not become ready in time, with its own reasons."""


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
        replication: int = 0,
    ) -> None:
        """`bootstraps` names nodes that reach Kafka at an address of their own. `replication` 0 = all nodes."""
        self.directory = directory.absolute()
        self.environment = dict(environment or {})
        self._own_broker = not bootstrap
        self._bootstraps = dict(bootstraps or {})
        self.broker = EmbeddedBroker(self.directory / "broker")
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.file = ClusterFile(cluster, bootstrap, [NodeProcess(name, "") for name in names], replication)
        # As `wait_ready` found them: nodes that wait to be added, and those that were removed and have not ended yet.
        self.joining, self.leaving = set[str](), set[str]()
        self._started: Sequence[str] = ()
        self._restarted: Sequence[str] = ()
        self._children: dict[int, Child] = {}
        self._extras: dict[str, Sequence[str]] = {}
        """The further arguments with which each node was started."""

    @classmethod
    def load(cls, directory: Path) -> LocalCluster:
        """The cluster that another process started in a directory.

        Raises HeadraceError when there is none.
        """
        content = read_cluster_file(directory)
        loaded = cls(directory, content.cluster, 0)
        loaded.file = content
        return loaded

    @property
    def bootstrap(self) -> str:
        """Kafka's address, empty before `start`."""
        return self.file.bootstrap

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.file.cluster

    @property
    def replication(self) -> int:
        """How many nodes hold each row."""
        return self.file.replication or len(self.file.nodes)

    def node(self, name: str) -> NodeProcess:
        """One node by its name."""
        return next(node for node in self.file.nodes if node.name == name)

    def data_directory(self, name: str) -> Path:
        """Where a node keeps its data."""
        return self.directory / name

    def grow(self, nodes: int) -> None:
        """Have more nodes, which `start` starts. They hold nothing until they are added to the cluster."""
        self.file.replication = self.replication
        known = len(self.file.nodes)
        self.file.nodes += [NodeProcess(f"n{number}", "") for number in range(known + 1, nodes + 1)]

    def start(self, on_progress: Progress = _quiet, restarted: Sequence[str] = ()) -> list[str]:
        """Start what does not run, the broker first, and wait until every node is ready.

        Returns the names of what was started. A failure stops that, and leaves what ran before; see `undo_start`.
        A removed node that has its data is not started, unless it is among `restarted`: it would only end again.
        """
        started: list[str] = []
        self._started, self._restarted = started, restarted
        try:
            create_directories(self.directory)
            if self._own_broker:
                self._start_broker(started, on_progress)
            for node in self.file.nodes:
                if not self._alive(node) and (node.name in restarted or not self._has_left(node)):
                    on_progress(f"starting node {node.name}")
                    started.append(node.name)
                    self.start_node(node.name, on_progress=on_progress)
            self.wait_ready(on_progress=on_progress)
        except BaseException:
            # Also for Ctrl-C: processes in sessions of their own do not get it, and nobody would stop them.
            self.undo_start()
            raise
        return [name for name in started if name == KAFKA or not self.node(name).removed]

    def undo_start(self, on_progress: Progress = _quiet) -> None:
        """Stop what the last `start` has started so far, but not what it was given as restarted.

        That ran before. If it only needs longer, it may be the copy that the others lack.
        """
        self.stop([name for name in self._started if name not in self._restarted], on_progress)

    def _start_broker(self, started: list[str], on_progress: Progress) -> None:
        running = self._running_broker()
        if running is not None:
            self.file.bootstrap = running
            return
        on_progress("starting Kafka")
        started.append(KAFKA)
        try:
            self.file.bootstrap = self.broker.start().bootstrap
        except BrokerAlreadyRunning:
            # Another `up` is starting it, and it belongs to that one.
            started.remove(KAFKA)
            raise
        except BrokerPortInUse as error:
            raise BrokerPortInUse(
                f"Kafka of {self.directory}: {error.message}",
                action="stop that process, or start another cluster with --dir",
            ) from error

    def _running_broker(self) -> str | None:
        """The address of the broker that runs already, None when there is none. Raises NotReady, BrokerLost."""
        try:
            status = self.broker.status()
        except NotABrokerDirectory:
            # An empty one in its place would be on another port, and the nodes would wait for the other one.
            if self.file.bootstrap:
                raise BrokerLost.at(self.broker.directory, self.cluster) from None
            return None
        if status.running and not status.answers:
            raise NotReady(
                f"Kafka runs (pid {status.pid}) and does not answer", action="run headrace down, then headrace up"
            )
        return status.bootstrap

    @property
    def broker_pid(self) -> int:
        """The pid of the cluster's own broker, 0 when it does not run."""
        try:
            return self.broker.status(timeout_s=0.1).pid or 0
        except NotABrokerDirectory:
            return 0

    def start_node(self, name: str, extra: Sequence[str] = (), on_progress: Progress = _quiet) -> None:
        """Start the process of one node, and return without waiting for it.

        A node keeps its ports, unless another program has taken them meanwhile.
        """
        node = self.node(name)
        if self._alive(node):
            raise ClusterRunning(f"node {name} is running", action="stop it first")
        node.http = free_address(node.http, name, on_progress)
        node.flight = free_address(node.flight, name, on_progress)
        # Without -P a folder `headrace` in the current directory would be imported instead of this one.
        command = [
            *(sys.executable, "-P", "-m", "headrace", "node", "run", "--cluster", self.cluster, "--id", name),
            *("--nodes", ",".join(each.name for each in self.file.nodes), "--replication", str(self.replication)),
            *("--bootstrap", self._bootstraps.get(name, self.bootstrap)),
            # A `headrace.toml` here may name the address of another node.
            *("--data-dir", str(self.data_directory(name)), "--http", node.http, "--advertise", node.http),
            *("--flight", node.flight),
            *extra,
        ]
        create_directories(self.directory)
        with (self.directory / f"{name}.log").open("ab") as log, signals_held():
            log.write(start_line(name))
            log.flush()
            child = self.launch(command, log)
            self._children[child.pid], self._extras[name] = child, extra
            node.pid, node.removed = child.pid, False
        self._save()

    def launch(self, command: Sequence[str], log: IO[bytes]) -> Child:
        """Start the process of a node, with its log as output; tests start one at less cost."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Nodes outlive `headrace up`: Ctrl-C and a closed terminal end only their own session.
            start_new_session=True,
            close_fds=True,
            env=self.node_environment(),
        )

    def node_environment(self) -> dict[str, str]:
        """The environment of the nodes' processes."""
        return {**os.environ, **self.environment}

    def wait_ready(
        self,
        names: Sequence[str] | None = None,
        timeout_s: float = START_TIMEOUT_S,
        on_progress: Progress = _quiet,
    ) -> None:
        """Wait until nodes serve all their groups. Raises NodeDied, NotReady.

        Those that were removed, or that wait to be added, are not waited for. Those that were restarted come first.
        """
        deadline = Deadline(timeout_s)
        for node in sorted(self.file.nodes, key=lambda node: node.name not in self._restarted):
            if not node.removed and (names is None or node.name in names):
                self._wait_ready(node, deadline, on_progress)

    def _wait_ready(self, node: NodeProcess, deadline: Deadline, on_progress: Progress) -> None:
        note_due, timeout_s, reasons = Deadline(NOTE_INTERVAL_S), deadline.left_s(), "no answer"
        while not deadline.passed():
            if not self._alive(node):
                if self._was_removed(node):
                    on_progress(f"node {node.name} was removed from the cluster and has ended")
                    return
                if lost_address(self.directory, node):
                    self.start_node(node.name, self._extras.get(node.name, ()), on_progress)
                    continue
                raise NodeDied(f"node {node.name} ended: {self.log_tail(node.name)}", action=f"see {node.name}.log")
            ready, reasons = probe(f"http://{node.http}/health/ready")
            if ready:
                self.joining.discard(node.name)
                return
            if is_joining(reasons) or is_leaving(reasons):
                (self.joining if is_joining(reasons) else self.leaving).add(node.name)
                return
            if note_due.passed():
                on_progress(
                    f"waiting for node {node.name}, {timeout_s - deadline.left_s():.0f} s: {first_reason(reasons)}"
                )
                note_due = Deadline(NOTE_INTERVAL_S)
            time.sleep(0.1)
        raise NotReady(
            f"node {node.name} is not ready: {first_reason(reasons)}",
            action=f"if this names no remedy, see {node.name}.log; headrace up --restart {node.name} starts it again",
        )

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL is awaited until the process ended, SIGSTOP until all threads stopped."""
        node = self.node(name)
        if not self._alive(node):
            return
        send_signal(node, signal_number)
        if signal_number == signal.SIGKILL:
            self._await_end(node, STOP_TIMEOUT_S)
        elif signal_number == signal.SIGSTOP:
            self._await_stopped(node, STOP_TIMEOUT_S)

    def stop_node(self, name: str, on_progress: Progress = _quiet) -> None:
        """End a node cleanly, by force when it takes too long."""
        node = self.node(name)
        if self._alive(node):
            ask_to_end(node)
            if not self._await_end(node, STOP_TIMEOUT_S, on_progress):
                on_progress(f"node {name} did not end within {STOP_TIMEOUT_S:.0f} s and is killed; its data is safe")
                send_signal(node, signal.SIGKILL)
                self._await_end(node, STOP_TIMEOUT_S)
        node.pid, node.removed = 0, False
        self._save()

    def wipe(self, name: str) -> None:
        """Delete a stopped node's data."""
        assert not self.node(name).running, f"node {name} is running"
        shutil.rmtree(self.data_directory(name), ignore_errors=True)

    def stop(self, names: Sequence[str] | None = None, on_progress: Progress = _quiet) -> list[str]:
        """Stop every node, then the broker, or those of them that are named. Data stays.

        Returns the names of what was running.
        """
        nodes = [node for node in self.file.nodes if names is None or node.name in names]
        running = [node for node in nodes if node.running]
        if running:
            on_progress(f"stopping {', '.join(node.name for node in running)}")
        # Signals first, waits second: nodes end in parallel instead of one after the other.
        for node in running:
            ask_to_end(node)
        for node in nodes:
            self.stop_node(node.name, on_progress)
        stopped = [node.name for node in running]
        if self._own_broker and (names is None or KAFKA in names):
            if self.broker_pid:
                on_progress("stopping Kafka")
            if self.broker.stop():
                stopped.append(KAFKA)
        return stopped

    def log_tail(self, name: str, lines: int = 3) -> str:
        """The end of a node's log."""
        return log_tail(self.directory, name, lines)

    def url(self, name: str) -> str:
        """Base URL of a node."""
        return f"http://{self.node(name).http}"

    def _alive(self, node: NodeProcess) -> bool:
        """Whether the process of a node runs."""
        # `poll` reaps a child that ended. Until then its /proc entry remains, and its pid looks alive.
        child = self._children.get(node.pid)
        return child.poll() is None if child is not None else node.running

    def _was_removed(self, node: NodeProcess) -> bool:
        """Whether a node has ended because it was removed; noted for later calls."""
        child = self._children.get(node.pid)
        # Nobody has the exit code of one that another process started.
        if (child is None or child.poll() == 0) and reports_removal(self.directory, node.name):
            node.pid, node.removed = 0, True
            self._save()
        return node.removed

    def _has_left(self, node: NodeProcess) -> bool:
        """Whether a node that does not run was removed and has its data; noted for later calls."""
        if left := has_left(self.directory, node):
            node.pid, node.removed = 0, True
            self._save()
        return left

    def _await_end(self, node: NodeProcess, timeout_s: float, on_progress: Progress = _quiet) -> bool:
        deadline, note_due = Deadline(timeout_s), Deadline(NOTE_INTERVAL_S)
        while self._alive(node):
            if deadline.passed():
                return False
            if note_due.passed():
                on_progress(f"waiting for node {node.name} to end: {timeout_s - deadline.left_s():.0f} s so far")
                note_due = Deadline(NOTE_INTERVAL_S)
            time.sleep(0.02)
        return True

    def _await_stopped(self, node: NodeProcess, timeout_s: float) -> None:
        """Return when every thread of a node is stopped. Raises NotReady."""
        # On a busy machine threads run on for a while after SIGSTOP: a node answered a request that came
        # after it.
        deadline = Deadline(timeout_s)
        while not is_stopped(node.pid):
            if deadline.passed():
                raise NotReady(f"node {node.name} runs on after SIGSTOP", action="look at the load of this machine")
            time.sleep(0.001)

    def _save(self) -> None:
        write_cluster_file(self.directory, self.file)
