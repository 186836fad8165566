"""Decides in the driver about the dead letters of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headrace.pipeline.dead_letter_limit import COUNT, NO_LIMIT, counted_of, exceeds, too_many_rejected
from headrace.pipeline.failures import TooManyRejected, explain
from headrace.pipeline.raw_source import LIMIT_PROPERTY


def write_limited(
    planned: DataFrame, write: Callable[[DataFrame], None], share_max: float, topic: str, queue: str
) -> None:
    """Write a micro-batch of a raw topic, unless too many of its lines are refused. Raises TooManyRejected.

    A batch is counted as a whole where one of its tasks has too many: other partitions may be well.
    """
    context = planned.sparkSession.sparkContext
    context.setLocalProperty(LIMIT_PROPERTY, "" if share_max >= NO_LIMIT else str(share_max))
    try:
        write(planned)
        return
    except Exception as error:
        if not isinstance(explain(error, topic), TooManyRejected):
            raise
    context.setLocalProperty(LIMIT_PROPERTY, COUNT)
    counts = counted_of(bytes(row.value) for row in planned.where(F.col("topic").isNull()).select("value").collect())
    if exceeds(counts.rows, counts.rejected, share_max):
        raise too_many_rejected(counts.rows, counts.rejected, counts.reasons, queue)
    context.setLocalProperty(LIMIT_PROPERTY, "")
    write(planned)
