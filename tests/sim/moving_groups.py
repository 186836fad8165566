"""Groups whose slots move, for a simulation of sync: their logs, their rows, changes of members and hand-overs.

The replicas are those that ship. Each reads its log at once; barriers and hand-overs are steps of the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.consumers.replication.actions import Action, ApplyDelete, ApplyHandedDelete, ApplyLoad, CutSlots
from headrace.schemas.group_changes import (
    BEGINNING,
    BarrierPhase,
    GroupKey,
    HandedOver,
    Rank,
    Slots,
    Takeover,
)
from headrace.schemas.messages import Delete, Load, decode_message
from headrace.schemas.series import slot_of
from tests.unit.replication.slot_logs import SLOTS_TOTAL, SlotLog

GROUPS_MAX = 4
Key = tuple[int, int]
"""(slot, time): each slot has one device, which tag `s` names."""
BUCKETS = {slot_of("d", bucket, 0, SLOTS_TOTAL): bucket for bucket in range(1_000, 0, -1)}


class Refused(Exception):
    """A log that was closed takes no record."""


@dataclass
class Shelf:
    """The rows of a group, as its store has them: files with a rank, and deletes; some are of some slots alone."""

    files: list[tuple[Rank, int, dict[Key, int]]] = field(default_factory=list)
    deletes: list[tuple[Rank, frozenset[int] | None, Delete]] = field(default_factory=list)
    held_since: dict[int, int] = field(default_factory=dict)

    def visible(self, slot: int) -> list[tuple[Rank, int, dict[Key, int]]]:
        """The rows of a slot that no delete hides, by rank."""
        found = []
        for rank, at, rows in self.files:
            if at == slot:
                left = {key: value for key, value in rows.items() if not self._is_hidden(key, rank)}
                found.append((rank, at, left))
        return sorted(found, key=lambda each: each[0])

    def _is_hidden(self, key: Key, row: Rank) -> bool:
        for rank, slots, delete in self.deletes:
            # An own delete of an era before the slot came concerns no row of a former holder.
            concerned = rank.era >= self.held_since.get(key[0], 0) if slots is None else key[0] in slots
            if concerned and row < rank and _matches(delete, key):
                return True
        return False


def _matches(delete: Delete, key: Key) -> bool:
    assert delete.start_ns is not None
    assert delete.end_ns is not None
    return str(key[0]) in delete.tags.get("s", ()) and delete.start_ns <= key[1] < delete.end_ns


class Group:
    """One group: its log, and its rows."""

    def __init__(self, name: str, birth: int, gains: Slots) -> None:
        self.log = SlotLog(name, ("n1", "n2"), era=birth, birth=birth, gains=gains)
        self.log.claim("n1")
        self.shelf = Shelf()
        self.closed = False

    @property
    def key(self) -> GroupKey:
        """Name and birth."""
        return self.log.key

    def has_taken_over(self, former: Group, table_version: int) -> bool:
        """Whether slots have come from a group by a table, or a newer one."""
        origin = self.log.replica.state.changes.origins.get(former.key)
        return origin is not None and origin.table_version >= table_version


@dataclass
class Table:
    """Which group holds each slot."""

    version: int
    holders: dict[int, Group]
    groups: list[Group]
    ending: tuple[Group, ...] = ()
    previous: Mapping[int, Group] = field(default_factory=dict)


@dataclass
class Change:
    """A running change of members: the moves, and which groups have which barrier."""

    number: int
    table: Table
    moves: dict[tuple[int, int], tuple[Group, Group, Slots]]
    pre: set[int] = field(default_factory=set)
    formal: bool = False
    done: set[int] = field(default_factory=set)


class MovingGroups:
    """All groups of a centre. `contents` has the rows of files by digest."""

    def __init__(self, random: Random) -> None:
        self._random = random
        groups = [Group("g1", 1, ()), Group("g2", 1, ())]
        self.table = Table(1, {slot: groups[slot % 2] for slot in range(SLOTS_TOTAL)}, groups)
        self.change: Change | None = None
        self.contents: dict[bytes, Mapping[Key, int]] = {}
        self.ended: list[Group] = []
        self.changes = 0
        self._names = len(groups)
        self._moved: dict[tuple[GroupKey, int, GroupKey], list[tuple[Rank, int, dict[Key, int]]]] = {}

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left of any change."""
        return self.change is None and not self.ended

    def rows(self) -> dict[Key, int]:
        """What queries see."""
        found: dict[Key, int] = {}
        for slot, group in self.table.holders.items():
            for _, _, rows in group.shelf.visible(slot):
                found |= rows
        return found

    def append(self, group: Group, body: Delete | Load, producer: str | None = None, batch: int = 1) -> None:
        """One more record. Raises Refused."""
        if group.closed:
            raise Refused
        self._act(group, group.log.append(body, producer, batch))

    def _act(self, group: Group, actions: Sequence[Action]) -> None:
        state, shelf = group.log.replica.state, group.shelf
        era = state.changes.era
        for action in actions:
            if isinstance(action, ApplyLoad):
                load = action.load
                rows = dict(self.contents[load.content_digest])
                for each in load.deletes:
                    body = Delete("d", "t", dict(each.tags), each.start_ns, each.end_ns)
                    rows = {key: value for key, value in rows.items() if not _matches(body, key)}
                slot = slot_of(load.database, load.bucket, load.slice_number, SLOTS_TOTAL)
                shelf.files.append((Rank(era, action.version), slot, rows))
            elif isinstance(action, ApplyDelete):
                shelf.deletes.append((Rank(era, action.version), None, action.delete))
            elif isinstance(action, ApplyHandedDelete):
                shelf.deletes.append((action.rank, frozenset(action.slots), action.delete))
            elif isinstance(action, CutSlots):
                for move in action.moves:
                    leaving = [each for slot in move.slots for each in shelf.visible(slot)]
                    self._moved[group.key, action.version, move.key] = leaving
                    shelf.files = [each for each in shelf.files if each[1] not in move.slots]

    def hand_over(self) -> None:
        """The next hand-over of a group arrives."""
        groups = [*self.table.groups, *self.table.ending, *self.ended]
        known = {id(each.log): each for each in groups}
        source = self._random.choice(list(known.values()))
        for target in known.values():
            if _due(source, target):
                self._arrive(source, target, _next_due(source, target))

    def _arrive(self, source: Group, target: Group, value: bytes) -> None:
        if target.closed:
            return
        handed = decode_message(value).body
        assert isinstance(handed, HandedOver)
        actions = target.log.append_value(value)
        origin = target.log.replica.state.changes.origins.get(source.key)
        if origin is not None and origin.position == handed.position and isinstance(handed.body, Takeover):
            files = self._moved.pop((source.key, handed.position.version, target.key), ())
            for slot in handed.body.slots if files else ():
                target.shelf.held_since[slot] = handed.body.table_version
            target.shelf.files += files
        self._act(target, actions)
        if not source.closed:
            source.log.accept(target.log)

    def go_on(self, *, calm: bool) -> None:
        """A step of the running change, or the begin of the next one."""
        change = self.change
        if change is None:
            self._end_groups()
            if not calm and not self.ended:
                self._draw_change()
            return
        self.enter(self._random.choice(self._concerned(change)))

    def enter(self, group: Group) -> None:
        """A group takes the next barrier of the running change, unless it waits for something."""
        change = self.change
        assert change is not None
        if not change.formal:
            if id(group) not in change.pre and self._barrier(group, change, BarrierPhase.PRE):
                change.pre.add(id(group))
            if change.pre >= {id(each) for each in self.table.groups}:
                change.formal = True
                self.table = change.table
            return
        if id(group) not in change.done and self._barrier(group, change, BarrierPhase.FORMAL):
            change.done.add(id(group))
        concerned = self._concerned(change)
        due = (_due(source, target) for source in concerned for target in change.table.groups)
        if change.done >= {id(each) for each in concerned} and not any(due):
            self.change = None
            self.ended += change.table.ending

    def _concerned(self, change: Change) -> list[Group]:
        groups = self.table.groups if not change.formal else change.table.groups
        return [each for each in (*groups, *change.table.ending) if each.key.birth < change.table.version]

    def _barrier(self, group: Group, change: Change, phase: BarrierPhase) -> bool:
        """Whether the log took the barrier: it waits until all is accepted for slots that get another holder."""
        moves = {to.log: slots for source, to, slots in change.moves.values() if source is group}
        ending = {each.key for each in change.table.ending}
        for slot, given in group.log.replica.state.changes.given.items():
            to = change.table.holders[slot].log
            if given.target in ending and to is not group.log:
                # An earlier one, whose holder ends.
                moves[to] = tuple(sorted({*moves.get(to, ()), slot}))
        gains = tuple(sorted(slot for _, to, slots in change.moves.values() if to is group for slot in slots))
        actions = group.log.barrier(phase, change.number, change.table.version, moves=moves, gains=gains)
        self._act(group, actions)
        changes = group.log.replica.state.changes
        return (changes.change, changes.phase) == (change.number, phase)

    def _draw_change(self) -> None:
        chance, holders, groups = self._random, dict(self.table.holders), list(self.table.groups)
        ending: tuple[Group, ...] = ()
        kind = chance.random()
        if kind < 0.5 and len(groups) < GROUPS_MAX:
            self.add_group(tuple(sorted(chance.sample(range(SLOTS_TOTAL), 3))))
            return
        if kind < 0.75 and len(groups) > 2:
            gone = chance.choice(groups)
            groups.remove(gone)
            ending = (gone,)
            holders = {slot: chance.choice(groups) if each is gone else each for slot, each in holders.items()}
        else:
            source, taker = chance.sample(groups, 2)
            mine = [slot for slot, each in holders.items() if each is source]
            if len(mine) < 2:
                return
            holders[chance.choice(mine)] = taker
        self._begin(holders, groups, ending)

    def add_group(self, slots: Slots) -> None:
        """A change begins by which a new group takes slots."""
        self._names += 1
        taker = Group(f"g{self._names}", self.table.version + 1, slots)
        self._begin(self.table.holders | dict.fromkeys(slots, taker), [*self.table.groups, taker], ())

    def move(self, slots: Slots, taker: Group) -> None:
        """A change begins by which a group takes slots."""
        self._begin(self.table.holders | dict.fromkeys(slots, taker), list(self.table.groups), ())

    def _begin(self, holders: dict[int, Group], groups: list[Group], ending: tuple[Group, ...]) -> None:
        self.changes += 1
        moves: dict[tuple[int, int], tuple[Group, Group, Slots]] = {}
        for slot, to in holders.items():
            source = self.table.holders[slot]
            if source is not to:
                known = moves.get((id(source), id(to)), (source, to, ()))[2]
                moves[id(source), id(to)] = source, to, (*known, slot)
        previous = {slot: source for source, _, slots in moves.values() for slot in slots}
        table = Table(self.table.version + 1, holders, groups, ending, previous)
        self.change = Change(self.changes, table, moves)

    def _end_groups(self) -> None:
        """A group that ended is closed, and gone once everything is handed over."""
        for group in list(self.ended):
            group.closed = True
            if not any(_due(group, target) for target in self.table.groups):
                self.ended.remove(group)


def _due(source: Group, target: Group) -> bool:
    """Whether there is something that the target has not accepted yet."""
    known = source.log.replica.state.changes.targets.get(target.key)
    origin = target.log.replica.state.changes.origins.get(source.key)
    return known is not None and known.newest > (BEGINNING if origin is None else origin.position)


def _next_due(source: Group, target: Group) -> bytes:
    """The first of these."""
    origin = target.log.replica.state.changes.origins.get(source.key)
    accepted = BEGINNING if origin is None else origin.position
    for value in source.log.hand_overs(target.log):
        handed = decode_message(value).body
        assert isinstance(handed, HandedOver)
        if handed.position > accepted:
            return value
    raise AssertionError("nothing is due")
