"""The failure detector: which nodes are online, decided from the status topic.

Time is the broker's. A node is offline when the newest status of any node is 3 s younger than that node's own
newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.schemas.records import Status

OFFLINE_MS = 3_000
HEARTBEAT_INTERVAL_MS = 500


@dataclass(frozen=True, slots=True)
class ReceivedStatus:
    """One status and the broker's time at which it was appended."""

    timestamp_ms: int
    status: Status


@dataclass(slots=True)
class FailureDetector:
    """The newest status of every node in every group. Pure: fed with records in log order."""

    newest_ms: int = 0
    received: dict[tuple[str, str], ReceivedStatus] = field(default_factory=dict)

    def observe(self, timestamp_ms: int, status: Status) -> None:
        """Take one record of the status topic."""
        # The maximum, since the broker's clock may be set back, and a node must not come back to life by
        # that.
        self.newest_ms = max(self.newest_ms, timestamp_ms)
        self.received[status.group, status.node] = ReceivedStatus(timestamp_ms, status)

    def status(self, group: str, node: str) -> Status | None:
        """A node's newest status, alive or not."""
        found = self.received.get((group, node))
        return found.status if found else None

    def alive(self, group: str, node: str) -> bool:
        """Whether a status of the node was appended within the last 3 s of the broker's time."""
        # Age is the distance between two broker timestamps, never the local clock. A reader that lags, or
        # whose clock is wrong, sees every node equally old and takes nobody for dead.
        found = self.received.get((group, node))
        return found is not None and self.newest_ms - found.timestamp_ms < OFFLINE_MS

    def silent_ms(self, group: str, node: str) -> int:
        """The age of a node's newest status, -1 when there is none."""
        found = self.received.get((group, node))
        return self.newest_ms - found.timestamp_ms if found else -1

    def online(self) -> list[Status]:
        """The newest status of every live member of every group."""
        # A copy of the items: the receiving thread adds members while other threads read.
        return [found.status for (group, node), found in list(self.received.items()) if self.alive(group, node)]

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The statuses of the members that are alive, in the order given."""
        return [self.received[group, node].status for node in members if self.alive(group, node)]

    def durable_copies(self, group: str, members: Iterable[str], topic_id: str, offset: int) -> int:
        """How many live members hold everything up to `offset` durably, in the topic with that id."""
        # Offsets of a recreated topic mean nothing in the new one, so the topic's id is compared
        # as well.
        return sum(
            1 for status in self.live(group, members) if status.topic_id == topic_id and status.durable_offset >= offset
        )
