"""The limits of a driver scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.consumers.scheduling.capacity import CapacityLimits

TIMEOUT_S_MAX = 7 * 86_400.0
UNBOUNDED_SLICES = 4
"""How many slices at once a driver has whose steps cannot stop, where a worker is left to others. Between two slices it
waits three times for the interpreter's lock: a sort and a join took a tenth longer beside short queries.
"""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the queries of one node may use. `memory_small_bytes`: see MemoryPool; `short_workers`: see ReadyDrivers."""

    workers: int = 2
    slice_s: float = 0.002
    capacity: CapacityLimits = field(default_factory=CapacityLimits)
    memory_bytes: int = 1_000_000_000
    memory_per_query_bytes: int = 1_000_000_000
    memory_small_bytes: int = 0
    timeout_s_max: float = TIMEOUT_S_MAX
    short_workers: int = 0

    @property
    def unbounded_max(self) -> int:
        """Drivers with steps that cannot stop, at a time: one worker is for the others."""
        return max(1, self.workers - 1)

    def slice_of_s(self, level: int, *, unbounded: bool = False) -> float:
        """The slice of a driver whose query is in a level; `unbounded`: its steps cannot stop."""
        leaves_others = unbounded and self.workers > self.unbounded_max
        return (level + 1) * self.slice_s * (UNBOUNDED_SLICES if leaves_others else 1)
