"""The clocks of one machine, as one object that a simulation replaces."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks that differ when a machine is suspended, or its date is set."""

    def monotonic_s(self) -> float:
        """Seconds from any origin: for durations; never jumps, and need not advance while a machine is suspended."""
        ...

    def boot_ns(self) -> int:
        """Nanoseconds since boot, suspended time included."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC, as this machine believes: it may be wrong, and jump."""
        ...


class SystemClock:
    """The clocks of the machine that this process runs on."""

    def monotonic_s(self) -> float:
        """See Clock."""
        return time.monotonic()

    def boot_ns(self) -> int:
        """See Clock."""
        # CLOCK_MONOTONIC does not advance while a machine is suspended: a node would wake up unfenced, with its
        # role of before.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        """See Clock."""
        return time.time_ns()


SYSTEM_CLOCK: Clock = SystemClock()
