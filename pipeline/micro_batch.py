"""The plan of a micro-batch: its query, and the offset ranges of the raw topic that it reads. Runs in the
driver, in `foreachBatch`.

The ranges are those that Spark itself would read. Spark has written the batch's offsets to the checkpoint
before: markers are resolved, losses are detected, and a replayed batch has the same ranges.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import DataFrame

from headrace.pipeline.offset_ranges import OffsetRange
from headrace.schemas.errors import HeadraceError

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
SOURCE_CLASS = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDD"


class NotStreaming(HeadraceError):
    """No micro-batch is running, so messages would have no position among those of their producer."""


class PlanUnknown(HeadraceError):
    """This Spark plans a micro-batch in a way that this build does not know: nothing was read."""


def query_id(frame: DataFrame, batch: int) -> str:
    """The id, as in its checkpoint, of the streaming query whose micro-batch `batch` runs in this thread.

    Raises NotStreaming.
    """
    context = frame.sparkSession.sparkContext
    query, running = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
    # Replicas drop repeats by query and batch: with a wrong id they would apply rows twice, or drop new ones.
    if query is None or running != str(batch):
        raise NotStreaming("ingest runs as a streaming query only", action="start it with: headrace ingest run")
    return query


def planned_offset_ranges(frame: DataFrame, topic: str) -> list[OffsetRange]:
    """The offset ranges of `topic` that the micro-batch `frame` reads, at most one per partition.

    Raises PlanUnknown.
    """
    try:
        ranges = _offset_ranges(frame)
    except (Py4JNetworkError, Py4JJavaError):
        # The JVM is gone, or Spark itself failed: neither is about how it plans.
        raise
    except Py4JError as error:
        # A method or a class that this Spark does not have.
        raise _unknown(str(error).splitlines()[0]) from error
    check_offset_ranges(ranges, topic)
    return ranges


def check_offset_ranges(ranges: list[OffsetRange], topic: str) -> None:
    """Raises PlanUnknown for a range of another topic, an empty range, and two ranges of one partition."""
    for each in ranges:
        if each.topic != topic or not 0 <= each.begin < each.end:
            raise _unknown(f"it reads {each}")
    # Two tasks run concurrently: their rows would reach the forward log in no defined order.
    if len({each.partition for each in ranges}) < len(ranges):
        raise _unknown("it reads a partition in two tasks")


def _offset_ranges(frame: DataFrame) -> list[OffsetRange]:
    # Spark has no public call for the plan of a batch; the RDD chain ends at the source's own partitions.
    rdd = frame._jdf.queryExecution().logical().rdd()
    while not (parents := rdd.dependencies()).isEmpty():
        if parents.size() != 1:
            raise _unknown("it reads several sources")
        rdd = parents.apply(0).rdd()
    if (found := rdd.getClass().getName()) != SOURCE_CLASS:
        raise _unknown(f"it reads a {found}")
    return [_offset_range(inputs.apply(index)) for inputs in _task_inputs(rdd) for index in range(inputs.size())]


def _task_inputs(rdd: Any) -> list[Any]:
    """The input partitions of each task of the source."""
    return [partition.inputPartitions() for partition in rdd.partitions()]


def _offset_range(planned: Any) -> OffsetRange:
    offsets = planned.offsetRange()
    partition = offsets.topicPartition()
    return OffsetRange(partition.topic(), partition.partition(), offsets.fromOffset(), offsets.untilOffset())


def _unknown(what: str) -> PlanUnknown:
    return PlanUnknown(
        f"this Spark plans a micro-batch in an unknown way: {what}",
        action="use the version of Spark that Headrace installs",
    )
