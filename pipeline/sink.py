"""`df.writeStream|write.format("headrace")`: typed rows of one table into the forward logs.

A message is (producer, batch, sequence). In a stream these are the query's id, the batch's id, and the partition with
a hash of what the task wrote before; so a batch that runs again changes nothing. In a batch write the producer is new
for each write, and a task that runs again repeats its messages. Rows are upserts: a write that was ended midway may
have left some, and writing it again gives the same content.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.pipeline.checkpoint import BoundCluster
from headrace.pipeline.source_options import WriteOptions, near
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.tables import TIME_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.sink_task import TaskWritten

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
SPECULATION = "spark.speculation"
QUORUM_TIMEOUT_MS = 30_000
"""How long the members may take to hold a whole batch, which is much more than one write of a client."""
_FIELDS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, BooleanType, StringType)
_TIMES = (TimestampNTZType, TimestampType, LongType)


class SinkRefused(HeadraceError):
    """Rows, a mode or a setting with which nothing can be written."""


class TaskCommit(WriterCommitMessage):
    """What a task wrote, for the driver. Pickled: the process that ends a batch loads the classes only if it reads this.

    `membership_id` is that of the cluster, of a task of a stream.
    """

    def __init__(self, written: TaskWritten, membership_id: str = "") -> None:
        self._written = pickle.dumps(written)
        self.membership_id = membership_id

    def written(self) -> TaskWritten:
        """What it wrote."""
        written: TaskWritten = pickle.loads(self._written)
        return written


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options
        self._producer = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """See DataSourceArrowWriter; runs in a worker."""
        return _write(self._options, iterator, self._producer, 1)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Wait for the quorum. Raises QuorumTimeout, TopicReplaced."""
        confirm(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType, checkpoint: str = "") -> None:
        check_columns(options, schema)
        self._options = options
        # It goes to the tasks with what the checkpoint knows: they are connected, and this process is not.
        self._bound = BoundCluster(options.target.cluster, checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """See DataSourceStreamArrowWriter; runs in a worker. Raises CheckpointForeign."""
        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        if not query or not batch:
            raise SinkRefused("Spark names no query and no batch to its tasks", action="run it as a streaming query")
        return _write(self._options, iterator, query, int(batch), self._bound)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Wait for the quorum. Raises QuorumTimeout, TopicReplaced, CheckpointForeign."""
        del batchId
        for message in messages:
            if isinstance(message, TaskCommit):
                self._bound.check(message.membership_id)
        confirm(self._options, messages)


class TopicReplaced(StateUnknown):
    """The log of a group was deleted and made again while a batch was written."""


def check_columns(options: WriteOptions, schema: StructType) -> None:
    """Raises SinkRefused for columns that no table can take."""
    name = options.target.name
    types = {field.name: field.dataType for field in schema.fields}
    # Spark would hand both over under names of its own, and columns of a table stay.
    if twice := [field for field in schema.names if schema.names.count(field) > 1]:
        raise SinkRefused(f"the rows for {name} have two columns {twice[0]!r}", action="rename one, or leave it out")
    if TIME_COLUMN not in types:
        raise SinkRefused(f"the rows for {name} have no column 'time'", action=near(TIME_COLUMN, types))
    if not isinstance(types[TIME_COLUMN], _TIMES):
        raise SinkRefused(
            f"column 'time' is {types[TIME_COLUMN].simpleString()}",
            action="make it a timestamp, or a long of nanoseconds since 1970",
        )
    for tag in options.tags:
        if tag not in types:
            raise SinkRefused(f"the rows have no column {tag!r}, which option tags names", action=near(tag, types))
        if not isinstance(types[tag], StringType):
            raise SinkRefused(f"tag {tag!r} is {types[tag].simpleString()}", action="cast it to string")
    for column, kind in types.items():
        if column != TIME_COLUMN and not _is_field(kind):
            raise SinkRefused(
                f"column {column!r} is {kind.simpleString()}, a type that no field has",
                action="cast it to double, bigint, boolean or string, or leave it out",
            )


def confirm(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Wait until `quorum` members hold what the tasks of a batch wrote. Raises QuorumTimeout, TopicReplaced, RowsRepeat."""
    if options.makes_table:
        from headrace.producers.repeated_rows import TimeSample, refuse_repeats

        # A task has seen its own rows alone.
        samples = (message.written().times for message in messages if isinstance(message, TaskCommit))
        refuse_repeats(TimeSample.of_all(samples), options.target.name)
    if options.quorum < 2:
        # The tasks have waited for the log.
        return
    from headrace.pipeline.sink_task import TaskWritten
    from headrace.pipeline.writer_cluster import writer_cluster
    from headrace.producers.acks import Quorum

    with writer_cluster(options.target) as cluster:
        quorum = Quorum(cluster.log, cluster.topics, cluster.routing, cluster.watch, options.quorum, QUORUM_TIMEOUT_MS)
        total = TaskWritten()
        for message in messages:
            assert isinstance(message, TaskCommit), message
            written = message.written()
            total.rows += written.rows
            total.add(written.records.items())
            for group, topic_id in written.topic_ids.items():
                topic = cluster.topic_of(group)
                if topic_id != cluster.log.describe(topic).topic_id:
                    raise TopicReplaced(
                        f"topic {topic} was made again while {total.rows:,} rows were written",
                        action="check the cluster; writing the batch again is safe",
                    )
        quorum.prepare(total.records)
        quorum.confirm(total.records, total.rows)


def _is_field(kind: DataType) -> bool:
    return isinstance(kind, _FIELDS)


def _write(
    options: WriteOptions,
    batches: Iterator[pa.RecordBatch],
    producer: str,
    batch: int,
    bound: BoundCluster | None = None,
) -> TaskCommit:
    """What a task writes; `bound` is given for a stream, whose batch has one after it."""
    context = TaskContext.get()
    assert context is not None, "runs in a task"
    # Spark hands its settings to tasks as local properties.
    if (context.getLocalProperty(SPECULATION) or "").lower() == "true":
        raise SinkRefused(
            "speculation is on: two attempts of a task would write at the same time",
            action=f"set {SPECULATION} to false",
        )
    # Here, since the processes that plan a write import this module too, and need none of it.
    from headrace.pipeline.sink_task import SinkTask
    from headrace.pipeline.task_positions import TaskPositions
    from headrace.pipeline.worker_process import begin_task
    from headrace.pipeline.writer_cluster import writer_cluster

    begin_task()
    with writer_cluster(options.target) as cluster:
        membership_id = ""
        if bound is not None:
            membership_id = cluster.log.describe(cluster.topics.membership).topic_id
            bound.compare(membership_id)
        cluster.tables.refresh()
        positions = TaskPositions(producer, batch, context.partitionId())
        task = SinkTask(cluster, options, positions, of_stream=bound is not None)
        return TaskCommit(task.write(batches), membership_id)
