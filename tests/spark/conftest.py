"""A Spark session for all tests of this directory, and raw topics to read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import SparkSession

from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Record, read_to_end
from headrace.connectors.log.topics import Topics, dlq
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.pipeline.ingest import SINK_WAIT_S, RunOptions, prepare
from headrace.pipeline.ingest_progress import IngestProgress
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.job import IngestJob
from headrace.pipeline.session import close_session, open_session
from headrace.schemas.records import Create
from headrace.schemas.tables import TimeResolution
from tests.waiting import eventually


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of this worker."""
    session = open_session("tests", log_file=tmp_path_factory.mktemp("spark") / "spark.log")
    try:
        yield session
    finally:
        close_session(session)


@dataclass
class IngestCluster:
    """A cluster without nodes: its topics, and a raw topic."""

    bootstrap: str
    topics: Topics
    log: KafkaLog
    directory: Path

    @property
    def raw(self) -> str:
        """The raw topic."""
        return self.topics.ingest("readings")

    def job(self, form: str = "influx", options: FormatOptions | None = None, database: str = "db") -> IngestJob:
        """An ingest job on the raw topic."""
        format_options = options or FormatOptions()
        return IngestJob(
            self.topics.cluster,
            self.bootstrap,
            self.raw,
            database,
            form,  # type: ignore[arg-type]
            format_options,
            resolution=TimeResolution.NS,
            any_time=True,
        )

    def run(
        self,
        spark: SparkSession,
        job: IngestJob,
        messages_per_batch_max: int = 1_000_000,
        sink_wait_s: float = SINK_WAIT_S,
    ) -> IngestProgress:
        """Run a job to the current end of its topic."""
        checkpoint = f"checkpoint-{job.topic}-{job.format}-{job.database}"
        run = RunOptions(
            str(self.directory / checkpoint), True, messages_per_batch_max, broker_wait_s=5, sink_wait_s=sink_wait_s
        )
        prepare(job, run, lambda _line: None)
        return run_ingest(spark, job, run)

    def create_raw(self, partitions: int) -> None:
        """Create the raw topic."""
        with AdminClient({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(self.raw, partitions, 1)])[self.raw].result(10)

    def produce(self, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, partitions: int = 1) -> None:
        """Append raw messages, round-robin over the partitions."""
        produce(self.bootstrap, self.raw, values, partitions, keys)

    def dead_letters(self) -> list[Record]:
        """The records of the dead-letter topic."""
        return read_to_end(self.log, dlq(self.raw), timeout_s=20)


def produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    partitions: int,
    keys: Sequence[bytes | None] | None = None,
) -> None:
    """Append raw messages, round-robin over the partitions."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            # A retry must neither repeat nor reorder messages.
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    failed = list[KafkaError]()

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for number, value in enumerate(values):
        key = keys[number] if keys else None
        producer.produce(topic, value, key=key, partition=number % partitions, on_delivery=note)
    assert producer.flush(60) == 0
    assert [] == failed


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Let a topic have so many partitions, and wait until the broker says so: a producer would refuse the new ones."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        eventually(lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions, "the partitions")


@contextmanager
def new_ingest_cluster(
    bootstrap: str, name: str, directory: Path, replication: int = 3, slots: int = 1_000
) -> Iterator[IngestCluster]:
    """Create a cluster of three groups without nodes."""
    log = KafkaLog(bootstrap)
    topics = Topics(name)
    join_cluster(log, topics, Create(("n1", "n2", "n3"), replication, slots))
    try:
        yield IngestCluster(bootstrap, topics, log, directory)
    finally:
        log.close()


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> Iterator[IngestCluster]:
    """A cluster without nodes on the broker of the run."""
    with new_ingest_cluster(broker.bootstrap, cluster_name, tmp_path) as created:
        yield created
