"""A Spark session for all tests of this folder, and raw topics to read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from connectors.formats.parsed import FormatOptions
from connectors.kafka.broker import BrokerInfo
from connectors.log.kafka import KafkaLog
from connectors.log.port import Record, read_to_end
from connectors.log.topics import Topics, dlq
from consumers.membership.cluster import join_cluster
from pipeline.ingest import RunOptions, prepare, run_ingest
from pipeline.job import IngestJob
from pipeline.progress import IngestProgress
from pipeline.session import close_session, open_session
from schemas.records import Create


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of this worker."""
    session = open_session("tests", log_file=tmp_path_factory.mktemp("spark") / "spark.log")
    try:
        yield session
    finally:
        close_session(session)


@dataclass
class Station:
    """A cluster without nodes: its topics, and raw topics beside them."""

    bootstrap: str
    topics: Topics
    log: KafkaLog
    directory: Path

    @property
    def raw(self) -> str:
        """The raw topic."""
        return self.topics.ingest("readings")

    def job(self, form: str = "influx", options: FormatOptions | None = None, database: str = "db") -> IngestJob:
        """A job on the raw topic."""
        chosen = options or FormatOptions()
        return IngestJob(self.topics.cluster, self.bootstrap, self.raw, database, form, chosen)  # type: ignore[arg-type]

    def run(self, spark: SparkSession, job: IngestJob, messages_per_batch_max: int = 1_000_000) -> IngestProgress:
        """Run a job to the present end of its topic."""
        name = f"checkpoint-{job.topic}-{job.format}-{job.database}"
        run = RunOptions(str(self.directory / name), True, messages_per_batch_max, broker_wait_s=5)
        prepare(job, run, lambda _line: None)
        return run_ingest(spark, job, run)

    def create_raw(self, partitions: int) -> None:
        """Make the raw topic."""
        with AdminClient({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(self.raw, partitions, 1)])[self.raw].result(10)

    def produce(self, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, partitions: int = 1) -> None:
        """Append raw messages, in turn to each partition."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        for number, value in enumerate(values):
            producer.produce(self.raw, value, key=keys[number] if keys else None, partition=number % partitions)
        assert producer.flush(30) == 0

    def dead_letters(self) -> list[Record]:
        """What is in the dead-letter topic."""
        return read_to_end(self.log, dlq(self.raw), timeout_s=20)


@contextmanager
def new_station(bootstrap: str, cluster: str, directory: Path) -> Iterator[Station]:
    """A cluster of three groups, born but without nodes."""
    log = KafkaLog(bootstrap)
    topics = Topics(cluster)
    join_cluster(log, topics, Create(("n1", "n2", "n3"), 3, 1_000))
    try:
        yield Station(bootstrap, topics, log, directory)
    finally:
        log.close()


@pytest.fixture
def station(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> Iterator[Station]:
    """A station on the broker of all tests."""
    with new_station(broker.bootstrap, cluster_name, tmp_path) as made:
        yield made
