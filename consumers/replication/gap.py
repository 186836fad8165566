"""A log that has lost records for good, and how its group goes on once an operator accepts that (DESIGN 6).

Nothing is followed silently: a group whose log was truncated, made again, or trimmed beyond every member stops, keeps its data and says what can be
done. `headrace accept-gap` appends one `Gap` record, made by the member that has most: behind its newest record, the anchor, the log goes on with
what stands at an offset. Members that hold exactly the anchor's version and chain go on from there; every other one, an empty one too, takes files
of those that did. The first Gap for a place counts, later ones are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.log.port import Log, Reader, TopicState
from consumers.replication.chain import next_chain, record_digest
from consumers.replication.state import GroupState, LogBase
from schemas.errors import HeadraceError
from schemas.framing import FrameInvalid
from schemas.messages import Anchor, Gap, decode_message

POLL_RECORDS = 1_000
READ_TIMEOUT_S = 5.0


class GapRefused(HeadraceError):
    """A gap that cannot be accepted: nothing is lost here, or it is not known where the log goes on."""


def choices(group: str) -> str:
    """What an operator can do about a log that is lost."""
    return (
        "the data is kept; restore the log, or let the group go on without what its log lost: headrace accept-gap --group "
        f"{group}"
    )


def new_gap(
    state: GroupState,
    known_topic_id: str,
    log: TopicState,
    last_common: Callable[[], int | None],
    resume_offset: int | None,
) -> Gap:
    """The gap between what a member has, of a topic `known_topic_id`, and what its log holds by now. `last_common()` is the offset of the newest
    record that is here and in the log; None when that is not known. Raises GapRefused.
    """
    if resume_offset is None:
        if log.topic_id != known_topic_id or state.offset + 1 < log.begin:
            resume_offset = log.begin
        elif (common := last_common()) is not None:
            resume_offset = common + 1
        else:
            raise GapRefused(
                "it is not known where the log was cut: none of the records that are remembered here is in it",
                action=f"find out (offsets {log.begin} to {log.end} are there) and name the first new one with --resume",
            )
    if not log.begin <= resume_offset <= log.end:
        raise GapRefused(f"offset {resume_offset} is not in the log, which holds {log.begin} to {log.end}")
    return Gap(log.topic_id, resume_offset, Anchor(state.offset, state.version, state.chain))


def last_common_offset(log: Log, topic: str, history: Sequence[tuple[int, bytes]]) -> int | None:
    """The newest offset at which the log holds the record that was read there. `history`: (offset, chain after it), oldest first, the first
    standing for what came before. A log that was cut and grew again differs from somewhere on, so a few single reads find the place.
    """
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
    if offset >= state.end:
        return False
    if offset < state.begin:
        return True
    reader = log.reader({topic: offset})
    try:
        records = reader.poll(1, READ_TIMEOUT_S)
        return (
            bool(records)
            and records[0].offset == offset
            and next_chain(before, record_digest(records[0].value)) == after
        )
    finally:
        reader.close()


def joins(base: LogBase, state: GroupState) -> bool:
    """Whether a replica holds exactly the record behind which the log goes on."""
    return (state.version, state.chain) == (base.version, base.chain)


class GapSeeker:
    """Looks through one topic for the first gap behind what its group counts from. Owned by one thread."""

    def __init__(self, log: Log, topic: str) -> None:
        """Begins at the beginning of the log. Raises TopicMissing, LogUnavailable."""
        self._state = log.describe(topic)
        self._reader: Reader = log.reader({topic: self._state.begin})

    @property
    def topic_id(self) -> str:
        """The topic that is looked through."""
        return self._state.topic_id

    def seek(self, base: LogBase) -> LogBase | None:
        """The first gap there is by now that is not the one `base` stands for, or an older one; None while there is none."""
        while records := self._reader.poll(POLL_RECORDS, 0.2):
            for record in records:
                found = _gap_in(record.value)
                if found is not None and found.topic_id == self._state.topic_id and _is_news(found, base):
                    return found
        return None

    def close(self) -> None:
        """Give up the reader."""
        self._reader.close()


def _gap_in(value: bytes) -> LogBase | None:
    try:
        body = decode_message(value).body
    except FrameInvalid:
        return None
    return LogBase.of(body) if isinstance(body, Gap) else None


def _is_news(found: LogBase, base: LogBase) -> bool:
    return base.topic_id != found.topic_id or found.offset > base.offset


def gap_document(base: LogBase) -> dict[str, Any]:
    """A gap as JSON values."""
    return {"topic_id": base.topic_id, "offset": base.offset, "version": base.version, "chain": base.chain.hex()}


def parse_gap(document: Mapping[str, Any]) -> LogBase:
    """The inverse of `gap_document`."""
    return LogBase(document["topic_id"], document["offset"], document["version"], bytes.fromhex(document["chain"]))
