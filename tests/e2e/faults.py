"""A cluster under faults: three nodes behind proxies that can be cut, continuous writers, a schedule from a
seed.

At most one node is faulty at a time, and the broker besides. A fault that destroys data waits until all nodes
are in sync, so that it never hits the only copy. Every event is one readable line.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headrace.admin_client import GapUnacceptable
from headrace.connectors.http import NodeRefused
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.broker_process import free_port
from headrace.local_cluster import ClusterRunning, LocalCluster
from headrace.node_probe import probe
from headrace.producers.cluster import Cluster
from tests.e2e.actions import connected, eventually_unready, fill, kill_all, log_text, operator, query, seal, verify
from tests.e2e.ledger import QUERY, Expectation, Ledger, Outcome, WritingThreads, messages_of
from tests.e2e.proxy import Proxy, running_proxies
from tests.forked import ForkedCluster
from tests.log_files import cut_end
from tests.waiting import eventually

NODES = ("n1", "n2", "n3")
SMALL_DISK_NODE = "n2"
SMALL_DISK_MB = 192
READY_TIMEOUT_S = 120.0
FULL_TIMEOUT_S = 15.0
SETTLED_S = 2.0
SAMPLES_MIN = 1_000
CORRUPTED_BYTES = 16
CORRUPTION_MESSAGE = "its bytes changed on this disk"
ENVIRONMENT = {
    "HEADRACE__STORE__SEAL_ROWS": "1500",
    "HEADRACE__STORE__LOG_KEEP_RECORDS": "150",
}


class FaultRunFailed(AssertionError):
    """A run violated a guarantee; the message holds the seed and every event."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run; `shortest_s` and `longest_s` bound the duration of a fault.

    `truncates`: the broker also loses ends of logs, and an operator accepts that.
    """

    seed: int
    faults: int
    seconds: float
    shortest_s: float
    longest_s: float
    longest_stop_s: float
    quorums: tuple[int, ...] = (1, 1, 2, 2, 2)
    pause_s: float = 0.04
    truncates: bool = False


@dataclass
class EventLog:
    """The events of a run, one line each, also written to a file as they happen."""

    path: Path
    begun_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Add an event."""
        self.lines.append(f"{time.monotonic() - self.begun_s:8.2f} s  {line}")
        with self.path.open("a") as file:
            file.write(self.lines[-1] + "\n")

    def text(self) -> str:
        """All events so far."""
        return "\n".join(self.lines)


@dataclass
class ProxiedCluster:
    """A cluster and its broker, with one proxy between each node and the broker."""

    broker: EmbeddedBroker
    cluster: LocalCluster
    proxies: dict[str, Proxy]
    shared: Cluster
    has_small_disk: bool

    def broker_pid(self) -> int:
        """The process id of the broker."""
        pid = self.broker.status().pid
        assert pid is not None, "the broker does not run"
        return pid


@contextmanager
def proxied_cluster(
    directory: Path, name: str, small_disk: Callable[[Path, int], bool], environment: Mapping[str, str]
) -> Iterator[ProxiedCluster]:
    """A ready cluster of three nodes, each of which reaches the cluster's own broker through its own proxy.

    Everything is stopped at the end.
    """
    ports: list[int] = []
    for _ in NODES:
        ports.append(free_port(ports))
    broker = EmbeddedBroker(directory / "broker", advertise=ports)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        info = broker.start()
        proxies = stack.enter_context(running_proxies(info.proxied))
        bootstraps = {node: f"127.0.0.1:{port}" for node, port in zip(NODES, ports, strict=True)}
        cluster = ForkedCluster(directory, name, len(NODES), environment, info.bootstrap, bootstraps)
        stack.callback(kill_all, cluster)
        has_small_disk = small_disk(cluster.data_directory(SMALL_DISK_NODE), SMALL_DISK_MB)
        cluster.start()
        shared = stack.enter_context(connected(cluster))
        by_node = dict(zip(NODES, (proxies[port] for port in ports), strict=True))
        yield ProxiedCluster(broker, cluster, by_node, shared, has_small_disk)


class FaultRun:
    """One schedule from a seed. `run` returns when every row was read back and matches the ledger."""

    def __init__(self, proxied: ProxiedCluster, plan: Plan, events: EventLog) -> None:
        self.ledger = Ledger()
        self.healthy: list[tuple[float, float]] = []
        self.one_stopped: list[tuple[float, float]] = []
        self.counts: dict[str, int] = {}
        self._proxied = proxied
        self._cluster = proxied.cluster
        self._plan = plan
        self._events = events
        self._settled = False
        self._random = random.Random(plan.seed)
        self._writers = WritingThreads(proxied.shared, self.ledger, plan.quorums, plan.pause_s, plan.seed)
        self._kinds: dict[str, Callable[[], None]] = {
            "killed": self._kill,
            "stopped": self._stop_and_continue,
            "cut off both ways": self._cut_both,
            "cut off one way": self._cut_one_way,
            "wiped": self._wipe,
            "silent corruption": self._corrupt,
            "broker": self._restart_broker,
        }
        if proxied.has_small_disk:
            self._kinds["disk full"] = self._fill_disk
        if plan.truncates:
            self._kinds["truncated log"] = self._truncate

    def run(self) -> None:
        """Inject faults while writing, then heal and read everything. Raises FaultRunFailed."""
        try:
            with self._writers:
                self._inject_faults()
                self._heal()
            self._check()
        except Exception as error:
            raise FaultRunFailed(
                f"{error}\nreplay with HEADRACE_FAULT_SEED={self._plan.seed}; logs in {self._cluster.directory}\n{self._events.text()}"
            ) from error

    def _inject_faults(self) -> None:
        """Inject the faults at even intervals: all kinds in a shuffled order, repeatedly."""
        begun_s, remaining = time.monotonic(), list[str]()
        for number in range(self._plan.faults):
            due_s = begun_s + self._plan.seconds * number / self._plan.faults
            threading.Event().wait(max(0.0, due_s - time.monotonic()))
            if not remaining:
                remaining = sorted(self._kinds)
                self._random.shuffle(remaining)
            kind = remaining.pop()
            self._settled = False
            if self._random.random() < 0.7:
                self._await_health()
            self._kinds[kind]()
            self.counts[kind] = self.counts.get(kind, 0) + 1

    # Faults.

    def _kill(self) -> None:
        name = self._victim()
        self._events.add(f"kill {name}")
        self._cluster.kill(name)
        with self._one_stopped():
            self._hold()
        self._start(name)

    def _stop_and_continue(self) -> None:
        name = self._victim()
        self._events.add(f"stop {name}")
        self._cluster.kill(name, signal.SIGSTOP)
        with self._one_stopped():
            self._hold(self._plan.longest_stop_s)
        self._events.add(f"continue {name}")
        self._cluster.kill(name, signal.SIGCONT)

    def _cut_both(self) -> None:
        self._cut("both")

    def _cut_one_way(self) -> None:
        self._cut(self._random.choice(["to_broker", "from_broker"]))

    def _cut(self, way: str) -> None:
        name = self._victim()
        self._events.add(f"cut {name} {way}")
        self._proxied.proxies[name].cut(way)
        with self._one_stopped():
            self._hold(self._plan.longest_stop_s)
        self._events.add(f"heal {name}")
        self._proxied.proxies[name].heal()

    def _fill_disk(self) -> None:
        self._events.add(f"fill the disk of {SMALL_DISK_NODE}")
        ballast = fill(self._cluster.data_directory(SMALL_DISK_NODE))
        with contextlib.suppress(AssertionError):
            eventually_unready(self._cluster, SMALL_DISK_NODE, "No space left on device", FULL_TIMEOUT_S)
            self._events.add(f"{SMALL_DISK_NODE} reports that its disk is full")
        self._hold()
        if self._random.random() < 0.3:
            self._events.add(f"kill {SMALL_DISK_NODE}")
            self._cluster.kill(SMALL_DISK_NODE)
            self._start(SMALL_DISK_NODE)
            self._hold()
        self._events.add(f"free the disk of {SMALL_DISK_NODE}")
        ballast.unlink(missing_ok=True)
        # A start on a full disk may end with an error, also one that is still under way here.
        eventually(self._small_disk_node_serves, f"{SMALL_DISK_NODE} serving with space", READY_TIMEOUT_S)

    def _small_disk_node_serves(self) -> bool:
        if not self._cluster.node(SMALL_DISK_NODE).running:
            # A process that is about to end has no command line any more, and is not ended yet.
            with contextlib.suppress(ClusterRunning):
                self._start(SMALL_DISK_NODE)
        return probe(f"{self._cluster.url(SMALL_DISK_NODE)}/health/live")[0]

    def _wipe(self) -> None:
        self._await_health()
        name = self._victim()
        self._events.add(f"kill and wipe {name}")
        self._cluster.kill(name)
        self._cluster.wipe(name)
        self._start(name)
        self._await_health()

    def _segments(self, name: str) -> list[Path]:
        """The segments of a node."""
        return sorted((self._cluster.data_directory(name) / "segments").rglob("*.parquet"))

    def _corrupt(self) -> None:
        self._await_health()
        name = self._victim()
        # The writers go slowly on a busy machine; after its death a node seals nothing more.
        eventually(lambda: bool(self._segments(name)), f"a segment of {name}", READY_TIMEOUT_S)
        self._cluster.kill(name)
        chosen = self._random.choice(self._segments(name))
        self._events.add(f"kill {name} and corrupt {chosen.relative_to(self._cluster.directory)}")
        corrupted = corrupt(chosen, self._random)
        log_length = len(log_text(self._cluster, name))
        self._start(name)

        def detected() -> bool:
            merged = not chosen.exists() or chosen.read_bytes() != corrupted
            return merged or CORRUPTION_MESSAGE in log_text(self._cluster, name)[log_length:]

        eventually(detected, f"{name} detecting the corruption of {chosen.name}", READY_TIMEOUT_S)
        self._await_health()

    def _restart_broker(self) -> None:
        if self._random.random() < 0.5:
            self._events.add("stop the broker")
        else:
            self._events.add("kill the broker")
            process = psutil.Process(self._proxied.broker_pid())
            process.kill()
            process.wait()
        self._proxied.broker.stop()
        threading.Event().wait(self._random.uniform(0, 3))
        self._events.add("start the broker")
        self._proxied.broker.start()

    def _truncate(self) -> None:
        """The broker comes back without the end of a log that every member has; an operator accepts that."""
        self._await_health()
        with self._writers.paused():
            # A record that no member has is lost with the log, whoever acknowledged it.
            verify(self._cluster)
            group = self._random.choice(NODES)
            topic = self._proxied.shared.topics.forward(group)
            log = self._proxied.shared.log.describe(topic)
            lost = min(self._random.randint(1, 20), log.end - log.begin - 1)
            self._events.add(
                f"stop the broker, cut the last {lost} of {log.end:,} offsets off the log of group {group}"
            )
            self._proxied.broker.stop()
            cut_end(self._proxied.broker, topic, log.end - lost)
            self._proxied.broker.start()
            eventually(lambda: self._gap_accepted(group), f"an accepted gap of group {group}", READY_TIMEOUT_S)
            self._await_health()

    def _gap_accepted(self, group: str) -> bool:
        with operator(self._cluster) as admin:
            try:
                found = admin.accept_gap(group, None, 0, READY_TIMEOUT_S)
            except (GapUnacceptable, NodeRefused):
                # Not every member has noticed the loss yet.
                return False
        self._events.add(f"group {group} continues at offset {found.offset} behind version {found.version}")
        return True

    # Steps of the faults.

    def _victim(self) -> str:
        return self._random.choice(NODES)

    def _hold(self, longest_s: float = 0.0) -> None:
        threading.Event().wait(self._random.uniform(self._plan.shortest_s, longest_s or self._plan.longest_s))

    def _start(self, name: str) -> None:
        self._events.add(f"start {name}")
        self._cluster.start_node(name)

    @contextmanager
    def _one_stopped(self) -> Iterator[None]:
        """Keep the interval for the latencies, if there is no other fault."""
        only_fault, begun_s = self._settled, time.monotonic()
        yield
        if only_fault:
            self.one_stopped.append((begun_s, time.monotonic()))

    def _await_health(self) -> None:
        """Wait until every node is in sync, then SETTLED_S longer for latencies of a healthy cluster."""
        self._await_ready()
        begun_s = time.monotonic()
        threading.Event().wait(SETTLED_S)
        self.healthy.append((begun_s, time.monotonic()))
        self._settled = True

    def _await_ready(self) -> None:
        begun_s = time.monotonic()
        self._cluster.wait_ready(timeout_s=READY_TIMEOUT_S)
        self._events.add(f"all are in sync after {time.monotonic() - begun_s:.1f} s; {self._figures()}")

    def latency_ratio(self) -> float:
        """p99 of writes with quorum 2 while one node is away, divided by that of the healthy cluster in the
        same run.
        """
        found = {}
        for name, times in (("healthy", self.healthy), ("one node away", self.one_stopped)):
            samples = sorted(self.ledger.latencies_ms(2, times))
            assert len(samples) >= SAMPLES_MIN, f"{len(samples)} writes with quorum 2 while {name}: too few"
            found[name] = samples[int(len(samples) * 0.99)]
            self._events.add(
                f"quorum 2, {name}: {len(samples)} writes, p50 {samples[len(samples) // 2]:.1f} ms, p99 {found[name]:.1f} ms"
            )
        return found["one node away"] / found["healthy"]

    def _figures(self) -> str:
        return ", ".join(f"{self.ledger.rows(each):,} rows {each.name.lower()}" for each in Outcome)

    def _heal(self) -> None:
        self._events.add("everything is healed")
        self._await_ready()

    def _check(self) -> None:
        """Seal, read everything at every member, and compare."""
        seal(self._cluster)
        verify(self._cluster)
        self._events.add("sealed, verified")
        expectation = Expectation(self.ledger.entries, messages_of(self._proxied.shared))
        violations = list(self.ledger.unexpected)
        for name in NODES:
            found = query(self._cluster.url(name), QUERY)
            lines = expectation.faults_of(found)
            self._events.add(f"{name} holds {found.num_rows:,} rows: {'as written' if not lines else 'WRONG'}")
            violations += [f"at {name}: {line}" for line in lines]
        assert self.ledger.rows(Outcome.ACKNOWLEDGED), "nothing was acknowledged"
        assert not violations, "\n".join(violations)


def corrupt(path: Path, chosen: random.Random) -> bytes:
    """Change bytes in the middle of a file and keep its size; returns the new content."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    for index in range(middle, min(middle + CORRUPTED_BYTES, len(content))):
        content[index] ^= chosen.randrange(1, 256)
    path.write_bytes(content)
    return bytes(content)
