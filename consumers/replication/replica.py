"""The replica: a deterministic state machine over one forward log.

Every record that a read_committed consumer sees moves the version by one, whatever its content. All other
effects follow from the state and the record alone, never from a clock, another topic or this process's
memory, so every replica does the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.messages import (
    Claim,
    Compact,
    Delete,
    Drop,
    Gap,
    Leadership,
    Message,
    Seal,
    Write,
    decode_message,
)


class LogHasGap(HeadraceError):
    """The log lost records that this replica never had, and an operator accepted that.

    The replica needs files of another member.
    """

    def __init__(self, base: LogBase) -> None:
        super().__init__(
            f"the log lost records: offset {base.offset} follows version {base.version}, "
            "which is not the base of this replica",
            action="a node recovers from the files of another member by itself",
        )
        self.base = base


class Ignored(StrEnum):
    """Why a record changed nothing but the version."""

    UNDECODABLE = "undecodable"
    REPEATED = "repeated"
    SUPERSEDED = "superseded"
    NOT_LEADER = "not_leader"
    CLAIM_LOST = "claim_lost"


@dataclass(frozen=True, slots=True)
class ApplyWrite:
    """Put the rows of a write into the memtable at this version."""

    version: int
    write: Write


@dataclass(frozen=True, slots=True)
class ApplyDelete:
    """Hide rows of lower rank."""

    version: int
    delete: Delete


@dataclass(frozen=True, slots=True)
class SealNow:
    """Everything unsealed at this version becomes segments; `state` is stored with them in the index."""

    version: int
    state: bytes
    tables: dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class DropSlices:
    """Retention: slices of a table that end at or before a time are dropped."""

    version: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class CompactNow:
    """The named segments become one."""

    version: int
    compact: Compact


Action = ApplyWrite | ApplyDelete | SealNow | DropSlices | CompactNow


@dataclass(slots=True)
class Replica:
    """State of one group at one node, and how many records it ignored.

    Not thread-safe: owned by the apply thread.
    """

    members: tuple[str, ...]
    state: GroupState = field(default_factory=GroupState)
    ignored: Counter[Ignored] = field(default_factory=Counter)

    def apply(self, offset: int, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> list[Action]:
        """Take the next record.

        Raises FormatTooNew and LogHasGap with the state unchanged: the group stops here.
        """
        # Both refusals come before any change: a build that can read the record continues from exactly this
        # state.
        check_format(headers)
        message = _decoded(value)
        if message is not None and isinstance(message.body, Gap):
            self._check_gap(message.body)
        state = self.state
        digest = record_digest(value)
        state.version += 1
        state.offset = offset
        state.record_digest = digest
        state.chain = next_chain(state.chain, digest)
        state.log_bytes += len(value)
        state.unsealed_bytes += len(value)
        return self._seal_if_full(self._decide(message))

    def _check_gap(self, gap: Gap) -> None:
        """Pass the gap that is this state's base, and one that came too late to count.

        Raises LogHasGap for any other.
        """
        # A replica that read the log from behind the lost records gave its records lower versions than
        # members that had them all: equal version would no longer mean equal content. Of two gaps for one
        # place the first in the log counts.
        found, base = LogBase.of(gap), self.state.base
        late = base.topic_id == found.topic_id and found.offset <= base.offset
        if found != base and not late:
            raise LogHasGap(found)

    def _decide(self, message: Message | None) -> list[Action]:
        # Bytes that no build can decode are the one thing a replica may skip: every other replica skips them
        # too.
        if message is None:
            return self._ignore(Ignored.UNDECODABLE)
        if (repeat := self._check_repeat(message)) is not None:
            return self._ignore(repeat)
        return self._act(message)

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
        position, state = message.position, self.state
        known = state.producers.get(position.producer)
        if known is not None and position.batch < known.batch:
            return Ignored.SUPERSEDED
        identity = (position.sequence, message.digest)
        if known is None or position.batch > known.batch:
            state.note_batch(position.producer, position.batch, identity)
            return None
        state.note_record(position.producer)
        if identity in known.seen:
            return Ignored.REPEATED
        known.seen.add(identity)
        return None

    def _act(self, message: Message) -> list[Action]:
        version, body = self.state.version, message.body
        if isinstance(body, Write):
            self._note_schema(body.database, body.table, body.schema_version)
            self.state.unsealed_rows += body.row_count
            return [ApplyWrite(version, body)]
        if isinstance(body, Delete):
            self.state.unsealed_rows += 1
            return [ApplyDelete(version, body)]
        if isinstance(body, Claim):
            return self._claim(body)
        if isinstance(body, Gap):
            # The records before the gap are in no log any more: only a seal makes them files that other
            # members can copy.
            return [self._seal()]
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
        return [CompactNow(version, body)]

    def _note_schema(self, database: str, table: str, schema_version: int) -> None:
        tables = self.state.tables
        tables[database, table] = max(tables.get((database, table), 0), schema_version)

    def _claim(self, claim: Claim) -> list[Action]:
        # Exactly one above the current epoch, so that of two claims made from the same view only the first
        # counts.
        state, wanted = self.state, claim.leadership
        if wanted.epoch != state.epoch + 1 or wanted.node not in self.members:
            return self._ignore(Ignored.CLAIM_LOST)
        state.epoch = wanted.epoch
        state.leader = wanted
        state.seal_rows = max(1, claim.seal_rows)
        state.seal_bytes = max(1, claim.seal_bytes)
        return []

    def leads(self, leadership: Leadership) -> bool:
        """Whether this is the leadership of the newest accepted claim."""
        return self.state.leader == leadership

    def _seal(self) -> SealNow:
        # The counters are reset before the state is encoded: the bytes describe the group as its segments
        # hold it.
        state = self.state
        state.frontier = state.version
        state.unsealed_rows = 0
        state.unsealed_bytes = 0
        return SealNow(state.version, state.to_bytes(), dict(state.tables))


def _decoded(value: bytes) -> Message | None:
    try:
        return decode_message(value)
    except FrameInvalid:
        return None
