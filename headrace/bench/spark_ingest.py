"""The legs of `headrace bench spark` that read raw topics: ingest, Spark's Kafka source alone, and stock Spark.

Ours ends in the broker; the limit and stock Spark (`from_json`, `from_avro`, one Arrow stream a batch) end in the noop
sink, which favours them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro

from headrace.bench.spark_runs import BenchInvalid, Leg, Measure, SparkBench, checked, measured_stream, with_rows
from headrace.bench.spark_topics import FRAME, TABLE, topic_of
from headrace.connectors.formats.interface import FormatOptions, SchemaPlace
from headrace.pipeline.ingest import RunOptions, forward_writer, prepare, raw_records
from headrace.pipeline.ingest_progress import Counts, observed_counts
from headrace.pipeline.job import IngestJob

CLUSTER = "bench"
MESSAGES_MAX = 1_000_000_000
SOURCE_SETTINGS = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "fetch.max.bytes": str(32 * 1024 * 1024),
    # Spark requests the end of a partition after every poll, and Kafka answers requests of a connection in
    # order: at the end of a topic a query would wait the 500 ms that the fetch ahead may wait for more data.
    "fetch.max.wait.ms": "10",
    "receive.buffer.bytes": str(1024 * 1024),
}
"""Faster than the defaults of Spark's Kafka source: a limit must not be an artificial one."""
_FORMATS = {"influx": "influx", "json": "json", "avro": "confluent-avro", "arrow": "arrow"}


@dataclass(frozen=True)
class RawTopics:
    """The rows that are in each raw topic, and how they are read. `lines` rows are in a message of many."""

    rows: int
    tags: tuple[str, ...]
    fields: tuple[str, ...]
    avro_schema: str
    schema_directory: str
    lines: int
    tiny_batches: int
    tiny_messages: int

    def job(self, bootstrap: str, form: str, shape: str) -> IngestJob:
        """Ours, on the topic of one format and shape."""
        options = FormatOptions()
        if form != "influx":
            place = SchemaPlace(directory=self.schema_directory) if form == "avro" else SchemaPlace()
            options = FormatOptions(table=TABLE, tags=self.tags, schemas=place)
        name = _FORMATS[form]
        return IngestJob(CLUSTER, bootstrap, topic_of(form, shape), CLUSTER, name, options)  # type: ignore[arg-type]

    def messages(self, shape: str) -> int:
        """How many messages a topic has."""
        if shape == "tiny":
            return self.tiny_batches * self.tiny_messages
        return self.rows if shape == "one" else -(-self.rows // self.lines)


def ingest_legs(bench: SparkBench, topics: RawTopics) -> dict[str, Measure]:
    """The legs by name: `ours FORMAT SHAPE`, `source FORMAT SHAPE`, `stock FORMAT SHAPE`."""
    legs: dict[str, Measure] = {}
    for form, shape in (
        *(("influx", "one"), ("json", "one"), ("avro", "one")),
        *(("influx", "many"), ("json", "many"), ("arrow", "many")),
    ):
        query = _IngestQuery(bench, topics, form, shape)
        legs[f"source {form} {shape}"], legs[f"ours {form} {shape}"] = query.source, query.ours
        if form in ("json", "avro"):
            legs[f"stock {form} {shape}"] = query.stock
    tiny = _IngestQuery(bench, topics, "influx", "tiny")
    return legs | {"source tiny": tiny.source, "ours tiny": tiny.ours}


class _IngestQuery:
    """The legs over one raw topic."""

    def __init__(self, bench: SparkBench, topics: RawTopics, form: str, shape: str) -> None:
        self._bench = bench
        self._topics = topics
        self._shape = shape
        self._job = topics.job(bench.bootstrap, form, shape)
        self._tiny = shape == "tiny"
        self._messages_max = topics.tiny_messages if self._tiny else MESSAGES_MAX
        prepare(self._job, RunOptions(bench.new_checkpoint()), lambda _line: None)

    def source(self) -> Leg:
        """Kafka source → noop."""
        frame = kafka_messages(self._bench.session, self._job, self._messages_max)
        leg, reports = measured_stream(lambda: self._bench.noop(frame))
        self._check_batches(len(reports))
        return with_rows(checked(leg, self._messages(), self._job.topic), self._rows())

    def ours(self) -> Leg:
        """The whole of ingest: parsed, cut, written to the forward logs with acks=all."""
        records = raw_records(self._bench.session, self._job, self._messages_max)

        def writer() -> object:
            return forward_writer(records, self._job, RunOptions(self._bench.new_checkpoint()))

        leg, reports = measured_stream(writer, until_idle=self._tiny)  # type: ignore[arg-type]
        self._check_batches(len(reports))
        counts = sum(map(observed_counts, reports), Counts())
        if counts.rejected:
            raise BenchInvalid(f"{self._job.topic}: {counts.rejected} bad lines")
        return checked(with_rows(leg, counts.rows), self._rows(), self._job.topic)

    def stock(self) -> Leg:
        """Stock Spark, each Arrow batch as one compressed stream."""
        rows = stock_rows(self._bench.session, self._job, self._topics)
        arrow = rows.mapInArrow(_arrow_streams, "value binary")  # type: ignore[arg-type]
        leg, _ = measured_stream(lambda: self._bench.noop(arrow))
        return with_rows(checked(leg, self._messages(), self._job.topic), self._rows())

    def _messages(self) -> int:
        return self._topics.messages(self._shape)

    def _rows(self) -> int:
        return self._messages() if self._tiny else self._topics.rows

    def _check_batches(self, batches: int) -> None:
        if self._tiny and batches != self._topics.tiny_batches:
            raise BenchInvalid(f"{batches} tiny batches instead of {self._topics.tiny_batches}")


def kafka_messages(session: SparkSession, job: IngestJob, messages_max: int = MESSAGES_MAX) -> DataFrame:
    """The raw topic from its beginning, read by Spark's own Kafka source."""
    settings = {"bootstrap.servers": job.bootstrap, "isolation.level": "read_committed", **SOURCE_SETTINGS}
    options = {f"kafka.{name}": value for name, value in settings.items()}
    options |= {"subscribe": job.topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(messages_max)}
    columns = ("key", "value", "partition", "offset", "timestamp")
    return session.readStream.format("kafka").options(**options).load().select(*columns)


def stock_rows(session: SparkSession, job: IngestJob, topics: RawTopics) -> DataFrame:
    """The rows of a raw topic by `from_json` (lines split where needed) or `from_avro` (behind Confluent's frame)."""
    raw = kafka_messages(session, job)
    if job.format == "confluent-avro":
        body = F.expr(f"substring(value, {len(FRAME) + 1})")
        return raw.select(from_avro(body, topics.avro_schema).alias("row")).select("row.*")
    text = F.col("value").cast("string")
    members = ", ".join([f"{tag} string" for tag in topics.tags] + [f"{field} double" for field in topics.fields])
    lines = F.explode(F.split(text, "\n")) if job.topic.endswith("many") else text
    # Spark takes `explode` at the top of a selection alone.
    rows = raw.select(lines.alias("line")).select(F.from_json("line", f"time bigint, {members}").alias("row"))
    return rows.select("row.*")


def _arrow_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow

    for batch in batches:
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(
            sink, batch.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_batch(batch)
        yield pyarrow.RecordBatch.from_pydict(
            {"value": pyarrow.array([sink.getvalue().to_pybytes()], pyarrow.binary())}
        )
