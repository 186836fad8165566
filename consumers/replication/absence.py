"""When a topic that the log says does not exist is believed to be gone.

A broker that has just started answers before it has read its own metadata, and knows no topic for a moment. What follows from a topic that is gone is
final for its group, so the answer must stay the same for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

GONE_AFTER_S = 10.0


class Absence:
    """Since when each topic has been said to be missing. Owned by one thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s: dict[str, float] = {}

    def present(self, topic: str) -> None:
        """The topic was seen."""
        self._since_s.pop(topic, None)

    def missing(self, topic: str) -> bool:
        """The topic was said not to exist: whether that is believed, since it was said for GONE_AFTER_S without a break."""
        return self._clock_s() - self._since_s.setdefault(topic, self._clock_s()) >= GONE_AFTER_S
