"""What a round of a sender keeps of its groups, and of what is under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.selection import SettledOrders
from headrace.schemas.sync_records import SyncDelete, SyncFile


@dataclass(slots=True)
class UnderWay:
    """A file that is being sent. `in_flight` waits for Kafka: -1 the manifest, else a chunk; None for nothing."""

    listed: ListedFile
    body: SyncFile
    announced: bool = False
    announced_s: float = 0.0
    in_flight: int | None = None
    sent_below: int = 0


@dataclass(slots=True)
class GroupDeletes:
    """Parts of a group's deletes that wait; the first one is under way when it has a number."""

    parts: deque[tuple[SyncDelete, ...]]
    number: int = 0
    sent: bool = False
    sent_s: float = 0.0
    tries: int = 0
    left: bool = False

    @property
    def done(self) -> bool:
        return not self.parts


@dataclass(slots=True)
class ListedGroup:
    """A group of the store in a round: its deletes, and the files that were undecided when it began."""

    listing: Listing
    deletes: GroupDeletes
    files: dict[str, ListedFile] = field(default_factory=dict)
    settled: SettledOrders = field(default_factory=lambda: SettledOrders(()))
