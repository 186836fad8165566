"""A run continues from a checkpoint of an earlier build; tests/data/README.md documents its content."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.pipeline.checkpoint import held_checkpoint
from headrace.pipeline.ingest import RunOptions, prepare
from headrace.pipeline.ingest_run import run_ingest
from tests.spark.conftest import new_ingest_cluster
from tests.spark.stored import messages, stored_tables

DATA = Path(__file__).parents[1] / "data" / "0.1.0"
CLUSTER = "compatible"
"""The checkpoint belongs to this cluster name, which no other test of a run may use."""


def lines(first: int, end: int) -> list[bytes]:
    """Messages of one line of line protocol each."""
    return [f"t,host=h{number % 5} x={number},y={number * 2}i {number + 1}".encode() for number in range(first, end)]


def test_a_checkpoint_of_an_earlier_build_continues(spark: SparkSession, broker: BrokerInfo, tmp_path: Path) -> None:
    """Only later messages are read, under the same producer and the next micro-batch."""
    with tarfile.open(DATA / "checkpoint.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    checkpoint = tmp_path / "checkpoint"
    with new_ingest_cluster(broker.bootstrap, CLUSTER, tmp_path) as cluster:
        cluster.create_raw(partitions=2)
        # The messages of the two runs of the earlier build.
        cluster.produce(lines(0, 40), partitions=2)
        cluster.produce([*lines(40, 60), b"bad"], partitions=2)
        cluster.produce(lines(60, 75), partitions=2)
        job, run = cluster.job(), RunOptions(str(checkpoint), True)
        prepare(job, run, lambda _line: None)
        with held_checkpoint(run.checkpoint, job) as held:
            assert held is not None
            done = run_ingest(spark, job, run)
        assert (15, 0, 1) == (done.counts.rows, done.counts.rejected, done.batches)
        rows = sorted(stored_tables(cluster.log, cluster.topics)["t"].to_pylist(), key=lambda row: row["time"])
        assert [(number + 1, f"h{number % 5}", float(number), number * 2) for number in range(60, 75)] == [
            (row["time"], row["host"], row["x"], row["y"]) for row in rows
        ]
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        positions = {(each.position.producer, each.position.batch) for each in messages(cluster.log, cluster.topics)}
        assert {(query, 2)} == positions
        with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.delete_topics([cluster.raw])[cluster.raw].result(30)
