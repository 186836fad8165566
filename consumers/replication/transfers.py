"""What a group must hand over to those that took slots from it, in the order of its log: replicated state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.consumers.replication.cut_memory import CutMemory
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition, Rank, Slots


@dataclass(frozen=True, slots=True)
class Transfer:
    """A record, or a part of it, that a target must accept; without a rank it is a part of a takeover.

    `offset` is that of the record in the log of this group.
    """

    position: HandOverPosition
    rank: Rank | None
    slots: Slots
    offset: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The newest record concerns slots of another group: the leader appends it to that group's topic.

    `previous` is the position that the record there must name.
    """

    target: GroupKey
    topic: str
    transfer: Transfer
    previous: HandOverPosition

    @property
    def position(self) -> HandOverPosition:
        """Its place in the order of what that group must accept."""
        return self.transfer.position


@dataclass(slots=True)
class Target:
    """A group that took slots, the newest position that it accepted, and what comes behind it, in order."""

    key: GroupKey
    topic: str
    accepted: HandOverPosition = BEGINNING
    outstanding: list[HandOver] = field(default_factory=list)

    def add(self, transfer: Transfer) -> HandOver:
        """One more thing that it must accept."""
        self.outstanding.append(HandOver(self.key, self.topic, transfer, self.newest))
        return self.outstanding[-1]

    def keep(self, kept: list[HandOver]) -> None:
        """Nothing but these is due any more; each names the one that is before it now."""
        # Another list: views share the one of before.
        self.outstanding = []
        for each in kept:
            self.add(each.transfer)

    @property
    def newest(self) -> HandOverPosition:
        """The position that the next transfer follows."""
        return self.outstanding[-1].position if self.outstanding else self.accepted


def concerned_slots(due: HandOver, cuts: Mapping[int, CutMemory]) -> Slots:
    """The slots of what a group must accept."""
    if due.transfer.rank is not None:
        return due.transfer.slots
    return dict(cuts[due.position.version].targets)[due.target]
