"""Spark outside of the driver's process: a standalone cluster with the package as one zip, and Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.pipeline.package import build_package, write_jobs
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare
from tests.e2e.actions import running_cluster
from tests.spark.conftest import IngestCluster
from tests.spark.deployed import WAIT_S, alone, connect_server, python_without_headrace, standalone_cluster, submitted
from tests.spark.stored import stored_tables

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Deployed:
    """A standalone cluster whose driver and executors have no package, and the jobs with the package as one zip."""

    directory: Path
    python: Path
    address: str
    archive: Path
    jobs: dict[str, Path]

    def submitted(self, job: str, *options: str) -> dict[str, Any]:
        """The JSON of a job that `spark-submit` has run."""
        return document_of(submitted(self.directory, self.python, self.address, self.archive, self.jobs[job], *options))


def document_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a job that succeeded has printed."""
    assert 0 == done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    """Master and worker on loopback."""
    python, archive = python_without_headrace(tmp_path / "python"), build_package(tmp_path)
    ingest, backfill = sorted(write_jobs(tmp_path), reverse=True)
    with standalone_cluster(tmp_path) as address:
        yield Deployed(tmp_path, python, address, archive, {"ingest": ingest, "backfill": backfill})


def own_options(cluster: IngestCluster) -> list[str]:
    """The options of every job."""
    given = ["--cluster", cluster.topics.cluster, "--bootstrap", cluster.bootstrap]
    return [*given, "--any-time", "--time-resolution", "ns"]


@pytest.mark.slow(70)
@pytest.mark.timeout(2_400)
def test_a_standalone_cluster_runs_ingest_with_one_zip(cluster: IngestCluster, deployed: Deployed) -> None:
    """Neither driver nor executors have the package: `--py-files` brings it. Ingest has dead letters, and reads its
    database in a mapping.
    """
    cluster.create_raw(partitions=2)
    cluster.produce([b'{"host": "a", "x": 1, "at": 5}', b"bad", b'{"host": "b", "x": 2, "at": 6}'], partitions=2)
    mapping = deployed.directory / "mapping.toml"
    mapping.write_text(
        f'[topics."{cluster.raw}"]\ndatabase = "plant"\ntable = "t"\ntags = ["host"]\ntime = {{ path = "at" }}\n'
    )
    own = ["--topic", cluster.raw, "--format", "json", "--mapping", str(mapping), "--available-now"]
    own += ["--checkpoint", str(deployed.directory / "checkpoint")]
    found = deployed.submitted("ingest", *own_options(cluster), *own)
    assert (2, 1) == (found["rows"], found["rejected"])
    stored = stored_tables(cluster.log, cluster.topics)
    assert [("a", 5), ("b", 6)] == sorted((row["host"], row["time"]) for row in stored["t"].to_pylist())
    assert [b"bad"] == [letter.value for letter in cluster.dead_letters()]


@pytest.mark.soak
@pytest.mark.timeout(2_400)
def test_a_standalone_cluster_runs_backfill_with_one_zip(cluster: IngestCluster, deployed: Deployed) -> None:
    """It writes a Parquet file, and a second run leaves it out."""
    fleet = iot(trucks=5, duration_s=200)
    file = deployed.directory / "old.parquet"
    pq.write_table(fleet.read("readings"), file)
    own = [str(file), "--database", "plant", "--table", "readings", "--format", "parquet"]
    own += ["--tags", ",".join(fleet.tags), "--checkpoint", str(deployed.directory / "state")]
    given = [*own_options(cluster), *own]
    first = deployed.submitted("backfill", *given)
    # Without a file that is left it opens no session: `spark-submit` would only start a JVM beside it.
    second = document_of(
        alone(deployed.directory, deployed.python, deployed.archive, deployed.jobs["backfill"], *given)
    )
    counts = [(each["rows"], each["skipped"]) for each in (first, second)]
    assert [(fleet.rows_of("readings"), 0), (0, 1)] == counts
    stored = stored_tables(cluster.log, cluster.topics)
    assert [] == compare(checksums(fleet.read("readings"), fleet.tags), checksums(stored["readings"], fleet.tags))


CONNECT = """
import sys
from pyspark.sql import SparkSession
import headrace.spark

address, bootstrap, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
headrace.spark.register(spark)
options = {"bootstrap": bootstrap, "cluster": "connected", "table": "db.t"}
rows = spark.range(0, 100, 1, 2).selectExpr(
    "concat('h', id % 5) AS host", "timestamp_micros(1767225600000000 + id) AS time", "id AS n"
)
rows.write.format("headrace").options(**options, tags="host").mode("append").save()
read = spark.read.format("headrace").options(**options).load()
filtered = read.where("host = 'h1'").count()
stream = spark.readStream.format("headrace").options(**options).load()
copied = {**options, "table": "db.copy"}
query = stream.writeStream.format("headrace").options(**copied, tags="host")
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(200), query.lastProgress
sums = [spark.read.format("headrace").options(**each).load().selectExpr("sum(n)").first()[0] for each in (options, copied)]
print(type(spark).__module__, read.count(), filtered, *sums)
"""


@pytest.mark.slow(60)
@pytest.mark.timeout(2_400)
def test_spark_connect_reads_and_writes_tables(broker: BrokerInfo, tmp_path: Path) -> None:
    """A client without a JVM writes, reads, filters and follows a table; needs the extra `connect`."""
    pytest.importorskip("grpc", reason="pip install 'headrace[connect]'")
    with (
        running_cluster(tmp_path / "nodes", broker.bootstrap, "connected", 1),
        connect_server(tmp_path, {"spark.sql.shuffle.partitions": "2"}, PYTHONPATH=str(ROOT)) as address,
    ):
        client = subprocess.run(
            [sys.executable, "-c", CONNECT, address, broker.bootstrap, str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        )
    assert 0 == client.returncode, client.stderr[-4_000:]
    assert "pyspark.sql.connect.session 100 20 4950 4950" == client.stdout.strip()
