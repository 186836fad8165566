"""The clocks of one machine, as one object that a simulation replaces."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
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


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that has passed, by the clock that a suspended machine does not stop."""

    boot_ns: int
    clock: Clock = SYSTEM_CLOCK

    @property
    def age_s(self) -> float:
        """Seconds since then."""
        return (self.clock.boot_ns() - self.boot_ns) / 1e9

    def iso(self) -> str:
        """The moment in ISO 8601, UTC, by the date of this machine as it is now; cut to milliseconds."""
        # Cut and never rounded: an instant that is shown must not be younger than the moment.
        wall_ns = self.clock.wall_ns() - (self.clock.boot_ns() - self.boot_ns)
        return instant(wall_ns // 1_000_000)


def instant(milliseconds: int) -> str:
    """Milliseconds since 1970 in ISO 8601, UTC."""
    seconds, rest = divmod(milliseconds, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
