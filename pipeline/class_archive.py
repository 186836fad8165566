"""Records the class-data archive of Spark's JVM: one run of an ingest job."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.class_data_archive import record_archive, recording_options
from headrace.connectors.kafka.jars import ProgressCallback, resolve_jars
from headrace.connectors.kafka.java import find_spark_java
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.pipeline.ingest import RunOptions, prepare
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.job import IngestJob
from headrace.pipeline.session import COLLECTOR_OPTION, close_session, open_session, spark_archive
from headrace.schemas.records import Create

CLUSTER = "recorded"
END_TIMEOUT_S = 300.0
_OPTIONS_SETTING = "spark.driver.extraJavaOptions"


def make_spark_archive(progress: ProgressCallback | None = None) -> Path:
    """Run a small query once and archive its classes; an archive that exists is kept. Returns its path;
    raises what a start of Spark or of a broker raises.

    Takes the process's only Spark session: there must be none yet.
    """
    archive = spark_archive(resolve_jars(progress=progress), find_spark_java())
    if archive.exists():
        return archive
    if progress is not None:
        progress("starting Spark once, so that every later start is faster")
    record_archive(archive, _record_query)
    return archive


def _record_query(partial: Path, directory: Path) -> None:
    broker = EmbeddedBroker(directory / "broker")
    bootstrap = broker.start().bootstrap
    try:
        job = IngestJob(CLUSTER, bootstrap, f"{CLUSTER}.ingest.lines", CLUSTER, "influx", any_time=True)
        run = RunOptions(str(directory / "checkpoint"), available_now=True)
        _fill(job, run)
        options = " ".join((*recording_options(partial), COLLECTOR_OPTION))
        session = open_session(
            "headrace archive", log_file=directory / "spark.log", settings={_OPTIONS_SETTING: options}
        )
        try:
            run_ingest(session, job, run)
        finally:
            # The JVM writes the archive while it exits.
            close_session(session, END_TIMEOUT_S)
    finally:
        broker.stop()


def _fill(job: IngestJob, run: RunOptions) -> None:
    """A cluster, and a raw topic with a line."""
    log = KafkaLog(job.bootstrap)
    try:
        join_cluster(log, Topics(job.cluster), Create(("n1",), 1, 10))
        prepare(job, run, lambda _line: None)
        appender = log.appender()
        appender.append(job.topic, b"recorded value=1 1")
        appender.close()
    finally:
        log.close()
