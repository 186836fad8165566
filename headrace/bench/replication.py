"""`headrace bench replication`: what three replicas cost beside one, and what a confirmation by two of them
takes.

One run on one broker. Work: the same tables go into a cluster of one node and into one of three, in turn, and
are sealed at every replica; the CPU time of the nodes by replica is the figure, since everything else there
is only once. Latency: a small write that two of three nodes hold durably, beside Kafka's own acknowledgement
of a record of that size and one fdatasync of 4 KB, in turn, first alone and then while another process
writes. Every replica is read back and compared after every round.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from headrace.bench.content import check_node, tag_names, written_checksums
from headrace.bench.ingest import TABLE_ROWS, ingest_leg
from headrace.bench.measurement import (
    DATABASE,
    Leg,
    Note,
    broker_pid,
    connected,
    content_hash,
    percentiles,
    ratio,
    ratio_text,
    running_broker,
    running_cluster,
    settings_text,
    silent,
    summary,
    versions,
)
from headrace.bench.options import FROM_ZERO, Options, rows_below_hosts
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.local_cluster import LocalCluster
from headrace.producers.cluster import Cluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.payload import COMPRESSIONS
from headrace.workload import cpu

OPTIONS = Options(
    {
        "hosts": 4_000,
        "rows": 2_000_000,
        "rounds": 5,
        "seed": 1,
        "compression": "zstd",
        "writes": 200,
        "load_rows": 100_000,
        "dir": "",
    },
    from_zero=(*FROM_ZERO, "load_rows"),
    among={"compression": COMPRESSIONS},
    problem_of=rows_below_hosts,
)
START_NS = 1_700_000_000_000_000_000
REPLICAS = 3
QUORUM = 2
QUORUM_TIMEOUT_MS = 30_000
LEAST = 0.8
LOAD_TABLE_ROWS = 10_000
LOAD_TIMEOUT_S = 60.0
PLAIN_TOPIC = "bench.plain"
RECORD_BYTES = 4_096


class LoadFailed(HeadraceError):
    """The process that writes beside the measured writes did not do its work."""


@dataclass(frozen=True)
class Bench:
    """What the parts of a run share."""

    directory: Path
    broker: EmbeddedBroker
    one: LocalCluster
    three: LocalCluster
    tables: Sequence[pa.Table]
    compression: str
    seed: int

    @property
    def clusters(self) -> dict[str, LocalCluster]:
        """By the name of their figures."""
        return {"one": self.one, "three": self.three}


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts, rows, rounds, seed, compression, writes (of each kind a round), load_rows (a second),
    dir. Raises ContentDiffers.
    """
    settings = OPTIONS.chosen(options)
    hosts, rows, seed = settings["hosts"], settings["rows"], settings["seed"]
    workload = cpu(hosts=hosts, start_ns=START_NS, duration_s=rows // hosts * 10, seed=seed)
    tables = [table for _, table in workload.batches(TABLE_ROWS)]
    expected = written_checksums(tables)
    directory = Path(tempfile.mkdtemp(prefix="headrace-replication-", dir=settings.pop("dir") or None))
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(directory / "one", broker, 1) as one,
            running_cluster(directory / "three", broker, REPLICAS) as three,
        ):
            bench = Bench(directory, broker, one, three, tables, settings["compression"], seed)
            legs = _measure_work(bench, settings["rounds"], expected, note)
            latency = _measure_latency(bench, settings, note)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "data": {"name": "tsbs cpu", "rows": workload.rows, "points": workload.points, "hash": content_hash(expected)},
        "settings": settings,
        "versions": versions(),
        "work": _work(legs, workload.points),
        "latency_ms": latency,
        "content": "verified at every replica after every round",
    }


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    work = result["work"]
    shown = [
        *settings_text(result),
        ("data", f"{result['data']['points']:,} points of {result['data']['name']}, hash {result['data']['hash']}"),
    ]
    for name, figures in work["clusters"].items():
        node = figures["points_per_cpu_second_per_replica"]
        shown.append(
            (
                f"{name} replica{'s' if name != 'one' else ''}",
                f"{node['median'] / 1e6:.1f} M points per CPU-second of a node ({node['min'] / 1e6:.1f} to {node['max'] / 1e6:.1f}), "
                f"{figures['points_per_cpu_second']['median'] / 1e6:.2f} M of the whole system, "
                f"{figures['points_per_second']['median'] / 1e6:.2f} M points/s",
            )
        )
    shown.append(("three against one, a replica", ratio_text(work["three_of_one_per_replica"])))
    shown.append(("three against one, whole system", ratio_text(work["three_of_one_whole"])))
    for load, kinds in result["latency_ms"].items():
        for kind, figures in kinds.items():
            shown.append((f"{kind}, {load}", f"p50 {figures['p50']:.2f} ms, p99 {figures['p99']:.2f} ms"))
    shown.append(("content", result["content"]))
    return shown


# Work.


def _measure_work(bench: Bench, rounds: int, expected: pa.Table, note: Note) -> dict[str, list[Leg]]:
    legs: dict[str, list[Leg]] = {name: [] for name in bench.clusters}
    pid = broker_pid(bench.broker)
    for number in range(rounds + 1):
        note(f"one and three replicas, round {number} of {rounds}" if number else "one and three replicas, warming up")
        # In alternating order: neither cluster always runs on the caches that the other one left.
        order = list(bench.clusters.items())
        for name, local in order if number % 2 else order[::-1]:
            leg = ingest_leg(local, pid, bench.tables, f"cpu{number}", bench.compression)
            _check(local, f"cpu{number}", tag_names(bench.tables[0]), expected)
            if number:
                legs[name].append(leg)
    return legs


def _check(local: LocalCluster, name: str, tags: Sequence[str], expected: pa.Table) -> None:
    for node in local.file.nodes:
        check_node(local.url(node.name), DATABASE, name, tags, expected)


def _work(legs: Mapping[str, Sequence[Leg]], points: int) -> dict[str, Any]:
    replicas = {"one": 1, "three": REPLICAS}
    of_node = {name: [points * replicas[name] / leg.cpu_seconds["nodes"] for leg in legs[name]] for name in legs}
    whole = {name: [leg.per_cpu_second(points) for leg in legs[name]] for name in legs}
    clusters = {
        name: {
            "replicas": replicas[name],
            "points_per_cpu_second_per_replica": summary(of_node[name]),
            "points_per_cpu_second": summary(whole[name]),
            "points_per_second": summary([leg.per_second(points) for leg in taken]),
            "cpu_seconds": {
                process: summary([leg.cpu_seconds[process] for leg in taken]) for process in taken[0].cpu_seconds
            },
        }
        for name, taken in legs.items()
    }
    return {
        "clusters": clusters,
        "three_of_one_per_replica": ratio(of_node["three"], of_node["one"], LEAST),
        "three_of_one_whole": ratio(whole["three"], whole["one"]),
    }


# Latency.


def _measure_latency(bench: Bench, settings: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """ms by load and kind."""
    latency: dict[str, dict[str, list[float]]] = {}
    with connected(bench.three.bootstrap, bench.three.cluster) as cluster, _plain_kinds(bench) as plain:
        small = cpu(hosts=1, start_ns=START_NS, duration_s=settings["writes"] * 10, seed=bench.seed).read("cpu")
        tags = tag_names(small)
        for number in range(settings["rounds"]):
            for load in ("alone", "under load"):
                note(f"latency, {load}, round {number + 1} of {settings['rounds']}")
                kinds = latency.setdefault(load, {})
                name = f"small{number}{load[:5]}"
                with _load(bench, settings["load_rows"] if load != "alone" else 0, number):
                    quorum = _quorum_times(cluster, name, small)
                    kinds.setdefault(f"quorum {QUORUM} of {REPLICAS}", []).extend(quorum)
                    for kind, once in plain.items():
                        kinds.setdefault(kind, []).extend(_times(once, small.num_rows))
                _check(bench.three, name, tags, written_checksums([small]))
    return {load: {kind: percentiles(values) for kind, values in kinds.items()} for load, kinds in latency.items()}


def _quorum_times(cluster: Cluster, name: str, rows: pa.Table) -> list[float]:
    """Milliseconds of each row, written by itself."""
    tags = tag_names(rows)
    with TableWriter(cluster, DATABASE, name, WriterSettings(QUORUM, QUORUM_TIMEOUT_MS)) as writer:
        writer.write(rows.slice(0, 0), tags)
        return _times(lambda row: writer.write(rows.slice(row, 1), tags), rows.num_rows)


def _times(once: Callable[[int], None], count: int) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for number in range(count):
        begun = time.perf_counter()
        once(number)
        taken.append((time.perf_counter() - begun) * 1_000)
    return taken


@contextmanager
def _plain_kinds(bench: Bench) -> Iterator[dict[str, Callable[[int], None]]]:
    """Times of the same machine for less: a record that Kafka acknowledges, and a sync of the disk."""
    log = KafkaLog(bench.three.bootstrap)
    log.create_topic(PLAIN_TOPIC, {})
    log.close()
    # The settings of the appender of Headrace: idempotent, acknowledged by every replica, no batching delay.
    producer = Producer({"bootstrap.servers": bench.three.bootstrap, "enable.idempotence": True, "acks": "all"})
    value = os.urandom(RECORD_BYTES)
    file = os.open(bench.directory / "synced", os.O_WRONLY | os.O_CREAT)

    def produce(number: int) -> None:
        del number
        producer.produce(PLAIN_TOPIC, value, partition=0)
        if producer.flush(30.0):
            raise HeadraceError("Kafka did not acknowledge a record in 30 s")

    def sync(number: int) -> None:
        os.pwrite(file, value, number * RECORD_BYTES)
        os.fdatasync(file)

    try:
        yield {"Kafka acks=all": produce, "fdatasync of 4 KB": sync}
    finally:
        producer.flush(5.0)
        os.close(file)


@contextmanager
def _load(bench: Bench, rows_per_second: int, number: int) -> Iterator[None]:
    """Let another process write at a steady rate meanwhile; a rate of 0 starts none."""
    if not rows_per_second:
        yield
        return
    context = multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    where = (bench.three.bootstrap, bench.three.cluster, f"load{number}")
    process = context.Process(target=_write_steadily, args=(*where, rows_per_second, bench.seed, started, stop))
    process.start()
    try:
        if not started.wait(LOAD_TIMEOUT_S):
            raise LoadFailed("the writing process did not start")
        yield
        if not process.is_alive():
            raise LoadFailed(f"the writing process ended early, with exit code {process.exitcode}")
    finally:
        stop.set()
        process.join(LOAD_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()


def _write_steadily(
    bootstrap: str, cluster: str, name: str, rows_per_second: int, seed: int, started: Any, stop: Any
) -> None:
    """Write the same rows again and again, in a process of its own, until `stop` is set."""
    # The same rows cost a store what new ones do, and generating new ones would take CPU time from the nodes.
    rows = cpu(hosts=LOAD_TABLE_ROWS, duration_s=10, seed=seed).read("cpu")
    tags = tag_names(rows)
    with connected(bootstrap, cluster) as shared, TableWriter(shared, DATABASE, name) as writer:
        writer.write(rows, tags)
        writer.flush()
        started.set()
        begun, written = time.monotonic(), 0
        while not stop.wait(max(0.0, begun + written / rows_per_second - time.monotonic())):
            writer.write(rows, tags)
            written += rows.num_rows
