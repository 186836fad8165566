"""What the benchmarks share: clocks over processes, running clusters, ratios and their targets."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka
import psutil
import pyarrow as pa
import xxhash

from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused, call_node
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.jars import resolve_jars
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.routing import MembershipRouting
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.local_cluster import LocalCluster
from headrace.producers.cluster import Cluster
from headrace.schemas.errors import HeadraceError

DATABASE = "bench"
VISIBLE_TIMEOUT_S = 300.0
POLL_S = 0.02
KAFKA_JAR_PREFIX = "kafka_2.13-"

Note = Callable[[str], None]


def silent(line: str) -> None:
    """A Note that prints nothing."""
    del line


@dataclass(frozen=True, slots=True)
class Leg:
    """One measured way: wall seconds, and CPU seconds by process."""

    seconds: float
    cpu_seconds: Mapping[str, float]

    def per_second(self, points: int) -> float:
        """Points per second of wall time."""
        return points / self.seconds

    def per_cpu_second(self, points: int) -> float:
        """Points per CPU-second of all processes together."""
        return points / sum(self.cpu_seconds.values())


class ProcessClock:
    """Wall time and the CPU time of named processes, from now."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = {name: [psutil.Process(pid) for pid in pids] for name, pids in processes.items()}
        self._start_cpu_s = self._cpu_s()
        self._start_s = time.monotonic()

    def leg(self) -> Leg:
        """Wall and CPU time used since the clock was made."""
        seconds = time.monotonic() - self._start_s
        return Leg(seconds, {name: used - self._start_cpu_s[name] for name, used in self._cpu_s().items()})

    def _cpu_s(self) -> dict[str, float]:
        return {name: sum(used_s(process) for process in found) for name, found in self._processes.items()}


def used_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def stolen_in(shares: dict[str, float], leg: str) -> Iterator[None]:
    """Add the share of all processors that the host of a virtual machine took away during a leg; 0 where none is known.

    A leg that lost more than its peer is slower for a reason that is not in it.
    """
    began_s, stolen_s = time.monotonic(), _stolen_s()
    yield
    shares[leg] = (_stolen_s() - stolen_s) / ((time.monotonic() - began_s) * (os.cpu_count() or 1))


def _stolen_s() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def node_pids(local: LocalCluster) -> list[int]:
    """The processes of a cluster's nodes."""
    return [node.pid for node in local.file.nodes]


def broker_pid(broker: EmbeddedBroker) -> int:
    """The process of a running broker."""
    pid = broker.status().pid
    assert pid is not None, "the broker runs"
    return pid


@contextlib.contextmanager
def running_broker(directory: Path) -> Iterator[EmbeddedBroker]:
    """A broker that ends with the block."""
    broker = EmbeddedBroker(directory)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def running_cluster(
    directory: Path, broker: EmbeddedBroker, nodes: int, *, replication: int = 0, **environment: str
) -> Iterator[LocalCluster]:
    """A ready cluster on a broker that runs, named after its directory; `store_seal_rows="100"` sets
    HEADRACE__STORE__SEAL_ROWS. `replication` 0 = all nodes.
    """
    # Only the first underscore separates section and key.
    variables = {f"HEADRACE__{key.replace('_', '__', 1).upper()}": value for key, value in environment.items()}
    local = LocalCluster(directory, directory.name, nodes, variables, broker.status().bootstrap or "")
    local.file.replication = replication
    try:
        local.start()
        yield local
    finally:
        local.stop()


@contextlib.contextmanager
def connected(bootstrap: str, cluster: str) -> Iterator[Cluster]:
    """What the writers of this process share."""
    with contextlib.ExitStack() as stack:
        log, topics = KafkaLog(bootstrap), Topics(cluster)
        stack.callback(log.close)
        routing, tables = MembershipRouting(log, topics), SchemaLog(log, topics)
        stack.callback(routing.close)
        stack.callback(tables.close)
        watch, appender = StatusWatch(log, topics), log.appender()
        stack.callback(watch.close)
        stack.callback(appender.close)
        routing.prepare = appender.prepare
        yield Cluster(log, topics, routing, tables, watch, appender)


def seal(local: LocalCluster, offsets: Mapping[str, int]) -> None:
    """Seal every group that was written to, and wait until every node has everything in segments.

    `offsets` are those of a writer, by topic. Raises HeadraceError when that takes too long.
    """
    deadline, topics = Deadline(VISIBLE_TIMEOUT_S), Topics(local.cluster)
    # No bench that seals changes members, so every group has its first birth, and the name of its header.
    offsets = {found[0]: offset for topic, offset in offsets.items() if (found := topics.group_of(topic)) is not None}
    for group in offsets:
        while not _seal_group(local, group):
            _wait(deadline, f"group {group} has no leader that seals it")
    for node in local.file.nodes:
        while not _sealed(local, node.name, offsets):
            _wait(deadline, f"node {node.name} has not sealed")


def _seal_group(local: LocalCluster, group: str) -> bool:
    groups = call_node(f"{local.url(group)}/api/v1/status")["groups"]
    leader = next(each["leader"] for each in groups if each["group"] == group)
    try:
        call_node(f"{local.url(leader or group)}/api/v1/seal?group={group}", method="POST", timeout_s=VISIBLE_TIMEOUT_S)
    except NodeRefused as error:
        # The leader may change between the status and the call: look again.
        if not error.retriable:
            raise
        return False
    return True


def await_applied(local: LocalCluster) -> None:
    """Wait until every node has applied all that its logs hold. Raises HeadraceError when that takes too long."""
    deadline, topics = Deadline(VISIBLE_TIMEOUT_S), Topics(local.cluster)
    with contextlib.closing(KafkaLog(local.bootstrap)) as log:
        ends = {node.name: log.describe(topics.forward(node.name)).end for node in local.file.nodes}
    for node in local.file.nodes:
        while not _applied(local, node.name, ends):
            _wait(deadline, f"node {node.name} has not applied its logs")


def _applied(local: LocalCluster, node: str, ends: Mapping[str, int]) -> bool:
    groups = call_node(f"{local.url(node)}/api/v1/status")["groups"]
    return not any(each["offset"] < ends[each["group"]] - 1 for each in groups)


def _sealed(local: LocalCluster, node: str, offsets: Mapping[str, int]) -> bool:
    groups = call_node(f"{local.url(node)}/api/v1/status")["groups"]
    # The offset too: a member that is behind its log may have no live rows yet.
    return not any(each["live_rows"] or each["offset"] < offsets.get(each["group"], -1) for each in groups)


def _wait(deadline: Deadline, problem: str) -> None:
    if deadline.passed():
        raise HeadraceError(f"{problem} in {VISIBLE_TIMEOUT_S:g} s", action="see the logs of the nodes")
    time.sleep(POLL_S)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median with least and most."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def ratio(ours: Sequence[float], theirs: Sequence[float], least: float | None = None) -> dict[str, Any]:
    """Ours over theirs, round by round, and whether the median reaches its target."""
    # Ratios within a round, then their median: speed of a shared machine drifts, and both legs of a round
    # meet the same.
    each = summary([own / other for own, other in zip(ours, theirs, strict=True)])
    return each if least is None else {**each, "least": least, "met": each["median"] >= least}


def ratio_text(figure: Mapping[str, Any]) -> str:
    """A ratio for people."""
    text = f"{figure['median']:.2f} ({figure['min']:.2f} to {figure['max']:.2f})"
    if "met" not in figure:
        return text
    return f"{text}, at least {figure['least']:g}: {'met' if figure['met'] else 'missed'}"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50 and p99, and how many there are."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"p50": ordered[round(last * 0.5)], "p99": ordered[round(last * 0.99)], "count": len(ordered)}


def content_hash(sums: pa.Table) -> str:
    """One hash of the per-series checksums of a table, in hex."""
    digest = xxhash.xxh3_128()
    for line in sums.select(["series", "rows", "checksum"]).sort_by("series").to_pylist():
        digest.update(f"{line['series']} {line['rows']} {line['checksum']}\n".encode())
    return str(digest.hexdigest())


def versions() -> dict[str, str]:
    """Versions that the figures depend on."""
    return {
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "confluent-kafka": confluent_kafka.__version__,
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "rocksdict": version("rocksdict"),
        "kafka": next(
            jar.stem.rpartition("-")[2] for jar in resolve_jars().broker if jar.name.startswith(KAFKA_JAR_PREFIX)
        ),
        "cores": str(os.cpu_count()),
    }


def settings_text(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Settings and versions of a run for people."""
    return [
        (name, ", ".join(f"{key} {value}" for key, value in result[name].items())) for name in ("settings", "versions")
    ]


def in_child(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns in a new process. Raises what it raised, and HeadraceError when it died."""
    # A process of its own for each leg: no leg profits from caches and pools of another, or pays for its
    # garbage. Spawned and not forked: the threads of librdkafka and Arrow do not survive a fork, the locks
    # they hold do.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, work, arguments))
    process.start()
    # Only the child may hold this end: when it dies, `recv` raises EOFError instead of waiting forever.
    there.close()
    try:
        error, result = here.recv()
    except EOFError:
        process.join()
        raise HeadraceError(f"a measuring process ended with exit code {process.exitcode}") from None
    except BaseException:
        # Behind an interrupt nobody needs its answer, and Python itself would wait for its end.
        process.kill()
        process.join()
        raise
    finally:
        here.close()
    process.join()
    if error is not None:
        raise error
    return result


def _answer(there: Any, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        there.send((None, work(*arguments)))
    except HeadraceError as error:
        # Plain: errors with further arguments of their own cannot be unpickled.
        there.send((HeadraceError(f"{type(error).__name__}: {error}"), None))
    there.close()
