"""A cluster of three groups whose slots move, at random: what is in the logs, and what must come out of them.

The expectation is computed from the logs alone: of the records about one key the last one wins, first by the
table under which its log held the slot, then by its place in that log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyRows,
    ApplyWrite,
    CutSlots,
)
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.replica import Replica
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandedOver, Rank, Slots
from headrace.schemas.messages import (
    Delete,
    Leadership,
    Message,
    ProducerPosition,
    Write,
    decode_message,
    encode_message,
)
from tests.unit.replication.slot_logs import SlotLog, rows_of, rows_write

_Result = TypeVar("_Result")
PRE, FORMAL, REVERT = BarrierPhase.PRE, BarrierPhase.FORMAL, BarrierPhase.REVERT
GROUPS = ("a", "b", "c")
NODES = {"a": ("n1", "n2"), "b": ("n2", "n3"), "c": ("n3", "n1")}
KEYS = tuple(f"{slot}{name}" for slot in range(4) for name in "xy")
FIRST = {0: "a", 1: "a", 2: "b", 3: "b"}


@dataclass(frozen=True)
class RowFormat:
    """How a write has its rows, and a delete its key."""

    write_of: Callable[[Mapping[str, int], int], Write] = rows_write
    rows_of: Callable[[Write], dict[str, int]] = rows_of
    delete_of: Callable[[str], Delete] = lambda key: Delete("db", "t", {"key": (key,)})
    key_of: Callable[[Delete], str] = lambda delete: delete.tags["key"][0]

    def slots_of(self, write: Write) -> set[int]:
        """The slots of a write."""
        return {int(key[0]) for key in self.rows_of(write)}


@dataclass
class Rows:
    """The rows that one group holds, as its store would: values by key with their rank, and deletes."""

    format: RowFormat
    values: dict[str, dict[Rank, int]] = field(default_factory=dict)
    deletes: list[tuple[Rank, frozenset[int] | None, str]] = field(default_factory=list)
    held_since: dict[int, int] = field(default_factory=dict)
    applied: int = 0

    def act(self, actions: list[Action], era: int) -> None:
        """The actions of one record."""
        for action in actions:
            if isinstance(action, ApplyWrite | ApplyRows):
                rank = Rank(era, action.version) if isinstance(action, ApplyWrite) else action.rank
                for key, value in self.format.rows_of(action.write).items():
                    if isinstance(action, ApplyWrite) or int(key[0]) in action.slots:
                        known = self.values.setdefault(key, {})
                        assert rank not in known, f"{key} twice at {rank}"
                        known[rank] = value
                        self.applied += 1
            elif isinstance(action, ApplyDelete):
                self.deletes.append((Rank(era, action.version), None, self.format.key_of(action.delete)))
            elif isinstance(action, ApplyHandedDelete):
                deleted = self.format.key_of(action.delete)
                self.deletes.append((action.rank, frozenset(action.slots), deleted))

    def visible(self, key: str) -> dict[Rank, int]:
        """The rows of a key that no delete hides."""
        slot = int(key[0])
        hiding = [
            rank
            for rank, slots, deleted in self.deletes
            # An own delete of an era before the slot came concerns no row of a former holder.
            if deleted == key and (rank.era >= self.held_since.get(slot, 0) if slots is None else slot in slots)
        ]
        newest = max(hiding, default=Rank(0, 0))
        return {rank: value for rank, value in self.values.get(key, {}).items() if rank > newest}


@dataclass
class Change:
    """A running change: which slots move from where to where."""

    number: int
    moved: dict[int, str]
    joiner: bool
    formal: bool = False
    cancelled: bool = False


class Cluster:
    """Interprets commands; every choice is a number modulo what there is."""

    def __init__(
        self,
        log_of: Callable[[str, tuple[str, ...]], SlotLog] = SlotLog,
        row_format: RowFormat | None = None,
    ) -> None:
        self.format = row_format or RowFormat()
        self.logs = {group: log_of(group, NODES[group]) for group in GROUPS}
        self.rows = {group: Rows(self.format) for group in GROUPS}
        self.tables: list[dict[int, str]] = [dict(FIRST)]
        self.change: Change | None = None
        self.changes = 0
        self.sent: list[tuple[str, bytes]] = []
        self.batches: dict[str, int] = {}
        self.old_hand_overs: list[tuple[str, bytes]] = []
        self.zombies: list[tuple[str, Leadership]] = []
        self.snapshots: dict[str, Replica] = {}
        self.expected: dict[str, list[tuple[tuple[int, int], int | None]]] = {key: [] for key in KEYS}
        self.value = 0
        self.files: dict[tuple[GroupKey, int, GroupKey], dict[str, dict[Rank, int]]] = {}
        for group in GROUPS:
            self.claim(group, 0)

    # What clients do.

    def write(self, first: int, second: int) -> None:
        """A writer with a table of any age writes one to three keys that are in one group there."""
        view = len(self.tables) - 1 - first % min(3, len(self.tables))
        table = self.tables[view]
        group = table[int(KEYS[second % len(KEYS)][0])]
        keys = [key for key in KEYS if table[int(key[0])] == group]
        chosen = {keys[(second // 8 + step * (1 + first % 3)) % len(keys)] for step in range(1 + second % 3)}
        self.value += 1
        producer = f"w{view}{second % 2}"
        self.batches[producer] = batch = self.batches.get(producer, 0) + 1
        body = self.format.write_of(dict.fromkeys(sorted(chosen), self.value), view + 1)
        value = encode_message(Message(ProducerPosition(producer, batch, 0), body))
        self.sent.append((group, value))
        self.expect(group, sorted(chosen), self.value, view)
        self.append(group, value)

    def repeat(self, first: int, _second: int) -> None:
        """A message comes again, to its group."""
        if self.sent:
            self.append(*self.sent[first % len(self.sent)])

    def repeat_at_holder(self, first: int, second: int) -> None:
        """A message comes again, to the group that holds the slots of all its keys by now."""
        if self.sent:
            group, value = self.sent[first % len(self.sent)]
            given = self.logs[group].replica.state.changes.given
            write = decode_message(value).body
            assert isinstance(write, Write)
            slots = self.format.slots_of(write)
            holders = {given[slot].target.group for slot in slots if slot in given}
            whole = all(slot in given for slot in slots)
            if whole and len(holders) == 1 and self.holder_knows(group, holder := holders.pop()):
                self.append(holder, value)
        del second

    def delete(self, first: int, second: int) -> None:
        """A key is deleted, by a client with a table of any age."""
        view = len(self.tables) - 1 - first % min(3, len(self.tables))
        key = KEYS[second % len(KEYS)]
        group = self.tables[view][int(key[0])]
        # The record names no table, so it proves none: a client of a new table comes with a writer of it.
        if self.change is not None and self.change.formal and group in self.change.moved.values():
            return
        self.expect(group, [key], None)
        self.value += 1
        body = self.format.delete_of(key)
        self.append(group, encode_message(Message(ProducerPosition(f"d{self.value}", 1, 0), body)))

    # What leaders do.

    def claim(self, group: str, second: int) -> None:
        """A node claims, whether it is a member or not."""
        log = self.logs[group]
        if log.replica.state.leader is not None:
            self.zombies.append((group, log.replica.state.leader))
        nodes = (*log.replica.state.changes.members, "stranger")
        before = log.replica.state.leader
        claimed = self.watched(group, lambda: log.claim(nodes[second % len(nodes)]))
        if claimed.node == "stranger":
            assert log.replica.state.leader == before

    def begin(self, first: int, second: int) -> None:
        """A change is accepted: one slot or two move from one group to another."""
        if self.change is None:
            table = self.tables[-1]
            slot = first % 4
            donor = table[slot]
            taker = [group for group in GROUPS if group != donor][second % 2]
            also = [other for other in table if table[other] == donor and second % 3 == 0]
            self.changes += 1
            self.change = Change(self.changes, dict.fromkeys({slot, *also}, taker), second % 2 == 0)

    def formal(self, _first: int, _second: int) -> None:
        """The table of the change counts, once every group is in its first phase."""
        change = self.change
        if change is not None and not change.formal and not change.cancelled and self.all_in(PRE):
            change.formal = True
            self.tables.append(self.tables[-1] | change.moved)

    def cancel(self, _first: int, _second: int) -> None:
        """The change is cancelled; groups read that later, or never."""
        if self.change is not None and not self.change.formal:
            self.change.cancelled = True

    def end(self, _first: int, _second: int) -> None:
        """The change is over: it was cancelled, or every takeover of its cuts was accepted."""
        change = self.change
        if change is not None and (change.cancelled or (change.formal and self.moves_done())):
            self.change = None

    def barrier(self, first: int, second: int) -> None:
        """The leader of a group, or a former one, appends what the change asks for, or what it asked for before."""
        change, group = self.change, GROUPS[first % len(GROUPS)]
        if change is None:
            return
        log = self.logs[group]
        after = (PRE, FORMAL)[second % 2] if change.formal else REVERT if change.cancelled and second % 2 else PRE
        zombies = [leader for of, leader in self.zombies if of == group]
        zombie = zombies[second % len(zombies)] if zombies and second % 5 == 0 else None
        donors = {self.previous_table()[slot] for slot in change.moved}
        gives = group in donors and after is not REVERT
        moves: dict[SlotLog, Slots] = {}
        for slot, taker in sorted(change.moved.items()) if gives else ():
            moves[self.logs[taker]] = (*moves.get(self.logs[taker], ()), slot)
        gains = tuple(sorted(slot for slot, to in change.moved.items() if to == group and after is not REVERT))
        members = (*NODES[group], "n4") if after is PRE and change.joiner else NODES[group]
        number = change.number
        table = len(self.tables) + (not change.formal)
        self.watched(group, lambda: log.barrier(after, number, table, members, moves, gains, zombie))
        if log.replica.state.leader is None:
            self.claim(group, second)

    def advance(self, first: int, second: int) -> None:
        """Every group takes the next step of the change, and a change begins where none runs."""
        self.begin(first, second)
        for number in range(len(GROUPS)):
            self.barrier(number, 1 + 2 * (second % 2 and first % 3 == number))
        if second % 3:
            self.formal(0, 0)

    def settle(self, first: int, second: int) -> None:
        """Two groups exchange all that is due."""
        donor, taker = GROUPS[first % 3], GROUPS[(first + 1 + second % 2) % 3]
        for value in self.logs[donor].hand_overs(self.logs[taker]):
            self.append(taker, value)
        self.end(0, 0)

    def hand_over(self, first: int, second: int) -> None:
        """A leader, perhaps one that has read less, sends some of what it takes for due: parts are lost or repeated."""
        donor, taker = GROUPS[first % 3], GROUPS[(first + 1 + second % 2) % 3]
        source = self.snapshots.get(donor) if second % 4 == 0 else None
        due = self.logs[donor].hand_overs(self.logs[taker], source)
        start, count = (second // 8) % 3 if second % 3 == 0 else 0, 1 + (second // 4) % 6
        for value in due[start : start + count]:
            self.old_hand_overs.append((taker, value))
            self.append(taker, value)
        if self.old_hand_overs and second % 3 == 1:
            self.append(*self.old_hand_overs[second % len(self.old_hand_overs)])

    def accept(self, first: int, second: int) -> None:
        """The leader of a donor notes what the other group has accepted."""
        donor, taker = GROUPS[first % 3], GROUPS[(first + 1 + second % 2) % 3]
        self.watched(donor, lambda: self.logs[donor].accept(self.logs[taker]))

    def restore(self, first: int, second: int) -> None:
        """A replica continues from the bytes of its state; a copy stays behind as that of a former leader."""
        log = self.logs[GROUPS[first % 3]]
        state = log.replica.state.to_bytes()
        log.replica.state = GroupState.from_bytes(state)
        assert state == log.replica.state.to_bytes()
        if second % 2:
            copy = log.new_replica()
            copy.state = GroupState.from_bytes(state)
            self.snapshots[GROUPS[first % 3]] = copy

    # What follows.

    def append(self, group: str, value: bytes) -> None:
        """A record in the log of a group, with what it does to the rows."""
        self.watched(group, lambda: self.logs[group].append_value(value))

    def watched(self, group: str, step: Callable[[], _Result]) -> _Result:
        """What a step appends to the log of a group is applied to its rows, and to those of who takes slots."""
        log = self.logs[group]
        known = len(log.actions)
        result = step()
        for version, actions in enumerate(log.actions[known:], known + 1):
            self.rows[group].act(actions, log.replica.state.changes.era)
            for action in actions:
                if isinstance(action, CutSlots):
                    self.leave(group, version, action)
            self.arrive(group, log.values[version - 1])
        return result

    def leave(self, group: str, version: int, cut: CutSlots) -> None:
        """The files of the slots that leave, with the deletes applied."""
        for moved in cut.moves:
            rows = self.rows[group]
            leaving = {key: rows.visible(key) for key in KEYS if int(key[0]) in moved.slots}
            self.files[self.logs[group].key, version, moved.key] = leaving
            for key in leaving:
                rows.values.pop(key, None)

    def arrive(self, group: str, value: bytes) -> None:
        """The new holder attaches the files of a cut when it has accepted the takeover."""
        body = decode_message(value).body
        log = self.logs[group]
        if not isinstance(body, HandedOver) or log.replica.state.changes.origins.get(body.origin) is None:
            return
        name = (body.origin, body.position.version, log.key)
        if log.replica.state.changes.origins[body.origin].position == body.position and name in self.files:
            for key, found in self.files.pop(name).items():
                self.rows[group].held_since[int(key[0])] = len(self.tables)
                known = self.rows[group].values.setdefault(key, {})
                assert known.keys().isdisjoint(found)
                known |= found

    def expect(self, group: str, keys: list[str], value: int | None, view: int | None = None) -> None:
        """A record about keys will be in the log of a group: its place in the order of each key."""
        log = self.logs[group]
        # A write counts as of the table by which it was routed, however late it comes; a delete names none.
        asked = log.replica.state.changes.era if view is None else view + 1
        for key in keys:
            slot = int(key[0])
            begins = [
                number
                for number, table in enumerate(self.tables, 1)
                if table[slot] == group and (number == 1 or self.tables[number - 2][slot] != group)
            ]
            era = max(number for number in begins if number <= asked)
            self.expected[key].append(((era, len(log.values) + 1), value))

    def all_in(self, phase: BarrierPhase) -> bool:
        """Whether every group's log has the barrier of this phase of the running change."""
        assert self.change is not None
        found = [log.replica.state.changes for log in self.logs.values()]
        return all((each.change, each.phase) == (self.change.number, phase) for each in found)

    def previous_table(self) -> dict[int, str]:
        """The table before the running change."""
        assert self.change is not None
        return self.tables[-2] if self.change.formal else self.tables[-1]

    def moves_done(self) -> bool:
        """Whether every slot that moves has left, and its files and takeovers have arrived."""
        assert self.change is not None
        before = self.previous_table()
        for slot, taker in self.change.moved.items():
            donor = self.logs[before[slot]].replica.state.changes
            given = donor.given.get(slot)
            if given is None or given.target.group != taker:
                return False
            origin = self.logs[taker].replica.state.changes.origins.get(self.logs[before[slot]].key)
            parts = [each.position for each in donor.targets[given.target].outstanding]
            if origin is None or any(origin.position < each for each in parts if each.version <= given.version):
                return False
        return not self.files

    def holder_knows(self, group: str, holder: str) -> bool:
        """Whether a holder has accepted all that a former one has handed over to it."""
        target = self.logs[group].replica.state.changes.targets.get(self.logs[holder].key)
        origin = self.logs[holder].replica.state.changes.origins.get(self.logs[group].key)
        return target is not None and origin is not None and origin.position == target.newest

    def finish(self) -> None:
        """Everything that is open comes to its end, and the rows are compared with what the logs ask for."""
        for round_number in range(60):
            self.formal(0, 0)
            for number, group in enumerate(GROUPS):
                if self.logs[group].replica.state.leader is None:
                    self.claim(group, 0)
                if self.change is not None:
                    self.barrier(number, 1)
                for other in range(2):
                    taker = GROUPS[(number + 1 + other) % 3]
                    for value in self.logs[group].hand_overs(self.logs[taker]):
                        self.append(taker, value)
                    self.accept(number, other)
            self.end(0, 0)
            due = [
                target.outstanding
                for log in self.logs.values()
                for target in log.replica.state.changes.targets.values()
            ]
            if self.change is None and not any(due) and round_number > 3:
                break
        assert self.change is None
        assert not any(due)
        self.check()

    def check(self) -> None:
        """No row is lost, stale or back, and every replica of a group has the same state."""
        for key in KEYS:
            order = sorted(self.expected[key])
            wanted = order[-1][1] if order else None
            held = self.rows[self.tables[-1][int(key[0])]].visible(key)
            found = held[max(held)] if held else None
            assert wanted == found, f"{key}: {order}, {held}"
        for log in self.logs.values():
            self.check_replica(log)

    def check_replica(self, log: SlotLog) -> None:
        """Another replica of a group comes to the same state."""
        replica = log.new_replica()
        for offset, value in enumerate(log.values):
            replica.apply(offset, value, (("format", b"3"),))
        assert replica.state.to_bytes() == log.replica.state.to_bytes()
        assert replica.ignored == log.replica.ignored
