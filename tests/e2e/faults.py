"""A cluster under faults: three nodes, each behind a proxy that can be cut, writers that never stop, and a schedule drawn from a seed.

At most one node is faulty at a time, and the broker besides. What destroys data (a wiped directory, a rotten file) waits until all nodes are in sync,
so that it never meets the only copy. Everything that happens is one readable line.
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

from connectors.kafka.broker import EmbeddedBroker
from connectors.kafka.broker_process import free_port
from consumers.membership.writer import Cluster
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import ask, connected, end, eventually_says, fill, log_text, seal, verify
from tests.e2e.ledger import QUERY, Expectation, Ledger, Told, WritingThreads, messages_of
from tests.e2e.proxy import Proxy, running_proxies
from tests.waiting import eventually

NODES = ("n1", "n2", "n3")
SMALL_DISK_NODE = "n2"
SMALL_DISK_MB = 192
READY_TIMEOUT_S = 120.0
FULL_TIMEOUT_S = 15.0
SETTLED_S = 2.0
SAMPLES_MIN = 1_000
ROTTEN_BYTES = 16
ROT_WORDS = "its bytes changed on this disk"
ENVIRONMENT = {
    "HEADRACE__STORE__SEAL_ROWS": "1500",
    "HEADRACE__STORE__LOG_KEEP_RECORDS": "150",
}


class Broken(AssertionError):
    """A run that showed what must never be; the seed and every event are in the message."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of what: `shortest_s` and `longest_s` bound how long a fault lasts."""

    seed: int
    faults: int
    seconds: float
    shortest_s: float
    longest_s: float
    longest_stop_s: float
    quorums: tuple[int, ...] = (1, 1, 2, 2, 2)
    pause_s: float = 0.04


@dataclass
class Diary:
    """What happened, one line an event, also in a file while it happens."""

    path: Path
    begun_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """One event."""
        self.lines.append(f"{time.monotonic() - self.begun_s:8.2f} s  {line}")
        with self.path.open("a") as file:
            file.write(self.lines[-1] + "\n")

    def text(self) -> str:
        """Everything so far."""
        return "\n".join(self.lines)


@dataclass
class Stage:
    """What a run acts on."""

    broker: EmbeddedBroker
    cluster: LocalCluster
    proxies: dict[str, Proxy]
    shared: Cluster
    disk_fills: bool

    def broker_pid(self) -> int:
        """The broker's process."""
        pid = self.broker.status().pid
        assert pid is not None, "the broker does not run"
        return pid


@contextmanager
def staged(
    directory: Path, name: str, small_disk: Callable[[Path, int], bool], environment: Mapping[str, str]
) -> Iterator[Stage]:
    """A ready cluster of three nodes, each reaching the cluster's own broker through its own proxy; nothing is left of it."""
    ports: list[int] = []
    for _ in NODES:
        ports.append(free_port(ports))
    broker = EmbeddedBroker(directory / "broker", advertise=ports)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        info = broker.start()
        proxies = stack.enter_context(running_proxies(info.proxied))
        bootstraps = {node: f"127.0.0.1:{port}" for node, port in zip(NODES, ports, strict=True)}
        cluster = LocalCluster(directory, name, len(NODES), environment, info.bootstrap, bootstraps)
        stack.callback(end, cluster)
        disk_fills = small_disk(cluster.data_directory(SMALL_DISK_NODE), SMALL_DISK_MB)
        cluster.start()
        shared = stack.enter_context(connected(cluster))
        behind = dict(zip(NODES, (proxies[port] for port in ports), strict=True))
        yield Stage(broker, cluster, behind, shared, disk_fills)


class FaultRun:
    """One schedule from a seed. `run` returns when everything was read back and found right."""

    def __init__(self, stage: Stage, plan: Plan, diary: Diary) -> None:
        self.ledger = Ledger()
        self.healthy: list[tuple[float, float]] = []
        self.one_stopped: list[tuple[float, float]] = []
        self.counts: dict[str, int] = {}
        self._stage = stage
        self._cluster = stage.cluster
        self._plan = plan
        self._diary = diary
        self._settled = False
        self._random = random.Random(plan.seed)
        self._kinds: dict[str, Callable[[], None]] = {
            "killed": self._kill,
            "stopped": self._stop_and_continue,
            "cut off both ways": self._cut_both,
            "cut off one way": self._cut_one_way,
            "wiped": self._wipe,
            "rotten file": self._rot,
            "broker": self._restart_broker,
        }
        if stage.disk_fills:
            self._kinds["disk full"] = self._fill_disk

    def run(self) -> None:
        """Faults while writing, then heal and read everything. Raises Broken."""
        try:
            with WritingThreads(
                self._stage.shared, self.ledger, self._plan.quorums, self._plan.pause_s, self._plan.seed
            ):
                self._disturb()
                self._heal()
            self._check()
        except Exception as error:
            raise Broken(
                f"{error}\nreplay with HEADRACE_FAULT_SEED={self._plan.seed}; logs in {self._cluster.directory}\n{self._diary.text()}"
            ) from error

    def _disturb(self) -> None:
        """The faults, evenly spread over the time: all kinds in a shuffled order, again and again."""
        begun_s, deck = time.monotonic(), list[str]()
        for number in range(self._plan.faults):
            due_s = begun_s + self._plan.seconds * number / self._plan.faults
            threading.Event().wait(max(0.0, due_s - time.monotonic()))
            if not deck:
                deck = sorted(self._kinds)
                self._random.shuffle(deck)
            kind = deck.pop()
            self._settled = False
            if self._random.random() < 0.7:
                self._await_health()
            self._kinds[kind]()
            self.counts[kind] = self.counts.get(kind, 0) + 1

    # Faults.

    def _kill(self) -> None:
        name = self._victim()
        self._diary.note(f"kill {name}")
        self._cluster.kill(name)
        with self._one_stopped():
            self._last()
        self._start(name)

    def _stop_and_continue(self) -> None:
        name = self._victim()
        self._diary.note(f"stop {name}")
        self._cluster.kill(name, signal.SIGSTOP)
        with self._one_stopped():
            self._last(self._plan.longest_stop_s)
        self._diary.note(f"continue {name}")
        self._cluster.kill(name, signal.SIGCONT)

    def _cut_both(self) -> None:
        self._cut("both")

    def _cut_one_way(self) -> None:
        self._cut(self._random.choice(["to_broker", "from_broker"]))

    def _cut(self, way: str) -> None:
        name = self._victim()
        self._diary.note(f"cut {name} {way}")
        self._stage.proxies[name].cut(way)
        with self._one_stopped():
            self._last(self._plan.longest_stop_s)
        self._diary.note(f"heal {name}")
        self._stage.proxies[name].heal()

    def _fill_disk(self) -> None:
        self._diary.note(f"fill the disk of {SMALL_DISK_NODE}")
        ballast = fill(self._cluster.data_directory(SMALL_DISK_NODE))
        with contextlib.suppress(AssertionError):
            eventually_says(self._cluster, SMALL_DISK_NODE, "No space left on device", FULL_TIMEOUT_S)
            self._diary.note(f"{SMALL_DISK_NODE} says that its disk is full")
        self._last()
        if self._random.random() < 0.3:
            self._diary.note(f"kill {SMALL_DISK_NODE}")
            self._cluster.kill(SMALL_DISK_NODE)
            self._start(SMALL_DISK_NODE)
            self._last()
        self._diary.note(f"free the disk of {SMALL_DISK_NODE}")
        ballast.unlink(missing_ok=True)
        if not self._cluster.node(SMALL_DISK_NODE).running:
            self._start(SMALL_DISK_NODE)

    def _wipe(self) -> None:
        self._await_health()
        name = self._victim()
        self._diary.note(f"kill and wipe {name}")
        self._cluster.kill(name)
        self._cluster.wipe(name)
        self._start(name)
        self._await_health()

    def _rot(self) -> None:
        self._await_health()
        name = self._victim()
        self._cluster.kill(name)
        files = sorted((self._cluster.data_directory(name) / "segments").rglob("*.parquet"))
        assert files, f"{name} has sealed nothing yet"
        chosen = self._random.choice(files)
        self._diary.note(f"kill {name} and rot {chosen.relative_to(self._cluster.directory)}")
        rotten = rot(chosen, self._random)
        said = len(log_text(self._cluster, name))
        self._start(name)

        def found() -> bool:
            merged = not chosen.exists() or chosen.read_bytes() != rotten
            return merged or ROT_WORDS in log_text(self._cluster, name)[said:]

        eventually(found, f"{name} finding that its file {chosen.name} rotted", READY_TIMEOUT_S)
        self._await_health()

    def _restart_broker(self) -> None:
        if self._random.random() < 0.5:
            self._diary.note("stop the broker")
        else:
            self._diary.note("kill the broker")
            process = psutil.Process(self._stage.broker_pid())
            process.kill()
            process.wait()
        self._stage.broker.stop()
        threading.Event().wait(self._random.uniform(0, 3))
        self._diary.note("start the broker")
        self._stage.broker.start()

    # What they are made of.

    def _victim(self) -> str:
        return self._random.choice(NODES)

    def _last(self, longest_s: float = 0.0) -> None:
        threading.Event().wait(self._random.uniform(self._plan.shortest_s, longest_s or self._plan.longest_s))

    def _start(self, name: str) -> None:
        self._diary.note(f"start {name}")
        self._cluster.start_node(name)

    @contextmanager
    def _one_stopped(self) -> Iterator[None]:
        """Note the time for the latencies, if nothing else is wrong meanwhile."""
        alone, begun_s = self._settled, time.monotonic()
        yield
        if alone:
            self.one_stopped.append((begun_s, time.monotonic()))

    def _await_health(self) -> None:
        """Wait until every node is in sync, then a little longer, in which latencies are those of a healthy cluster."""
        self._await_ready()
        begun_s = time.monotonic()
        threading.Event().wait(SETTLED_S)
        self.healthy.append((begun_s, time.monotonic()))
        self._settled = True

    def _await_ready(self) -> None:
        begun_s = time.monotonic()
        self._cluster.wait_ready(timeout_s=READY_TIMEOUT_S)
        self._diary.note(f"all are in sync after {time.monotonic() - begun_s:.1f} s; {self._figures()}")

    def latency_ratio(self) -> float:
        """p99 of writes with quorum 2 while one node is away, by that of a healthy cluster in the same run."""
        found = {}
        for name, times in (("healthy", self.healthy), ("one node away", self.one_stopped)):
            samples = sorted(self.ledger.latencies_ms(2, times))
            assert len(samples) >= SAMPLES_MIN, f"{len(samples)} writes with quorum 2 while {name}: too few"
            found[name] = samples[int(len(samples) * 0.99)]
            self._diary.note(
                f"quorum 2, {name}: {len(samples)} writes, p50 {samples[len(samples) // 2]:.1f} ms, p99 {found[name]:.1f} ms"
            )
        return found["one node away"] / found["healthy"]

    def _figures(self) -> str:
        return ", ".join(f"{self.ledger.rows(each):,} rows {each.name.lower()}" for each in Told)

    def _heal(self) -> None:
        self._diary.note("everything is healed")
        self._await_ready()

    def _check(self) -> None:
        """Seal, read everything at every member, and compare."""
        seal(self._cluster)
        verify(self._cluster)
        self._diary.note("sealed, verified")
        expectation = Expectation(self.ledger.entries, messages_of(self._stage.shared))
        wrong = list(self.ledger.surprises)
        for name in NODES:
            found = ask(self._cluster.url(name), QUERY)
            lines = expectation.faults_of(found)
            self._diary.note(f"{name} holds {found.num_rows:,} rows: {'as written' if not lines else 'WRONG'}")
            wrong += [f"at {name}: {line}" for line in lines]
        assert self.ledger.rows(Told.ACKNOWLEDGED), "nothing was acknowledged"
        assert not wrong, "\n".join(wrong)


def rot(path: Path, chosen: random.Random) -> bytes:
    """Other bytes of the same number in the middle of a file, as a disk does it; what the file holds now."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    for place in range(middle, min(middle + ROTTEN_BYTES, len(content))):
        content[place] ^= chosen.randrange(1, 256)
    path.write_bytes(content)
    return bytes(content)
