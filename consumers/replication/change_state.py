"""What a group's log has decided about its members and its slots: replicated state. Pure.

A slot that this group gave up stays in `given` with the group that holds it. Late records for it go there, in
log order, until the slot comes back. `targets` has what each of these groups has not accepted yet, `origins`
what this group accepted from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.holdings import Given, Holdings
from headrace.consumers.replication.kept_deletes import KeptDeletes
from headrace.consumers.replication.producer_section import Origin, Section
from headrace.consumers.replication.transfers import HandOver, Target, Transfer, concerned_slots
from headrace.schemas.group_changes import (
    BEGINNING,
    Barrier,
    BarrierPhase,
    GroupKey,
    HandedDelete,
    HandedOver,
    HandOverPosition,
    Rank,
    Slots,
    Takeover,
)
from headrace.schemas.message_bodies import Delete, ProducerPosition
from headrace.schemas.messages import Gap

FIRST_TABLE = 1
"""The version of the table with which a cluster begins."""
NEWEST_TABLE = 1 << 62
"""The table of records that name none: the newest one."""


@dataclass(slots=True)
class ChangeState:
    """Members, era and slots of a group. Changed only by its replica, record by record.

    `added` are the members that a running first phase adds: they count for no quorum yet. `gained` has, for each
    slot that came, the table that brought it: only these may be taken over. `holdings` has those that came back. `given` and `cuts` are replaced and
    never changed, so a view of them stays as it is. `revision` counts what such a view shows; it and the table
    of the birth are in no state that is stored. `returned` are the slots that the newest record has brought back, or
    given to another holder: former files of them are needed by nobody.
    """

    members: tuple[str, ...] = ()
    era: int = 0
    slots_total: int = 0
    change: int = 0
    phase: BarrierPhase | None = None
    table_version: int = 0
    gains: Slots = ()
    gives: bool = False
    given: dict[int, Given] = field(default_factory=dict)
    targets: dict[GroupKey, Target] = field(default_factory=dict)
    deletes: KeptDeletes = field(default_factory=KeptDeletes)
    cuts: dict[int, CutMemory] = field(default_factory=dict)
    origins: dict[GroupKey, Origin] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    gained: dict[int, int] = field(default_factory=dict)
    holdings: Holdings = field(default_factory=Holdings)
    birth: int = field(default=1, compare=False)
    revision: int = field(default=0, compare=False)
    returned: list[int] = field(default_factory=list, compare=False)

    def found(self, members: tuple[str, ...], birth: int, gains: Slots) -> None:
        """Begin with the members of the birth, its table and the slots that come with it, unless records came."""
        self.birth = birth
        if not self.members:
            self.members, self.era, self.gained = members, birth, dict.fromkeys(gains, birth)

    @property
    def settled_version(self) -> int:
        """The newest table version whose second phase, or birth, this group has reached."""
        if self.phase is None:
            return self.birth
        # A change begins when the one before is over, and its table has the next version: the table before its own
        # counts in its first phase, and after its cancellation.
        return self.table_version if self.phase is BarrierPhase.FORMAL else self.table_version - 1

    @property
    def proven_version(self) -> int:
        """The newest table version that a record here has shown to count, also while the second phase is to come."""
        # A writer of the new table proves it. From then on there are rows here that the former holder may have, too.
        return max(self.settled_version, self.era)

    @property
    def oldest_era(self) -> int:
        """The lowest era of a row, and of a delete that concerns one, which may still come here."""
        # Late rows are older than the table that brought their slots. Deletes of this group from before it concern
        # none of them.
        return min((self.era, *(version - 1 for version in self.gained.values())))

    def conflict(self, barrier: Barrier) -> str | None:
        """Why a barrier does not count after the records so far; None if it does."""
        if barrier.change < self.change:
            return f"it is of change {barrier.change}; change {self.change} has reached the group"
        if barrier.change == self.change:
            if self.phase is not BarrierPhase.PRE or barrier.phase is BarrierPhase.PRE:
                return f"change {self.change} is in phase {self.phase} already"
            if barrier.table_version != self.table_version:
                return f"change {self.change} ends with table {self.table_version}"
        elif barrier.table_version <= self.era:
            return f"the group has slots of table {self.era}"
        elif self._waits_for_cut and barrier.table_version > self.table_version:
            # The change before was not cancelled: then this one would end with the same table.
            return f"the slots of change {self.change} have not left the group"
        if self._new_moves(barrier) and (barrier.gains or barrier.table_version <= self.era):
            return "a group that takes slots gives up none in the same change"
        if barrier.phase is BarrierPhase.FORMAL and (waiting := self._not_accepted(barrier)):
            return f"{waiting} has not accepted all records for slots that get another holder"
        return None

    def _not_accepted(self, barrier: Barrier) -> str:
        """The group that must accept something for a slot which the barrier brings back, or gives another holder."""
        # That group may end with this change. What it had not accepted before its log is closed would be lost.
        changed = {slot for each in barrier.moves for slot in each.slots if slot in self.given}.union(barrier.gains)
        found = (
            each.target.group
            for target in self.targets.values()
            for each in target.outstanding
            if not changed.isdisjoint(concerned_slots(each, self.cuts))
        )
        return next(found, "") if changed else ""

    @property
    def _waits_for_cut(self) -> bool:
        return self.phase is BarrierPhase.PRE and self.gives

    def _new_moves(self, barrier: Barrier) -> bool:
        return any(slot not in self.given for each in barrier.moves for slot in each.slots)

    def prepare(self, barrier: Barrier) -> None:
        """The first phase, or its end by a cancellation: members change, and slots do not."""
        pre = barrier.phase is BarrierPhase.PRE
        self._note(barrier)
        self.gains = barrier.gains if pre else ()
        self.gives = pre and self._new_moves(barrier)
        if pre:
            self.era = max(self.era, barrier.table_version - 1)

    def cut(self, version: int, offset: int, barrier: Barrier, memory: CutMemory) -> None:
        """The second phase: the table of the change counts for this group, and slots leave."""
        given = dict(self.given)
        for each in barrier.moves:
            for slot in each.slots:
                # Late rows keep the era under which this group held the slot, whoever is the next holder by now.
                era = self.given[slot].era if slot in self.given else self.era
                if slot in self.given:
                    self.returned.append(slot)
                given[slot] = Given(each.key, era, version)
        self.given = given
        self._note(barrier)
        self.gains = barrier.gains
        self._take_gains()
        if barrier.moves:
            self.cuts = {**self.cuts, version: memory}
        for each in barrier.moves:
            target = self.targets.setdefault(each.key, Target(each.key, each.topic))
            for part in range(len(memory.takeovers(each.key, self.slots_total))):
                target.add(Transfer(HandOverPosition(version, part), None, (), offset))

    def _note(self, barrier: Barrier) -> None:
        # A later change proves that the one before is over, and with another table that it was not cancelled.
        if self.phase is BarrierPhase.PRE and barrier.table_version > self.table_version:
            self._take_gains()
            self.added = ()
        pre = barrier.phase is BarrierPhase.PRE
        before = [member for member in self.members if member not in self.added]
        self.added = tuple(member for member in barrier.members if member not in before) if pre else ()
        self.members, self.slots_total = barrier.members, barrier.slots_total
        self.change, self.phase, self.table_version = barrier.change, barrier.phase, barrier.table_version
        self.revision += 1

    def _take_gains(self) -> None:
        self.era = max(self.era, self.table_version)
        self.gained |= dict.fromkeys(self.gains, self.table_version)
        self._take_back(self.gains, self.table_version)
        self.gains = ()

    def _take_back(self, slots: Slots, table_version: int) -> None:
        taken = frozenset(slots)
        for slot in taken.intersection(self.given):
            self.returned.append(slot)
            self.holdings.end(slot, table_version, self.given[slot].era)
        self.given = {slot: each for slot, each in self.given.items() if slot not in taken}
        self.revision += 1

    def note_table(self, table_version: int) -> None:
        """A record names the table by which it was routed; that of the running change proves that it counts."""
        # Writers follow the membership log, and are ahead of the barrier here. Rows of slots that this group
        # takes must outrank those of the former holder from the first one on.
        if self.phase is BarrierPhase.PRE and not self.gives and table_version == self.table_version > self.era:
            self._take_gains()

    def note_position(self, handed: HandedOver) -> Origin:
        """A hand-over counts, whatever it brings: the next one names its position."""
        origin = self.origins.setdefault(handed.origin, Origin())
        origin.position = handed.position
        self.revision += 1
        return origin

    def expects(self, takeover: Takeover) -> bool:
        """Whether slots come here with the table of a takeover, by a barrier or by the birth of the group."""
        # Whoever can append to this log could else give the group slots that its table gives to another one. One
        # of an older table may come late.
        running = self.phase is BarrierPhase.PRE and takeover.table_version == self.table_version
        coming = frozenset(self.gains if running else ())
        # An earlier holder renames these when the one ends to which it gave them: then they are here already, or have
        # left again. Those of an older table bring no slot back (see `take`).
        reached = takeover.table_version <= self.table_version
        return all(
            slot in coming
            or self.gained.get(slot, 0) >= takeover.table_version
            or (reached and slot in self.gained and (slot not in self.given or takeover.table_version < self.era))
            for slot in takeover.slots
        )

    def take(self, takeover: Takeover) -> None:
        """Slots come from their former holder."""
        self.slots_total = takeover.slots_total
        self.note_table(takeover.table_version)
        # One of an older table may come late: the slots may have left again since.
        if takeover.table_version >= self.era and not self._waits_for_cut:
            self.era = takeover.table_version
            self._take_back(takeover.slots, takeover.table_version)

    def note_delete(self, version: int, delete: Delete, known: frozenset[int] = frozenset()) -> None:
        """Remember a delete for slots that were taken or given: late rows of them may come by another way than it.

        It does not concern the `known` ones.
        """
        sections = (section.slots for section in self.sections())
        # Also for those whose takeover has not arrived yet: the slots may have left again before the late rows come.
        taken = self.held(frozenset(self.gained).union(*sections) - known)
        by_era: dict[int, list[int]] = {self.era: list(taken)} if taken else {}
        for slot in self.given.keys() - known:
            by_era.setdefault(self.given[slot].era, []).append(slot)
        for era, slots in sorted(by_era.items()):
            self.deletes.keep(HandedDelete(Rank(era, version), tuple(sorted(slots)), delete))

    def held(self, slots: Iterable[int]) -> Slots:
        """Those of the slots that are not another group's."""
        return tuple(slot for slot in slots if slot not in self.given)

    def concerns(self, position: ProducerPosition, digest: bytes, table_version: int) -> bool:
        """Whether some rows of a write may be another group's, of an earlier holding, or known at a former holder."""
        # Whatever table it names: rows of a slot that left would be in no answer, and nobody would know of them.
        if self.given or table_version < self.holdings.newest:
            return True
        return any(section.knows(position, digest) for section in self.sections())

    def slots_that_knew(self, position: ProducerPosition, digest: bytes) -> frozenset[int]:
        """All slots whose former holder had this message of a producer already, or a newer batch."""
        found = (section.slots for section in self.sections() if section.knows(position, digest))
        return frozenset().union(*found)

    def sections(self) -> Iterator[Section]:
        """What former holders knew of producers, by slots."""
        return (section for origin in self.origins.values() for section in origin.sections)

    def all_slots(self) -> Iterable[int]:
        """The slots of which this group may have rows: all of the cluster in a group of its beginning."""
        return range(self.slots_total) if self.birth == FIRST_TABLE else sorted({*self.gained, *self.given})

    def ranked(self, version: int, slots: Slots, table_version: int) -> list[tuple[Rank, Slots]]:
        """The rank of the rows of this log's newest record, by the slots held here and the table that it names."""
        found = self.holdings.by_era(slots, table_version, self.era)
        return [(Rank(era, version), numbers) for era, numbers in found]

    def divide(
        self,
        version: int,
        offset: int,
        slots: Iterable[int],
        rank: Rank | None = None,
        table_version: int = NEWEST_TABLE,
    ) -> list[HandOver]:
        """Notes, for each other group that holds some of the slots, what it must accept of the record there.

        Without a rank the rows are of this log, with the era under which it held each slot by the table they name.
        """
        parts: dict[tuple[GroupKey, int], list[int]] = {}
        for slot in slots:
            if (given := self.given.get(slot)) is not None:
                era = rank.era if rank else self.holdings.era(slot, table_version) or given.era
                parts.setdefault((given.target, era), []).append(slot)
        found: list[HandOver] = []
        for (key, era), numbers in sorted(parts.items()):
            target = self.targets[key]
            newest = target.newest
            position = HandOverPosition(version, newest.part + 1 if newest.version == version else 0)
            found.append(target.add(Transfer(position, rank or Rank(era, version), tuple(numbers), offset)))
        self.revision += len(found)
        return found

    def accepted(self, key: GroupKey, position: HandOverPosition) -> bool:
        """Forgets what a target has accepted; False if it was never due, or is known as accepted."""
        target = self.targets.get(key)
        if target is None or position not in [each.position for each in target.outstanding]:
            return False
        target.accepted = position
        target.outstanding = [each for each in target.outstanding if each.position > position]
        waiting = {each.position.version for one in self.targets.values() for each in one.outstanding}
        self.cuts = {version: memory for version, memory in self.cuts.items() if version in waiting}
        self.revision += 1
        return True

    def lose(self, gap: Gap) -> dict[str, int]:
        """An accepted gap: late records that the log has lost are due no more. How many, by the group they were for."""
        # A log that begins behind all that was read has none of them, and neither has one that was made again: the
        # anchor has no offset in it. One that was cut has other records from there on.
        behind = gap.resume_offset > gap.anchor.offset + 1
        found: dict[str, int] = {}
        for target in self.targets.values():
            kept = [
                each
                for each in target.outstanding
                if each.transfer.rank is None
                or each.position.version > gap.anchor.version
                or not (behind or each.transfer.offset >= gap.resume_offset)
            ]
            if lost := len(target.outstanding) - len(kept):
                found[target.key.group] = lost
                target.keep(kept)
                self.revision += 1
        return found

    def follows(self, handed: HandedOver) -> bool:
        """Whether a hand-over is the next one of its origin; the first one is a takeover."""
        origin = self.origins.get(handed.origin)
        if origin is None:
            return handed.previous == BEGINNING and isinstance(handed.body, Takeover)
        # The one before may be gone from the log of the origin, which then names an earlier one.
        return handed.previous <= origin.position < handed.position
