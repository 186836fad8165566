"""How one group gets the data of slots from one of their former holders: a function of what is known, at every turn.

The subject is a pair: a group that gained slots, as one member of it sees it, and the group that gave them. What to
do follows from the newest values alone and never from what was done. So a member that was killed, and a leader that
comes later, continue where the data is. docs/internals/membership.md has the states as a table, which a test reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.consumers.membership.running_change import RunningChange, bits_of
from headrace.consumers.migration.cut_listing import CutListing
from headrace.consumers.store import SegmentEntry
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition
from headrace.schemas.messages import Load

LOADS_AT_ONCE = 1_000
"""Loads that a leader appends before it reads them back."""


class PullState(StrEnum):
    """How far a pair is at one member; the first that holds counts."""

    REPORTED = "reported"
    WAITING = "waiting for the cut"
    LISTING = "listing"
    LOADING = "loading"
    FETCHING = "fetching"
    TAKING_OVER = "taking over"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Slots of a running change with the group that gained them, and the one that gave them."""

    target: GroupKey
    donor: GroupKey
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PullView:
    """What one member knows of a pair.

    `reached`: its group has reached the table of the change. `missing` are the loads of the list that have not counted
    in the log as far as the group has applied it. `settled`: the store has carried out those that have. `awaited` is
    how many files of the slots are not attached. `accepted` is the newest position of the donor that counted here.
    `leads`: this member leads its group. `appended`: it waits for loads that it has appended to be read back.
    """

    reported: bool = False
    reached: bool = False
    listing: CutListing | None = None
    missing: tuple[Load, ...] = ()
    settled: bool = False
    awaited: int = 0
    accepted: HandOverPosition = BEGINNING
    leads: bool = False
    appended: bool = False


@dataclass(frozen=True, slots=True)
class PullDecision:
    """The state, and the loads to append in it.

    Files that are awaited are fetched in every state: whatever was read in the log is due.
    """

    state: PullState
    loads: tuple[Load, ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Whether the store knows every file of the slots: those that it awaits are all that is not here."""
        return self.has_rows or self.state is PullState.FETCHING

    @property
    def has_rows(self) -> bool:
        """Whether every file of the slots is attached."""
        return self.state in (PullState.TAKING_OVER, PullState.COMPLETE, PullState.REPORTED)


def decide_pull(view: PullView) -> PullDecision:
    """What this member does now."""
    if view.reported:
        return PullDecision(PullState.REPORTED)
    # Before, a load could be ignored: the group may have given one of these slots away earlier.
    if not view.reached:
        return PullDecision(PullState.WAITING)
    if view.listing is None:
        return PullDecision(PullState.LISTING)
    if view.missing or not view.settled:
        due = view.leads and not view.appended
        return PullDecision(PullState.LOADING, view.missing[:LOADS_AT_ONCE] if due else ())
    if view.awaited:
        return PullDecision(PullState.FETCHING)
    if view.accepted < view.listing.takeover:
        return PullDecision(PullState.TAKING_OVER)
    return PullDecision(PullState.COMPLETE)


def brings_slots(change: RunningChange, group: str, settled_version: int) -> bool:
    """Whether data of slots comes to a group of this name by a change; `settled_version` is the group's own, of its log.

    Until its log has the record it is read by the table before, and so is the group that has the slots: with the rows of
    both, an answer would have them twice.
    """
    return change.formal and group in change.gained and settled_version >= change.table.version


def pairs_of(change: RunningChange | None, node: str) -> tuple[Pair, ...]:
    """The pairs of the groups of a node, once the table of the change counts."""
    return () if change is None or not change.formal else moved_pairs(change, node)


def moved_pairs(change: RunningChange, node: str) -> tuple[Pair, ...]:
    """The pairs of the groups that a node has by the table of a change."""
    # Once a group and not once a slot, of which there may be many.
    targets = {
        header: GroupKey(header, change.table.birth(header))
        for header in change.gained
        if node in change.table.group(header)
    }
    found: dict[tuple[GroupKey, GroupKey], list[int]] = {}
    for slot, former in change.table.moved:
        if (target := targets.get(change.table.holder(slot))) is not None:
            found.setdefault((target, GroupKey(former, change.base.birth(former))), []).append(slot)
    return tuple(sorted(Pair(target, donor, tuple(slots)) for (target, donor), slots in found.items()))


def donors_of(change: RunningChange, pair: Pair, node: str) -> tuple[str, ...]:
    """The members of the donor that may have the files, in the order in which this node asks them.

    Member number i of the new group begins with number i of the donor, so that they do not all ask the same one. A
    node that is a member of both comes first: it links.
    """
    before = change.base.group(pair.donor.group)
    later = change.table.group(pair.donor.group) if pair.donor.group in change.table.headers else ()
    place = change.table.group(pair.target.group).index(node) % len(before)
    order = dict.fromkeys((*before[place:], *before[:place], *later))
    return (node, *(each for each in order if each != node)) if node in order else tuple(order)


def covered(load: Load, present: Mapping[tuple[str, str, int, int], Sequence[SegmentEntry]]) -> bool:
    """Whether a catalogue has the rows of a load, perhaps in a file that was merged since; by location."""
    found = present.get((load.database, load.table, load.slice_number, load.bucket), ())
    return any(_covers(entry, load) for entry in found)


def _covers(entry: SegmentEntry, load: Load) -> bool:
    within = entry.first_version <= load.first_version and load.last_version <= entry.last_version
    if entry.era != load.era or not within:
        return False
    if entry.order:
        return entry.order == load.order
    # Files of sync senders are at versions that another file may end with: only one with their rows has them.
    known = {rows.sender: rows.order for rows in entry.synced}
    return all(known.get(rows.sender, "") >= rows.order for rows in load.synced)


def is_reported(change: RunningChange, node: str, slots: Iterable[int]) -> bool:
    """Whether a node's report of all these slots counts."""
    return not bits_of(slots) & ~dict(change.received).get(node, 0)


def slots_of_bits(bits: int) -> frozenset[int]:
    """The inverse of `bits_of`."""
    return frozenset(slot for slot, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")
