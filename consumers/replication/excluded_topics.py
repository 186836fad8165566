"""Topics that cannot be read at present: each stops its own group, and the others are read on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.connectors.clock import Clock

# A topic is tried again at the cost of a new reader for all of them.
DELAY_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class _Excluded:
    """A topic that could not be read on: why, and when it is tried again."""

    reason: str
    retry_at_s: float
    delay_s: float


class ExcludedTopics:
    """Why topics are excluded, and for how long: twice as long after every failure. `reason` is for any thread."""

    def __init__(self, delay_s: float, clock: Clock) -> None:
        self._delay_s = delay_s
        self._clock = clock
        self._excluded: dict[str, _Excluded] = {}

    def add(self, topics: Iterable[str], reason: str) -> None:
        """Exclude topics, again or for the first time."""
        for topic in topics:
            before = self._excluded.get(topic)
            delay_s = min(2 * before.delay_s, DELAY_S_MAX) if before is not None else self._delay_s
            self._excluded[topic] = _Excluded(reason, self._clock.monotonic_s() + delay_s, delay_s)

    def reason(self, topic: str) -> str:
        """Why a topic cannot be read on, empty while it can."""
        excluded = self._excluded.get(topic)
        return excluded.reason if excluded is not None else ""

    def retry_at_s(self, topic: str) -> float:
        """When a topic may be read again, on the clock that was handed in; -inf for one that may be read now."""
        excluded = self._excluded.get(topic)
        due = excluded is None or self._clock.monotonic_s() >= excluded.retry_at_s
        return -math.inf if excluded is None or due else excluded.retry_at_s

    def readmit(self, topic: str) -> None:
        """A topic was read again."""
        self._excluded.pop(topic, None)
