"""Decides in the driver about the dead letters of one micro-batch, by what its tasks have counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from headrace.pipeline.dead_letter_limit import NO_LIMIT, RELEASE, WITHHELD, exceeds, too_many_rejected
from headrace.pipeline.raw_source import LIMIT_PROPERTY


class DeadLetterLimit:
    """The limit of one micro-batch; made before its tasks run."""

    def __init__(self, planned: DataFrame, share_max: float, queue: str) -> None:
        self._context = planned.sparkSession.sparkContext
        self._share_max = share_max
        self._queue = queue
        self._counts: dict[str, Any] = {}
        self._observation: Observation | None = None
        self.observed = planned
        """`planned`; what is written of it is counted."""
        if share_max >= NO_LIMIT:
            self._set("")
            return
        self._observation = Observation()
        withheld = F.sum(F.when(F.col("topic").isNull() & (F.col("partition") == WITHHELD), 1).otherwise(0))
        counts = (F.sum("rows").alias("rows"), F.sum("rejected").alias("rejected"), withheld.alias("withheld"))
        self.observed = planned.observe(self._observation, *counts, F.collect_list("reasons").alias("reasons"))
        self._set(str(share_max))

    @property
    def withheld(self) -> bool:
        """Whether tasks have kept letters from the sink."""
        return bool(self._counts.get("withheld"))

    def check(self) -> None:
        """Call this when the batch was written. Raises TooManyRejected."""
        if self._observation is None:
            return
        self._counts = self._observation.get
        rows, rejected = self._counts.get("rows") or 0, self._counts.get("rejected") or 0
        if exceeds(rows, rejected, self._share_max):
            reasons: Counter[str] = Counter()
            for text in self._counts["reasons"]:
                reasons.update(json.loads(text))
            raise too_many_rejected(rows, rejected, reasons, self._queue)

    def release(self) -> None:
        """From now on the tasks of this batch give their letters, and nothing else."""
        self._set(RELEASE)

    def _set(self, limit: str) -> None:
        self._context.setLocalProperty(LIMIT_PROPERTY, limit)
