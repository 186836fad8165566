"""`headrace bench ingest`: from a table in the producer's memory to durable, queryable segments, beside the limits of the same machine.

One run: TSBS cpu data in Arrow tables of 100,000 rows with dictionary tags goes through the writer, a real broker and one node process, and is sealed
at the end. Start-up is not counted; the CPU time of every process that works is. The content is read back and compared; a run that fails that has no
figures.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from connectors.files import fsync_file
from connectors.http import call_node
from connectors.log.deadline import Deadline
from connectors.log.kafka import KafkaLog
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.membership.quorum import StatusWatch
from consumers.membership.tables import TableLog
from consumers.membership.writer import Cluster, Writer, WriterSettings
from headrace.bench.content import ContentDiffers, check_content
from headrace.local_cluster import LocalCluster
from headrace.workload import cpu
from schemas.errors import HeadraceError

TABLE_ROWS = 100_000
START_NS = 1_700_000_000_000_000_000
DATABASE = "bench"
VISIBLE_TIMEOUT_S = 300.0


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


def run(options: Mapping[str, str]) -> dict[str, Any]:
    """Options: hosts, rows, nodes, rounds, seed, compression, dir. Raises ContentDiffers."""
    hosts, rows = int(options.get("hosts", "4000")), int(options.get("rows", "2000000"))
    nodes, rounds = int(options.get("nodes", "1")), int(options.get("rounds", "3"))
    seed, compression = int(options.get("seed", "1")), options.get("compression", "zstd")
    workload = cpu(hosts=hosts, start_ns=START_NS, duration_s=rows // hosts * 10, seed=seed)
    tables = [table for _, table in workload.batches(TABLE_ROWS)]
    points = workload.points
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=options.get("dir") or None))
    legs: dict[str, list[Leg]] = {"headrace": [], "drain": [], "parquet": []}
    local = LocalCluster(directory, "bench", nodes)
    try:
        local.start()
        bytes_per_point = wire_bytes = 0.0
        for number in range(rounds):
            legs["parquet"].append(_parquet(tables, directory / "limit.parquet"))
            legs["headrace"].append(_ingest(local, tables, f"cpu{number}", compression))
            legs["drain"].append(_drain(local, len(legs["drain"])))
        for number in range(rounds):
            check_content(local, DATABASE, f"cpu{number}", tables)
        bytes_per_point, wire_bytes = _sizes(local, points * rounds)
    finally:
        local.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "data": {"name": "tsbs cpu", "hosts": hosts, "rows": workload.rows, "points": points, "seed": seed},
        "nodes": nodes,
        "rounds": rounds,
        "compression": compression,
        "points_per_second": median(leg.per_second(points) for leg in legs["headrace"]),
        "points_per_cpu_second": median(leg.per_cpu_second(points) for leg in legs["headrace"]),
        "range": _range([leg.per_cpu_second(points) for leg in legs["headrace"]]),
        "cpu_seconds": _cpu(legs["headrace"]),
        "bytes_per_point": bytes_per_point,
        "wire_bytes_per_point": wire_bytes,
        "limits": {
            "drain_points_per_second": median(leg.per_second(points) for leg in legs["drain"]),
            "parquet_points_per_second": median(leg.per_second(points) for leg in legs["parquet"]),
            "parquet_points_per_cpu_second": median(leg.per_cpu_second(points) for leg in legs["parquet"]),
        },
        "content": "verified",
        "versions": {"pyarrow": pa.__version__},
    }


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    limits, cpu_seconds = result["limits"], result["cpu_seconds"]
    share = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cpu_seconds.items())
    return (
        ("data", f"{result['data']['points']:,} points of {result['data']['name']}, {result['rounds']} rounds"),
        ("topic → durable segments", f"{result['points_per_second'] / 1e6:.2f} M points/s"),
        ("", f"{result['points_per_cpu_second'] / 1e6:.2f} M points per CPU-second ({share})"),
        ("on disk, on the wire", f"{result['bytes_per_point']:.3f}, {result['wire_bytes_per_point']:.3f} bytes/point"),
        ("limit: raw drain of the topic", f"{limits['drain_points_per_second'] / 1e6:.1f} M points/s"),
        ("limit: pq.write_table + fsync", f"{limits['parquet_points_per_second'] / 1e6:.1f} M points/s"),
        ("", f"{limits['parquet_points_per_cpu_second'] / 1e6:.1f} M points per CPU-second"),
        ("content", result["content"]),
    )


class Clock:
    """Wall time and the CPU time of named processes, from now."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = {name: [psutil.Process(pid) for pid in pids] for name, pids in processes.items()}
        self._start_cpu_s = self._cpu_s()
        self._start_s = time.monotonic()

    def leg(self) -> Leg:
        """What was used since."""
        seconds = time.monotonic() - self._start_s
        return Leg(seconds, {name: used - self._start_cpu_s[name] for name, used in self._cpu_s().items()})

    def _cpu_s(self) -> dict[str, float]:
        return {name: sum(_used_s(process) for process in found) for name, found in self._processes.items()}


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _ingest(local: LocalCluster, tables: Sequence[pa.Table], name: str, compression: str) -> Leg:
    log, topics = KafkaLog(local.bootstrap), Topics(local.cluster)
    table_log, watch, appender = TableLog(log, topics), StatusWatch(log, topics), log.appender()
    cluster = Cluster(log, topics, read_slot_table(log, topics), table_log, watch, appender)
    tags = [field.name for field in tables[0].schema if pa.types.is_dictionary(field.type)]
    try:
        writer = Writer(cluster, DATABASE, name, WriterSettings(compression=compression))
        # The schema is made before the clock starts, as it is for every later table of a stream.
        writer.write(tables[0].slice(0, 0), tags)
        pids = {"producer": [os.getpid()], "broker": [_broker_pid(local)], "nodes": [n.pid for n in local.file.nodes]}
        clock = Clock(pids)
        for rows in tables:
            writer.write(rows, tags)
        offsets = writer.close()
        _seal(local, offsets)
        return clock.leg()
    finally:
        appender.close()
        watch.close()
        table_log.close()
        log.close()


def _seal(local: LocalCluster, offsets: Mapping[str, int]) -> None:
    """Seal every group and wait until every node has everything in segments."""
    for group in offsets:
        call_node(f"{local.url(group)}/api/v1/seal?group={group}", method="POST", timeout_s=VISIBLE_TIMEOUT_S)
    deadline = Deadline(VISIBLE_TIMEOUT_S)
    for node in local.file.nodes:
        while any(
            group["live_rows"] or group["offset"] < offsets.get(group["group"], -1)
            for group in call_node(f"{local.url(node.name)}/api/v1/status")["groups"]
        ):
            if deadline.passed():
                raise HeadraceError(f"node {node.name} has not sealed in {VISIBLE_TIMEOUT_S:g} s")
            time.sleep(0.02)


def _drain(local: LocalCluster, number: int) -> Leg:
    """Consume the newest round's share of the topics with a bare client."""
    log, topics = KafkaLog(local.bootstrap), Topics(local.cluster)
    ends = {topics.forward(node.name): log.describe(topics.forward(node.name)).end for node in local.file.nodes}
    log.close()
    consumer = Consumer(
        {
            "bootstrap.servers": local.bootstrap,
            "group.id": f"drain{number}",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 32 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
        }
    )
    starts = {topic: end * number // (number + 1) for topic, end in ends.items()}
    clock = Clock({"consumer": [os.getpid()], "broker": [_broker_pid(local)]})
    consumer.assign([TopicPartition(topic, 0, start) for topic, start in starts.items()])
    left = sum(ends[topic] - starts[topic] for topic in ends)
    while left > 0:
        first = consumer.poll(5.0)
        left -= (0 if first is None else 1) + len(consumer.consume(500, 0))
    leg = clock.leg()
    consumer.close()
    return leg


def _parquet(tables: Sequence[pa.Table], path: Path) -> Leg:
    """The limit: the same tables in their order of arrival into one Parquet file, synced."""
    clock = Clock({"process": [os.getpid()]})
    with pq.ParquetWriter(path, tables[0].schema, compression="zstd") as writer:
        for rows in tables:
            writer.write_table(rows)
    fsync_file(path)
    leg = clock.leg()
    path.unlink()
    return leg


def _sizes(local: LocalCluster, points: int) -> tuple[float, float]:
    """Bytes a point in segments of one node, and in the forward logs."""
    node = local.file.nodes[0].name
    groups = call_node(f"{local.url(node)}/api/v1/status")["groups"]
    sealed = sum(group["segment_bytes"] for group in groups)
    logs = sum(
        path.stat().st_size for path in (local.directory / "broker").rglob("*.log") if ".forward." in path.parent.name
    )
    return sealed / points, logs / points


def _cpu(legs: Sequence[Leg]) -> dict[str, float]:
    return {name: median(leg.cpu_seconds[name] for leg in legs) for name in legs[0].cpu_seconds}


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "max": max(values)}


def _broker_pid(local: LocalCluster) -> int:
    pid = local.broker.status().pid
    assert pid is not None, "the broker runs"
    return pid


__all__ = ["ContentDiffers", "run", "table"]
