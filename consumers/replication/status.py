"""Who is alive, by what the status topic says.

Time is the broker's: a node is offline when the newest status read is 3 s younger than that node's own newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.records import Status

OFFLINE_MS = 3_000
INTERVAL_MS = 500


@dataclass(frozen=True, slots=True)
class Heard:
    """One status and the broker's time at which it was appended."""

    timestamp_ms: int
    status: Status


@dataclass(slots=True)
class StatusBoard:
    """The newest status of every node in every group. Pure: fed with records in log order."""

    newest_ms: int = 0
    heard: dict[tuple[str, str], Heard] = field(default_factory=dict)

    def hear(self, timestamp_ms: int, status: Status) -> None:
        """Take one record of the status topic."""
        self.newest_ms = max(self.newest_ms, timestamp_ms)
        self.heard[status.group, status.node] = Heard(timestamp_ms, status)

    def status(self, group: str, node: str) -> Status | None:
        """What a node said last, alive or not."""
        found = self.heard.get((group, node))
        return found.status if found else None

    def alive(self, group: str, node: str) -> bool:
        """Whether the node has spoken within the last 3 s of the broker's time."""
        found = self.heard.get((group, node))
        return found is not None and self.newest_ms - found.timestamp_ms < OFFLINE_MS

    def silent_ms(self, group: str, node: str) -> int:
        """How long a node has said nothing, -1 when it never did."""
        found = self.heard.get((group, node))
        return self.newest_ms - found.timestamp_ms if found else -1

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The statuses of the members that are alive, in the order given."""
        return [self.heard[group, node].status for node in members if self.alive(group, node)]

    def durable_copies(self, group: str, members: Iterable[str], topic_id: str, offset: int) -> int:
        """How many live members hold everything up to `offset` durably, in the topic with that id."""
        return sum(
            1 for status in self.live(group, members) if status.topic_id == topic_id and status.durable_offset >= offset
        )
