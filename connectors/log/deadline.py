"""A point in time by which something must be done."""

from __future__ import annotations

import time


class Deadline:
    """`timeout_s` from now, by a clock that never jumps."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    def passed(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._end_s
