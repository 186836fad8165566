"""A change of the slot table between its `Change` record and the end of its migration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from headrace.consumers.membership.groups import formal_add, formal_remove, pre_add, pre_remove
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.membership_records import ChangeKind, PreDone


class Phase(StrEnum):
    """How far a change is: groups take their new members, the table is due, data moves, nothing is left."""

    PRE = "pre"
    FORMAL = "formal"
    MIGRATING = "migrating"
    DONE = "done"
    CANCELLED = "cancelled"


class SlotState(StrEnum):
    """A slot at its holder: not moved by the last change, its data on the way, or all of it there."""

    NONE = "none"
    PULLING = "pulling"
    DONE = "done"


@dataclass(frozen=True)
class GroupMembers:
    """The members of one group before a change, in its first phase and after it; none: there is no such group."""

    group: str
    before: tuple[str, ...]
    pre: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class RunningChange:
    """The change number `number` from table `base` to `table`.

    `received` has, for each node that reported moved slots as done, those slots as bits of a number: 10,000 slots
    of many members stay small, and a new report is one operation. `began` is the number of its record: a node that
    has read so many knows of the change. `rate` is how many bytes a second each node fetches at most, 0 without a
    limit.
    """

    number: int
    request: str
    kind: ChangeKind
    node: str
    store: str
    base: SlotTable
    table: SlotTable
    formal: bool = False
    pre_done: tuple[PreDone, ...] = ()
    received: tuple[tuple[str, int], ...] = ()
    began: int = 0
    rate: int = 0

    @property
    def phase(self) -> Phase:
        """How far it is."""
        if not self.formal:
            return Phase.PRE if self.groups_waiting else Phase.FORMAL
        return Phase.DONE if self.migrated else Phase.MIGRATING

    @property
    def groups_waiting(self) -> tuple[str, ...]:
        """The groups of the old table that have not reported the first phase as done, in ring order."""
        reported = {each.group for each in self.pre_done}
        return tuple(header for header in self.base.headers if header not in reported)

    @property
    def migrated(self) -> bool:
        """Whether every member of every group has the slots that its group gained."""
        return not any(self.members_waiting())

    @cached_property
    def gained(self) -> dict[str, int]:
        """The slots that each group gains, as bits, in ring order."""
        slots: dict[str, list[int]] = {}
        for slot, _ in self.table.moved:
            slots.setdefault(self.table.holder(slot), []).append(slot)
        return {header: bits_of(slots[header]) for header in self.table.headers if header in slots}

    def due_from(self, node: str) -> int:
        """The slots that a node must report as done, as bits."""
        return _union(gained for header, gained in self.gained.items() if node in self.table.group(header))

    def with_received(self, node: str, slots: int) -> RunningChange:
        """With slots that a node has reported as done."""
        received = dict(self.received)
        received[node] = received.get(node, 0) | slots
        return replace(self, received=tuple(sorted(received.items())))

    def members_waiting(self) -> Iterator[tuple[str, str, int]]:
        """(group, member, slots it has not reported as done), where there are any."""
        received = dict(self.received)
        for header, gained in self.gained.items():
            for member in self.table.group(header):
                if missing := gained & ~received.get(member, 0):
                    yield header, member, missing.bit_count()

    @property
    def slots_done(self) -> int:
        """The moved slots that all members of their new group have."""
        return self.done.bit_count()

    @property
    def slots_total(self) -> int:
        """How many slots move."""
        return len(self.table.moved)

    def slot_state(self, slot: int) -> SlotState:
        """A slot at its new holder. Raises UnknownSlot."""
        if self.table.previous_holder(slot) is None or not self.formal:
            return SlotState.NONE
        return SlotState.DONE if self.is_done(slot) else SlotState.PULLING

    def is_done(self, slot: int) -> bool:
        """Whether all members of its new group have a slot that moved."""
        return bool(self.done >> slot & 1)

    @cached_property
    def done(self) -> int:
        """The moved slots that all members of their new group have, as bits."""
        received, done = dict(self.received), 0
        for header, gained in self.gained.items():
            for member in self.table.group(header):
                gained &= received.get(member, 0)
            done |= gained
        return done

    def members(self, group: str) -> tuple[str, ...]:
        """The members of a group at present: those of the first phase from its report on. Raises UnknownNode."""
        if self.formal:
            return self.table.group(group)
        return self.base.group(group) if group in self.groups_waiting else self.pre_members(group)

    def pre_members(self, group: str) -> tuple[str, ...]:
        """The members of a group of the old table in the first phase, any of whom may lead it. Raises UnknownNode."""
        return _pre(self, self.base.group(group))

    def groups(self) -> list[GroupMembers]:
        """Every group of the old and the new table, in ring order; what ends comes last."""
        ended = [header for header in self.base.headers if header not in self.table.headers]
        return [self._members(header) for header in (*self.table.headers, *ended)]

    def _members(self, header: str) -> GroupMembers:
        if header not in self.base.headers:
            return GroupMembers(header, (), (), self.table.group(header))
        before = self.base.group(header)
        return GroupMembers(header, before, _pre(self, before), _formal(self, before))


def _pre(change: RunningChange, members: tuple[str, ...]) -> tuple[str, ...]:
    if change.kind is ChangeKind.ADD:
        return pre_add(members, change.node, change.table.nodes)
    if change.kind is ChangeKind.REMOVE:
        return pre_remove(members, change.node, change.base.nodes, change.table.replication)
    return members


def _formal(change: RunningChange, members: tuple[str, ...]) -> tuple[str, ...]:
    if change.kind is ChangeKind.ADD:
        return formal_add(members, change.node, change.table.nodes, change.table.replication)
    if change.kind is ChangeKind.REMOVE:
        return formal_remove(members, change.node, change.base.nodes, change.table.replication)
    return members


def bits_of(slots: Iterable[int]) -> int:
    """Slots as the bits of a number."""
    numbers = np.fromiter(slots, np.int64)
    # All at once: a number of a million bits is copied with each bit that is added.
    marks = np.zeros(numbers.max(initial=-1) + 1, np.bool_)
    marks[numbers] = True
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")


def _union(parts: Iterable[int]) -> int:
    found = 0
    for part in parts:
        found |= part
    return found
