"""Logs of several groups whose slots move, with the rows in plain text, for tests of replicas without a store."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.consumers.replication.actions import Action
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.replica import Replica
from headrace.schemas.group_changes import (
    Barrier,
    BarrierPhase,
    GroupKey,
    HandOverAccepted,
    MovedTo,
    Slots,
)
from headrace.schemas.messages import (
    NO_CHAIN,
    Anchor,
    Body,
    Claim,
    Leadership,
    Message,
    ProducerPosition,
    Write,
    decode_message,
    encode_message,
)

ANCHOR = Anchor(-1, 0, NO_CHAIN)
SLOTS_TOTAL = 8


def rows_write(rows: Mapping[str, int], table_version: int = 1) -> Write:
    """A write of values by key; the first digit of a key is its slot."""
    return Write("db", "t", 1, table_version, len(rows), json.dumps(dict(rows), sort_keys=True).encode())


def rows_of(write: Write) -> dict[str, int]:
    """The inverse of `rows_write`."""
    found: dict[str, int] = json.loads(write.rows)
    return found


def slots_of(write: Write, slots_total: int) -> Slots:
    """The slots of such a write."""
    assert slots_total == SLOTS_TOTAL
    return tuple(sorted({int(key[0]) for key in rows_of(write)}))


class SlotLog:
    """The log of one group with a replica that has applied all of it."""

    def __init__(self, group: str, members: tuple[str, ...], era: int = 1, birth: int = 1, gains: Slots = ()) -> None:
        self.key = GroupKey(group, birth)
        self.topic = f"c.forward.{group}.{birth}"
        self.values: list[bytes] = []
        self.actions: list[list[Action]] = []
        self.birth = members, era, gains
        self.replica = self.new_replica()
        self.incarnations = 0

    def new_replica(self) -> Replica:
        """A replica that has read nothing."""
        members, era, gains = self.birth
        return Replica(members, era=era, gains=gains, slots_of=slots_of)

    @property
    def leader(self) -> Leadership:
        """The leader of the group, which has one."""
        assert self.replica.state.leader is not None
        return self.replica.state.leader

    def append(self, body: Body, producer: str | None = None, batch: int = 1, sequence: int = 0) -> list[Action]:
        """One more record; a producer of its own unless one is named."""
        name = producer or f"r{len(self.values)}"
        return self.append_value(encode_message(Message(ProducerPosition(name, batch, sequence), body)))

    def append_value(self, value: bytes) -> list[Action]:
        """One more record."""
        self.values.append(value)
        self.actions.append(self.replica.apply(len(self.values) - 1, value, (("format", b"3"),)))
        return self.actions[-1]

    def claim(self, node: str) -> Leadership:
        """A node claims the next epoch."""
        self.incarnations += 1
        wanted = Leadership(self.replica.state.epoch + 1, node, f"i{self.incarnations}")
        self.append(Claim(wanted, ANCHOR, 1_000_000, 1 << 40))
        return wanted

    def barrier(
        self,
        phase: BarrierPhase,
        change: int = 1,
        table_version: int = 2,
        members: tuple[str, ...] = (),
        moves: Mapping[SlotLog, Slots] | None = None,
        gains: Slots = (),
        leader: Leadership | None = None,
    ) -> list[Action]:
        """The leader appends a barrier; without members they stay."""
        leader = leader or self.replica.state.leader or Leadership(0, "", "")
        moved = tuple(MovedTo(to.key, to.topic, slots) for to, slots in (moves or {}).items())
        members = members or self.replica.state.changes.members
        return self.append(Barrier(leader, ANCHOR, change, phase, table_version, SLOTS_TOTAL, members, moved, gains))

    def hand_overs(self, to: SlotLog, source: Replica | None = None) -> list[bytes]:
        """The records that a leader with this replica appends to the log of another group, in order."""
        view = ChangeView.of((source or self.replica).state.changes)
        found = []
        for each in view.due.get(to.key, ()):
            message = None if each.transfer.rank is None else decode_message(self.values[each.transfer.offset])
            body = view.record_of(self.key, each, message)
            found.append(encode_message(Message(ProducerPosition("a leader", 1, 0), body)))
        return found

    def hand_over(self, to: SlotLog) -> list[list[Action]]:
        """Everything that is due arrives, and is accepted here."""
        found = [to.append_value(value) for value in self.hand_overs(to)]
        self.accept(to)
        return found

    def accept(self, to: SlotLog) -> None:
        """The leader reads how far the other group has accepted, and appends that."""
        origin = to.replica.state.changes.origins.get(self.key)
        leader = self.replica.state.leader
        if origin is not None and leader is not None:
            self.append(HandOverAccepted(leader, to.key, origin.position))
