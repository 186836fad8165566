"""Records the class-data archive of Spark's JVM: one run from Kafka to Kafka, as an ingest job is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.class_data_archive import record_archive, recording_options
from headrace.connectors.kafka.jars import ProgressCallback, resolve_jars
from headrace.connectors.kafka.java import find_java
from headrace.connectors.log.kafka import KafkaLog
from headrace.pipeline.session import COLLECTOR_OPTION, close_session, open_session, spark_archive
from headrace.pipeline.sink_records import RECORD_DDL, forward_record

TOPIC = "recorded"
SINK_TOPIC = "recorded-sink"
END_TIMEOUT_S = 300.0
_OPTIONS_SETTING = "spark.driver.extraJavaOptions"


def make_spark_archive(progress: ProgressCallback | None = None) -> Path:
    """Run a small query once and archive its classes; an archive that exists is kept. Returns its path;
    raises what a start of Spark or of a broker raises.

    Takes the process's only Spark session: there must be none yet.
    """
    archive = spark_archive(resolve_jars(progress=progress), find_java())
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
        log = KafkaLog(bootstrap)
        try:
            for topic in (TOPIC, SINK_TOPIC):
                log.create_topic(topic, {})
            appender = log.appender()
            appender.append(TOPIC, b"recorded")
            appender.close()
        finally:
            log.close()
        options = " ".join((*recording_options(partial), COLLECTOR_OPTION))
        session = open_session(
            "headrace archive", log_file=directory / "spark.log", settings={_OPTIONS_SETTING: options}
        )
        try:
            _run_query(session, bootstrap, str(directory / "checkpoint"))
        finally:
            # The JVM writes the archive while it exits.
            close_session(session, END_TIMEOUT_S)
    finally:
        broker.stop()


def _run_query(session: SparkSession, bootstrap: str, checkpoint: str) -> None:
    """What an ingest job lets the JVM do: plan micro-batches of a topic, run Python workers, write their records."""
    servers = {"kafka.bootstrap.servers": bootstrap}
    options = {**servers, "subscribe": TOPIC, "startingOffsets": "earliest"}

    def forward(_planned: DataFrame, _batch: int) -> None:
        records = session.range(0, 1, 1, 1).mapInArrow(_one_record(), RECORD_DDL)  # type: ignore[arg-type]
        records.write.format("kafka").options(**servers).save()

    raw = session.readStream.format("kafka").options(**options).load()
    writer = raw.writeStream.foreachBatch(forward).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _one_record() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # A local function is pickled by value, so the worker need not import this module.
    record = forward_record(SINK_TOPIC, b"recorded")
    return lambda batches: (record for _ in batches)
