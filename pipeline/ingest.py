"""The ingest query, from a raw topic to forward topics: the source `headrace_raw`, and Spark's own Kafka sink.

Content is exact (docs/operating/ingest.md, "Exactly once"): Spark fixes the offsets of a micro-batch before
it starts. A batch that runs again reads the same messages and gives the same records with the same (producer,
batch, sequence), which replicas drop as repeats. `ingest_run.py` supervises the query.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.parser import check_options
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_settings import java_settings
from headrace.connectors.log.port import CHECK_CONNECTION, Log, LogUnavailable, TopicMissing
from headrace.connectors.log.topic_settings import DEAD_LETTERS, created_with
from headrace.connectors.log.topics import Topics, dlq
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.pipeline.batch_limit import write_limited
from headrace.pipeline.batch_table import BatchTables, has_ended
from headrace.pipeline.checkpoint import BoundCluster, make_batch_durable
from headrace.pipeline.cluster_access import cluster_access
from headrace.pipeline.dead_letter_limit import SHARE_MAX
from headrace.pipeline.failures import GroupEnded, raw_data_lost
from headrace.pipeline.ingest_progress import OBSERVED, OBSERVED_READING
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_offsets import Offsets
from headrace.pipeline.raw_options import options_of
from headrace.pipeline.raw_source import NAME, SLOT_TABLE_PROPERTY, RawSource
from headrace.pipeline.raw_topic import RawTopic
from headrace.pipeline.sink_records import RECORD_SCHEMA
from headrace.schemas.errors import HeadraceError

MESSAGES_PER_BATCH_MAX = 1_000_000
RAW_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
SINK_BYTES_MAX = 96 * 1024 * 1024
INTERVAL_S = 1.0
BROKER_WAIT_S = 30.0
BROKER_LOST_WAIT_S = 600.0
SINK_WAIT_S = 60.0

Notify = Callable[[str], None]


class SpeculationRefused(HeadraceError):
    """Spark is set to run tasks twice at once, which would write one batch in two orders."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a job: its checkpoint, whether it stops at the topic's current end, and the size and
    interval of micro-batches.
    """

    checkpoint: str
    available_now: bool = False
    messages_per_batch_max: int = MESSAGES_PER_BATCH_MAX
    interval_s: float = INTERVAL_S
    broker_wait_s: float = BROKER_WAIT_S
    broker_lost_wait_s: float = BROKER_LOST_WAIT_S
    sink_wait_s: float = SINK_WAIT_S
    """How long a record waits for its topic, which may have ended, and for memory: Kafka's `max.block.ms`."""
    rejected_share_max: float = SHARE_MAX
    """The query ends when a greater share of the lines of a micro-batch is refused; 1 = no limit."""


def check_session(session: SparkSession) -> None:
    """Raises SpeculationRefused."""
    if session.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise SpeculationRefused(
            "spark.speculation is on, and ingest must not run a task twice at once", action="turn it off"
        )


def prepare(job: IngestJob, run: RunOptions, notify: Notify) -> None:
    """Check what can be checked before Spark starts; create the raw topic, the dead-letter topic and the
    database if they are missing.

    Raises LogUnavailable, NoCluster, SchemaError, FormatError, RawDataLost, CheckpointForeign.
    """
    check_options(job.format, job.options)
    topics = Topics(job.cluster)
    log = KafkaLog(job.bootstrap, dict(job.settings))
    try:
        wait_for_broker(log, job.bootstrap, topics, run.broker_wait_s, notify)
        read_slot_table(log, topics)
        BoundCluster(job.cluster, run.checkpoint).check(log.describe(topics.membership).topic_id)
        tables = SchemaLog(log, topics)
        tables.ensure_database(job.database)
        tables.close()
        _prepare_raw_topic(log, RawTopic(job.topic, run.checkpoint))
        _ensure_topic(log, dlq(job.topic), {**created_with(DEAD_LETTERS), "max.message.bytes": str(SINK_BYTES_MAX)})
    finally:
        log.close()


def wait_for_broker(log: Log, bootstrap: str, topics: Topics, timeout_s: float, notify: Notify) -> None:
    """Return once Kafka answers, with a notice when that takes a while.

    Raises LogUnavailable after `timeout_s`.
    """
    deadline = Deadline(timeout_s)
    notified = False
    while True:
        try:
            log.describe(topics.membership)
        except TopicMissing:
            return
        except LogUnavailable as error:
            if deadline.passed():
                # The reason, as a wrong password, where the log has one.
                if error.message.startswith(f"Kafka at {bootstrap} "):
                    raise
                raise LogUnavailable(
                    f"Kafka at {bootstrap} does not answer", action=CHECK_CONNECTION, retriable=True
                ) from error
            if not notified:
                notify(f"Kafka does not answer yet; waiting up to {timeout_s:g} s")
                notified = True
        else:
            return


def _prepare_raw_topic(log: Log, raw_topic: RawTopic) -> None:
    try:
        found = log.describe(raw_topic.topic)
    except TopicMissing:
        # A topic that was read and is gone is not made again: it would hide that its messages are lost.
        if raw_topic.is_known:
            raise raw_data_lost(raw_topic.topic) from None
        log.create_topic(raw_topic.topic, {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX)})
        found = log.describe(raw_topic.topic)
    raw_topic.check(found.topic_id)


def _ensure_topic(log: Log, topic: str, settings: Mapping[str, str]) -> None:
    try:
        log.describe(topic)
    except TopicMissing:
        log.create_topic(topic, settings)


def raw_records(
    session: SparkSession, job: IngestJob, messages_per_batch_max: int | None, until: Offsets | None = None
) -> DataFrame:
    """What the raw topic becomes, from its beginning (a checkpoint overrides that): the columns of `COUNTED_SCHEMA`.

    Every report of a micro-batch has `observedMetrics.headrace`. Nothing is read beyond `until`.
    """
    session.dataSource.register(RawSource)
    options = options_of(job, messages_max=messages_per_batch_max, until=until)
    records = session.readStream.format(NAME).options(**options).load()
    counts = [F.sum(name).alias(name) for name in ("messages", "rows", "points", "rejected")]
    reading = [F.sum("bytes"), F.max("newest_ms"), F.collect_list("reasons")]
    named = [each.alias(name) for each, name in zip(reading, ("bytes", "newest_ms", "reasons"), strict=True)]
    return records.observe(OBSERVED, *counts).observe(OBSERVED_READING, *named)


def forward_writer(records: DataFrame, job: IngestJob, run: RunOptions) -> DataStreamWriter:
    """Writes `records`, a stream of `raw_records`, to their topics."""
    context = records.sparkSession.sparkContext
    raw_topic, tables = RawTopic(job.topic, run.checkpoint), BatchTables(run.checkpoint)
    bound, membership = BoundCluster(job.cluster, run.checkpoint), Topics(job.cluster).membership
    sink = sink_options(job, run.sink_wait_s)

    def write(planned: DataFrame) -> None:
        _written(planned).write.format("kafka").options(**sink).save()

    def forward(planned: DataFrame, batch: int) -> None:
        make_batch_durable(run.checkpoint, batch)
        raw_topic.check(cluster_access(job).topic_id(job.topic))
        bound.check(cluster_access(job).topic_id(membership))
        table = tables.of(batch, cluster_access(job).newest_table())
        # The tasks of a batch, and of every attempt of it, route rows by one table.
        context.setLocalProperty(SLOT_TABLE_PROPERTY, base64.b64encode(table.to_bytes()).decode())
        failure: Exception | None = None
        try:
            write_limited(planned, write, run.rejected_share_max, job.topic, dlq(job.topic))
        except Exception as error:
            failure = error
        # A group that ends refuses rows from some moment on: they belong to others by then. Asked behind a
        # success too: Kafka's client divides a batch that a closed topic refuses as too large, and its flush
        # does not wait for the parts (KAFKA-19479), so that Spark takes rows for written which nobody has.
        if has_ended(table, cluster_access(job).newest_table()):
            raise GroupEnded("a data group ended while its rows were written", retriable=True) from failure
        if failure is not None:
            raise failure
        # Once more: of a topic that was created again meanwhile no offset is committed.
        raw_topic.check(cluster_access(job).topic_id(job.topic))

    return records.writeStream.foreachBatch(forward).option("checkpointLocation", run.checkpoint)


def _written(records: DataFrame) -> DataFrame:
    """The records of a micro-batch without the counts, and without the rows that have only these."""
    return records.where(F.col("topic").isNotNull()).select(*RECORD_SCHEMA.names)


def start_query(session: SparkSession, job: IngestJob, run: RunOptions, until: Offsets | None = None) -> StreamingQuery:
    """Start the query, which plans nothing beyond `until` and runs on behind it. Raises SpeculationRefused."""
    check_session(session)
    records = raw_records(session, job, run.messages_per_batch_max, until)
    writer = forward_writer(records, job, run).queryName(f"ingest {job.topic}")
    # A trigger of Spark that ends by itself asks for the end once, and takes what our limit leaves as the end.
    interval_s = 0.0 if run.available_now else run.interval_s
    return writer.trigger(processingTime=f"{round(interval_s * 1_000)} milliseconds").start()


def sink_options(job: IngestJob, wait_s: float) -> dict[str, str]:
    """Options of Spark's Kafka sink. A record waits `wait_s` for its topic, which may have ended."""
    # Idempotence keeps the order of a task's records across retries. Row batches are compressed already.
    return _kafka_options(
        job,
        {
            "acks": "all",
            "enable.idempotence": "true",
            "compression.type": "none",
            "max.block.ms": str(round(wait_s * 1_000)),
            "max.request.size": str(SINK_BYTES_MAX),
            "buffer.memory": str(SINK_BYTES_MAX + 32 * 1024 * 1024),
            # Each record is a batch, as rows are batches already. A topic that is closed refuses every batch as too
            # large; of several records Kafka's client divides it, into itself where it is within `batch.size`, until
            # its network thread dies of a stack overflow, and Spark keeps that producer for all later batches.
            "batch.size": "0",
            "send.buffer.bytes": str(1024 * 1024),
        },
    )


def _kafka_options(job: IngestJob, ours: Mapping[str, str]) -> dict[str, str]:
    """The settings of a Kafka client of Spark as options; the user's connection settings override `ours`."""
    merged = {**ours, **java_settings(dict(job.settings)), "bootstrap.servers": job.bootstrap}
    return {f"kafka.{name}": value for name, value in merged.items()}
