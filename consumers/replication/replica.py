"""The replica: a deterministic state machine over one forward log.

Every record that a read_committed consumer sees moves the version by one, whatever its content. All other
effects follow from the state and the record alone, never from a clock, another topic or this process's
memory, so every replica does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field

from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyLoad,
    ApplyRows,
    ApplyWrite,
    CompactNow,
    CutSlots,
    DropSlices,
    HandOversLost,
    Ignored,
    Rejection,
    ReleaseSlots,
    SealNow,
    refusal_of,
    repeats,
)
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.consumers.replication.sync_rules import is_late_delete, refused_load
from headrace.consumers.replication.transfers import HandOver
from headrace.consumers.replication.write_slots import SlotsOf, no_slots
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.group_changes import (
    Barrier,
    BarrierPhase,
    HandedDelete,
    HandedOver,
    HandedRows,
    Rank,
    Slots,
    Takeover,
)
from headrace.schemas.message_rules import check_message
from headrace.schemas.messages import (
    Body,
    Claim,
    Compact,
    Delete,
    Drop,
    Gap,
    Leadership,
    Load,
    Message,
    Seal,
    TableVersion,
    Write,
    decode_message,
    load_identity,
)
from headrace.schemas.payload import PayloadInvalid, PayloadTooLarge, check_size

KnowsTables = Callable[[int, bytes, tuple[TableVersion, ...]], bool]
"""Whether the record at an offset, with a digest, counts although it names these versions of tables.

The answer must follow from logs alone, so that every replica gets the same; it may come late.
"""


@dataclass(slots=True)
class Replica:
    """State of one group at one node, and how many records it ignored.

    `members`, `era` and `gains` are those of the group's birth: its era is the version of the table that had it
    first, and its gains are the slots which it has to take over. They must be equal at every member and every
    start. From the first record on they are replicated state. Not thread-safe: owned by the apply thread.
    """

    members: InitVar[tuple[str, ...]]
    state: GroupState = field(default_factory=GroupState)
    ignored: Counter[Ignored] = field(default_factory=Counter)
    knows_tables: KnowsTables = lambda _offset, _digest, _tables: True
    rejection: Rejection | None = None
    era: InitVar[int] = 1
    gains: InitVar[Slots] = ()
    slots_of: SlotsOf = no_slots

    def __post_init__(self, members: tuple[str, ...], era: int, gains: Slots) -> None:
        """Begin with the settings of the birth, also from a state of a build that did not keep them."""
        self.state.changes.found(members, era, gains)

    def apply(self, offset: int, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> list[Action]:
        """Take the next record.

        Raises FormatTooNew and LogHasGap with the state unchanged: the group stops here. `rejection` is then
        what is wrong with the record, if anything is.
        """
        # Whatever raises comes before any change: a build that can read the record continues from exactly this
        # state.
        check_format(headers)
        message, fault = _decoded(value)
        if message is not None and isinstance(message.body, Gap):
            self.state.check_gap(message.body)
        state = self.state
        digest = record_digest(value)
        if message is not None and (tables := self._tables_of(message.body)):
            fault = None if self.knows_tables(offset, digest, tables) else (Ignored.REFUSED, refusal_of(tables))
        # The seal has the state before this record, so that a crash reads the load from the log again.
        before = [self._seal(before_load=True)] if message and not fault and self._must_seal(message) else []
        state.version += 1
        state.offset = offset
        state.record_digest = digest
        state.chain = next_chain(state.chain, digest)
        state.log_bytes += len(value)
        state.unsealed_bytes += len(value)
        self.rejection = None
        if message is None or fault is not None:
            if message is not None and isinstance(message.body, HandedOver):
                # Else nothing behind a refused record could follow it.
                state.changes.note_position(message.body)
            return self._seal_if_full(self.reject(*(fault or (Ignored.UNDECODABLE, ""))))
        return [*before, *self._seal_if_full(self._decide(message))]

    def _must_seal(self, message: Message) -> bool:
        """Whether a record loads a file of a sync sender while rows are unsealed."""
        # Else a segment would have ranks on both sides of the file. Loads that follow each other cost no more seals.
        load = message.body
        if not isinstance(load, Load) or not load.sender or not self.state.unsealed_rows:
            return False
        repeated = repeats(message, self.state.producers.get(message.position.producer))
        return self.leads(load.leadership) and not repeated and refused_load(load, self.state) is None

    def reject(self, why: Ignored, error: str) -> list[Action]:
        """Ignore the newest record, which breaks a rule; also called by whoever decodes its rows."""
        self.rejection = Rejection(self.state.version, self.state.offset, why, error)
        return self._ignore(why)

    def _tables_of(self, body: Body) -> tuple[TableVersion, ...]:
        """The versions of tables without which a record cannot be applied."""
        if isinstance(body, Write) or (isinstance(body, Load) and self.leads(body.leadership)):
            return (TableVersion(body.database, body.table, body.schema_version),)
        if isinstance(body, HandedOver) and isinstance(body.body, HandedRows):
            write = body.body.write
            named = TableVersion(write.database, write.table, write.schema_version)
            return (named,) if self.state.changes.follows(body) else ()
        return body.tables if isinstance(body, Seal) and self.leads(body.leadership) else ()

    def _decide(self, message: Message) -> list[Action]:
        # A hand-over is known by its position alone: one that came too early is sent again as it is.
        if not isinstance(message.body, HandedOver) and (repeat := self._check_repeat(message)) is not None:
            return self._ignore(repeat)
        actions = self._act(message)
        if returned := self.state.changes.returned:
            back = tuple(sorted(returned))
            returned.clear()
            actions = [ReleaseSlots(self.state.version, back), *self._delete_returned(back), *actions]
        return actions

    def _delete_returned(self, slots: Slots) -> list[Action]:
        """What this group remembers of the deletes for slots that come back concerns their rows at once."""
        # Those behind the cut still come by way of the holder in between. A writer of an older table may add a row of
        # a higher version until then, and a merge puts both into one file: the delete would miss the older one.
        version, back = self.state.version, frozenset(self.state.changes.held(slots))
        return [
            ApplyHandedDelete(version, each.rank, tuple(sorted(back.intersection(each.slots))), each.delete)
            for each in self.state.changes.deletes.of(back)
        ]

    def _seal_if_full(self, actions: list[Action]) -> list[Action]:
        """Seal when this record filled the memtable."""
        # Every replica decides this from the log. A Seal that the leader appends would come behind the log's
        # backlog, and a replica that reads a long log on would hold all of that backlog in memory.
        state = self.state
        if state.unsealed_rows >= state.seal_rows or state.unsealed_bytes >= state.seal_bytes:
            return [*actions, self._seal()]
        return actions

    def _ignore(self, why: Ignored) -> list[Action]:
        self.ignored[why] += 1
        return []

    def _check_repeat(self, message: Message) -> Ignored | None:
        """Drop what a producer sent before, and whatever belongs to a batch older than its newest."""
        # An older batch comes from a task that was given up and still writes; the retry wrote that batch
        # whole. The same sequence with another digest is applied: a retried batch may be divided into
        # messages in another way.
        position, state, found = (
            message.position,
            self.state,
            repeats(message, self.state.producers.get(message.position.producer)),
        )
        if found is Ignored.SUPERSEDED or is_late_delete(position, state.changes):
            return Ignored.SUPERSEDED
        known, identity = state.producers.get(position.producer), (position.sequence, message.digest)
        if known is None or position.batch > known.batch:
            state.note_batch(position.producer, position.batch, identity)
            return None
        state.note_record(position.producer)
        known.seen.add(identity)
        return found

    def _act(self, message: Message) -> list[Action]:
        version, body = self.state.version, message.body
        if isinstance(body, Write):
            return self._write(message, body)
        if isinstance(body, Delete):
            return self._delete(message, body)
        if isinstance(body, HandedOver):
            return self._handed_over(body)
        if isinstance(body, Claim):
            return self._claim(body)
        if isinstance(body, Gap):
            # Records before it are in no log any more: only a seal makes them files that other members can copy.
            lost = self.state.changes.lose(body) if LogBase.of(body) == self.state.base else {}
            return [self._seal(), *([HandOversLost(version, lost)] if lost else [])]
        # Decided by what the log accepted, never by who sends: a leader that was stopped may append long
        # after its term.
        if not self.leads(body.leadership):
            return self._ignore(Ignored.NOT_LEADER)
        if isinstance(body, Seal):
            for table in body.tables:
                self._note_schema(table.database, table.table, table.schema_version)
            return [self._seal()]
        if isinstance(body, Drop):
            return [DropSlices(version, body)]
        if isinstance(body, Load):
            return self._load(body)
        if isinstance(body, Barrier):
            return self._barrier(body)
        if isinstance(body, Compact):
            return [CompactNow(version, body)]
        known = self.state.changes.accepted(body.target, body.position)
        return [] if known else self._ignore(Ignored.OUT_OF_ORDER)

    def _delete(self, message: Message, delete: Delete) -> list[Action]:
        self.state.unsealed_rows += 1
        version, changes = self.state.version, self.state.changes
        known = changes.slots_that_knew(message.position, message.digest)
        changes.note_delete(version, delete, known)
        if not known:
            # To every group that took slots, with its rank in this log: there it hides only rows of these slots.
            return [ApplyDelete(version, delete), *self._divide(sorted(changes.given))]
        # The former holder of some slots has applied it, or a newer batch of its producer: rows since then must stay.
        # Deletes of a sync sender are repeated by whoever takes over from a receiver, also by one that was replaced itself.
        concerned = [slot for slot in changes.all_slots() if slot not in known]
        kept = changes.held(concerned)
        own = [ApplyHandedDelete(version, Rank(changes.era, version), kept, delete)] if kept else []
        return [*own, *self._divide(concerned)]

    def _write(self, message: Message, write: Write) -> list[Action]:
        try:
            self._note_rows(write)
        except PayloadTooLarge as error:
            return self.reject(Ignored.TOO_LARGE, error.message)
        version, changes, table = self.state.version, self.state.changes, write.slot_table_version
        changes.note_table(table)
        if not changes.concerns(message.position, message.digest, table):
            return [ApplyWrite(version, write)]
        try:
            slots = self.slots_of(write, changes.slots_total)
        except PayloadInvalid as error:
            return self.reject(Ignored.INVALID, error.message)
        known = changes.slots_that_knew(message.position, message.digest).intersection(slots)
        if known and known.issuperset(slots):
            return self._ignore(Ignored.SUPERSEDED)
        counting = tuple(slot for slot in slots if slot not in known)
        kept = changes.ranked(version, changes.held(counting), table)
        if kept == [(Rank(changes.era, version), slots)]:
            return [ApplyWrite(version, write)]
        handed = changes.divide(version, self.state.offset, counting, None, table)
        return [*(ApplyRows(version, rank, part, write) for rank, part in kept), *handed]

    def _handed_over(self, handed: HandedOver) -> list[Action]:
        version, changes, body = self.state.version, self.state.changes, handed.body
        # The content follows from the log of the origin, so any of its leaders may append it, a former one too.
        if not changes.follows(handed):
            return self._ignore(Ignored.OUT_OF_ORDER)
        if isinstance(body, Takeover) and not changes.expects(body):
            # Its position does not count either: the true one follows what counted before.
            return self.reject(Ignored.UNEXPECTED, f"no slots come here from {handed.origin.group} with that table")
        origin = changes.note_position(handed)
        if isinstance(body, Takeover):
            origin.table_version = max(origin.table_version, body.table_version)
            origin.section(frozenset(body.slots)).add(body.producers)
            changes.take(body)
            self.state.note_loads(body.loads)
            return [action for each in body.deletes for action in self._delete_handed(each)]
        kept: Slots = changes.held(body.slots)
        if isinstance(body, HandedDelete):
            self.state.unsealed_rows += 1
            return self._delete_handed(body)
        try:
            self._note_rows(body.write)
        except PayloadTooLarge as error:
            return self.reject(Ignored.TOO_LARGE, error.message)
        origin.note(body.slots, body.position, body.digest)
        own = [ApplyRows(version, body.rank, kept, body.write)] if kept else []
        # The slot may have moved on: the rank is kept through any number of groups.
        return [*own, *self._divide(body.slots, body.rank)]

    def _delete_handed(self, handed: HandedDelete) -> list[Action]:
        """A delete that comes alone or with a takeover; slots of both may have moved on."""
        changes, version = self.state.changes, self.state.version
        changes.deletes.keep(handed)
        kept = changes.held(handed.slots)
        own = [ApplyHandedDelete(version, handed.rank, kept, handed.delete)] if kept else []
        return [*own, *self._divide(handed.slots, handed.rank)]

    def _divide(self, slots: Iterable[int], rank: Rank | None = None) -> list[HandOver]:
        return self.state.changes.divide(self.state.version, self.state.offset, slots, rank)

    def _barrier(self, barrier: Barrier) -> list[Action]:
        state = self.state
        if (conflict := state.changes.conflict(barrier)) is not None:
            return self.reject(Ignored.OUT_OF_ORDER, conflict)
        formal = barrier.phase is BarrierPhase.FORMAL
        if formal:
            state.changes.cut(state.version, state.offset, barrier, state.cut_memory(barrier))
        else:
            state.changes.prepare(barrier)
        if state.leader is not None and state.leader.node not in barrier.members:
            # At this version, so that nothing counts that it appends behind it.
            state.leader = None
        if not formal:
            return []
        # Everything, and not the slots that leave alone: then files and state are one cut, and the journal too.
        return [self._seal(), *([CutSlots(state.version, barrier.moves)] if barrier.moves else [])]

    def _note_rows(self, write: Write) -> None:
        """Counts the rows of a write. Raises PayloadTooLarge."""
        try:
            size_bytes = check_size(write.rows)
        except PayloadTooLarge:
            raise
        except PayloadInvalid:
            # Whoever decodes the rows finds the same, and rejects them.
            size_bytes = 0
        state = self.state
        self._note_schema(write.database, write.table, write.schema_version)
        state.unsealed_rows += write.row_count
        # The memtable holds the rows decoded, which may be many times what came over the wire.
        state.unsealed_bytes += max(0, size_bytes - len(write.rows))

    def _load(self, load: Load) -> list[Action]:
        if (refused := refused_load(load, self.state)) is not None:
            return self._ignore(refused)
        self.state.note_load(load_identity(load))
        self._note_schema(load.database, load.table, load.schema_version)
        return [ApplyLoad(self.state.version, load)]

    def _note_schema(self, database: str, table: str, schema_version: int) -> None:
        tables = self.state.tables
        tables[database, table] = max(tables.get((database, table), 0), schema_version)

    def _claim(self, claim: Claim) -> list[Action]:
        # Exactly one above the current epoch, so that of two claims made from the same view only the first
        # counts.
        state, wanted = self.state, claim.leadership
        if wanted.epoch != state.epoch + 1 or wanted.node not in state.changes.members:
            return self._ignore(Ignored.CLAIM_LOST)
        state.epoch = wanted.epoch
        state.leader = wanted
        state.seal_rows = max(1, claim.seal_rows)
        state.seal_bytes = max(1, claim.seal_bytes)
        return []

    def leads(self, leadership: Leadership) -> bool:
        """Whether this is the leadership of the newest accepted claim."""
        return self.state.leader == leadership

    def _seal(self, before_load: bool = False) -> SealNow:
        # The counters are reset before the state is encoded: the bytes describe the group as its segments
        # hold it.
        state = self.state
        state.frontier = state.version
        state.unsealed_rows = 0
        state.unsealed_bytes = 0
        tables = dict(state.tables)
        return SealNow(state.version, state.to_bytes(), tables, state.offset, state.log_bytes, before_load)


def _decoded(value: bytes) -> tuple[Message | None, tuple[Ignored, str] | None]:
    """The message of a record, or why it is none that a replica may apply."""
    # Both are functions of the bytes alone: every other replica skips the same records.
    try:
        message = decode_message(value)
    except FrameInvalid as error:
        return None, (Ignored.UNDECODABLE, error.message)
    try:
        check_message(message)
    except HeadraceError as error:
        return None, (Ignored.INVALID, error.message)
    return message, None
