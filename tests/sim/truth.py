"""What every replica must make of a forward log, by code of its own: the oracle of the simulation.

It follows docs/internals/replication.md and shares no decision with `Replica`: only the encoding of messages and the
hash of a record are those that ship.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.connectors.log.port import Record
from headrace.consumers.replication.group_state import SEAL_BYTES_DEFAULT, SEAL_ROWS_DEFAULT
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.schemas.framing import FORMAT, FORMAT_HEADER, FrameInvalid
from headrace.schemas.messages import NO_CHAIN, Claim, Compact, Delete, Drop, Gap, Leadership, Message, Seal, Write
from tests.sim import rows


@dataclass(frozen=True, slots=True)
class TruthRecord:
    """One record of one history of the log, and the state behind it. `ignored` names why, empty for one that counts."""

    topic_id: str
    record: Record
    version: int
    offset: int
    before: bytes
    ignored: str
    epoch: int
    leader: Leadership | None
    frontier: int
    content: int
    numbers: int


class Truth:
    """The histories of one topic: a log that loses its end, or is made again, begins another one.

    `by_chain` has the records of all histories, `written` those of writes by (number, offset).
    """

    def __init__(self, topic_id: str, members: tuple[str, ...]) -> None:
        self._members = members
        self.by_chain: dict[bytes, TruthRecord] = {}
        self.written: dict[tuple[int, int], TruthRecord] = {}
        self.digests: dict[tuple[int, int], bytes] = {}
        self.uncounted: dict[tuple[int, int], TruthRecord] = {}
        """What `written` would be of the present log, had nobody accepted the newest gap in it."""
        self.claimants: set[tuple[str, str]] = set()
        self.drops: list[Drop] = []
        self.made_again(topic_id)

    def made_again(self, topic_id: str) -> None:
        """The topic begins anew under another id."""
        self.topic_id = topic_id
        self._log: list[Record] = []
        self._begin()

    def truncated(self, end: int) -> None:
        """The records from an offset on are lost."""
        kept = [record for record in self._log if record.offset < end]
        self._log = []
        self._begin()
        for record in kept:
            self.observe(record)

    def _begin(self) -> None:
        self.uncounted = {}
        self._as_is: tuple[int, bytes] | None = None
        self.version, self.chain, self.epoch, self.frontier = 0, NO_CHAIN, 0, 0
        self._base = "", 0
        self.leader: Leadership | None = None
        self.numbers: set[int] = set()
        self.content: dict[int, int] = {}
        self.content_hash = self.numbers_hash = 0
        self._producers: dict[str, tuple[int, set[tuple[int, bytes]]]] = {}
        self._limits = (SEAL_ROWS_DEFAULT, SEAL_BYTES_DEFAULT)
        self._unsealed = (0, 0)

    def observe(self, record: Record) -> None:
        """Take the next record of the present history."""
        self._log.append(record)
        gap = self._gap_of(record)
        # Of two gaps for one place the first counts.
        is_new = gap is not None and (gap.topic_id != self._base[0] or gap.resume_offset > self._base[1])
        if gap is not None and is_new and gap.topic_id == self.topic_id and gap.anchor.chain in self.by_chain:
            self._join(gap)
        else:
            self._take(record, self.topic_id)
        if self._as_is is not None:
            self._count_as_is(record, *self._as_is)

    def _count_as_is(self, record: Record, version: int, chain: bytes) -> None:
        """A member may have journaled what is behind a gap before it reads that the gap was accepted."""
        number = self._number
        if number is not None and (found := self.written.get((number, record.offset))) is not None:
            self.uncounted[number, record.offset] = replace(found, version=version + 1, before=chain)
        self._as_is = version + 1, next_chain(chain, record_digest(record.value))

    def _join(self, gap: Gap) -> None:
        """The log continues behind an anchor of another history, at an offset of this one."""
        history = self.history(gap.anchor.chain)
        present = {record.offset: record for record in self._log}
        places = self.written.items()
        uncounted = {place: found for place, found in places if present.get(found.offset) is found.record}
        as_is = self.version, self.chain
        self._begin()
        self.uncounted, self._as_is = uncounted, as_is
        self._base = gap.topic_id, gap.resume_offset
        for each in history:
            # What was acknowledged was in that topic, also if it is not the present one.
            self._take(each.record, each.topic_id)
        for record in self._log:
            if record.offset >= gap.resume_offset:
                self._take(record, self.topic_id)

    def history(self, chain: bytes) -> list[TruthRecord]:
        """The records that a member with this chain has, the first one first."""
        path = list[TruthRecord]()
        while chain != NO_CHAIN:
            path.append(self.by_chain[chain])
            chain = self.by_chain[chain].before
        return path[::-1]

    @staticmethod
    def _gap_of(record: Record) -> Gap | None:
        try:
            body = rows.decoded(record.value).body
        except FrameInvalid:
            return None
        return body if isinstance(body, Gap) else None

    def _take(self, record: Record, topic_id: str) -> None:
        before, self.version, digest = self.chain, self.version + 1, record_digest(record.value)
        self.chain = next_chain(before, digest)
        self._unsealed = (self._unsealed[0], self._unsealed[1] + len(record.value))
        ignored = self._judge(record)
        if self._unsealed[0] >= self._limits[0] or self._unsealed[1] >= self._limits[1]:
            self._seal()
        found = TruthRecord(
            topic_id,
            record,
            self.version,
            record.offset,
            before,
            ignored,
            self.epoch,
            self.leader,
            self.frontier,
            self.content_hash,
            self.numbers_hash,
        )
        self.by_chain[self.chain] = found
        if self._number is not None:
            self.written[self._number, record.offset], self.digests[self._number, record.offset] = found, digest

    def _judge(self, record: Record) -> str:
        self._number: int | None = None
        if any(name == FORMAT_HEADER and int(value) > FORMAT for name, value in record.headers):
            return "too_new"
        try:
            message = rows.decoded(record.value)
        except FrameInvalid:
            return "undecodable"
        body = message.body
        if isinstance(body, Write) and (number := rows.number_of(body.rows)) is not None:
            self.numbers.add(number)
            self._number = number
        if (repeated := self._repeated(message)) != "":
            return repeated
        if isinstance(body, Write):
            return self._write(body)
        if isinstance(body, Delete):
            self._unsealed = (self._unsealed[0] + 1, self._unsealed[1])
            self._hide(rows.deleted_by(body.tags))
            return ""
        if isinstance(body, Claim):
            return self._claim(body)
        if isinstance(body, Seal | Compact | Drop):
            if body.leadership != self.leader:
                return "not_leader"
            if isinstance(body, Drop):
                self.drops.append(body)
                self._hide(rows.dropped_before(body.before_ns))
        if isinstance(body, Seal | Gap):
            self._seal()
        return ""

    def _repeated(self, message: Message) -> str:
        position, identity = message.position, (message.position.sequence, message.digest)
        batch, seen = self._producers.get(position.producer, (-1, set()))
        if position.batch < batch:
            return "superseded"
        if position.batch > batch:
            self._producers[position.producer] = position.batch, {identity}
            return ""
        if identity in seen:
            return "repeated"
        seen.add(identity)
        return ""

    def _write(self, body: Write) -> str:
        self._unsealed = (self._unsealed[0] + body.row_count, self._unsealed[1])
        number = rows.number_of(body.rows)
        if number is None:
            return "invalid"
        self.content_hash ^= rows.hash_of(number, self.content.get(number, 0)) ^ rows.hash_of(number, self.version)
        if number not in self.content:
            self.numbers_hash ^= rows.hash_of(number, 1)
        self.content[number] = self.version
        return ""

    def _hide(self, hides: rows.Hides) -> None:
        for number in [number for number in self.content if hides(number)]:
            self.content_hash ^= rows.hash_of(number, self.content.pop(number))
            self.numbers_hash ^= rows.hash_of(number, 1)

    def _claim(self, body: Claim) -> str:
        if body.leadership.epoch != self.epoch + 1 or body.leadership.node not in self._members:
            return "claim_lost"
        self.epoch, self.leader = body.leadership.epoch, body.leadership
        self.claimants.add((body.leadership.node, body.leadership.incarnation))
        self._limits = (max(1, body.seal_rows), max(1, body.seal_bytes))
        return ""

    def _seal(self) -> None:
        self.frontier, self._unsealed = self.version, (0, 0)
