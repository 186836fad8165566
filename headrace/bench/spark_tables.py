"""The legs of `headrace bench spark` that read and write tables: `format("headrace")`, `read_segments`, and peers.

The stream source and the sink need no node: they read and write forward logs. The batch source asks one node that has
a day of sealed rows, and its files are those that `read_segments` and Spark's own Parquet reader read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampNTZType

import headrace.spark
from headrace.bench.measurement import DATABASE, connected, seal
from headrace.bench.spark_ingest import RawTopics, stock_rows
from headrace.bench.spark_runs import (
    BenchInvalid,
    Leg,
    Measure,
    SparkBench,
    checked,
    cpu_seconds,
    measured_batch,
    measured_stream,
)
from headrace.bench.spark_topics import TABLE, field_names, make_topic
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.local_cluster import LocalCluster
from headrace.pipeline.batch_source import RangePartition
from headrace.pipeline.data_source import HeadraceDataSource
from headrace.pipeline.segment_files import overlapping
from headrace.pipeline.segment_reader import find_segments, read_footer
from headrace.pipeline.session import PARALLELISM
from headrace.producers.router import MESSAGE_ROWS_MAX
from headrace.producers.writer import TableWriter
from headrace.schemas.records import Create
from headrace.spark import BYTES_SETTING, BYTES_UNLIMITED
from headrace.workload import cpu
from headrace.workload.workload import DEFAULT_INTERVAL_S, DEFAULT_START_NS

FOLLOWED, SUNK = "followed", "sunk"
"""Clusters without nodes: one is read by the stream source, the sink writes into the other."""
SUNK_TOPIC = "sunk.json"
NAME = f"{DATABASE}.{TABLE}"
HOUR_NS = 3_600_000_000_000
TWO_COLUMNS = "time,usage_user"
SETTLED_S, SETTLE_TIMEOUT_S = 5.0, 120.0
SINK_SETTINGS = {"kafka.batch.size": str(1024 * 1024), "kafka.linger.ms": "20", "kafka.send.buffer.bytes": str(1 << 20)}
"""Faster than the defaults of Spark's Kafka sink: a peer must not be slowed by small requests."""


def make_cluster(bootstrap: str, cluster: str) -> None:
    """A cluster of three groups without nodes."""
    with closing(KafkaLog(bootstrap)) as log:
        join_cluster(log, Topics(cluster), Create(("n1", "n2", "n3"), 3, 10_000))


def stream_legs(bench: SparkBench, topics: RawTopics, rows: pa.Table) -> dict[str, Measure]:
    """The stream source and `from_json` of the same rows; the sink and `to_json` of the same rows."""
    _write(bench.bootstrap, FOLLOWED, rows, topics.tags)
    make_cluster(bench.bootstrap, SUNK)
    make_topic(bench.bootstrap, SUNK_TOPIC, PARALLELISM)
    folder = bench.directory / "rows"
    _parquet_rows(folder, rows, topics.tags)
    query = _StreamQueries(bench, topics, str(folder), _spark_rows(topics))
    return {
        "stream source": query.followed,
        "stock rows": query.stock,
        "sink": query.sink,
        "sink, small rows": partial(query.sink, small_rows=True),
        "stock sink": query.stock_sink,
    }


def _write(bootstrap: str, cluster: str, rows: pa.Table, tags: tuple[str, ...]) -> None:
    make_cluster(bootstrap, cluster)
    with connected(bootstrap, cluster) as opened, TableWriter(opened, DATABASE, TABLE) as writer:
        writer.write(rows, tags)


def _parquet_rows(folder: Path, rows: pa.Table, tags: tuple[str, ...]) -> None:
    """The rows as files that Spark reads: one for each of its threads, so that they are one batch."""
    folder.mkdir()
    columns = {tag: rows.column(tag).cast(pa.string()) for tag in tags}
    columns["time"] = rows.column("time").cast(pa.timestamp("ns")).cast(pa.timestamp("us"))
    columns |= {name: rows.column(name).cast(pa.float64()) for name in field_names(rows, tags)}
    table, each = pa.table(columns), -(-rows.num_rows // PARALLELISM)
    for number in range(PARALLELISM):
        pq.write_table(table.slice(number * each, each), folder / f"{number}.parquet")


def _spark_rows(topics: RawTopics) -> StructType:
    kinds: dict[str, Any] = {tag: StringType() for tag in topics.tags}
    kinds |= {"time": TimestampNTZType()} | {name: DoubleType() for name in topics.fields}
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


@contextmanager
def _bytes_added_up(session: SparkSession, *, off: bool) -> Iterator[None]:
    """Queries that start here are those of a session with or without `register(small_rows=True)`."""
    before = session.conf.get(BYTES_SETTING)
    assert before is not None, "a setting with a default"
    if off:
        session.conf.set(BYTES_SETTING, BYTES_UNLIMITED)
    try:
        yield
    finally:
        session.conf.set(BYTES_SETTING, before)


@dataclass(frozen=True)
class _StreamQueries:
    bench: SparkBench
    topics: RawTopics
    folder: str
    schema: StructType

    def followed(self) -> Leg:
        """Stream source → noop."""
        stream = self.bench.session.readStream.format("headrace").options(**self._options(FOLLOWED))
        leg, _ = measured_stream(lambda: self.bench.noop(stream.load()))
        return checked(leg, self.topics.rows, "stream source")

    def stock(self) -> Leg:
        """The same rows as JSON, by Spark's Kafka source and `from_json` → noop."""
        job = self.topics.job(self.bench.bootstrap, "json", "one")
        rows = stock_rows(self.bench.session, job, self.topics)
        leg, _ = measured_stream(lambda: self.bench.noop(rows))
        return checked(leg, self.topics.rows, "stock rows")

    def sink(self, *, small_rows: bool = False) -> Leg:
        """All rows in one batch into a table."""
        with _bytes_added_up(self.bench.session, off=small_rows):
            return self._sunk()

    def _sunk(self) -> Leg:
        rows = (
            self._rows().writeStream.format("headrace").options(**self._options(SUNK), tags=",".join(self.topics.tags))
        )
        leg, _ = measured_stream(lambda: rows.option("checkpointLocation", self.bench.new_checkpoint()))
        return checked(leg, self.topics.rows, "sink")

    def stock_sink(self) -> Leg:
        """All rows in one batch as JSON into a topic."""
        values = self._rows().select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
        values = values.options(
            **{"kafka.bootstrap.servers": self.bench.bootstrap, "topic": SUNK_TOPIC}, **SINK_SETTINGS
        )
        leg, _ = measured_stream(lambda: values.option("checkpointLocation", self.bench.new_checkpoint()))
        return checked(leg, self.topics.rows, "stock sink")

    def _rows(self) -> DataFrame:
        return self.bench.session.readStream.schema(self.schema).parquet(self.folder)

    def _options(self, cluster: str) -> dict[str, str]:
        return {"bootstrap": self.bench.bootstrap, "cluster": cluster, "table": NAME}


def batch_legs(bench: SparkBench, local: LocalCluster, rows: int, hours: int) -> dict[str, Measure]:
    """A day of rows: the batch source, parts of it, the same answers without Spark, and both readers of the files."""
    hosts = max(1, -(-rows * DEFAULT_INTERVAL_S // (hours * 3_600)))
    workload = cpu(hosts, duration_s=hours * 3_600)
    with connected(local.bootstrap, local.cluster) as cluster, TableWriter(cluster, DATABASE, TABLE) as writer:
        # Whole steps in each message: then no two files share a time, wherever a seal cuts.
        for _, block in workload.batches(hosts * max(1, MESSAGE_ROWS_MAX // hosts)):
            writer.write(block, workload.tags)
        seal(local, writer.flush())
    _settle(local.directory)
    query = _BatchQueries(bench, local, workload.rows, hours)
    return {
        "answers without Spark": query.plain,
        "batch source": query.whole,
        "batch source, one hour": query.hour,
        "batch source, two columns": query.columns,
        "Parquet reader": query.parquet,
        "read_segments": query.segments,
    }


def _settle(directory: Path) -> None:
    """Wait until no file is merged any more. Raises BenchInvalid if files share a time."""
    deadline, unchanged = Deadline(SETTLE_TIMEOUT_S), Deadline(SETTLED_S)
    known: list[str] = []
    while not unchanged.passed():
        found = [file.path for file in find_segments(str(directory), NAME)]
        if found != known:
            unchanged, known = Deadline(SETTLED_S), found
        if deadline.passed():
            raise BenchInvalid(f"segments are still merged after {SETTLE_TIMEOUT_S:g} s")
        time.sleep(0.2)
    if overlapping({file: read_footer(file) for file in find_segments(str(directory), NAME)}):
        raise BenchInvalid("segments share times, so that they are not read as they are")


@dataclass(frozen=True)
class _BatchQueries:
    bench: SparkBench
    local: LocalCluster
    rows: int
    hours: int

    def whole(self) -> Leg:
        """The whole table by the batch source."""
        return checked(measured_batch(self._frame), self.rows, "batch source")

    def hour(self) -> Leg:
        """One hour from the middle, as a filter that the node evaluates."""
        start_us = (DEFAULT_START_NS + self.hours // 2 * HOUR_NS) // 1_000
        times = [f"CAST(timestamp_micros({us}) AS TIMESTAMP_NTZ)" for us in (start_us, start_us + HOUR_NS // 1_000)]
        leg = measured_batch(lambda: self._frame(pushFilters="true").where(f"time >= {times[0]} AND time < {times[1]}"))
        return checked(leg, self.rows // self.hours, "batch source, one hour")

    def columns(self) -> Leg:
        """Two columns of all rows."""
        return checked(measured_batch(lambda: self._frame(columns=TWO_COLUMNS)), self.rows, "batch source, two columns")

    def plain(self) -> Leg:
        """The answers that the tasks of the batch source get, read without Spark in as many threads."""
        before_s, begun_s = cpu_seconds(), time.perf_counter()
        source = HeadraceDataSource(self._options())
        parts = source.reader(source.schema()).partitions()
        with ThreadPoolExecutor(PARALLELISM) as pool:
            rows = sum(pool.map(_answered_rows, parts))
        seconds = time.perf_counter() - begun_s
        return checked(Leg(rows, seconds, cpu_seconds() - before_s), self.rows, "answers without Spark")

    def parquet(self) -> Leg:
        """The sealed files by Spark's own reader."""
        paths = [file.path for file in find_segments(str(self.local.directory), NAME)]
        leg = measured_batch(lambda: self.bench.session.read.parquet(*paths))
        return checked(leg, self.rows, "Parquet reader")

    def segments(self) -> Leg:
        """The sealed files by `read_segments`."""
        path = str(self.local.directory)
        leg = measured_batch(lambda: headrace.spark.read_segments(self.bench.session, path, NAME))
        return checked(leg, self.rows, "read_segments")

    def _frame(self, **more: str) -> DataFrame:
        return self.bench.session.read.format("headrace").options(**self._options(), **more).load()

    def _options(self) -> dict[str, str]:
        return {"bootstrap": self.bench.bootstrap, "cluster": self.local.cluster, "table": NAME}


def _answered_rows(part: object) -> int:
    assert isinstance(part, RangePartition), part
    return sum(batch.num_rows for batch in part.nodes.rows(part.sql, part.after, turn=part.value))
