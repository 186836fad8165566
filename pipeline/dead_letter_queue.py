"""The dead letters of raw topics: what ingest has refused, with the reasons, as far as it was not replayed.

A dead-letter topic keeps its records. What was replayed is below a position, which `{c}.replayed` keeps; what was
refused again is at the end of the topic once more. So the queue is everything from the position on.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log, LogUnavailable, Reader, Record, TopicMissing, TopicState, read_to_end
from headrace.connectors.log.topic_settings import REPLAYED, created_with
from headrace.connectors.log.topics import (
    DLQ_LINE_HEADER,
    DLQ_OFFSET_HEADER,
    DLQ_PARTITION_HEADER,
    DLQ_PREFIX,
    DLQ_REASON_HEADER,
    DLQ_TIMESTAMP_HEADER,
    DLQ_TOPIC_HEADER,
    Topics,
)
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.replay_positions import ReplayPosition, decode_position, encode_position

UNKNOWN = -1
READ_TIMEOUT_S = 30.0
POLL_S = 0.2


class QueueUnknown(HeadraceError):
    """A topic that does not exist, or has no dead letters by its name."""


class QueueEmpty(HeadraceError):
    """A dead-letter topic without a record that was not replayed."""


class ReplayContended(HeadraceError):
    """Another replay of the same dead letters has moved the position."""


class QueueLog(Log, Protocol):
    """A log whose topics can be listed."""

    def topic_names(self, prefix: str) -> list[str]:
        """The topics that begin with a prefix, sorted."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A raw message with its reason. Where it came from is None and `UNKNOWN` if its headers do not have it.

    `line` counts from 1. `timestamp_ms` is that of the raw message.
    """

    offset: int
    topic: str | None
    partition: int
    source_offset: int
    line: int
    reason: str
    timestamp_ms: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Records of a dead-letter topic that were not replayed, and the times (ms) of the first and the last one."""

    topic: str
    records: int
    oldest_ms: int | None
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class Queue:
    """A dead-letter topic, as it was when it was looked at: begin <= offset < end, without what was replayed."""

    topic: str
    topic_id: str
    begin: int
    end: int

    @property
    def records(self) -> int:
        """How many there are."""
        return self.end - self.begin


class DeadLetterQueues:
    """The dead letters of one Kafka, and how far each topic was replayed into one cluster. Owned by one thread."""

    def __init__(self, log: QueueLog, topics: Topics) -> None:
        self._log = log
        self._topics = topics

    def summaries(self) -> list[QueueSummary]:
        """All dead-letter topics, also those without a record. Raises LogUnavailable."""
        positions = self._positions()
        return [self._summary(topic, positions) for topic in self._log.topic_names(DLQ_PREFIX)]

    def queue(self, topic: str) -> Queue:
        """The dead letters of a topic. Raises QueueUnknown, QueueEmpty, LogUnavailable."""
        found = self._queue(topic, self._state(topic), self._positions())
        if found.begin >= found.end:
            raise QueueEmpty(f"{topic} has no dead letters that were not replayed", action="see: headrace dlq list")
        return found

    def save(self, queue: Queue, offset: int, run: str) -> None:
        """Note that everything below `offset` is done. Raises LogUnavailable, AppendUnknown."""
        self._log.create_topic(self._topics.replayed, created_with(REPLAYED))
        position = ReplayPosition(queue.topic, queue.topic_id, offset, run)
        append_one(self._log, self._topics.replayed, encode_position(position), key=queue.topic.encode())

    def check_own(self, queue: Queue, offset: int) -> None:
        """Raises ReplayContended when the position is not `offset`."""
        found = self._queue(queue.topic, self._state(queue.topic), self._positions()).begin
        if found > offset:
            raise ReplayContended(
                f"another replay of {queue.topic} has reached offset {found}",
                action="let it end; then look at the rest",
            )

    def _positions(self) -> dict[str, ReplayPosition]:
        try:
            records = read_to_end(self._log, self._topics.replayed, timeout_s=READ_TIMEOUT_S)
        except TopicMissing:
            return {}
        positions: dict[str, ReplayPosition] = {}
        for record in records:
            check_format(record.headers, record.topic, record.offset)
            with contextlib.suppress(FrameInvalid):
                position = decode_position(record.value)
                positions[position.topic] = position
        return positions

    def _state(self, topic: str) -> TopicState:
        if topic.startswith(DLQ_PREFIX):
            with contextlib.suppress(TopicMissing):
                return self._log.describe(topic)
        near = difflib.get_close_matches(
            topic if topic.startswith(DLQ_PREFIX) else DLQ_PREFIX + topic, self._log.topic_names(DLQ_PREFIX), n=3
        )
        raise QueueUnknown(
            f"there is no dead-letter topic {topic}",
            action=f"did you mean {' or '.join(near)}?" if near else "see: headrace dlq list",
        )

    def _queue(self, topic: str, state: TopicState, positions: Mapping[str, ReplayPosition]) -> Queue:
        known = positions.get(topic)
        # A topic that was created again was not replayed.
        done = known.offset if known is not None and known.topic_id == state.topic_id else 0
        return Queue(topic, state.topic_id, min(max(state.begin, done), state.end), state.end)

    def _summary(self, topic: str, positions: Mapping[str, ReplayPosition]) -> QueueSummary:
        queue = self._queue(topic, self._state(topic), positions)
        if queue.begin >= queue.end:
            return QueueSummary(topic, 0, None, None)
        oldest = next(records_of(self._log, queue, limit=1), None)
        newest = next(records_of(self._log, queue, begin=queue.end - 1), None)
        times = [None if each is None else each.timestamp_ms for each in (oldest, newest)]
        return QueueSummary(topic, queue.records, *times)


def records_of(log: Log, queue: Queue, *, begin: int | None = None, limit: int | None = None) -> Iterator[Record]:
    """The records of a queue, the first `limit` of them. Raises LogUnavailable, LogTruncated."""
    with contextlib.closing(log.reader({queue.topic: queue.begin if begin is None else begin})) as reader:
        left = queue.records if limit is None else limit
        for records in polls(reader, queue, min(left, 1_000)):
            for record in records[:left]:
                left -= 1
                yield record
            if left <= 0:
                return


def polls(reader: Reader, queue: Queue, records_max: int) -> Iterator[list[Record]]:
    """What a reader of a queue returns, up to the queue's end. Raises LogUnavailable, LogTruncated."""
    deadline = Deadline(READ_TIMEOUT_S)
    while reader.position(queue.topic) < queue.end:
        records = [each for each in reader.poll(records_max, POLL_S) if each.offset < queue.end]
        if records:
            yield records
            deadline = Deadline(READ_TIMEOUT_S)
        elif deadline.passed():
            raise LogUnavailable(f"Kafka delivers nothing of {queue.topic}", action="check the broker", retriable=True)


def dead_letter_of(record: Record) -> DeadLetter:
    """A record of a dead-letter topic, with what its headers say; others than ingest may have written it."""
    headers = dict(record.headers)
    topic = headers.get(DLQ_TOPIC_HEADER)
    return DeadLetter(
        record.offset,
        None if topic is None else _text(topic),
        _number(headers.get(DLQ_PARTITION_HEADER)),
        _number(headers.get(DLQ_OFFSET_HEADER)),
        _number(headers.get(DLQ_LINE_HEADER)),
        _text(headers.get(DLQ_REASON_HEADER, b"")),
        _number(headers.get(DLQ_TIMESTAMP_HEADER)),
        record.key,
        record.value,
    )


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


def _number(content: bytes | None) -> int:
    text = _text(content)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else UNKNOWN
