"""The reader of a Kafka topic replaces a consumer that stalls, and never moves beyond a record it did not deliver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from headrace.connectors.log import kafka
from headrace.connectors.log.kafka import KafkaReader
from headrace.connectors.log.kafka_settings import consumer_settings
from headrace.connectors.log.port import AccessDenied, LogUnavailable, RecordUndeliverable


class Recorded(Message):
    """A message as a consumer returns it; one with an error is no record."""

    def __init__(self, topic: str, offset: int, code: int | None = None, *, fatal: bool = False) -> None:
        self._topic, self._offset = topic, offset
        self._error = None if code is None else KafkaError(code, fatal=fatal)

    def topic(self) -> str:
        """Its topic."""
        return self._topic

    def offset(self) -> int:
        """Its offset."""
        return self._offset

    def error(self) -> KafkaError | None:
        """None: it is a record."""
        return self._error

    def timestamp(self) -> tuple[int, int]:
        """(kind, ms)."""
        return 1, 0

    def leader_epoch(self) -> int | None:
        """See Message."""
        return None

    def key(self) -> None:
        """No key."""
        return

    def value(self) -> bytes:
        """Its bytes."""
        return b"value"

    def headers(self) -> None:
        """No headers."""
        return


class Consumer(confluent_kafka.Consumer):
    """Returns the given messages, and records every call."""

    def __init__(self, messages: Sequence[Recorded] = ()) -> None:
        self.messages: list[Message] = list(messages)
        self.assigned: dict[str, int] = {}
        self.paused: set[str] = set()
        self.closed = False
        self.failing: set[str] = set()

    def _fail(self, name: str) -> None:
        if name in self.failing:
            self.failing.remove(name)
            raise KafkaException(KafkaError(KafkaError._STATE))

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Where to read from."""
        self._fail("assign")
        self.assigned = {each.topic: each.offset for each in partitions}

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these partitions."""
        self._fail("pause")
        self.paused |= {each.topic for each in partitions}

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """The opposite of pause."""
        self._fail("resume")
        self.paused -= {each.topic for each in partitions}

    def seek(self, partition: TopicPartition) -> None:
        """Nothing."""
        self._fail("seek")

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message."""
        self._fail("poll")
        return self.messages.pop(0) if self.messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """The messages behind it."""
        self._fail("consume")
        more, self.messages = self.messages[:num_messages], self.messages[num_messages:]
        return more

    def close(self) -> None:
        """Record the close."""
        self.closed = True


@pytest.fixture(autouse=True)
def check_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for a stall at every poll."""
    monkeypatch.setattr(kafka, "STALL_TIMEOUT_S", 0.0)


def test_a_stalled_consumer_is_replaced_at_its_position() -> None:
    """The new consumer begins at the next offset, and paused partitions stay paused."""
    first, second = Consumer([Recorded("a", 4)]), Consumer([Recorded("a", 5)])
    made = [first, second]
    reader = KafkaReader(lambda: made.pop(0), {"a": 4, "b": 7}, {"a": 6, "b": 9}.__getitem__)
    reader.pause(["b"])
    assert [4] == [record.offset for record in reader.poll(10, 0)]
    assert [[], []] == [reader.poll(10, 0) for _ in range(2)]
    assert [5] == [record.offset for record in reader.poll(10, 0)]
    assert first.closed
    assert {"a": 5, "b": 7} == second.assigned
    assert {"b"} == second.paused


def test_records_that_have_just_come_are_no_stall() -> None:
    """A topic may be idle for hours: a check that finds its first new record would take the consumer for stalled."""
    only, end = Consumer(), [4]
    reader = KafkaReader(lambda: only, {"a": 4}, lambda _topic: end[0])
    assert [[], []] == [reader.poll(10, 0) for _ in range(2)]
    end[0], only.messages = 5, [Recorded("a", 4)]
    assert [4] == [record.offset for record in reader.poll(10, 0)]
    assert not only.closed


@pytest.mark.parametrize("end", [-1, 4])
def test_a_consumer_at_the_end_or_without_kafka_is_not_replaced(end: int) -> None:
    """Neither an empty topic nor an absent broker is a reason."""
    only = Consumer()
    made = [only]
    reader = KafkaReader(lambda: made.pop(0), {"a": 4}, lambda _topic: end)
    assert [[], [], []] == [reader.poll(10, 0) for _ in range(3)]
    assert not only.closed


def test_each_consumer_in_a_row_gets_twice_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow connection succeeds in the end; after a message the timeout is the first one again."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(kafka, "STALL_TIMEOUT_S", 5.0)
    made: list[Consumer] = []

    def make() -> Consumer:
        made.append(Consumer())
        return made[-1]

    reader = KafkaReader(make, {"a": 4}, lambda _topic: 100)
    replaced = []
    for second in range(200):
        now[0] = float(second)
        if second == 150:
            made[-1].messages.append(Recorded("a", 4))
        before = len(made)
        reader.poll(10, 0)
        if len(made) > before:
            replaced.append(second)
    assert [10, 20, 40, 80] == replaced[:4]
    assert [170] == [second for second in replaced if 150 < second < 175]


def reader_of(*consumers: Consumer, errors: deque[KafkaError] | None = None) -> KafkaReader:
    """A reader of topic `a` from offset 0 that has these consumers one after the other."""
    made = list(consumers)
    return KafkaReader(lambda: made.pop(0), {"a": 0}, client_errors=errors)


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG])
def test_a_record_that_cannot_be_delivered_is_never_skipped(code: int) -> None:
    """Those before it are returned, then it is an error that names it, and another consumer begins at it."""
    first = Consumer([Recorded("a", 0), Recorded("a", 1, code), Recorded("a", 2)])
    second = Consumer([Recorded("a", 1), Recorded("a", 2)])
    reader = reader_of(first, second)
    assert [0] == [record.offset for record in reader.poll(10, 0)]
    with pytest.raises(RecordUndeliverable, match="topic a, partition 0, at offset 1 ") as raised:
        reader.poll(10, 0)
    assert ("a", 1, 1) == (raised.value.topic, raised.value.offset, reader.position("a"))
    assert raised.value.action
    assert [1, 2] == [record.offset for record in reader.poll(10, 0)]
    assert first.closed
    assert {"a": 1} == second.assigned


def test_an_error_about_a_batch_names_the_first_record_that_is_missing() -> None:
    """A batch of records fails as a whole under the offset of its first one, which may be read already."""
    reader = reader_of(Consumer([Recorded("a", 0), Recorded("a", 1), Recorded("a", 0, KafkaError._BAD_MSG)]))
    reader.poll(10, 0)
    with pytest.raises(RecordUndeliverable) as raised:
        reader.poll(10, 0)
    assert 2 == raised.value.offset


def test_a_caller_that_can_do_without_a_record_seeks_behind_it() -> None:
    """Seeking is up to the caller; the next consumer begins there."""
    second = Consumer([Recorded("a", 1)])
    reader = reader_of(Consumer([Recorded("a", 0, KafkaError._BAD_MSG)]), second)
    with pytest.raises(RecordUndeliverable):
        reader.poll(10, 0)
    reader.seek("a", 1)
    assert [1] == [record.offset for record in reader.poll(10, 0)]
    assert {"a": 1} == second.assigned


def test_a_refused_topic_is_an_error_and_not_an_empty_one() -> None:
    """It names the topic and what to do; before it was an empty poll."""
    reader = reader_of(Consumer([Recorded("a", 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)]))
    with pytest.raises(AccessDenied, match="topic a") as raised:
        reader.poll(10, 0)
    assert "a" == raised.value.topic
    assert "rights" in raised.value.action


def test_a_refused_login_is_an_error() -> None:
    """librdkafka reports it to its callback of errors, about no topic."""
    reader = reader_of(Consumer(), errors=deque([KafkaError(KafkaError._AUTHENTICATION)]))
    with pytest.raises(AccessDenied, match="every topic"):
        reader.poll(10, 0)


@pytest.mark.parametrize("topic", ["", "a"])
def test_a_failed_client_is_replaced(topic: str) -> None:
    """A fatal error is retriable: another consumer continues at the same record."""
    reader = reader_of(Consumer([Recorded(topic, 0, KafkaError._FATAL, fatal=True)]), Consumer([Recorded("a", 0)]))
    with pytest.raises(LogUnavailable) as raised:
        reader.poll(10, 0)
    assert raised.value.retriable
    assert [0] == [record.offset for record in reader.poll(10, 0)]


@pytest.mark.parametrize(
    "code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_what_passes_by_itself_is_no_error(code: int) -> None:
    """Neither an absent broker nor a consumer group that only lag tools need ends the reading."""
    only = Consumer([Recorded("", 0, code), Recorded("a", 0)])
    assert [0] == [record.offset for record in reader_of(only).poll(10, 0)]
    assert not only.closed


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_a_failing_poll_is_an_error_of_the_log(call: str) -> None:
    """No error of librdkafka passes the adapter: a thread that knows the log's errors would end by it."""
    first, second = Consumer([Recorded("a", 0)]), Consumer([Recorded("a", 0)])
    first.failing = {call}
    reader = reader_of(first, second)
    with pytest.raises(LogUnavailable):
        reader.poll(10, 0)
    assert first.closed
    assert [0] == [record.offset for record in reader.poll(10, 0)]


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("pause", lambda reader: reader.pause(["a"])),
        ("resume", lambda reader: reader.resume(["a"])),
        ("seek", lambda reader: reader.seek("a", 0)),
    ],
)
def test_a_failing_call_replaces_the_consumer(call: str, use: Callable[[KafkaReader], None]) -> None:
    """The next one has the positions and pauses that were asked for."""
    first, second = Consumer(), Consumer()
    first.failing = {call}
    reader = reader_of(first, second)
    use(reader)
    assert first.closed
    reader.poll(10, 0)
    assert {"a": 0} == second.assigned
    assert ({"a"} if call == "pause" else set()) == second.paused


def test_a_failing_assignment_is_an_error_and_tried_again() -> None:
    """A consumer without an assignment would deliver nothing for ever."""
    failing, second = Consumer(), Consumer([Recorded("a", 0)])
    failing.failing = {"assign"}
    reader = reader_of(Consumer([Recorded("a", 0, KafkaError._BAD_MSG)]), failing, second)
    with pytest.raises(RecordUndeliverable):
        reader.poll(10, 0)
    with pytest.raises(LogUnavailable):
        reader.poll(10, 0)
    assert [0] == [record.offset for record in reader.poll(10, 0)]


def test_a_topic_has_answered_with_its_first_record_or_its_end() -> None:
    """An empty poll alone is no answer: the topic may be refused or without a leader."""
    reader = reader_of(Consumer([Recorded("a", 0, KafkaError._TRANSPORT), Recorded("a", 0, KafkaError._PARTITION_EOF)]))
    reader.poll(1, 0)
    assert not reader.answered("a")
    reader.poll(1, 0)
    assert reader.answered("a")


def test_changed_bytes_are_detected() -> None:
    """Consumers compare the checksum of every batch."""
    assert True is consumer_settings("host:1", "name", {})["check.crcs"]


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError("headers")]
)
def test_a_record_whose_header_names_are_not_utf_8_is_read_without_them(error: Exception) -> None:
    """The client cannot return such headers: the record counts, and the thread that reads does not end."""

    class Foreign(Recorded):
        """A message with a header name in Latin-1."""

        def headers(self) -> None:
            """As the client does."""
            raise error

    reader = KafkaReader(lambda: Consumer([Foreign("a", 4)]), {"a": 4})
    (record,) = reader.poll(10, 0)
    assert (4, b"value", ()) == (record.offset, record.value, record.headers)
