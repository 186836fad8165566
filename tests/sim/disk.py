"""The simulated disk of a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.consumers.replication.group_state import GroupState
from tests.sim.world import SimRecord


@dataclass(slots=True)
class Disk:
    """What a crash leaves: synced journal records by version, and the last committed seal with its writes."""

    journal: dict[int, SimRecord[bytes]] = field(default_factory=dict)
    state: bytes | None = None
    sealed: dict[str, int] = field(default_factory=dict)
    full: bool = False
    wiped_ms: int = -1_000_000
    wrong: str = ""
    corrupted: bool = False
    tampered: bool = False

    def durable_offset(self) -> int:
        """Newest offset up to which this disk holds every record; -1 when the data is known to be wrong."""
        if self.wrong:
            return -1
        newest = max(self.journal, default=0)
        if newest:
            return self.journal[newest].offset
        return GroupState.from_bytes(self.state).offset if self.state else -1
