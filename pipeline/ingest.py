"""Raw topics become forward logs: the streaming query whose micro-batches Spark plans and our workers read, and the loop that watches it.

Exactness (DESIGN 4): Spark fixes a micro-batch's offsets before it starts, so a batch that is run again reads the same messages, cuts them into
the same records with the same (producer, batch, sequence), and replicas drop what they have already seen.
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

from connectors.formats.parse import parse_messages
from connectors.log.deadline import Deadline
from connectors.log.kafka import KafkaLog
from connectors.log.port import Log, LogUnavailable, TopicMissing
from connectors.log.topics import Topics, dlq
from consumers.membership.cluster import KEEP_FOREVER, read_slot_table
from consumers.membership.tables import TableLog
from pipeline.batches import batch_function
from pipeline.checkpoint import local_folder, make_batch_durable
from pipeline.counts import TaskCounts, TaskCountsParam
from pipeline.failures import QueryFailed, SparkStumbled, explain
from pipeline.java_settings import java_settings
from pipeline.job import IngestJob
from pipeline.micro_batch import planned_stretches, query_of
from pipeline.progress import UNKNOWN, IngestProgress, lag_records, progress_of
from pipeline.records import RECORD_DDL
from pipeline.session import is_local
from pipeline.stretch import RAW_SCHEMA
from schemas.errors import HeadraceError

MESSAGES_PER_BATCH_MAX = 1_000_000
RAW_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
SINK_BYTES_MAX = 96 * 1024 * 1024
INTERVAL_S = 1.0
BROKER_WAIT_S = 30.0
BROKER_LOST_WAIT_S = 600.0
STOP_WAIT_S = 10.0
POLL_S = 0.25
STUMBLES_MAX = 5

Say = Callable[[str], None]


class SparkEnded(HeadraceError):
    """Spark's JVM is gone. What was finished stands."""


class SpeculationRefused(HeadraceError):
    """Spark is set to run tasks twice at once, which would write one batch in two orders."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a job: until the topic's present end or for ever, from which checkpoint, in steps of how many messages."""

    checkpoint: str
    available_now: bool = False
    messages_per_batch_max: int = MESSAGES_PER_BATCH_MAX
    interval_s: float = INTERVAL_S
    broker_wait_s: float = BROKER_WAIT_S
    broker_lost_wait_s: float = BROKER_LOST_WAIT_S


def check_session(session: SparkSession) -> None:
    """Raises SpeculationRefused."""
    if session.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise SpeculationRefused(
            "spark.speculation is on, and ingest must not run a task twice at once", action="turn it off"
        )


def prepare(job: IngestJob, run: RunOptions, say: Say) -> None:
    """Check everything that can be checked before Spark starts; make the raw topic, the dead-letter topic and the database if missing.

    Raises LogUnavailable, NoCluster, SchemaError, FormatError.
    """
    parse_messages(job.format, pa.array([], pa.binary()), pa.array([], pa.int64()), job.options)
    topics = Topics(job.cluster)
    log = KafkaLog(job.bootstrap, dict(job.settings))
    try:
        wait_for_broker(log, job.bootstrap, topics, run.broker_wait_s, say)
        read_slot_table(log, topics)
        tables = TableLog(log, topics)
        tables.ensure_database(job.database)
        tables.close()
        _ensure_topic(log, job.topic, {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX)})
        _ensure_topic(log, dlq(job.topic), {**KEEP_FOREVER, "max.message.bytes": str(SINK_BYTES_MAX)})
    finally:
        log.close()


def wait_for_broker(log: Log, bootstrap: str, topics: Topics, timeout_s: float, say: Say) -> None:
    """Return once Kafka answers; says so when that takes a while. Raises LogUnavailable after `timeout_s`."""
    deadline = Deadline(timeout_s)
    told = False
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
            if not told:
                say(f"Kafka does not answer yet; waiting up to {timeout_s:g} s")
                told = True
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
    """The raw topic from its beginning (a checkpoint knows better), with the columns of `RAW_SCHEMA`.

    `settings` are those of Spark's consumers, for whoever lets Spark itself read; ours only plan.
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


def forward_writer(raw: DataFrame, job: IngestJob, tally: Accumulator[TaskCounts], checkpoint: str) -> DataStreamWriter:
    """Writes forward messages and dead letters of what `raw`, a stream of `raw_messages`, plans to read; tasks count in `tally`."""
    folder = local_folder(checkpoint) if is_local(raw.sparkSession) else None

    def forward(planned: DataFrame, batch: int) -> None:
        query, stretches = query_of(planned, batch), planned_stretches(planned, job.topic)
        if not stretches:
            return
        if folder is not None:
            make_batch_durable(folder, batch)
        function = batch_function(job, tally, query, batch, stretches)
        numbers = planned.sparkSession.range(0, len(stretches), 1, len(stretches))
        records = numbers.mapInArrow(function, RECORD_DDL)  # type: ignore[arg-type]
        records.write.format("kafka").options(**_sink_options(job)).save()

    return raw.writeStream.foreachBatch(forward).option("checkpointLocation", checkpoint)


def start_query(
    session: SparkSession, job: IngestJob, run: RunOptions, tally: Accumulator[TaskCounts] | None = None
) -> StreamingQuery:
    """The running query. Raises SpeculationRefused."""
    check_session(session)
    counted = tally or new_tally(session)
    raw = raw_messages(session, job, run.messages_per_batch_max)
    writer = forward_writer(raw, job, counted, run.checkpoint).queryName(f"ingest {job.topic}")
    if run.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(run.interval_s * 1_000)} milliseconds").start()


def new_tally(session: SparkSession) -> Accumulator[TaskCounts]:
    """Where the tasks of a job count."""
    return session.sparkContext.accumulator(TaskCounts(), TaskCountsParam())


def run_ingest(
    session: SparkSession,
    job: IngestJob,
    run: RunOptions,
    *,
    on_progress: Callable[[IngestProgress], None] = lambda _progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    say: Say = lambda _message: None,
) -> IngestProgress:
    """Run a prepared job to its end, or until `should_stop`. While Kafka is away it waits and goes on from the checkpoint.

    Raises QueryFailed (RawDataLost, KafkaLost), SpeculationRefused, SparkEnded.
    """
    watch = _Watch(new_tally(session), on_progress, should_stop)
    try:
        _run_queries(session, job, run, watch, say)
    except (Py4JError, ConnectionError) as error:
        # Whoever stops a whole group of processes stops the JVM too, often before us.
        if not should_stop():
            raise SparkEnded(
                "Spark's Java process ended",
                action="look into its spark.log; start it again: it goes on",
                retriable=True,
            ) from error
    return watch.progress()


def _run_queries(session: SparkSession, job: IngestJob, run: RunOptions, watch: _Watch, say: Say) -> None:
    """Queries one after the other, until one ends as it should."""
    stumbles = 0
    while not watch.should_stop():
        query = start_query(session, job, run, watch.tally)
        try:
            watch.follow(query)
            return
        except StreamingQueryException as error:
            query.stop()
            failure = explain(error, job.topic)
            if watch.should_stop():
                return
            if not failure.retriable:
                raise failure from error
            stumbles += isinstance(failure, SparkStumbled)
            if stumbles > STUMBLES_MAX:
                raise failure from error
            if not isinstance(failure, SparkStumbled):
                _outlast(failure, job, run, say)


@dataclass(slots=True)
class _Watch:
    """Follows the queries of one run, one after the other."""

    tally: Accumulator[TaskCounts]
    on_progress: Callable[[IngestProgress], None]
    should_stop: Callable[[], bool]
    lag: int = UNKNOWN
    ended: bool = False

    def progress(self) -> IngestProgress:
        """What was done so far."""
        return replace(progress_of(self.tally.value, self.lag, time.time_ns() // 1_000_000), ended=self.ended)

    def follow(self, query: StreamingQuery) -> None:
        """Return when the query ends or is to stop; a stop waits for the end of the running micro-batch, but not for long."""
        while not self.ended and not self.should_stop():
            self.ended = self._wait(query)
        if self.ended:
            return
        deadline, batches = Deadline(STOP_WAIT_S), self.progress().batches
        while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
            self._wait(query)
            if self.progress().batches > batches:
                break
        query.stop()

    def _wait(self, query: StreamingQuery) -> bool:
        """Whether the query has ended, after a moment."""
        ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
        newest = query.lastProgress
        if newest is not None:
            self.lag = lag_records(json.loads(newest.json))
        self.on_progress(self.progress())
        return ended


def _outlast(failure: QueryFailed, job: IngestJob, run: RunOptions, say: Say) -> None:
    say(f"{failure.message}; waiting up to {run.broker_lost_wait_s:g} s for it")
    log = KafkaLog(job.bootstrap, dict(job.settings))
    try:
        wait_for_broker(log, job.bootstrap, Topics(job.cluster), run.broker_lost_wait_s, lambda _message: None)
    except LogUnavailable:
        raise failure from None
    finally:
        log.close()
    # Kafka may answer a moment before its topics do.
    time.sleep(1.0)
    say("Kafka answers again")


def _sink_options(job: IngestJob) -> dict[str, str]:
    """Options of Spark's Kafka sink."""
    return _kafka_options(
        job,
        {
            "acks": "all",
            "enable.idempotence": "true",
            "compression.type": "none",
            "max.request.size": str(SINK_BYTES_MAX),
            "buffer.memory": str(SINK_BYTES_MAX + 32 * 1024 * 1024),
            "batch.size": str(1024 * 1024),
            "send.buffer.bytes": str(1024 * 1024),
        },
    )


def _kafka_options(job: IngestJob, ours: Mapping[str, str]) -> dict[str, str]:
    """Settings of a Kafka client of Spark's as options; the user's settings win over `ours`."""
    merged = {**ours, **java_settings(dict(job.settings)), "bootstrap.servers": job.bootstrap}
    return {f"kafka.{name}": value for name, value in merged.items()}
