"""Topics of several partitions on Kafka: a consumer group that shares them, and a look at all of one topic.

A log has one partition and one reader. What senders of other stores bring has an order within one sender alone, so
its topics have many, and receivers share them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.forks import keep_after_fork
from headrace.connectors.log.kafka_admin import REQUEST_TIMEOUT_S
from headrace.connectors.log.kafka_errors import DENIED, READING_CONTINUES, log_error, translated
from headrace.connectors.log.kafka_settings import consumer_settings
from headrace.connectors.log.port import LogUnavailable
from headrace.schemas.errors import HeadraceError

SESSION_TIMEOUT_MS = 30_000
"""How long the partitions of a consumer that died wait for it: one that is started again by then keeps them."""
CLOSE_TIMEOUT_S = 5.0
Partition = tuple[str, int]
"""(topic, number)."""


class MemberReplaced(HeadraceError):
    """Another process has joined the group under the name of this one."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """One record of a partition; `timestamp_ms` is the log's own clock at append."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition was read to its end, which is at `offset`."""

    partition: Partition
    offset: int


PartitionEvent = PartitionRecord | PartitionEnd


class GroupConsumer(Protocol):
    """A member of a consumer group. Owned by one thread, which also runs the callbacks, inside `poll`."""

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionEvent]:
        """The next records and ends, in order within a partition. Raises AccessDenied, LogUnavailable."""
        ...

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The first offset of a partition and its end, asked from the broker. Raises LogUnavailable."""
        ...

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Return no records of these until `resume`."""
        ...

    def resume(self, partitions: Iterable[Partition]) -> None:
        """The opposite of `pause`."""
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue a partition at an offset."""
        ...

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Whoever gets a partition next begins there. A commit that fails is not repeated: records are read again then."""
        ...

    def close(self) -> None:
        """Leave; a member with a name of its own keeps its partitions for a while.

        It waits a few seconds for the log at most. What is still under way then ends with the process.
        """
        ...


OnPartitions = Callable[[list[Partition]], None]


class KafkaGroupConsumer:
    """See GroupConsumer: static membership, and the range assignment.

    With it equal numbers of partitions of several topics are shared out alike.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        member: str,
        topics: Iterable[str],
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`member` names this consumer over restarts. Raises ClientSettingsRefused, LogUnavailable."""
        ours = {
            "group.instance.id": member,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            # What retention has deleted is asked for again by the rules of the records, so reading begins anywhere.
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 200,
            "error_cb": lambda error: self._errors.append(error),
        }
        self._errors: deque[KafkaError] = deque(maxlen=16)
        self._failure: HeadraceError | None = None
        self._member = member
        keep_after_fork(self)
        with translated(""):
            self._consumer = Consumer(consumer_settings(bootstrap, group, {**(settings or {})}, **ours))
            self._consumer.subscribe(
                list(topics),
                on_assign=lambda _, found: on_assigned(_named(found)),
                on_revoke=lambda _, found: on_revoked(_named(found)),
                on_lost=lambda _, found: on_revoked(_named(found)),
            )

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionEvent]:
        """See GroupConsumer."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        with translated(""):
            first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first]
        if first is not None and max_records > 1:
            # `consume` alone would wait the whole time for its full number; `poll` returns with the first record. What
            # this call raises, the next one raises too: the first record must not be lost with it.
            with suppress(KafkaException):
                messages += self._consumer.consume(max_records - 1, 0)
        while self._errors:
            error = self._errors.popleft()
            if error.code() == KafkaError.FENCED_INSTANCE_ID:
                raise MemberReplaced(f"another process has joined as {self._member}", action="give each --id once")
            if error.code() in DENIED or error.fatal():
                self._failure = self._failure or log_error(error, "")
        return self._events(messages)

    def _events(self, messages: Iterable[Message]) -> list[PartitionEvent]:
        """What messages without an error have. The consumer is behind them, so an error is raised by the next call."""
        events = []
        for message in messages:
            try:
                event = _event(message)
            except HeadraceError as error:
                self._failure = self._failure or error
                continue
            if event is not None:
                events.append(event)
        return events

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See GroupConsumer."""
        with translated(partition[0]):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), REQUEST_TIMEOUT_S)
        return low, high

    def pause(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        with translated(""):
            self._consumer.pause([TopicPartition(*each) for each in partitions])

    def resume(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        with translated(""):
            self._consumer.resume([TopicPartition(*each) for each in partitions])

    def seek(self, partition: Partition, offset: int) -> None:
        """See GroupConsumer."""
        with translated(partition[0]):
            self._consumer.seek(TopicPartition(*partition, offset))

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """See GroupConsumer."""
        try:
            self._consumer.commit(
                offsets=[TopicPartition(*each, offset) for each, offset in offsets.items()], asynchronous=True
            )
        except KafkaException:
            return

    def close(self) -> None:
        """See GroupConsumer."""
        # It waits for the answers to commits, which a broker that is gone never sends.
        closing = threading.Thread(target=self._close, name="kafka-group-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _close(self) -> None:
        with suppress(KafkaException):
            self._consumer.close()


def read_partitions(
    bootstrap: str, topic: str, settings: Mapping[str, str] | None = None, *, timeout_s: float = 60.0
) -> Iterator[PartitionRecord]:
    """Every record of a topic as it is now, in order within a partition. Raises TopicMissing, LogUnavailable."""
    with translated(topic):
        consumer = Consumer(consumer_settings(bootstrap, "headrace-reader", {**(settings or {})}))
        try:
            found = consumer.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic]
            if found.error is not None:
                raise log_error(found.error, topic)
            starts, ends = {}, {}
            for number in found.partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), REQUEST_TIMEOUT_S)
                if low < high:
                    starts[number], ends[number] = low, high
            consumer.assign([TopicPartition(topic, number, low) for number, low in starts.items()])
            deadline = Deadline(timeout_s)
            while ends:
                for message in consumer.consume(500, 0.2):
                    event = _event(message)
                    if isinstance(event, PartitionRecord):
                        yield event
                    if event is not None and event.offset + isinstance(event, PartitionRecord) >= ends.get(
                        event.partition[1], 0
                    ):
                        ends.pop(event.partition[1], None)
                if deadline.passed():
                    raise LogUnavailable(
                        f"topic {topic} was not read to its end in {timeout_s:g} s",
                        action="check the broker",
                        retriable=True,
                    )
        finally:
            consumer.close()


def _named(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


def _event(message: Message) -> PartitionEvent | None:
    topic, number, offset, error = message.topic(), message.partition(), message.offset(), message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if error.code() in READING_CONTINUES:
            return None
        raise log_error(error, topic or "")
    if topic is None or number is None or offset is None:
        return None
    if error is not None:
        return PartitionEnd((topic, number), offset)
    return PartitionRecord((topic, number), offset, message.timestamp()[1], message.key(), message.value() or b"")
