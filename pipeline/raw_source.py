"""`spark.readStream.format("headrace_raw")`: raw messages of a topic as the records of a cluster's forward logs.

Spark keeps one process that plans (`RawStreamReader.latestOffset`, `partitions`); its workers read, parse, route
and encode (`read`). What they return has the columns of Spark's Kafka sink, and counts. `headrace ingest run` is such
a query, and adds what only a driver can: see `pipeline/ingest.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.schemas.errors import HeadraceError

# Spark starts several processes for a query that import this module, and each needs a part of what it uses: the
# rest is imported in the methods that need it.
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.pipeline.raw_offsets import OffsetRange
    from headrace.pipeline.raw_options import RawRequest
    from headrace.pipeline.raw_planner import RawPlanner

NAME = "headrace_raw"
RECORD_DDL = "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
COUNT_DDL = "messages long, rows long, points long, rejected long, bytes long, newest_ms long, reasons string"
"""`sink_records.COUNTED_SCHEMA` in Spark's notation. Spark's Kafka sink takes the columns it knows, not the counts."""

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
SLOT_TABLE_PROPERTY = "headrace.slotTable"
LIMIT_PROPERTY = "headrace.deadLetterLimit"
"""Local properties of a task. The last two are set by a driver that keeps a slot table for each micro-batch, in base64,
and decides about its dead letters (`dead_letter_limit.py`).
"""


class NotStreaming(HeadraceError):
    """No micro-batch is running, so messages would have no position among those of their producer."""


class RawSource(DataSource):
    """See the module. Options: `raw_options.OPTIONS` and `kafka.<librdkafka name>`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def schema(self) -> str:
        """The columns of Spark's Kafka sink, and counts. Raises SourceOptionInvalid."""
        from headrace.pipeline.raw_options import request_of

        # Here and not when the query starts: a wrong option fails the `load()` that has it.
        request_of(self.options)
        return f"{RECORD_DDL}, {COUNT_DDL}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a query."""
        from headrace.pipeline.raw_options import request_of

        del schema
        return RawStreamReader(request_of(self.options))


class RawPartition(InputPartition):
    """One task of several: the messages of one partition of the topic."""

    def __init__(self, offset_range: OffsetRange, tasks: int) -> None:
        self.offset_range = offset_range
        self.tasks = tasks


class RawStreamReader(DataSourceStreamReader):
    """Plans in one process, and reads in others: it is pickled to the workers before it has planned anything."""

    def __init__(self, request: RawRequest) -> None:
        self._request = request
        self._planner: RawPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """See DataSourceStreamReader: where a query without a checkpoint begins."""
        return self._document(self._planning().initial())

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """See DataSourceStreamReader: the end of the next micro-batch."""
        return self._document(self._planning().latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See DataSourceStreamReader: a range of offsets for each partition with messages."""
        from headrace.pipeline.raw_offsets import offsets_of

        topic, planner = self._request.job.topic, self._planning()
        begins, ends = offsets_of(start, topic), offsets_of(end, topic)
        if start == end:
            # After a restart Spark asks this first, with the newest offsets of its checkpoint.
            planner.resume(ends)
            return []
        ranges = planner.ranges(begins, ends)
        return [RawPartition(each, len(ranges)) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See DataSourceStreamReader: the records of one task, counted."""
        from headrace.connectors.log.topics import dlq
        from headrace.pipeline.dead_letter_limit import limited
        from headrace.pipeline.ingest_task import read_records

        assert isinstance(partition, RawPartition), partition
        query, batch, slot_table, limit = _task_properties()
        records = read_records(self._request.job, query, batch, partition.offset_range, slot_table)
        return records if limit is None else limited(records, limit, dlq(self._request.job.topic), partition.tasks)

    def stop(self) -> None:
        """See DataSourceStreamReader."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> RawPlanner:
        from headrace.connectors.log.kafka_partitions import KafkaPartitions
        from headrace.pipeline.raw_planner import RawPlanner

        if self._planner is None:
            request = self._request
            log = KafkaPartitions(request.job.bootstrap, dict(request.job.settings))
            self._planner = RawPlanner(
                request.job.topic, log, request.start, messages_max=request.messages_max, until=request.until
            )
        return self._planner

    def _document(self, offsets: dict[int, int]) -> dict[str, Any]:
        from headrace.pipeline.raw_offsets import document_of

        return document_of(self._request.job.topic, offsets)


def _task_properties() -> tuple[str, int, bytes | None, str | None]:
    """(id of the query as in its checkpoint, micro-batch, slot table and limit if a driver has set them) of this task.

    Raises NotStreaming.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
    batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
    # Replicas drop repeats by query and batch: with a wrong one they would apply rows twice, or drop new ones.
    if context is None or not query or not batch:
        raise NotStreaming(f"{NAME} is read by a streaming query only", action="start it with: headrace ingest run")
    slot_table = context.getLocalProperty(SLOT_TABLE_PROPERTY)
    limit = context.getLocalProperty(LIMIT_PROPERTY) or None
    return query, int(batch), base64.b64decode(slot_table) if slot_table else None, limit
