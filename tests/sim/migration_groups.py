"""What the groups' logs hold: one replica of each group that reads every record at once, and the rows that follow.

A replica is deterministic, so a node that has read less sees what this one saw at that record. Of the records about
one key the last one wins, first by the table under which its log held the slot, then by its place in that log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Headers, Record
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.replication.actions import CutSlots
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.replica import Replica
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandedOver, HandOverPosition, Rank, Takeover
from headrace.schemas.messages import Delete, Message, Write, decode_message
from tests.sim.migration_expected import Entry, Expected
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
        self.stored = 0

    def store(self, topic: str, value: bytes, key: bytes | None, headers: Headers) -> int:
        """Append one record; its offset. What comes too late is lost, whatever report its sender gets.

        `stored` counts what was not.
        """
        if topic in self.closed or topic not in self._topics:
            return -1
        self.stored += 1
        return super().store(topic, value, key, headers)


class TrueGroup:
    """One group with its log, a replica that has read all of it, and its rows."""

    def __init__(self, log: ClosableLog, topic: str, header: str, founding: Founding) -> None:
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
        # The versions at which an answer changed, and all answers from there on, by key.
        self._changed = [0]
        self._answers: list[dict[str, int]] = [{}]
        # By the identity of a view, which `history` keeps.
        self._hand_overs: dict[int, HandOvers] = {}

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

    def hand_overs(self, version: int) -> HandOvers:
        """What a replica that has read so much shows to those who read it."""
        view = self.history[version].changes
        found = self._hand_overs.get(id(view))
        if found is None:
            found = self._hand_overs[id(view)] = HandOvers.of(view)
        return found

    def note_answers(self, keys: Iterable[str]) -> None:
        """The newest record may have changed what this group answers for some keys."""
        before = self._answers[-1]
        values = {key: self.rows.value(key) for key in keys}
        if any(before.get(key) != value for key, value in values.items()):
            after = {key: value for key, value in (before | values).items() if value is not None}
            self._changed.append(self.read)
            self._answers.append(after)

    def answers(self, version: int) -> dict[str, int]:
        """What a replica that has read so much answers, by key, without those that it has no row of."""
        return self._answers[bisect_right(self._changed, version) - 1]


class TrueGroups:
    """All groups that there have been, by topic, and what must come out of their logs."""

    def __init__(self, log: ClosableLog) -> None:
        self.log = log
        self._read_to = 0
        self.groups: dict[str, TrueGroup] = {}
        self.tables: list[SlotTable] = []
        self.expected = Expected()
        self._takeovers: dict[tuple[GroupKey, int], list[tuple[GroupKey, HandOverPosition]]] = {}
        self._by_key: dict[GroupKey, TrueGroup] = {}
        self._moves_of: dict[int, tuple[int, list[tuple[int, GroupKey, GroupKey | None]]]] = {}
        self._files: dict[tuple[GroupKey, int, GroupKey], dict[str, dict[Rank, int]]] = {}

    def by_key(self, key: GroupKey) -> TrueGroup:
        """A group of a header and a birth."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = next(each for each in self.groups.values() if each.key == key)
        return found

    def read_all(self) -> None:
        """Take every new record of every log."""
        if self._read_to == self.log.stored:
            return
        self._read_to = self.log.stored
        for group in self.groups.values():
            for record in group.unread():
                self._take(group, record)

    def _take(self, group: TrueGroup, record: Record) -> None:
        message = decode_message(record.value)
        state, body = group.replica.state, message.body
        given = frozenset(state.changes.given)
        if isinstance(body, Write | Delete):
            self._expect(group, message, body)
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
        if actions or isinstance(body, HandedOver):
            group.note_answers(_values_of(body) if isinstance(body, Write | Delete) else KEYS)

    def _expect(self, group: TrueGroup, message: Message, body: Write | Delete) -> None:
        version, known = group.replica.state.version + 1, self.expected.log(group.topic)
        if not known.counts(message):
            return
        # A write counts as of the table by which it was routed, however late it comes; a delete names none.
        asked = body.slot_table_version if isinstance(body, Write) else group.replica.state.changes.era
        for key, value in _values_of(body).items():
            slot = int(key[0])
            if isinstance(body, Delete) or known.counts_for(slot, message):
                era = max(since for since in self._held_since(group.key, slot) if since <= asked)
                self.expected.add(key, Entry(era, version, value, group.topic))

    def _held_since(self, key: GroupKey, slot: int) -> list[int]:
        """The versions of the tables with which a slot came to a group."""
        return [version for version, holder, _ in self._moves(slot) if holder == key]

    def _moves(self, slot: int) -> list[tuple[int, GroupKey, GroupKey | None]]:
        """Each table with which a slot got another holder, with that one and the former one."""
        count, moves = self._moves_of.setdefault(slot, (0, []))
        for table in self.tables[count:]:
            holder = GroupKey(table.holder(slot), table.birth(table.holder(slot)))
            former = moves[-1][1] if moves else None
            if holder != former:
                moves.append((table.version, holder, former))
        self._moves_of[slot] = len(self.tables), moves
        return moves

    def _leave(self, group: TrueGroup, cut: CutSlots, given: frozenset[int]) -> None:
        """The files of the slots that leave, with the deletes applied."""
        version = group.replica.state.version
        for moved in cut.moves:
            changes = group.replica.state.changes
            parts = len(changes.cuts[version].takeovers(moved.key, changes.slots_total))
            group.cuts[moved.key, changes.table_version] = version, parts
            leaving = [key for key in KEYS if int(key[0]) in moved.slots and int(key[0]) not in given]
            self._files[group.key, version, moved.key] = {key: group.rows.leave(key) for key in leaving}
        slots = {slot for moved in cut.moves for slot in moved.slots} - given
        self.expected.cut(group.key, group.topic, version, slots)

    def _arrive(self, group: TrueGroup, handed: HandedOver) -> None:
        """The next holder attaches the files of a cut when it has accepted the takeover."""
        origin, position = group.replica.state.changes.origins.get(handed.origin), handed.position
        if origin is None or origin.position != position:
            return
        body, cuts = handed.body, self.by_key(handed.origin).cuts
        last = isinstance(body, Takeover) and cuts.get((group.key, body.table_version)) == (
            position.version,
            position.part + 1,
        )
        self.expected.handed(group.topic, handed, last=last)
        name = handed.origin, position.version, group.key
        if name in self._files:
            assert isinstance(body, Takeover)
            group.rows.attach(self._files.pop(name), body.table_version)

    def holder(self, slot: int) -> TrueGroup:
        """The group that holds a slot by the newest table."""
        table = self.tables[-1]
        header = table.holder(slot)
        return self.by_key(GroupKey(header, table.birth(header)))

    def value(self, key: str) -> int | None:
        """What a query would answer for a key."""
        return self.holder(int(key[0])).rows.value(key)

    def takeovers(self, key: GroupKey, table_version: int) -> list[tuple[GroupKey, HandOverPosition]] | None:
        """By the former holder, the end of each takeover of slots that came with a table or before; None before a cut."""
        found = self._takeovers.get((key, table_version))
        if found is None:
            cuts = {
                (former, self.cut_of(former, key, version))
                for slot in range(SLOTS)
                for version, holder, former in self._moves(slot)
                if holder == key and former is not None and version <= table_version
            }
            found = [(former, cut) for former, cut in cuts if cut is not None]
            if len(found) < len(cuts):
                return None
            self._takeovers[key, table_version] = found
        return found

    def cut_of(self, donor: GroupKey, target: GroupKey, table_version: int) -> HandOverPosition | None:
        """The last part of the takeover of a target with a table; None before the cut."""
        found = self.by_key(donor).cuts.get((target, table_version))
        return None if found is None else HandOverPosition(found[0], found[1] - 1)


def _values_of(body: Write | Delete) -> dict[str, int | None]:
    """By key, what a record asks for; None for its deletion."""
    return dict(rows_of(body)) if isinstance(body, Write) else {body.tags["key"][0]: None}


def new_replica(founding: Founding) -> Replica:
    """A replica of a group that has read nothing."""
    return Replica(founding.members, era=founding.birth, gains=founding.gains, slots_of=slots_of)
