"""Supervises the ingest query: progress, stops, and what to do when it fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_partitions import KafkaPartitions
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.pipeline.failures import GroupEnded, QueryFailed, WorkerLate, explain, spark_ended
from headrace.pipeline.ingest import Notify, RunOptions, start_query, wait_for_broker
from headrace.pipeline.ingest_progress import (
    UNKNOWN,
    IngestProgress,
    IngestState,
    RunCounts,
    batch_seconds,
    position_of,
    progress_of,
)
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_lag import LAG_TIMEOUT_S, RawLag
from headrace.pipeline.raw_offsets import Offsets

STOP_WAIT_S = 10.0
POLL_S = 0.25
RESTARTS_MAX = 20
"""Of one run, at once: groups end one at a time, each once, and a machine is overloaded for a while."""


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
    partitions = KafkaPartitions(job.bootstrap, dict(job.settings), LAG_TIMEOUT_S)
    monitor = _RunMonitor(RawLag(job.topic, partitions), run.available_now, on_progress, should_stop)
    try:
        # The end is that of the start of the run, also for the queries that continue after a failure.
        until = partitions.state(job.topic).ends if run.available_now else None
        _run_queries(session, job, run, until, monitor, notify)
    except (Py4JError, ConnectionError) as error:
        # A service manager may signal every process of a service: the JVM then ends, often before this process.
        if not should_stop():
            raise spark_ended() from error
    finally:
        partitions.close()
    return monitor.progress()


def _run_queries(
    session: SparkSession,
    job: IngestJob,
    run: RunOptions,
    until: Offsets | None,
    monitor: _RunMonitor,
    notify: Notify,
) -> None:
    """Run queries one after the other, until one ends without a failure that a restart can cure."""
    restarts = 0
    while not monitor.should_stop():
        failure = _failure_of_query(session, job, run, until, monitor)
        if failure is None or monitor.should_stop():
            return
        # Limited: a failure that returns at every start would be repeated for ever, at full load.
        restarts += isinstance(failure, GroupEnded | WorkerLate)
        if not failure.retriable or restarts > RESTARTS_MAX:
            raise failure
        if isinstance(failure, GroupEnded | WorkerLate):
            notify(f"{failure.message}: the query starts again, with the same batch")
        else:
            monitor.enter(IngestState.WAITING)
            _wait_out_failure(failure, job, run, notify)
            monitor.enter(IngestState.RUNNING)


def _failure_of_query(
    session: SparkSession, job: IngestJob, run: RunOptions, until: Offsets | None, monitor: _RunMonitor
) -> QueryFailed | None:
    """Run one query; None when it has reached its end or was stopped. Raises SpeculationRefused."""
    try:
        query = start_query(session, job, run, until)
    except PySparkException as error:
        return _explained(error, job)
    try:
        monitor.follow(query)
    except StreamingQueryException as error:
        query.stop()
        return _explained(error, job)
    return None


def _explained(error: PySparkException, job: IngestJob) -> QueryFailed:
    failure = explain(error, job.topic)
    failure.__cause__ = error
    return failure


@dataclass(slots=True)
class _RunMonitor:
    """Monitors the queries of one run, one after the other."""

    lag: RawLag
    stops_at_end: bool
    on_progress: Callable[[IngestProgress], None]
    should_stop: Callable[[], bool]
    counts: RunCounts = field(default_factory=RunCounts)
    position: Offsets | None = None
    batch_seconds: float = UNKNOWN
    state: IngestState = IngestState.RUNNING
    ended: bool = False

    def progress(self) -> IngestProgress:
        """Counts and lag so far."""
        # While Kafka does not answer, nobody knows how far the topic has grown.
        lag = UNKNOWN if self.state is IngestState.WAITING else self.lag.records(self.position)
        found = progress_of(self.counts, lag, time.time_ns() // 1_000_000)
        return replace(found, ended=self.ended, batch_seconds=self.batch_seconds, state=self.state)

    def enter(self, state: IngestState) -> None:
        """Note what the run does from now on, and report it."""
        self.state = state
        self.on_progress(self.progress())

    def follow(self, query: StreamingQuery) -> None:
        """Return when the query has reached its end or must stop; a stop waits up to STOP_WAIT_S for the end of
        the running micro-batch.
        """
        while not self.ended and not self.should_stop():
            self.ended = self._wait(query)
        if self.ended:
            query.stop()
            return
        self.enter(IngestState.STOPPING)
        # An interrupted micro-batch runs again as a whole at the next start: a short wait saves work.
        deadline, batches = Deadline(STOP_WAIT_S), self.counts.batches
        while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
            self._wait(query)
            if self.counts.batches > batches:
                break
        query.stop()

    def _wait(self, query: StreamingQuery) -> bool:
        """Wait POLL_S and report progress; whether the query has ended, or is to be ended at its end."""
        ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
        # Asked before the reports: they then have every micro-batch up to the end.
        ended = ended or (self.stops_at_end and has_nothing_left(query))
        self._read_reports(query)
        self.on_progress(self.progress())
        return ended

    def _read_reports(self, query: StreamingQuery) -> None:
        newest = query.lastProgress
        if newest is None or newest.batchId <= self.counts.newest_batch:
            return
        reports = [newest] if newest.batchId == self.counts.newest_batch + 1 else query.recentProgress
        for each in reports:
            report = json.loads(each.json)
            self.counts.add(report)
            self.position, self.batch_seconds = position_of(report), batch_seconds(report)


def has_nothing_left(query: StreamingQuery) -> bool:
    """Whether the query has looked for data behind its last micro-batch, and found none."""
    status = query.status
    # Before its first look it is "Initializing".
    return not status["isDataAvailable"] and not status["isTriggerActive"] and status["message"].startswith("Waiting")


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
