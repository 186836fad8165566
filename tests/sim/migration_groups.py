"""What the groups' logs hold: one replica of each group that reads every record at once, and the rows that follow.

A replica is deterministic, so a node that has read less sees what this one saw at that record. Of the records about
one key the last one wins, first by the table under which its log held the slot, then by its place in that log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Headers, Record
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.actions import CutSlots
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.replica import Replica
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandedOver, HandOverPosition, Rank, Takeover
from headrace.schemas.messages import Delete, Write, decode_message
from tests.sim.migration_rows import GroupRows
from tests.unit.replication.slot_logs import rows_of, slots_of

SLOTS = 8
REPLICATION = 2
KEYS = tuple(f"{slot}{name}" for slot in range(SLOTS) for name in "xy")


class ClosableLog(MemoryLog):
    """The log in memory, with topics that are closed before they are deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[str] = set()

    def store(self, topic: str, value: bytes, key: bytes | None, headers: Headers) -> int:
        """Append one record; its offset. What comes too late is lost, whatever report its sender gets."""
        if topic in self.closed or topic not in self._topics:
            return -1
        return super().store(topic, value, key, headers)


@dataclass
class Expected:
    """What the logs ask for: by key, the place of each record in the order of that key, and its value."""

    records: dict[str, list[tuple[tuple[int, int], int | None]]] = field(default_factory=dict)
    sent: set[tuple[str, int]] = field(default_factory=set)

    def note(self, key: str, era: int, version: int, value: int | None) -> None:
        """A record about a key is in the log that has held its slot since a table."""
        self.records.setdefault(key, []).append(((era, version), value))

    def value(self, key: str) -> int | None:
        """The value that an answer must have; None for none."""
        order = sorted(self.records.get(key, ()), key=lambda each: each[0])
        return order[-1][1] if order else None


class TrueGroup:
    """One group with its log, a replica that has read all of it, and its rows."""

    def __init__(self, log: MemoryLog, topic: str, header: str, founding: Founding) -> None:
        self.log = log
        self.topic = topic
        self.key = GroupKey(header, founding.birth)
        self.founding = founding
        self.replica = replica = new_replica(founding)
        self.rows = GroupRows()
        self.history = [AppliedState.of(replica.state, 0)]
        self.cuts: dict[tuple[GroupKey, int], tuple[int, int]] = {}
        self.barriers: dict[tuple[int, BarrierPhase], int] = {}
        self.deleted = False

    @property
    def read(self) -> int:
        """Records read so far: the version of the newest."""
        return self.replica.state.version

    @property
    def newest(self) -> AppliedState:
        """What the log has decided."""
        return self.history[-1]

    def unread(self) -> list[Record]:
        """Records that were appended since."""
        return [] if self.deleted else self.log.topic(self.topic).records[self.read :]


class TrueGroups:
    """All groups that there have been, by topic, and what must come out of their logs."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.groups: dict[str, TrueGroup] = {}
        self.tables: list[SlotTable] = []
        self.expected = Expected()
        self._files: dict[tuple[GroupKey, int, GroupKey], dict[str, dict[Rank, int]]] = {}

    def by_key(self, key: GroupKey) -> TrueGroup:
        """A group of a header and a birth."""
        return next(each for each in self.groups.values() if each.key == key)

    def read_all(self) -> None:
        """Take every new record of every log."""
        for group in self.groups.values():
            for record in group.unread():
                self._take(group, record)

    def _take(self, group: TrueGroup, record: Record) -> None:
        state, body = group.replica.state, decode_message(record.value).body
        given = frozenset(state.changes.given)
        if isinstance(body, Write | Delete):
            self._expect(group, body, decode_message(record.value).position.producer)
        actions = group.replica.apply(record.offset, record.value, record.headers)
        group.rows.act(actions, state.changes.era)
        for action in actions:
            if isinstance(action, CutSlots):
                self._leave(group, action, given)
        if isinstance(body, HandedOver):
            self._arrive(group, body)
        before = group.newest.changes
        group.history.append(AppliedState.of(state, 0, group.newest))
        after = group.newest.changes
        if (after.change, after.phase) != (before.change, before.phase) and after.phase is not None:
            group.barriers[after.change, after.phase] = state.version

    def _expect(self, group: TrueGroup, body: Write | Delete, producer: str) -> None:
        # A record that arrives twice counts where it came first.
        version = group.replica.state.version + 1
        if any(known == producer for known, _ in self.expected.sent):
            return
        self.expected.sent.add((producer, version))
        named = body.slot_table_version if isinstance(body, Write) else 0
        proven = max(named, group.replica.state.changes.era)
        rows: dict[str, int | None] = dict(rows_of(body)) if isinstance(body, Write) else {body.tags["key"][0]: None}
        for key, value in rows.items():
            era = max(since for since in self._held_since(group.key, int(key[0])) if since <= proven)
            self.expected.note(key, era, version, value)

    def _held_since(self, key: GroupKey, slot: int) -> list[int]:
        """The versions of the tables with which a slot came to a group."""
        holders = [
            (table.version, GroupKey(table.holder(slot), table.birth(table.holder(slot)))) for table in self.tables
        ]
        befores = [None, *(holder for _, holder in holders)]
        return [
            version
            for (version, holder), before in zip(holders, befores, strict=False)
            if holder == key and before != key
        ]

    def _leave(self, group: TrueGroup, cut: CutSlots, given: frozenset[int]) -> None:
        """The files of the slots that leave, with the deletes applied."""
        version = group.replica.state.version
        for moved in cut.moves:
            changes = group.replica.state.changes
            parts = len(changes.cuts[version].takeovers(moved.key, changes.slots_total))
            group.cuts[moved.key, changes.table_version] = version, parts
            leaving = [key for key in KEYS if int(key[0]) in moved.slots and int(key[0]) not in given]
            self._files[group.key, version, moved.key] = {key: group.rows.leave(key) for key in leaving}

    def _arrive(self, group: TrueGroup, handed: HandedOver) -> None:
        """The next holder attaches the files of a cut when it has accepted the takeover."""
        origin = group.replica.state.changes.origins.get(handed.origin)
        name = handed.origin, handed.position.version, group.key
        if origin is None or origin.position != handed.position or name not in self._files:
            return
        assert isinstance(handed.body, Takeover)
        group.rows.attach(self._files.pop(name), handed.body.table_version)

    def holder(self, slot: int) -> TrueGroup:
        """The group that holds a slot by the newest table."""
        table = self.tables[-1]
        header = table.holder(slot)
        return self.by_key(GroupKey(header, table.birth(header)))

    def value(self, key: str) -> int | None:
        """What a query would answer for a key."""
        held = self.holder(int(key[0])).rows.visible(key)
        return held[max(held)] if held else None

    def cut_of(self, donor: GroupKey, target: GroupKey, table_version: int) -> HandOverPosition | None:
        """The last part of the takeover of a target with a table; None before the cut."""
        found = self.by_key(donor).cuts.get((target, table_version))
        return None if found is None else HandOverPosition(found[0], found[1] - 1)


def new_replica(founding: Founding) -> Replica:
    """A replica of a group that has read nothing."""
    return Replica(founding.members, era=founding.birth, gains=founding.gains, slots_of=slots_of)
