"""A cluster in memory for the sink and the stream source, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.log.memory import MemoryAppender, MemoryLog
from headrace.connectors.log.port import read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster, read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.pipeline.sink_task import SinkTask, TaskWritten
from headrace.pipeline.source_options import Target, WriteOptions
from headrace.pipeline.task_positions import TaskPositions
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.schemas.records import Create

TOPICS = Topics("c")
TARGET = Target("db", "t", "c", "nowhere")


@dataclass
class SourceScene:
    """A cluster of two groups without nodes."""

    log: MemoryLog
    cluster: Cluster

    def write(
        self, batches: Sequence[pa.RecordBatch], batch: int = 0, partition: int = 0, query: str = "q", **options: Any
    ) -> TaskWritten:
        """One task of a sink."""
        given = WriteOptions(**{"target": TARGET, "tags": ("host",), **options})
        return SinkTask(self.cluster, given, TaskPositions(query, batch, partition)).write(batches)

    def topics(self) -> list[str]:
        """The forward logs."""
        return [TOPICS.forward(group) for group in read_slot_table(self.log, TOPICS).headers]

    def values(self) -> list[bytes]:
        """The values of all forward records, log by log."""
        return [record.value for topic in self.topics() for record in read_to_end(self.log, topic, timeout_s=5)]


def new_scene() -> SourceScene:
    """A scene with a new cluster."""
    log = MemoryLog()
    table = join_cluster(log, TOPICS, Create(("n1", "n2"), 1, 100))
    schema_log, watch = SchemaLog(log, TOPICS), StatusWatch(log, TOPICS)
    return SourceScene(log, Cluster(log, TOPICS, FixedRouting(table), schema_log, watch, MemoryAppender(log)))


def rows(start: int, count: int, hosts: int = 4, **columns: Any) -> pa.RecordBatch:
    """Rows of `hosts` series, one a microsecond, as Spark hands them over."""
    numbers = range(start, start + count)
    given = {
        "host": pa.array([f"h{number % hosts}" for number in numbers]),
        "time": pa.array(list(numbers), pa.timestamp("us")),
        "n": pa.array(list(numbers), pa.int64()),
    }
    return pa.RecordBatch.from_pydict({**given, **columns})
