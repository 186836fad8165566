"""Every format of raw messages through Spark: the content is that of the generator's Parquet."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from headrace.connectors.log.port import read_to_end
from headrace.connectors.log.topics import dlq
from headrace.pipeline.ingest import RunOptions, prepare
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.job import IngestJob
from headrace.schemas.tables import TimeResolution
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare
from tests.schema_registry import SchemaRegistry, schema_registry
from tests.spark.conftest import IngestCluster, add_partitions, produce
from tests.spark.format_cases import FormatCase, cases, table_of
from tests.spark.stored import stored_tables

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300
KILLS = 5
FORMATS = ("influx", "json", "json-mapped", "csv", "avro", "confluent-avro", "confluent-json", "arrow")
SHORT = ("json-mapped", "csv", "avro", "confluent-json", "arrow")
"""Those that no other test of `make test` runs through Spark."""


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """A schema registry."""
    with schema_registry() as running:
        yield running


def generated(directory: Path, trucks: int, seconds: int) -> tuple[pa.Table, tuple[str, ...]]:
    """(rows, tags) of a fleet, read from the Parquet file that the generator writes."""
    fleet = iot(trucks=trucks, duration_s=seconds)
    pq.write_table(fleet.read("readings"), directory / "readings.parquet")
    rows = pq.read_table(directory / "readings.parquet")
    assert rows.num_rows == trucks * seconds // 10
    return rows, fleet.tags


def create(cluster: IngestCluster, topic: str, partitions: int) -> None:
    """Create a raw topic."""
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def assert_content(cluster: IngestCluster, name: str, case: FormatCase, rows: pa.Table, tags: Sequence[str]) -> None:
    """The table has the generator's rows, and the queue the bad messages."""
    stored = stored_tables(cluster.log, cluster.topics)[table_of(name)]
    assert [] == compare(checksums(rows, tags), checksums(stored, tags)), name
    letters = read_to_end(cluster.log, dlq(name), timeout_s=30)
    assert {*case.bad} == {letter.value for letter in letters}, name


@pytest.mark.slow(40)
def test_formats_become_the_generated_rows(
    spark: SparkSession, cluster: IngestCluster, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """One session reads a topic of each format, bad messages among the good ones: exact rows, and each bad message is
    a dead letter.
    """
    rows, tags = generated(tmp_path, 10, 500)
    for name, case in cases(rows, tags, tmp_path, registry).items():
        if name not in SHORT:
            continue
        create(cluster, name, 2)
        produce(cluster.bootstrap, name, case.mixed(), 2)
        options = case.format_options(cluster, name)
        job = IngestJob(
            cluster.topics.cluster,
            cluster.bootstrap,
            name,
            "db",
            case.form,  # type: ignore[arg-type]
            options,
            resolution=TimeResolution.NS,
            any_time=True,
        )
        run = RunOptions(str(tmp_path / f"checkpoint-{name}"), True, broker_wait_s=5)
        prepare(job, run, lambda _line: None)
        done = run_ingest(spark, job, run)
        assert rows.num_rows == done.counts.rows, (name, done.counts)
        assert done.counts.rejected >= len(case.bad), name
        assert_content(cluster, name, case, rows, tags)


@contextmanager
def ingesting(case: FormatCase, cluster: IngestCluster, topic: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`headrace ingest run` on a topic."""
    line = [sys.executable, "-m", "headrace", "ingest", "run", *case.arguments(cluster, topic)]
    with subprocess.Popen(
        [*line, "--max-messages", "40", "--interval-s", "0", "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def batches(cluster: IngestCluster, topic: str) -> int:
    """The micro-batches that a checkpoint has planned."""
    return len(list((cluster.directory / f"checkpoint-{topic}" / "offsets").glob("[0-9]*")))


def wait_for_batch(cluster: IngestCluster, topic: str, than: int, process: subprocess.Popen[str]) -> None:
    """Wait until one more micro-batch is planned, or nothing is left."""
    deadline = time.monotonic() + WAIT_S
    while batches(cluster, topic) <= than and process.poll() is None:
        assert time.monotonic() < deadline, "no micro-batch is planned"
        time.sleep(0.02)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_survives_kills_and_a_new_partition(
    cluster: IngestCluster, registry: SchemaRegistry, tmp_path: Path, name: str
) -> None:
    """`headrace ingest run` is killed five times in its micro-batches while a partition is added, with bad messages
    among the good ones. Afterwards the newest commit is lost, and nothing changes.
    """
    rng, (rows, tags) = random.Random(name), generated(tmp_path, 10, 4_000)
    case = cases(rows, tags, tmp_path, registry)[name]
    mixed = case.mixed()
    half = len(mixed) // 2
    create(cluster, name, 2)
    produce(cluster.bootstrap, name, mixed[:half], 2)
    for kill in range(KILLS):
        with ingesting(case, cluster, name) as process:
            wait_for_batch(cluster, name, batches(cluster, name), process)
            time.sleep(rng.uniform(0, 0.5))
            assert process.poll() is None, process.communicate()
            process.kill()
        if kill == KILLS // 2:
            add_partitions(cluster.bootstrap, name, 3)
            produce(cluster.bootstrap, name, mixed[half:], 3)
    for _ in range(2):
        with ingesting(case, cluster, name, "--available-now") as process:
            stdout, stderr = process.communicate(timeout=WAIT_S)
        assert 0 == process.returncode, stderr
        assert json.loads(stdout)["batches"] >= 1
        assert_content(cluster, name, case, rows, tags)
        commits = (cluster.directory / f"checkpoint-{name}" / "commits").glob("[0-9]*")
        newest = max(commits, key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
