"""`headrace bench ingest`: from tables in a producer's memory to durable segments, beside the limits of the
machine.

One run: TSBS cpu data in Arrow tables of 100,000 rows with dictionary tags goes through the writer, a real
broker and one node process, and is sealed at the end. Start-up is not counted; the CPU time of every process
that works is. The content is read back and compared; a run that fails that has no figures.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from headrace.bench.content import ContentDiffers, check_content, tag_names, written_checksums
from headrace.bench.measurement import (
    DATABASE,
    Leg,
    Note,
    ProcessClock,
    broker_pid,
    connected,
    content_hash,
    node_pids,
    seal,
    silent,
    versions,
)
from headrace.bench.options import Options, rows_below_hosts
from headrace.connectors.files import fsync_file
from headrace.connectors.http import call_node
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.payload import COMPRESSIONS
from headrace.workload import cpu

OPTIONS = Options(
    {"hosts": 4_000, "rows": 2_000_000, "nodes": 1, "rounds": 3, "seed": 1, "compression": "zstd", "dir": ""},
    among={"compression": COMPRESSIONS},
    problem_of=rows_below_hosts,
)
TABLE_ROWS = 100_000
DRAIN_WAIT_S = 30.0
START_NS = 1_700_000_000_000_000_000


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: the keys of `OPTIONS`. Raises OptionUnknown, ContentDiffers."""
    given = OPTIONS.chosen(options)
    hosts, rows, nodes, rounds = (given[name] for name in ("hosts", "rows", "nodes", "rounds"))
    seed, compression = given["seed"], given["compression"]
    workload = cpu(hosts=hosts, start_ns=START_NS, duration_s=rows // hosts * 10, seed=seed)
    tables = [table for _, table in workload.batches(TABLE_ROWS)]
    points = workload.points
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=given["dir"] or None))
    legs: dict[str, list[Leg]] = {"headrace": [], "drain": [], "parquet": []}
    local = LocalCluster(directory, "bench", nodes)
    try:
        local.start()
        for number in range(rounds + 1):
            note(f"round {number} of {rounds}" if number else "warming up")
            # All legs in each round: a machine that gets slower during the run slows the limits down too.
            for name, leg in _round(local, tables, number, compression).items():
                legs[name] += [leg] if number else []
        for number in range(rounds + 1):
            check_content(local, DATABASE, f"cpu{number}", tables)
        bytes_per_point, wire_bytes = _sizes(local, points * (rounds + 1))
    finally:
        local.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "data": {
            "name": "tsbs cpu",
            "hosts": hosts,
            "rows": workload.rows,
            "points": points,
            "seed": seed,
            "hash": content_hash(written_checksums(tables)),
        },
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
        "versions": versions(),
    }


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    limits, cpu_seconds = result["limits"], result["cpu_seconds"]
    share = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cpu_seconds.items())
    return (
        ("data", f"{result['data']['points']:,} points of {result['data']['name']}, {result['rounds']} rounds"),
        ("content", f"{result['content']}, hash {result['data']['hash']}"),
        ("topic → durable segments", f"{result['points_per_second'] / 1e6:.2f} M points/s"),
        ("", f"{result['points_per_cpu_second'] / 1e6:.2f} M points per CPU-second ({share})"),
        ("on disk, on the wire", f"{result['bytes_per_point']:.3f}, {result['wire_bytes_per_point']:.3f} bytes/point"),
        ("limit: raw drain of the topic", f"{limits['drain_points_per_second'] / 1e6:.1f} M points/s"),
        ("limit: pq.write_table + fsync", f"{limits['parquet_points_per_second'] / 1e6:.1f} M points/s"),
        ("", f"{limits['parquet_points_per_cpu_second'] / 1e6:.1f} M points per CPU-second"),
    )


def ingest_leg(local: LocalCluster, broker: int, tables: Sequence[pa.Table], name: str, compression: str) -> Leg:
    """Write tables of rows and seal them at every node; CPU of this process, the broker and the nodes."""
    tags = tag_names(tables[0])
    with connected(local.bootstrap, local.cluster) as cluster:
        writer = TableWriter(cluster, DATABASE, name, WriterSettings(compression=compression))
        # The schema is made before the clock starts: a stream makes it once, and not with every table.
        writer.write(tables[0].slice(0, 0), tags)
        clock = ProcessClock({"producer": [os.getpid()], "broker": [broker], "nodes": node_pids(local)})
        for rows in tables:
            writer.write(rows, tags)
        seal(local, writer.close())
        return clock.leg()


def _round(local: LocalCluster, tables: Sequence[pa.Table], number: int, compression: str) -> dict[str, Leg]:
    """Every leg once, the plain file before ours or behind it in turn."""

    def plain() -> dict[str, Leg]:
        return {"parquet": _parquet(tables, local.directory / "limit.parquet")}

    taken = plain() if number % 2 else {}
    begins = _ends(local)
    taken["headrace"] = ingest_leg(local, broker_pid(local.broker), tables, f"cpu{number}", compression)
    taken["drain"] = _drain(local, number, begins)
    return taken | ({} if number % 2 else plain())


def _ends(local: LocalCluster) -> dict[str, int]:
    """Where each forward log ends."""
    with closing(KafkaLog(local.bootstrap)) as log:
        names = [Topics(local.cluster).forward(node.name) for node in local.file.nodes]
        return {name: log.describe(name).end for name in names}


def _drain(local: LocalCluster, number: int, starts: Mapping[str, int]) -> Leg:
    """Consume what a round appended to the topics with a bare client."""
    ends = _ends(local)
    consumer = Consumer(
        {
            "bootstrap.servers": local.bootstrap,
            "group.id": f"drain{number}",
            "enable.auto.commit": False,
            # By default librdkafka pauses a partition for a second when its queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 32 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
        }
    )
    clock = ProcessClock({"consumer": [os.getpid()], "broker": [broker_pid(local.broker)]})
    consumer.assign([TopicPartition(topic, 0, start) for topic, start in starts.items()])
    left = sum(ends[topic] - starts[topic] for topic in ends)
    while left > 0:
        first = consumer.poll(DRAIN_WAIT_S)
        if first is None:
            raise HeadraceError(f"{left} records of the topic do not come", action="see the broker's log")
        left -= sum(each.error() is None for each in (first, *consumer.consume(500, 0)))
    leg = clock.leg()
    consumer.close()
    return leg


def _parquet(tables: Sequence[pa.Table], path: Path) -> Leg:
    """The limit: the same tables in their order of arrival into one Parquet file, synced."""
    clock = ProcessClock({"process": [os.getpid()]})
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


__all__ = ["ContentDiffers", "ingest_leg", "run", "table"]
