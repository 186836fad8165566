"""Which barrier the log of a group lacks, by what the membership log has decided. Pure.

Whoever leads the group appends it, with its own leadership. A repeat is ignored by every replica. So a new leader
decides from the two logs alone, and never by what a former one has done.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.transfers import concerned_slots
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey, MovedTo, Slots
from headrace.schemas.messages import Anchor, Leadership


@dataclass(frozen=True, slots=True)
class BarrierDue:
    """A barrier without its leader; see `Barrier`."""

    change: int
    phase: BarrierPhase
    table_version: int
    slots_total: int
    members: tuple[str, ...]
    moves: tuple[MovedTo, ...] = ()
    gains: Slots = ()

    def record(self, leadership: Leadership, anchor: Anchor) -> Barrier:
        """The record that a leader appends."""
        numbers = self.change, self.phase, self.table_version, self.slots_total
        return Barrier(leadership, anchor, *numbers, self.members, self.moves, self.gains)


def barrier_due(state: MembershipState, key: GroupKey, view: ChangeView, topics: Topics) -> BarrierDue | None:
    """The barrier that a group must append next.

    None if it has all of them, has read further than this node, or must wait: a slot gets another holder only when
    the present one has accepted everything for it.
    """
    due = _next_barrier(state, key, view, topics)
    if due is None or due.phase is not BarrierPhase.FORMAL:
        return due
    changed = {slot for each in due.moves for slot in each.slots if slot in view.given}.union(due.gains)
    waiting = (each for one in view.due.values() for each in one)
    return due if all(changed.isdisjoint(concerned_slots(each, view.cuts)) for each in waiting) else None


def _next_barrier(state: MembershipState, key: GroupKey, view: ChangeView, topics: Topics) -> BarrierDue | None:
    change = state.change
    if change is not None and change.number == view.change:
        formal = change.formal and view.phase is BarrierPhase.PRE
        return _formal_of(change, key, view, topics) if formal else None
    # What the log of the group has begun comes to its end before anything else: no group has the members of two
    # changes at once.
    if view.phase is BarrierPhase.PRE:
        return _settling(state, key, view, topics)
    if change is None or change.number < view.change or not _is_of(change.base, key):
        return None
    # The log may have lost the first phase to an accepted gap, after its leader had reported it.
    return _formal_of(change, key, view, topics) if change.formal else _pre_of(change, key, view, topics)


def pre_done_due(state: MembershipState, key: GroupKey, view: ChangeView) -> RunningChange | None:
    """The change whose first phase the group has read, and has not reported."""
    change = state.change
    if change is None or change.phase is not Phase.PRE or not _is_of(change.base, key):
        return None
    read = (view.change, view.phase) == (change.number, BarrierPhase.PRE)
    return change if read and key.group in change.groups_waiting else None


def _is_of(table: SlotTable, key: GroupKey) -> bool:
    return key.group in table.headers and table.birth(key.group) == key.birth


def _pre_of(change: RunningChange, key: GroupKey, view: ChangeView, topics: Topics) -> BarrierDue:
    return _barrier(change.number, BarrierPhase.PRE, change.table, change.pre_members(key.group), key, view, topics)


def _formal_of(change: RunningChange, key: GroupKey, view: ChangeView, topics: Topics) -> BarrierDue | None:
    if not _is_of(change.base, key):
        return None
    ends = not _is_of(change.table, key)
    # A group that ends keeps those who read its log to the end and hand over what is in it.
    members = change.pre_members(key.group) if ends else change.table.group(key.group)
    return _barrier(change.number, BarrierPhase.FORMAL, change.table, members, key, view, topics)


def _settling(state: MembershipState, key: GroupKey, view: ChangeView, topics: Topics) -> BarrierDue | None:
    """The end of a change that no longer runs, in a group that is in its first phase."""
    table = state.table
    # This node may know less of the membership log than the one that appended the first phase.
    if table is None or not state.formal_change <= view.change <= state.changes:
        return None
    if view.change == state.formal_change:
        # It ended before this group, which gave no slots, had read of it.
        members = table.group(key.group) if _is_of(table, key) else view.members
        return _barrier(view.change, BarrierPhase.FORMAL, table, members, key, view, topics)
    # Neither running nor the one that led to the table: it was cancelled.
    if not _is_of(table, key):
        return None
    members = table.group(key.group)
    return BarrierDue(view.change, BarrierPhase.REVERT, view.table_version, table.slots, members)


def _barrier(
    number: int,
    phase: BarrierPhase,
    table: SlotTable,
    members: tuple[str, ...],
    key: GroupKey,
    view: ChangeView,
    topics: Topics,
) -> BarrierDue:
    gains = tuple(slot for slot, _ in table.moved if table.holder(slot) == key.group)
    moves = _moves(table, key, view, topics)
    return BarrierDue(number, phase, table.version, table.slots, members, moves, gains)


def _moves(table: SlotTable, key: GroupKey, view: ChangeView, topics: Topics) -> tuple[MovedTo, ...]:
    """The slots that leave, and those of former changes whose holder ends, by the group that has them next."""
    leaving = [slot for slot, former in table.moved if former == key.group]
    # Late records for these would go to a group that does not exist any more.
    orphaned = [slot for slot, given in view.given.items() if not _is_of(table, given.target)]
    slots_of: dict[GroupKey, list[int]] = {}
    for slot in sorted({*leaving, *orphaned}):
        if (holder := table.holder(slot)) != key.group:
            slots_of.setdefault(GroupKey(holder, table.birth(holder)), []).append(slot)
    return tuple(
        MovedTo(target, topics.forward(target.group, target.birth), tuple(slots))
        for target, slots in sorted(slots_of.items())
    )
