"""The reader of a Kafka topic replaces a consumer that stalls although its topic grows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import TopicPartition

from headrace.connectors.log import kafka
from headrace.connectors.log.kafka import KafkaReader


class Recorded:
    """A message as a consumer returns it."""

    def __init__(self, topic: str, offset: int) -> None:
        self._topic, self._offset = topic, offset

    def topic(self) -> str:
        """Its topic."""
        return self._topic

    def offset(self) -> int:
        """Its offset."""
        return self._offset

    def error(self) -> None:
        """None: it is a record."""
        return

    def timestamp(self) -> tuple[int, int]:
        """(kind, ms)."""
        return 1, 0

    def key(self) -> None:
        """No key."""
        return

    def value(self) -> bytes:
        """Its bytes."""
        return b"value"

    def headers(self) -> None:
        """No headers."""
        return


class Consumer:
    """Returns the given messages, and records every call."""

    def __init__(self, messages: Sequence[Recorded] = ()) -> None:
        self.messages = list(messages)
        self.assigned: dict[str, int] = {}
        self.paused: set[str] = set()
        self.closed = False

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Where to read from."""
        self.assigned = {each.topic: each.offset for each in partitions}

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these partitions."""
        self.paused |= {each.topic for each in partitions}

    def poll(self, timeout_s: float) -> Recorded | None:
        """The next message."""
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, timeout_s: float) -> list[Recorded]:
        """Nothing more."""
        return []

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
    assert [] == reader.poll(10, 0)
    assert [5] == [record.offset for record in reader.poll(10, 0)]
    assert first.closed
    assert {"a": 5, "b": 7} == second.assigned
    assert {"b"} == second.paused


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
    monkeypatch.setattr(kafka.time, "monotonic", lambda: now[0])
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
    assert [165] == [second for second in replaced if 150 < second < 175]


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
