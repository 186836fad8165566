"""A clock that moves only where a test moves it."""

from __future__ import annotations


class ManualClock:
    """All three clocks of a machine at `now_s`, which a test sets. See Clock."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        """See Clock."""
        return self.now_s

    def boot_ns(self) -> int:
        """See Clock."""
        return int(self.now_s * 1e9)

    def wall_ns(self) -> int:
        """See Clock."""
        return int(self.now_s * 1e9)
