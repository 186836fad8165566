"""Timeouts: a deadline on the monotonic clock, and the grace period before a missing topic counts as gone."""

from __future__ import annotations

import time
from collections.abc import Callable

GONE_AFTER_S = 10.0


class Deadline:
    """`timeout_s` from now, on a clock that never jumps."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    def passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end_s


# A broker answers before it has loaded its metadata: right after its start every topic is missing.
class GracePeriod:
    """Decides when a topic that the broker reports as missing counts as gone. Owned by one thread.

    The report must be the same for GONE_AFTER_S, because the consequence is final for the topic's group.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s: dict[str, float] = {}

    def present(self, topic: str) -> None:
        """Record that the topic exists."""
        self._since_s.pop(topic, None)

    def missing(self, topic: str) -> bool:
        """Record a report that the topic is missing; whether it was missing for GONE_AFTER_S without a break."""
        return self._clock_s() - self._since_s.setdefault(topic, self._clock_s()) >= GONE_AFTER_S
