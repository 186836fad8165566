"""Spark outside of the driver's process: a standalone cluster with the package as one zip, and Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow(160)
@pytest.mark.timeout(2_400)
def test_a_standalone_cluster_runs_the_jobs_with_one_zip(cluster: IngestCluster, tmp_path: Path) -> None:
    """Neither driver nor executors have the package: `--py-files` brings it. Ingest has dead letters and reads its
    database in a mapping; backfill writes a Parquet file, and a second run leaves it out.
    """
    cluster.create_raw(partitions=2)
    cluster.produce([b'{"host": "a", "x": 1, "at": 5}', b"bad", b'{"host": "b", "x": 2, "at": 6}'], partitions=2)
    (tmp_path / "mapping.toml").write_text(
        f'[topics."{cluster.raw}"]\ndatabase = "plant"\ntable = "t"\ntags = ["host"]\ntime = {{ path = "at" }}\n'
    )
    fleet = iot(trucks=5, duration_s=200)
    pq.write_table(fleet.read("readings"), tmp_path / "old.parquet")
    python, archive = python_without_headrace(tmp_path / "python"), build_package(tmp_path)
    ingest, backfill = sorted(write_jobs(tmp_path), reverse=True)
    given = ["--cluster", cluster.topics.cluster, "--bootstrap", cluster.bootstrap, "--any-time"]
    given += ["--time-resolution", "ns"]
    with standalone_cluster(tmp_path) as address:
        own = ["--topic", cluster.raw, "--format", "json", "--mapping", str(tmp_path / "mapping.toml")]
        own += ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now"]
        done = submitted(tmp_path, python, address, archive, ingest, *given, *own)
        assert 0 == done.returncode, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert (2, 1) == (found["rows"], found["rejected"])
        files = [str(tmp_path / "old.parquet"), "--database", "plant", "--table", "readings", "--format", "parquet"]
        files += ["--tags", ",".join(fleet.tags), "--checkpoint", str(tmp_path / "state")]
        runs = [submitted(tmp_path, python, address, archive, backfill, *given, *files)]
    # Without a file that is left it opens no session: `spark-submit` would only start a JVM beside it.
    runs.append(alone(tmp_path, python, archive, backfill, *given, *files))
    assert [0, 0] == [run.returncode for run in runs], [run.stderr for run in runs]
    counts = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    assert [(fleet.rows_of("readings"), 0), (0, 1)] == [(each["rows"], each["skipped"]) for each in counts]
    stored = stored_tables(cluster.log, cluster.topics)
    assert [("a", 5), ("b", 6)] == sorted((row["host"], row["time"]) for row in stored["t"].to_pylist())
    assert [] == compare(checksums(fleet.read("readings"), fleet.tags), checksums(stored["readings"], fleet.tags))
    assert [b"bad"] == [letter.value for letter in cluster.dead_letters()]


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
