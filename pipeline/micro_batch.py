"""What Spark planned for a micro-batch: its name, and the stretches of the raw topic that it is to read. Runs in the driver, in `foreachBatch`.

The stretches are asked of the very partitions that Spark would have read, after it has written the batch's offsets to the checkpoint: with all
markers resolved, all losses noticed, and the same when the batch is run again.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import DataFrame

from pipeline.stretch import Stretch
from schemas.errors import HeadraceError

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
SOURCE_CLASS = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDD"


class NotStreaming(HeadraceError):
    """There is no micro-batch here, so messages would have no place in their producer's order."""


class PlanUnknown(HeadraceError):
    """This Spark plans a micro-batch in a way that we do not know: nothing was read."""


def query_of(frame: DataFrame, batch: int) -> str:
    """The streaming query, as its checkpoint names it, whose micro-batch `batch` runs in this thread. Raises NotStreaming."""
    context = frame.sparkSession.sparkContext
    query, running = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
    if query is None or running != str(batch):
        raise NotStreaming("ingest runs as a streaming query only", action="start it with: headrace ingest run")
    return query


def planned_stretches(frame: DataFrame, topic: str) -> list[Stretch]:
    """What the micro-batch `frame` reads of `topic`, at most one stretch of each partition. Raises PlanUnknown."""
    try:
        stretches = _stretches(frame)
    except (Py4JNetworkError, Py4JJavaError):
        raise
    except Py4JError as error:
        raise _unknown(str(error).splitlines()[0]) from error
    check_stretches(stretches, topic)
    return stretches


def check_stretches(stretches: list[Stretch], topic: str) -> None:
    """Raises PlanUnknown for what is no stretch of `topic`, and for two stretches of one partition: they would have no order to keep."""
    for stretch in stretches:
        if stretch.topic != topic or not 0 <= stretch.begin < stretch.end:
            raise _unknown(f"it reads {stretch}")
    if len({stretch.partition for stretch in stretches}) < len(stretches):
        raise _unknown("it reads a partition in two tasks")


def _stretches(frame: DataFrame) -> list[Stretch]:
    rdd = frame._jdf.queryExecution().logical().rdd()
    while not (parents := rdd.dependencies()).isEmpty():
        if parents.size() != 1:
            raise _unknown("it reads several sources")
        rdd = parents.apply(0).rdd()
    if (found := rdd.getClass().getName()) != SOURCE_CLASS:
        raise _unknown(f"it reads a {found}")
    return [_stretch(inputs.apply(place)) for inputs in _inputs(rdd) for place in range(inputs.size())]


def _inputs(rdd: Any) -> list[Any]:
    """What each task of the source reads."""
    return [partition.inputPartitions() for partition in rdd.partitions()]


def _stretch(planned: Any) -> Stretch:
    offsets = planned.offsetRange()
    partition = offsets.topicPartition()
    return Stretch(partition.topic(), partition.partition(), offsets.fromOffset(), offsets.untilOffset())


def _unknown(what: str) -> PlanUnknown:
    return PlanUnknown(
        f"this Spark plans a micro-batch in an unknown way: {what}", action="run it with the version that is asked for"
    )
