"""Ingest tasks on a log in memory: what Spark does between the raw topic and the forward topics, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.ingest_task import ingest_partition
from headrace.pipeline.job import IngestJob
from headrace.pipeline.sink_records import COUNT_FIELDS, COUNTED_SCHEMA
from headrace.schemas.records import Create
from headrace.schemas.tables import TimeResolution

TOPICS = Topics("c")
START_MS = 1_767_225_600_000


def new_log(nodes: Sequence[str] = ("n1", "n2")) -> MemoryLog:
    """A log with a cluster, its forward topics and the dead-letter topic."""
    log = MemoryLog()
    join_cluster(log, TOPICS, Create(tuple(nodes), len(nodes), 100))
    log.create_topic("dlq.raw", {})
    return log


def influx_job() -> IngestJob:
    """Line protocol from topic `raw` into database `db`."""
    return IngestJob("c", "nowhere", "raw", "db", "influx", resolution=TimeResolution.NS, any_time=True)


def json_job(**options: object) -> IngestJob:
    """JSON from topic `raw` into table `t` of database `db`, tag `host`."""
    given = FormatOptions(**{"table": "t", "tags": ("host",), **options})  # type: ignore[arg-type]
    return IngestJob("c", "nowhere", "raw", "db", "json", given, resolution=TimeResolution.NS, any_time=True)


def raw_batch(
    values: Sequence[bytes | str | None], first_offset: int = 0, keys: Sequence[bytes | None] | None = None
) -> pa.RecordBatch:
    """Raw messages in the form of Spark; the Kafka timestamp of the message at offset n is `START_MS` + n."""
    count = len(values)
    offsets = list(range(first_offset, first_offset + count))
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys or [None] * count, pa.binary()),
            pa.array(encoded, pa.binary()),
            pa.array([0] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([(START_MS + offset) * 1_000 for offset in offsets], pa.timestamp("us", "UTC")),
        ],
        names=["key", "value", "partition", "offset", "timestamp"],
    )


def attempt(
    log: MemoryLog,
    job: IngestJob,
    batches: Sequence[pa.RecordBatch],
    batch: int = 0,
    report: Callable[[Counts], None] = lambda _counts: None,
) -> Iterator[str]:
    """One attempt of one task; each record is appended to its topic before it is yielded, so an unfinished iteration is a crash."""
    access = ClusterAccess(log, TOPICS)
    access.begin_task()
    appender = log.appender()
    for records in ingest_partition(iter(batches), job, access, "query", batch):
        assert records.schema == COUNTED_SCHEMA
        report(counts_of(records))
        for record in records.to_pylist():
            if record["topic"] is None:
                continue
            headers = [(header["key"], header["value"]) for header in record["headers"]]
            appender.append(record["topic"], record["value"] or b"", key=record["key"], headers=headers)
            yield record["topic"]


def run_attempt(log: MemoryLog, job: IngestJob, batches: Sequence[pa.RecordBatch], batch: int = 0) -> Counts:
    """One attempt to its end; returns its counts."""
    counted: list[Counts] = []
    for _ in attempt(log, job, batches, batch, counted.append):
        pass
    return sum(counted, Counts())


def counts_of(records: pa.RecordBatch) -> Counts:
    """What Spark sums up over records."""
    total = Counts()
    for record in records.select([*COUNT_FIELDS, "reasons"]).to_pylist():
        reasons = json.loads(record.pop("reasons") or "{}")
        total += Counts(**record, reasons=reasons)
    return total
