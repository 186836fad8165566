"""Timeouts: a deadline on the monotonic clock, and the grace period before a missing topic counts as gone."""

from __future__ import annotations

import time
from collections.abc import Callable

GONE_AFTER_S = 10.0
SILENCE_S = 7.0
"""Between two reports of one absence: above the longest interval at which a topic is looked up."""


class Deadline:
    """`timeout_s` from now, on a clock that never jumps."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
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

    The report must be the same for `gone_after_s`, because the consequence is final for the topic's group. Time in
    which nothing was known counts for nothing: a broker may have restarted twice.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, gone_after_s: float | None = None) -> None:
        """`gone_after_s` None = GONE_AFTER_S."""
        self._clock_s = clock_s
        self._gone_after_s = gone_after_s
        # The first and the newest report.
        self._reports_s: dict[str, tuple[float, float]] = {}

    def present(self, topic: str) -> None:
        """Record that the topic exists."""
        self._reports_s.pop(topic, None)

    def unknown(self, topic: str) -> None:
        """Record that the log did not answer."""
        self._reports_s.pop(topic, None)

    def missing(self, topic: str) -> bool:
        """Record a report that the topic is missing; whether it was missing for `gone_after_s` without a break."""
        now_s = self._clock_s()
        since_s, newest_s = self._reports_s.get(topic, (now_s, now_s))
        # A process that was stopped has reports of before and after, and none of between.
        if now_s - newest_s > SILENCE_S:
            since_s = now_s
        self._reports_s[topic] = since_s, now_s
        return now_s - since_s >= (GONE_AFTER_S if self._gone_after_s is None else self._gone_after_s)
