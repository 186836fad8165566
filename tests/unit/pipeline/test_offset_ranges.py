"""The reader of one offset range of raw messages, on a fake consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.log.port import AccessDenied, LogUnavailable, RecordUndeliverable, TopicMissing
from headrace.pipeline.failures import RawDataLost
from headrace.pipeline.offset_ranges import RAW_SCHEMA, OffsetRangeReader
from headrace.pipeline.raw_offsets import OffsetRange
from headrace.pipeline.rebatch import rebatch
from headrace.schemas.errors import HeadraceError

STAMPED = 2


def message(offset: int, value: bytes | None = b"v", key: bytes | None = None, time_ms: int = 7) -> Message:
    """One raw message."""
    return Message(topic="raw", partition=3, offset=offset, key=key, value=value, timestamp=(STAMPED, time_ms))


def failure(code: int, offset: int = -1001) -> Message:
    """An error that a consumer returns instead of a message."""
    return Message(topic="raw", partition=3, offset=offset, error=KafkaError(code))


def end_at(offset: int) -> Message:
    """The end-of-partition event at an offset."""
    return failure(KafkaError._PARTITION_EOF, offset)


@dataclass
class FakeKafka:
    """Returns `answers` from the assigned offset on to any consumer, `together` at a time."""

    answers: Sequence[Message]
    together: Sequence[int] = (1_000,)
    held: tuple[int, int] = (0, 1_000_000)
    consumers: list[FakeConsumer] = field(default_factory=list)

    def consumer(self) -> FakeConsumer:
        """Another consumer."""
        self.consumers.append(FakeConsumer(self))
        return self.consumers[-1]

    def reader(self) -> OffsetRangeReader:
        """A reader with minimal stall timeouts."""
        make: Callable[[], object] = self.consumer
        return OffsetRangeReader(make, stall_timeout_s=0.001, stall_timeout_s_max=0.004)  # type: ignore[arg-type]


@dataclass
class FakeConsumer:
    """The methods of a consumer that the reader calls."""

    kafka: FakeKafka
    assigned: list[int] = field(default_factory=list)
    closed: bool = False
    unassigned: int = 0
    queue: deque[Message] = field(default_factory=deque)
    calls: int = 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Start from the offset of the only partition."""
        [partition] = partitions
        assert ("raw", 3) == (partition.topic, partition.partition)
        self.assigned.append(partition.offset)
        answers = self.kafka.answers
        self.queue = deque(each for each in answers if each.error() or (each.offset() or 0) >= partition.offset)

    def poll(self, timeout: float) -> Message | None:
        """The next answer."""
        assert timeout > 0
        return self.queue.popleft() if self.queue else None

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """More answers, as many as come together."""
        assert timeout == 0
        count = self.kafka.together[self.calls % len(self.kafka.together)]
        self.calls += 1
        return [self.queue.popleft() for _ in range(min(num_messages, count - 1, len(self.queue)))]

    def unassign(self) -> None:
        """Count the call."""
        self.unassigned += 1

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """The first and the next offset of the topic."""
        assert ("raw", 3) == (partition.topic, partition.partition)
        assert timeout > 0
        return self.kafka.held

    def close(self) -> None:
        """Record the close."""
        self.closed = True


def offset_range(begin: int, end: int) -> OffsetRange:
    """An offset range of the only partition."""
    return OffsetRange("raw", 3, begin, end)


def offsets(pieces: Sequence[pa.RecordBatch]) -> list[int]:
    """The offsets of all messages."""
    return [offset for piece in pieces for offset in piece["offset"].to_pylist()]


def test_an_offset_range_ends_in_the_middle_of_a_fetch() -> None:
    """Messages beyond the end are not returned; the next offset range begins with them, on the same consumer."""
    kafka = FakeKafka([message(offset) for offset in range(20)])
    reader = kafka.reader()
    assert list(range(4, 11)) == offsets(list(reader.read(offset_range(4, 11))))
    assert list(range(11, 20)) == offsets(list(reader.read(offset_range(11, 20))))
    [consumer] = kafka.consumers
    assert ([4, 11], 2, False) == (consumer.assigned, consumer.unassigned, consumer.closed)


def test_every_attribute_of_a_message_is_returned() -> None:
    """Keys, empty values, absent values, timestamps with -1 for none, and the partition."""
    raw = [
        message(0, b"a", b"\x00k", 1_700_000_000_123),
        message(1, b"", b"", -1),
        message(2, None, None, 0),
    ]
    [piece] = FakeKafka(raw).reader().read(offset_range(0, 3))
    assert piece.schema == RAW_SCHEMA
    times = piece["timestamp"].cast(pa.int64()).to_pylist()
    assert [b"\x00k", b"", None] == piece["key"].to_pylist()
    assert [b"a", b"", None] == piece["value"].to_pylist()
    assert ([3, 3, 3], [1_700_000_000_123, -1, 0]) == (piece["partition"].to_pylist(), times)


def test_offset_gaps_are_skipped() -> None:
    """The reader does not wait for offsets that compaction or transactions left empty, also at the end of the range."""
    kafka = FakeKafka([message(2), message(5), message(9)])
    assert [2, 5] == offsets(list(kafka.reader().read(offset_range(0, 8))))
    assert [] == offsets(list(kafka.reader().read(offset_range(6, 8))))


def test_the_end_of_the_topic_ends_a_range_whose_last_offsets_have_no_message() -> None:
    """Transaction markers and aborted messages are at the end: the topic ends behind them, without another message."""
    kafka = FakeKafka([message(0), message(1), end_at(5)])
    assert [0, 1] == offsets(list(kafka.reader().read(offset_range(0, 4))))
    assert 1 == len(kafka.consumers)
    alone = FakeKafka([end_at(5)], together=(1,))
    assert [] == offsets(list(alone.reader().read(offset_range(2, 5))))


def test_an_end_of_the_topic_before_that_of_the_range_is_ignored() -> None:
    """A new leader may report an older end for a moment: the reader continues."""
    kafka = FakeKafka([message(0), end_at(1), message(1), message(2), end_at(3)], together=(2, 1))
    assert [0, 1, 2] == offsets(list(kafka.reader().read(offset_range(0, 3))))


def test_messages_beside_a_transient_error_are_returned() -> None:
    """A transient error loses no message, whether it comes before, between or after them."""
    lost = failure(KafkaError._TRANSPORT)
    kafka = FakeKafka([lost, message(0), lost, message(1), lost], together=(1_000,))
    assert [0, 1] == offsets(list(kafka.reader().read(offset_range(0, 2))))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTO_OFFSET_RESET, RawDataLost),
        (KafkaError.OFFSET_OUT_OF_RANGE, RawDataLost),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
    ],
)
def test_deleted_offsets_are_an_error_also_in_the_middle(code: int, kind: type[HeadraceError]) -> None:
    """For a topic trimmed or deleted while it is read the reader returns earlier messages, raises and closes the consumer."""
    kafka = FakeKafka([message(0), message(1), failure(code), message(5)], together=(2, 2))
    pieces = kafka.reader().read(offset_range(0, 9))
    assert [0, 1] == offsets([next(pieces)])
    with pytest.raises(kind):
        list(pieces)
    assert [True] == [consumer.closed for consumer in kafka.consumers]


def test_a_stalled_topic_is_a_retriable_error() -> None:
    """Stalled consumers are replaced a few times, from the reader's offset; then the task fails and is retried."""
    kafka = FakeKafka([message(0), message(1)])
    pieces = kafka.reader().read(offset_range(0, 9))
    with pytest.raises(LogUnavailable, match="partition 3, from offset 2") as raised:
        list(pieces)
    assert raised.value.retriable
    assigned = [consumer.assigned for consumer in kafka.consumers]
    assert [[0], [2], [2]] == assigned[:3]
    assert all(consumer.closed for consumer in kafka.consumers)


@pytest.mark.parametrize("held", [(0, 7), (5, 20)])
def test_a_stall_at_deleted_offsets_is_data_loss(held: tuple[int, int]) -> None:
    """A topic that ends before the planned offsets, or begins behind them, was recreated: a retry would wait for ever."""
    kafka = FakeKafka([message(0), end_at(1)], held=held)
    with pytest.raises(RawDataLost, match="no longer holds"):
        list(kafka.reader().read(offset_range(0, 9)))


def test_a_range_that_was_left_early_closes_its_consumer() -> None:
    """A task that ends in the middle closes its consumer: the next task must not get messages fetched for it."""
    kafka = FakeKafka([message(offset) for offset in range(9)], together=(2,))
    reader = kafka.reader()
    pieces = reader.read(offset_range(0, 9))
    next(pieces)
    assert isinstance(pieces, Generator)
    pieces.close()
    assert kafka.consumers[0].closed
    assert [4, 5] == offsets(list(reader.read(offset_range(4, 6))))
    assert 2 == len(kafka.consumers)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    gaps=st.lists(st.integers(1, 3), min_size=40, max_size=40),
    together=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    borders=st.sets(st.integers(1, 40), max_size=4),
    bytes_max=st.integers(1, 40),
)
def test_adjacent_ranges_have_every_message_once_in_equal_batches(
    sizes: list[int], gaps: list[int], together: list[int], borders: set[int], bytes_max: int
) -> None:
    """For any fetches adjacent ranges give each message once.

    Input batches depend on the messages of a range alone.
    """
    answers, offset = [], 0
    for size, gap in zip(sizes, gaps, strict=False):
        answers.append(message(offset, b"x" * size))
        offset += gap
    ends = sorted({0, offset, *(border for border in borders if border < offset)})
    kafka, whole = FakeKafka([*answers, end_at(offset)], together), FakeKafka([*answers, end_at(offset)])
    reader = kafka.reader()
    found: list[int] = []
    for begin, end in pairwise(ends):
        batches = list(rebatch(reader.read(offset_range(begin, end)), 6, bytes_max))
        found += offsets(batches)
        again = list(rebatch(whole.reader().read(offset_range(begin, end)), 6, bytes_max))
        assert [each["offset"].to_pylist() for each in again] == [each["offset"].to_pylist() for each in batches]
    assert [answer.offset() for answer in answers] == found


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION])
def test_a_message_that_cannot_be_read_is_never_counted_past(code: int) -> None:
    """It is an error that names topic, partition and offset; the next task begins with another consumer."""
    kafka = FakeKafka([message(0), failure(code, 1), message(2)])
    with pytest.raises(RecordUndeliverable, match="topic raw, partition 3, at offset 1 "):
        list(kafka.reader().read(offset_range(0, 3)))
    assert kafka.consumers[0].closed


def test_a_message_behind_the_range_that_cannot_be_read_is_no_error_of_the_range() -> None:
    """A consumer fetches beyond the end of a range."""
    kafka = FakeKafka([message(0), message(1), failure(KafkaError._BAD_MSG, 2), message(3)])
    reader = kafka.reader()
    assert [0, 1] == offsets(list(reader.read(offset_range(0, 2))))
    with pytest.raises(RecordUndeliverable):
        list(reader.read(offset_range(2, 4)))


def test_a_refused_topic_is_an_error_at_once() -> None:
    """It names the topic; before it was a topic that delivers nothing."""
    kafka = FakeKafka([failure(KafkaError.TOPIC_AUTHORIZATION_FAILED, 0)])
    with pytest.raises(AccessDenied, match="raw"):
        list(kafka.reader().read(offset_range(0, 3)))
