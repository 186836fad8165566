"""How many records of its topic an ingest query has not read, asked of Kafka now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.connectors.log.kafka_partitions import PartitionLog
from headrace.pipeline.ingest_progress import UNKNOWN
from headrace.schemas.errors import HeadraceError

LAG_INTERVAL_S = 1.0
LAG_RETRY_S = 5.0
LAG_TIMEOUT_S = 2.0


class RawLag:
    """The ends of a topic's partitions, at most LAG_INTERVAL_S old. Used by one thread."""

    def __init__(self, topic: str, log: PartitionLog, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._log = log
        self._clock_s = clock_s
        self._ends: Mapping[int, int] | None = None
        self._due_s = clock_s()

    def records(self, position: Mapping[int, int] | None) -> int:
        """Records between a position and the end of the topic; -1 while either is unknown."""
        if position is None:
            return UNKNOWN
        if self._clock_s() >= self._due_s:
            self._ask()
        if self._ends is None:
            return UNKNOWN
        return sum(max(0, end - position.get(partition, 0)) for partition, end in self._ends.items())

    def _ask(self) -> None:
        try:
            self._ends, wait_s = self._log.state(self._topic).ends, LAG_INTERVAL_S
        except HeadraceError:
            # Whoever stops the run waits for this answer: a broker that is away is not asked all the time.
            self._ends, wait_s = None, LAG_RETRY_S
        self._due_s = self._clock_s() + wait_s
