"""The ingest query, from a raw topic to forward topics: Spark plans its micro-batches, our workers read them,
a loop here supervises it.

Content is exact (docs/operating/ingest.md, "Exactly once"): Spark fixes the offsets of a micro-batch before
it starts. A batch that runs again reads the same messages and gives the same records with the same (producer,
batch, sequence), which replicas drop as repeats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.parser import parse_messages
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_settings import java_settings
from headrace.connectors.log.port import Log, LogUnavailable, TopicMissing
from headrace.connectors.log.topic_settings import DEAD_LETTERS, created_with
from headrace.connectors.log.topics import Topics, dlq
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.pipeline.batch_table import BatchTables, has_ended
from headrace.pipeline.checkpoint import local_folder, make_batch_durable
from headrace.pipeline.cluster_access import cluster_access
from headrace.pipeline.failures import QueryFailed, SparkTransientFault, explain
from headrace.pipeline.ingest_progress import (
    UNKNOWN,
    IngestProgress,
    IngestState,
    TaskCounts,
    TaskCountsParam,
    batch_seconds,
    lag_records,
    progress_of,
)
from headrace.pipeline.ingest_task import task_function
from headrace.pipeline.job import IngestJob
from headrace.pipeline.micro_batch import planned_offset_ranges, query_id
from headrace.pipeline.offset_ranges import RAW_SCHEMA
from headrace.pipeline.raw_topic import RawTopic
from headrace.pipeline.session import is_local
from headrace.pipeline.sink_records import RECORD_DDL
from headrace.schemas.errors import HeadraceError

MESSAGES_PER_BATCH_MAX = 1_000_000
RAW_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
SINK_BYTES_MAX = 96 * 1024 * 1024
INTERVAL_S = 1.0
BROKER_WAIT_S = 30.0
BROKER_LOST_WAIT_S = 600.0
SINK_WAIT_S = 60.0
STOP_WAIT_S = 10.0
POLL_S = 0.25
TRANSIENT_FAULTS_MAX = 5

Notify = Callable[[str], None]


class SparkEnded(HeadraceError):
    """Spark's JVM has exited. Finished micro-batches are kept."""


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


def check_session(session: SparkSession) -> None:
    """Raises SpeculationRefused."""
    if session.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise SpeculationRefused(
            "spark.speculation is on, and ingest must not run a task twice at once", action="turn it off"
        )


def prepare(job: IngestJob, run: RunOptions, notify: Notify) -> None:
    """Check what can be checked before Spark starts; create the raw topic, the dead-letter topic and the
    database if they are missing.

    Raises LogUnavailable, NoCluster, SchemaError, FormatError, RawDataLost.
    """
    # Parsing nothing validates the format options at once, instead of in a worker after Spark's start.
    parse_messages(job.format, pa.array([], pa.binary()), pa.array([], pa.int64()), job.options)
    topics = Topics(job.cluster)
    log = KafkaLog(job.bootstrap, dict(job.settings))
    try:
        wait_for_broker(log, job.bootstrap, topics, run.broker_wait_s, notify)
        read_slot_table(log, topics)
        tables = SchemaLog(log, topics)
        tables.ensure_database(job.database)
        tables.close()
        _ensure_topic(log, job.topic, {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX)})
        RawTopic(job.topic, run.checkpoint).check(log.describe(job.topic).topic_id)
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
                raise LogUnavailable(
                    f"Kafka at {bootstrap} does not answer", action="check the address and the broker", retriable=True
                ) from error
            if not notified:
                notify(f"Kafka does not answer yet; waiting up to {timeout_s:g} s")
                notified = True
        else:
            return


def _ensure_topic(log: Log, topic: str, settings: Mapping[str, str]) -> None:
    try:
        log.describe(topic)
    except TopicMissing:
        log.create_topic(topic, settings)


def raw_messages(
    session: SparkSession, job: IngestJob, messages_per_batch_max: int, settings: Mapping[str, str] | None = None
) -> DataFrame:
    """The raw topic from its beginning (a checkpoint overrides that), with the columns of `RAW_SCHEMA`.

    `settings` are those of Spark's consumers, for queries that let Spark read; ingest uses the plan alone.
    """
    options = {
        "subscribe": job.topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(messages_per_batch_max),
        "groupIdPrefix": f"headrace-{job.cluster}-ingest",
        **_kafka_options(job, {"isolation.level": "read_committed", **(settings or {})}),
    }
    return session.readStream.format("kafka").options(**options).load().select(*RAW_SCHEMA.names)


def forward_writer(
    raw: DataFrame, job: IngestJob, counts: Accumulator[TaskCounts], run: RunOptions
) -> DataStreamWriter:
    """Writes the forward messages and dead letters of `raw`, a stream of `raw_messages` of which only the
    plan is used.

    Tasks add to `counts`.
    """
    folder = local_folder(run.checkpoint) if is_local(raw.sparkSession) else None
    raw_topic, tables = RawTopic(job.topic, run.checkpoint), BatchTables(run.checkpoint)
    sink = _sink_options(job, run.sink_wait_s)

    def forward(planned: DataFrame, batch: int) -> None:
        query, ranges = query_id(planned, batch), planned_offset_ranges(planned, job.topic)
        if not ranges:
            return
        if folder is not None:
            make_batch_durable(folder, batch)
        raw_topic.check(cluster_access(job).topic_id(job.topic))
        while True:
            table = tables.of(batch, cluster_access(job).newest_table())
            # One task per range: a range is the part of one partition, and its rows have to keep their order.
            function = task_function(job, counts, query, batch, ranges, table.to_bytes())
            numbers = planned.sparkSession.range(0, len(ranges), 1, len(ranges))
            records = numbers.mapInArrow(function, RECORD_DDL)  # type: ignore[arg-type]
            failure: Exception | None = None
            try:
                records.write.format("kafka").options(**sink).save()
            except Exception as error:
                failure = error
            # A group that ends refuses rows from some moment on: they belong to others by then. Asked behind a
            # success too: Kafka's client divides a batch that a closed topic refuses as too large, and its flush
            # does not wait for the parts (KAFKA-19479), so that Spark takes rows for written which nobody has.
            if not has_ended(table, cluster_access(job).newest_table()):
                if failure is not None:
                    raise failure
                break
        # Once more: of a topic that was created again meanwhile no offset is committed.
        raw_topic.check(cluster_access(job).topic_id(job.topic))

    return raw.writeStream.foreachBatch(forward).option("checkpointLocation", run.checkpoint)


def start_query(
    session: SparkSession, job: IngestJob, run: RunOptions, counts: Accumulator[TaskCounts] | None = None
) -> StreamingQuery:
    """Start the query. Raises SpeculationRefused."""
    check_session(session)
    raw = raw_messages(session, job, run.messages_per_batch_max)
    writer = forward_writer(raw, job, counts or new_counts(session), run).queryName(f"ingest {job.topic}")
    if run.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(run.interval_s * 1_000)} milliseconds").start()


def new_counts(session: SparkSession) -> Accumulator[TaskCounts]:
    """The accumulator of a job's task counts."""
    return session.sparkContext.accumulator(TaskCounts(), TaskCountsParam())


def run_ingest(
    session: SparkSession,
    job: IngestJob,
    run: RunOptions,
    *,
    on_progress: Callable[[IngestProgress], None] = lambda _progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    notify: Notify = lambda _message: None,
) -> IngestProgress:
    """Run a prepared job to its end, or until `should_stop`. While Kafka is unreachable it waits, then
    resumes from the checkpoint.

    Raises QueryFailed (RawDataLost, KafkaLost), SpeculationRefused, SparkEnded.
    """
    monitor = _RunMonitor(new_counts(session), on_progress, should_stop)
    try:
        _run_queries(session, job, run, monitor, notify)
    except (Py4JError, ConnectionError) as error:
        # A service manager may signal every process of a service: the JVM then ends, often before this process.
        if not should_stop():
            raise SparkEnded(
                "Spark's Java process ended",
                action="look into its spark.log; start it again: it resumes from its checkpoint",
                retriable=True,
            ) from error
    return monitor.progress()


def _run_queries(session: SparkSession, job: IngestJob, run: RunOptions, monitor: _RunMonitor, notify: Notify) -> None:
    """Run queries one after the other, until one ends without a failure that a restart can cure."""
    transient_faults = 0
    while not monitor.should_stop():
        query = start_query(session, job, run, monitor.counts)
        try:
            monitor.follow(query)
            return
        except StreamingQueryException as error:
            query.stop()
            failure = explain(error, job.topic)
            if monitor.should_stop():
                return
            if not failure.retriable:
                raise failure from error
            # Limited: a fault that returns at every start would be restarted for ever, at full load.
            transient_faults += isinstance(failure, SparkTransientFault)
            if transient_faults > TRANSIENT_FAULTS_MAX:
                raise failure from error
            if not isinstance(failure, SparkTransientFault):
                monitor.enter(IngestState.WAITING)
                _wait_out_failure(failure, job, run, notify)
                monitor.enter(IngestState.RUNNING)


@dataclass(slots=True)
class _RunMonitor:
    """Monitors the queries of one run, one after the other."""

    counts: Accumulator[TaskCounts]
    on_progress: Callable[[IngestProgress], None]
    should_stop: Callable[[], bool]
    lag: int = UNKNOWN
    batch_seconds: float = UNKNOWN
    state: IngestState = IngestState.RUNNING
    ended: bool = False

    def progress(self) -> IngestProgress:
        """Counts and lag so far."""
        # While Kafka does not answer, nobody knows how far the topic has grown.
        lag = UNKNOWN if self.state is IngestState.WAITING else self.lag
        found = progress_of(self.counts.value, lag, time.time_ns() // 1_000_000)
        return replace(found, ended=self.ended, batch_seconds=self.batch_seconds, state=self.state)

    def enter(self, state: IngestState) -> None:
        """Note what the run does from now on, and report it."""
        self.state = state
        self.on_progress(self.progress())

    def follow(self, query: StreamingQuery) -> None:
        """Return when the query ends or must stop; a stop waits up to STOP_WAIT_S for the end of the running
        micro-batch.
        """
        while not self.ended and not self.should_stop():
            self.ended = self._wait(query)
        if self.ended:
            return
        self.enter(IngestState.STOPPING)
        # An interrupted micro-batch runs again as a whole at the next start: a short wait saves work.
        deadline, batches = Deadline(STOP_WAIT_S), self.progress().batches
        while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
            self._wait(query)
            if self.progress().batches > batches:
                break
        query.stop()

    def _wait(self, query: StreamingQuery) -> bool:
        """Wait POLL_S and report progress; whether the query has ended."""
        ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
        newest = query.lastProgress
        if newest is not None:
            report = json.loads(newest.json)
            self.lag = lag_records(report)
            self.batch_seconds = batch_seconds(report)
        self.on_progress(self.progress())
        return ended


def _wait_out_failure(failure: QueryFailed, job: IngestJob, run: RunOptions, notify: Notify) -> None:
    notify(f"{failure.message}; waiting up to {run.broker_lost_wait_s:g} s for it")
    log = KafkaLog(job.bootstrap, dict(job.settings))
    try:
        wait_for_broker(log, job.bootstrap, Topics(job.cluster), run.broker_lost_wait_s, lambda _message: None)
    except LogUnavailable:
        raise failure from None
    finally:
        log.close()
    # A broker answers before its partitions have leaders: a query that starts now would fail once more.
    time.sleep(1.0)
    notify("Kafka answers again")


def _sink_options(job: IngestJob, wait_s: float) -> dict[str, str]:
    """Options of Spark's Kafka sink."""
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
            "batch.size": str(1024 * 1024),
            "send.buffer.bytes": str(1024 * 1024),
        },
    )


def _kafka_options(job: IngestJob, ours: Mapping[str, str]) -> dict[str, str]:
    """The settings of a Kafka client of Spark as options; the user's connection settings override `ours`."""
    merged = {**ours, **java_settings(dict(job.settings)), "bootstrap.servers": job.bootstrap}
    return {f"kafka.{name}": value for name, value in merged.items()}
