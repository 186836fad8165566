"""`headrace bench spark`: raw topic to forward logs through Spark, beside its Kafka source alone and stock
Spark.

All legs are streaming queries over the same topics, in turn, several rounds after one that warms up; a ratio
is the median over the rounds of two legs of one round. Ours ends in the broker; the limit and stock Spark
(`from_json`, one Arrow stream a batch) end in the noop sink, which favours them. A leg whose row count is
wrong has no figures.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.bench.measurement import Note, chosen, silent
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.pipeline.ingest import RunOptions, forward_writer, prepare, raw_records
from headrace.pipeline.ingest_progress import Counts, observed_counts
from headrace.pipeline.job import IngestJob
from headrace.pipeline.session import close_session, open_session
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Create
from headrace.workload import cpu
from headrace.workload.encode import to_json_lines, to_line_protocol

OPTIONS = {"rows": 1_000_000, "rounds": 3, "partitions": 2, "lines": 500}
HOSTS = 1_000
INTERVAL_S = 10
MESSAGES_MAX = 1_000_000_000
FORMATS = ("influx", "json")
DRIVER_MEMORY = "2g"
"""More than the 1 GB of ingest: stock Spark explodes and parses long messages on the heap."""
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
BARS = {"of_source_one": 0.5, "of_stock_one": 1.3, "of_stock_many": 3.0}


class BenchInvalid(HeadraceError):
    """A leg did not read or write what it should have."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One query: wall seconds of its micro-batches, CPU seconds of Spark's processes."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Bench:
    """What all legs share."""

    session: SparkSession
    bootstrap: str
    directory: Path
    rows: int
    fields: tuple[str, ...]
    tags: tuple[str, ...]

    def new_checkpoint(self) -> str:
        """A checkpoint that does not exist yet."""
        return str(self.directory / "checkpoints" / uuid.uuid4().hex)

    def job(self, form: str, shape: str) -> IngestJob:
        """Ours, on the topic of one format with one or many rows a message."""
        options = FormatOptions(table="cpu", tags=self.tags) if form == "json" else FormatOptions()
        return IngestJob("bench", self.bootstrap, f"{form}.{shape}", "bench", form, options)  # type: ignore[arg-type]


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: `rows` a topic, `rounds`, `partitions`, `lines` in a message of many.

    Raises OptionUnknown, BenchInvalid.
    """
    given = chosen(options, OPTIONS)
    rows = given["rows"] // HOSTS * HOSTS
    rounds, partitions, lines = given["rounds"], given["partitions"], given["lines"]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        broker = EmbeddedBroker(Path(directory) / "broker")
        bootstrap = broker.start().bootstrap
        try:
            fields, tags = _fill(bootstrap, rows, partitions, lines)
            session = open_session(
                "headrace bench spark",
                log_file=Path(directory) / "spark.log",
                settings={"spark.driver.memory": DRIVER_MEMORY},
            )
            try:
                bench = Bench(session, bootstrap, Path(directory), rows, fields, tags)
                return {"rows": rows, "partitions": partitions, "lines": lines} | _measure(bench, rounds, note)
            finally:
                close_session(session)
        finally:
            broker.stop()


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The figures for people."""
    shown = [("rows a topic", f"{result['rows']:,}"), ("partitions", str(result["partitions"]))]
    for name, figures in result["legs"].items():
        each = f"{figures['rows_per_second']:,.0f} rows/s, {figures['rows_per_cpu_second']:,.0f} rows per CPU-second"
        shown.append((name, each))
    for name, figures in result["ratios"].items():
        bar = f", at least {figures['bar']}" if figures["bar"] else ""
        spread = f"{figures['median']:.2f} ({figures['least']:.2f} to {figures['most']:.2f})"
        shown.append((name, f"{spread}, {figures['per_cpu_second']:.2f} by CPU-second{bar}"))
    return shown


def _measure(bench: Bench, rounds: int, note: Note) -> dict[str, Any]:
    """All legs in turn, `rounds` times after a round that warms up."""
    legs: dict[str, Callable[[], Leg]] = {}
    for shape in ("one", "many"):
        for form in FORMATS:
            job = bench.job(form, shape)
            prepare(job, RunOptions(bench.new_checkpoint()), lambda _line: None)
            legs[f"source {form} {shape}"] = _leg_of(_source, bench, job)
            legs[f"ours {form} {shape}"] = _leg_of(_ours, bench, job)
        legs[f"stock json {shape}"] = _leg_of(_stock, bench, bench.job("json", shape))
    # The first round is not measured: in it Java compiles hot code, Spark its plans and Numba its kernels.
    measured: dict[str, list[Leg]] = {name: [] for name in legs}
    for number in range(rounds + 1):
        note(f"round {number} of {rounds}" if number else "warming up")
        for name, leg in legs.items():
            result = leg()
            if number:
                measured[name].append(result)
    return {
        "legs": {name: _figures(bench.rows, taken) for name, taken in measured.items()},
        "ratios": _ratios(measured),
    }


def _leg_of(measure: Callable[[Bench, IngestJob], Leg], bench: Bench, job: IngestJob) -> Callable[[], Leg]:
    return lambda: measure(bench, job)


def _figures(rows: int, legs: Sequence[Leg]) -> dict[str, float]:
    return {
        "rows_per_second": round(median(rows / leg.seconds for leg in legs)),
        "rows_per_cpu_second": round(median(rows / leg.cpu_seconds for leg in legs)),
    }


def _ratios(measured: Mapping[str, Sequence[Leg]]) -> dict[str, dict[str, float | None]]:
    """Speed of ours over that of the source alone and of stock Spark, by format and shape: by the clock, and
    by the CPU time of Spark's processes.
    """
    ratios: dict[str, dict[str, float | None]] = {}
    for shape in ("one", "many"):
        for form in FORMATS:
            for kind, peer in (("of_source", f"source {form} {shape}"), ("of_stock", f"stock json {shape}")):
                ours = measured[f"ours {form} {shape}"]
                each = [peers.seconds / own.seconds for own, peers in zip(ours, measured[peer], strict=True)]
                per_cpu = median(
                    peers.cpu_seconds / own.cpu_seconds for own, peers in zip(ours, measured[peer], strict=True)
                )
                figures = {"median": median(each), "least": min(each), "most": max(each), "per_cpu_second": per_cpu}
                ratios[f"{kind}_{shape}_{form}"] = {
                    **{name: round(value, 3) for name, value in figures.items()},
                    "bar": BARS.get(f"{kind}_{shape}"),
                }
    return ratios


def kafka_messages(session: SparkSession, job: IngestJob) -> DataFrame:
    """The raw topic from its beginning, read by Spark's own Kafka source."""
    settings = {"bootstrap.servers": job.bootstrap, "isolation.level": "read_committed", **SOURCE_SETTINGS}
    options = {f"kafka.{name}": value for name, value in settings.items()}
    options |= {"subscribe": job.topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(MESSAGES_MAX)}
    columns = ("key", "value", "partition", "offset", "timestamp")
    return session.readStream.format("kafka").options(**options).load().select(*columns)


def _source(bench: Bench, job: IngestJob) -> Leg:
    """Kafka source → noop."""
    return _run(_noop(bench, kafka_messages(bench.session, job)))


def _ours(bench: Bench, job: IngestJob) -> Leg:
    """The whole of ingest: parsed, cut, written to the forward logs with acks=all."""
    records = raw_records(bench.session, job, MESSAGES_MAX)
    counts: list[Counts] = []
    leg = _run(forward_writer(records, job, RunOptions(bench.new_checkpoint())), counts)
    _check(job, sum(counts, Counts()), bench.rows)
    return leg


def _check(job: IngestJob, counts: Counts, rows: int) -> None:
    if (counts.rows, counts.rejected) != (rows, 0):
        raise BenchInvalid(f"{job.topic}: {counts.rows} rows and {counts.rejected} bad lines instead of {rows} rows")


def _stock(bench: Bench, job: IngestJob) -> Leg:
    """Stock Spark: split lines where needed, `from_json`, each Arrow batch as one compressed stream."""
    text = F.col("value").cast("string")
    members = ", ".join([f"{tag} string" for tag in bench.tags] + [f"{field} double" for field in bench.fields])
    lines = F.explode(F.split(text, "\n")) if job.topic.endswith("many") else text
    raw = kafka_messages(bench.session, job).select(lines.alias("line"))
    rows = raw.select(F.from_json("line", f"time bigint, {members}").alias("row")).select("row.*")
    arrow = rows.mapInArrow(_arrow_streams, "value binary")  # type: ignore[arg-type]
    return _run(_noop(bench, arrow))


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


def _noop(bench: Bench, frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("noop").option("checkpointLocation", bench.new_checkpoint())


def _run(writer: DataStreamWriter, counts: list[Counts] | None = None) -> Leg:
    """Run a query to the end of its topic; planning and checkpoint counted, starting the query not.

    `counts` gets those of its micro-batches.
    """
    before = _cpu_seconds()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    cpu_seconds = _cpu_seconds() - before
    reports = [json.loads(report.json) for report in query.recentProgress]
    if counts is not None:
        counts += map(observed_counts, reports)
    return Leg(
        sum(report["durationMs"]["triggerExecution"] for report in reports if _moved(report)) / 1_000, cpu_seconds
    )


def _moved(report: Mapping[str, Any]) -> bool:
    """Whether a report is of a micro-batch with data."""
    # By offsets: Spark counts no input rows where Python workers read the topic themselves.
    [source] = report["sources"]
    return bool(source["startOffset"] != source["endOffset"])


def _cpu_seconds() -> float:
    """CPU seconds of Spark's JVM and its Python workers."""
    used = 0.0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            # A Python worker that ended since the list was made.
            continue
        used += times.user + times.system
    return used


def _fill(bootstrap: str, rows: int, partitions: int, lines: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make the cluster and the raw topics `{format}.{one|many}`; (fields, tags) of their rows."""
    log = KafkaLog(bootstrap)
    join_cluster(log, Topics("bench"), Create(("n1", "n2", "n3"), 3, 10_000))
    log.close()
    workload = cpu(HOSTS, duration_s=rows // HOSTS * INTERVAL_S, interval_s=INTERVAL_S)
    data = workload.read("cpu")
    for form in FORMATS:
        texts = to_line_protocol("cpu", data) if form == "influx" else to_json_lines(data)
        encoded = [text.encode() for text in texts.to_pylist()]
        many = [b"\n".join(encoded[at : at + lines]) for at in range(0, len(encoded), lines)]
        _produce(bootstrap, f"{form}.one", encoded, partitions)
        _produce(bootstrap, f"{form}.many", many, partitions)
    fields = tuple(name for name in data.column_names if name not in (*workload.tags, "time"))
    return fields, workload.tags


def _produce(bootstrap: str, topic: str, values: Sequence[bytes], partitions: int) -> None:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    settings = {"linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.messages": 2_000_000}
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", **settings})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number * partitions // len(values))
                break
            except BufferError:
                # The producer's queue is full: its callbacks must run before it takes more.
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise BenchInvalid(f"the raw topic {topic} could not be filled")
