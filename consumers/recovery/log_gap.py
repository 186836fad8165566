"""A log that has lost records for good, and how its group continues once an operator accepts that.

Nothing is followed silently: a group whose log was truncated, recreated, or trimmed beyond every member
stops, keeps its data and reports the choices. `headrace accept-gap` appends one `Gap` record, made by the
member that has most: its newest record, the anchor, is followed by the record at an offset. Members with
exactly the anchor's version and chain continue there, and so does a replica that has read exactly these
records from the log itself. Every other one, an empty one too, takes files of those. The first Gap for a place
counts, later ones are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.connectors.log.port import Log, Reader, Record, TopicState, TopicUnreadable
from headrace.consumers.recovery.progress import TransferStopped
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.consumers.replication.log_prefix import Continuation, Cursor, LogPrefix
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.messages import NO_CHAIN, Anchor, Gap, decode_message

POLL_RECORDS = 1_000
READ_TIMEOUT_S = 5.0
CHAIN_READ_TIMEOUT_S = 1.0


class GapRefused(HeadraceError):
    """A gap that cannot be accepted: nothing is lost here, or the offset where the log continues is unknown."""


def new_gap(
    state: GroupState,
    known_topic_id: str,
    log: TopicState,
    last_common: Callable[[], int | None],
    resume_offset: int | None,
) -> Gap:
    """The gap between a member's state, of a topic `known_topic_id`, and the present log. Raises GapRefused.

    `last_common()` is the offset of the newest record that is here and in the log, None when unknown.
    """
    # A recreated topic and one that was trimmed too far have nothing in common with this member: their first
    # record is new. A log that was truncated is the same topic, so the records that both have must not be
    # counted twice.
    if resume_offset is None:
        if log.topic_id != known_topic_id or state.offset + 1 < log.begin:
            resume_offset = log.begin
        elif (common := last_common()) is not None:
            resume_offset = common + 1
        elif state.base.topic_id == log.topic_id and state.base.offset <= log.begin:
            # Nothing behind the last gap is left, and the log had nothing before it.
            resume_offset = log.begin
        else:
            raise GapRefused(
                "the log was truncated at an unknown offset: none of the records that are remembered here is in it",
                action=f"find the first new record (offsets {log.begin} to {log.end} exist); pass its offset as --resume",
            )
    if not log.begin <= resume_offset <= log.end:
        raise GapRefused(f"offset {resume_offset} is not in the log, which holds {log.begin} to {log.end}")
    # A topic that was made again has the anchor at no offset, and none of the records before it, wherever it begins.
    anchor_offset = state.offset if log.topic_id == known_topic_id else -1
    return Gap(log.topic_id, resume_offset, Anchor(anchor_offset, state.version, state.chain))


def runs_of(history: Sequence[tuple[int, bytes]], state: GroupState) -> list[Sequence[tuple[int, bytes]]]:
    """The parts of a history whose records follow each other in the log, the newest first.

    `history`: (offset, chain after it), oldest first, the last of them of `state`.
    """
    # Behind an accepted gap offsets begin again, perhaps below those before it.
    base, behind = state.base, state.version - state.base.version
    if base == LogBase() or behind >= len(history):
        return [history]
    before, newest = history[: len(history) - behind], history[len(history) - behind :]
    falls = [index for index in range(1, len(before)) if before[index][0] <= before[index - 1][0]]
    left = [entry for entry in before[falls[-1] if falls else 0 :] if entry[0] < base.offset]
    return [[(base.offset - 1, base.chain), *newest], left]


def last_common_offset(log: Log, topic: str, history: Sequence[tuple[int, bytes]]) -> int | None:
    """The newest offset at which the log holds the record that was read there, None when unknown.

    `history`: (offset, chain after it), oldest first; the first entry represents all records before.
    """
    # A log that was truncated and grew again differs from one offset on and never again agrees, so bisection
    # applies: some sixteen single reads instead of 65,536 records.
    state = log.describe(topic)
    low, high = 0, len(history) - 1
    while low < high:
        middle = (low + high + 1) // 2
        offset, chain = history[middle]
        if _holds(log, topic, state, offset, history[middle - 1][1], chain):
            low = middle
        else:
            high = middle - 1
    return history[low][0] if low else None


def _holds(log: Log, topic: str, state: TopicState, offset: int, before: bytes, after: bytes) -> bool:
    # Trimmed records cannot be compared. They were there before the log was cut, so they count as common.
    if offset < state.begin:
        return True
    found = _digest_at(log, topic, state, offset)
    return found is not None and next_chain(before, found) == after


def holds_record(log: Log, topic: str, state: TopicState, offset: int, digest: bytes) -> bool:
    """Whether the log has a record with this digest at an offset."""
    return offset >= state.begin and _digest_at(log, topic, state, offset) == digest


def follows_cursor(log: Log, topic: str, state: TopicState, cursor: Cursor) -> bool:
    """Whether a log holds what was read of it, up to a cursor, and what else the cursor needs: a start would follow it.

    False where it does not hold the record at the cursor any more, which may have been trimmed.
    """
    if cursor.needs >= state.end or cursor.offset + 1 < state.begin:
        return False
    # A log that was cut before an accepted gap, and written on, has another record in its place.
    if cursor.gap is not None and not holds_record(log, topic, state, cursor.gap.offset, cursor.gap.digest):
        return False
    if cursor.offset < 0:
        return True
    prefix = LogPrefix(cursor, comparing=True)
    record = _record_at(log, topic, state, cursor.offset) if prefix.comparable else None
    return record is not None and prefix.judge(record, record_digest(record.value)) is Continuation.READ_BEFORE


def _digest_at(log: Log, topic: str, state: TopicState, offset: int) -> bytes | None:
    record = _record_at(log, topic, state, offset)
    return None if record is None else record_digest(record.value)


def _record_at(log: Log, topic: str, state: TopicState, offset: int) -> Record | None:
    # Without a read: at the end of a log it would wait for its whole time, in each step of a bisection.
    if not state.begin <= offset < state.end:
        return None
    reader = log.reader({topic: offset})
    try:
        records = reader.poll(1, READ_TIMEOUT_S)
        return records[0] if records and records[0].offset == offset else None
    finally:
        reader.close()


@dataclass(frozen=True)
class LogChain:
    """The chain of a log after its first `version` records. `unreadable`: nobody can read the one that follows."""

    version: int
    chain: bytes
    unreadable: bool = False


def read_chain(log: Log, topic: str, version: int, stopped: Callable[[], bool]) -> LogChain:
    """The chain after a record, computed from the log's beginning, or as far as the log can be read.

    Raises TransferStopped, and the errors of a log that does not answer at this moment. Takes as long as reading the
    log up to that record, without decoding it.
    """
    reader = log.reader({topic: 0})
    chain, counted = NO_CHAIN, 0
    try:
        while counted < version:
            if stopped():
                raise TransferStopped("the node is stopping")
            records = reader.poll(POLL_RECORDS, CHAIN_READ_TIMEOUT_S)
            # An empty poll alone is no end of the log: the broker may be slow, or the reader be passing
            # transaction markers.
            if not records and reader.position(topic) >= log.describe(topic).end:
                break
            for record in records[: version - counted]:
                chain, counted = next_chain(chain, record_digest(record.value)), counted + 1
    except TopicUnreadable:
        return LogChain(counted, chain, unreadable=True)
    finally:
        reader.close()
    return LogChain(counted, chain)


def joins(base: LogBase, state: GroupState) -> bool:
    """Whether a replica's newest record is exactly the anchor of the gap."""
    return (state.version, state.chain) == (base.version, base.chain)


class GapSeeker:
    """Searches one topic for the first gap behind the base of its group. Owned by one thread."""

    def __init__(self, log: Log, topic: str) -> None:
        """Begins at the beginning of the log. Raises TopicMissing, LogUnavailable."""
        self._log, self._topic = log, topic
        self._state = log.describe(topic)
        self._reader: Reader = log.reader({topic: self._state.begin})
        self._prefix = LogPrefix(Cursor.of(GroupState()))
        self._passed: LogBase | None = None

    @property
    def topic_id(self) -> str:
        """The id of the topic that is searched."""
        return self._state.topic_id

    def seek(self, base: LogBase, stopped: Callable[[], bool] = lambda: False) -> LogBase | None:
        """The first gap in the log so far that is neither `base` nor older; None while there is none."""
        # Writers may append all the time: other groups are searched, too.
        end = self._log.describe(self._topic).end
        while not stopped() and (records := self._reader.poll(POLL_RECORDS, 0.2)):
            for record in records:
                continuation = self._prefix.judge(record, record_digest(record.value))
                if continuation is Continuation.NEXT and (found := self._judge(record, base)) is not None:
                    return found
                # A log that was cut and written on meanwhile may have a gap behind this position.
                if continuation is Continuation.UNPROVEN:
                    self._reader.seek(self._topic, self._prefix.cursor.offset)
                    break
                if continuation is Continuation.FOREIGN:
                    self._begin()
                    break
            if self._reader.position(self._topic) >= end:
                break
        return None

    def _begin(self) -> None:
        self._prefix, self._passed = LogPrefix(Cursor.of(GroupState())), None
        self._reader.seek(self._topic, self._log.describe(self._topic).begin)

    def _judge(self, record: Record, base: LogBase) -> LogBase | None:
        found = _gap_in(record)
        if found is None or found.topic_id != self._state.topic_id:
            return None
        if _is_same(found, base):
            self._passed = base
            return None
        return found if _is_new(found, base, passed=self._passed == base) else None

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _gap_in(record: Record) -> LogBase | None:
    try:
        body = decode_message(record.value).body
    except FrameInvalid:
        return None
    place = GapRecord(record.offset, record_digest(record.value), record.leader_epoch)
    return replace(LogBase.of(body), record=place) if isinstance(body, Gap) else None


def _is_same(found: LogBase, base: LogBase) -> bool:
    """Whether a gap in the log is the base itself, and not the same gap that was accepted once more."""
    known, place = base.record, found.record
    same_place = known is None or place is None or (known.offset, known.digest) == (place.offset, place.digest)
    return found == base and same_place


def _is_new(found: LogBase, base: LogBase, *, passed: bool) -> bool:
    """Whether a gap in the log counts behind `base`. `passed`: the log has the record of the base before it."""
    if base.topic_id != found.topic_id or found.offset > base.offset:
        return True
    # Behind the base a gap for the same place came too late. A log without the base was cut before it: what was
    # accepted since is newer, unless it precedes the place where the base continues.
    later = base.record is not None and found.record is not None and found.record.offset >= base.offset
    return not passed and (later or found.version > base.version)


def gap_document(base: LogBase) -> dict[str, Any]:
    """A gap as JSON values."""
    place = asdict(base.record) if base.record is not None else {}
    record = {"record": {**place, "digest": place["digest"].hex()}} if place else {}
    named = {"topic_id": base.topic_id, "offset": base.offset, "version": base.version, "chain": base.chain.hex()}
    return {**named, **record}


def parse_gap(document: Mapping[str, Any]) -> LogBase:
    """The inverse of `gap_document`; a node of an earlier build did not note where the gap is."""
    named = (document["topic_id"], document["offset"], document["version"], bytes.fromhex(document["chain"]))
    place = document.get("record")
    return LogBase(
        *named, record=GapRecord(**{**place, "digest": bytes.fromhex(place["digest"])}) if place is not None else None
    )
