"""The log on Kafka, through confluent-kafka.

Clients are created by the calls below, never at import: librdkafka's threads do not survive a fork. A
delivery report states only whether the broker took a record; whether the record counts is decided by those
who read it from the log.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka_admin import ANSWER_TIMEOUT_S, REQUEST_TIMEOUT_S, KafkaAdmin
from headrace.connectors.log.kafka_errors import MISSING, REFUSED, TRUNCATED, append_error, log_error
from headrace.connectors.log.kafka_settings import FOLLOW_SETTINGS, client_settings, consumer_settings
from headrace.connectors.log.port import (
    AppendFailed,
    Headers,
    LogUnavailable,
    OnDelivery,
    Record,
    TopicMissing,
    TopicState,
)
from headrace.schemas.errors import HeadraceError

# Twice the largest forward message: no envelope or batch header makes a message too large for its topic.
RECORD_BYTES_MAX = 16 * 1024 * 1024
PRODUCER_QUEUE_KBYTES = 65_536
FULL_QUEUE_TIMEOUT_S = 300.0
NEW_TOPIC_POLL_S = 0.05
STALL_TIMEOUT_S = 5.0
STALL_TIMEOUT_S_MAX = 320.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_log = structlog.get_logger(__name__)


class KafkaLog:
    """All topics of one Kafka cluster. `settings` are librdkafka's, verbatim, and override ours."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self._base = client_settings(bootstrap)
        self._settings = dict(settings or {})
        self._admin = KafkaAdmin({**self._base, **self._settings}, bootstrap)
        self._committers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log; `settings` are Kafka topic settings."""
        # With LogAppendTime a broker expires records by their arrival, not by the age of their rows.
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(RECORD_BYTES_MAX), **settings}

        def create(client: AdminClient) -> None:
            wanted = NewTopic(topic, 1, -1, config=config)
            try:
                client.create_topics([wanted], request_timeout=REQUEST_TIMEOUT_S)[topic].result(ANSWER_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._admin.call(topic, create, exists=False)
        self._await_topic(topic)

    def _await_topic(self, topic: str) -> None:
        """Wait until the topic is visible: a broker may report it as missing right after its creation."""
        deadline = Deadline(REQUEST_TIMEOUT_S)
        while True:
            try:
                self.describe(topic)
                return
            except (TopicMissing, LogUnavailable):
                if deadline.passed():
                    raise
                time.sleep(NEW_TOPIC_POLL_S)

    def describe(self, topic: str) -> TopicState:
        """See Log."""

        def describe(client: AdminClient) -> TopicState:
            # Three requests are in flight at once: the answers cost one round trip instead of three.
            described = client.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)[topic]
            begin, end = _offset(client, topic, _EARLIEST), _offset(client, topic, _LATEST)
            topic_id = str(described.result(ANSWER_TIMEOUT_S).topic_id)
            return TopicState(topic_id, begin.result(ANSWER_TIMEOUT_S).offset, end.result(ANSWER_TIMEOUT_S).offset)

        return self._admin.call(topic, describe)

    def written_end(self, topic: str) -> int:
        """See Log."""
        return self._admin.call(topic, lambda client: _end(client, topic, IsolationLevel.READ_UNCOMMITTED))

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> KafkaReader:
        """See Log."""
        settings = FOLLOW_SETTINGS if follow else {}
        return KafkaReader(lambda: self._consumer(name or "headrace-reader", **settings), starts, self._end)

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log; a failed commit is left to the next call, since nobody recovers from these offsets."""
        with self._lock:
            consumer = self._committers.get(name) or self._consumer(name)
            self._committers[name] = consumer
        with contextlib.suppress(KafkaException):
            consumer.commit(
                offsets=[TopicPartition(topic, 0, offset) for topic, offset in offsets.items()], asynchronous=False
            )

    def trim(self, topic: str, before: int) -> None:
        """See Log."""
        partition = TopicPartition(topic, 0, before)

        def trim(client: AdminClient) -> None:
            try:
                client.delete_records([partition], request_timeout=REQUEST_TIMEOUT_S)[partition].result(
                    ANSWER_TIMEOUT_S
                )
            except KafkaException as error:
                if error.args[0].code() in REFUSED:
                    raise AppendFailed(f"topic {topic} may not be trimmed: {error.args[0].str()}") from error
                raise

        self._admin.call(topic, trim)

    def appender(self) -> KafkaAppender:
        """See Log."""
        settings = {
            **self._base,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            # Row batches are compressed already: a second pass costs time and saves nothing.
            "compression.type": "none",
            "message.max.bytes": RECORD_BYTES_MAX,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": PRODUCER_QUEUE_KBYTES,
            "queue.buffering.max.messages": 100_000,
            "delivery.timeout.ms": 120_000,
            **self._settings,
        }
        return KafkaAppender(Producer(settings))

    def close(self) -> None:
        """See Log."""
        with self._lock:
            for committer in self._committers.values():
                committer.close()
            self._committers = {}
        self._admin.close()

    def _end(self, topic: str) -> int:
        """The end of the committed records of a topic, -1 while unknown."""
        try:
            return self._admin.call(topic, lambda client: _end(client, topic, IsolationLevel.READ_COMMITTED))
        except HeadraceError:
            return -1

    def _consumer(self, name: str, **ours: Any) -> Consumer:
        return Consumer(consumer_settings(self.bootstrap, name, self._settings, **ours))


def _end(client: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    return int(_offset(client, topic, _LATEST, isolation).result(ANSWER_TIMEOUT_S).offset)


def _offset(
    client: AdminClient, topic: str, which: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> Future[Any]:
    partition = TopicPartition(topic, 0)
    answers = client.list_offsets({partition: which}, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return answers[partition]


class KafkaReader:
    """See Reader.

    A consumer that delivers nothing although its topic has records is replaced: librdkafka's can stall for
    good when a broker restarts (librdkafka issue 4492), and a caller that waits for the next record would
    wait for ever.
    """

    def __init__(
        self, consumer: Callable[[], Consumer], starts: Mapping[str, int], end: Callable[[str], int] = lambda _topic: -1
    ) -> None:
        """`consumer()` creates one; `end(topic)` is the topic's end by another client, -1 while unknown."""
        self._make_consumer = consumer
        self._end = end
        self._positions = dict(starts)
        self._paused: set[str] = set()
        self._checked_positions: dict[str, int] = {}
        self._stall_timeout_s = STALL_TIMEOUT_S
        self._next_stall_check_s = time.monotonic() + STALL_TIMEOUT_S
        self._consumer = consumer()
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in self._positions.items()])
        if self._paused:
            self._consumer.pause([TopicPartition(topic, 0) for topic in self._paused])

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        if time.monotonic() >= self._next_stall_check_s:
            self._replace_stalled_consumer()
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        # `consume` alone would wait the whole time for its full number; `poll` returns with the first record.
        more = self._consumer.consume(max_records - 1, 0) if max_records > 1 else []
        return [record for message in (first, *more) if (record := self._accept(message)) is not None]

    def _replace_stalled_consumer(self) -> None:
        """Replace the consumer when a topic has records and its position is that of the last check."""
        before, self._checked_positions = self._checked_positions, dict(self._positions)
        stalled = ""
        for topic, position in self._positions.items():
            if topic in self._paused or before.get(topic) != position:
                continue
            end = self._end(topic)
            # Kafka does not answer: a new consumer would deliver nothing either, and each further topic would
            # wait for its timeout.
            if end < 0:
                break
            stalled = stalled or (topic if end > position else "")
        # Over a slow line a single fetch may take long: each further consumer gets twice the time.
        self._stall_timeout_s = min(2 * self._stall_timeout_s, STALL_TIMEOUT_S_MAX) if stalled else STALL_TIMEOUT_S
        if stalled:
            _log.warning("replacing a stalled consumer", topic=stalled)
            self._consumer.close()
            self._consumer = self._make_consumer()
            self._assign()
        self._next_stall_check_s = time.monotonic() + self._stall_timeout_s

    def _accept(self, message: Message) -> Record | None:
        topic, offset, error = message.topic() or "", message.offset(), message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # Transaction markers are never delivered: only this event moves the position behind them.
                self._positions[topic] = max(self._positions[topic], offset or 0)
                return None
            if error.code() in MISSING | TRUNCATED:
                raise log_error(error, topic)
            # Transport errors: librdkafka reconnects by itself, and a caller could do no better.
            return None
        assert offset is not None, "a record without an offset"
        self._positions[topic] = offset + 1
        return Record(topic, offset, message.timestamp()[1], message.key(), message.value() or b"", _headers(message))

    def position(self, topic: str) -> int:
        """See Reader."""
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        """See Reader."""
        try:
            self._consumer.seek(TopicPartition(topic, 0, offset))
        except KafkaException as error:
            raise log_error(error.args[0], topic) from error
        self._positions[topic] = offset

    def pause(self, topics: Iterable[str]) -> None:
        """See Reader."""
        topics = set(topics)
        self._paused |= topics
        self._consumer.pause([TopicPartition(topic, 0) for topic in topics])

    def resume(self, topics: Iterable[str]) -> None:
        """See Reader."""
        topics = set(topics)
        self._paused -= topics
        self._consumer.resume([TopicPartition(topic, 0) for topic in topics])

    def close(self) -> None:
        """See Reader."""
        self._consumer.close()


class KafkaAppender:
    """See Appender. Delivery reports are served by a thread of its own."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._closed = threading.Event()
        self._report_thread = threading.Thread(target=self._serve_reports, name="delivery-reports", daemon=True)
        self._report_thread.start()

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender. Raises RecordTooLarge at once."""
        deadline = Deadline(FULL_QUEUE_TIMEOUT_S)

        def report(error: KafkaError | None, message: Message) -> None:
            if on_delivery is not None:
                on_delivery(
                    None if error else message.offset(), append_error(error, topic, len(value)) if error else None
                )

        while True:
            try:
                self._producer.produce(topic, value, key=key, partition=0, headers=list(headers), on_delivery=report)
                return
            except BufferError:
                # The queue is full: waiting is the back-pressure on a caller that is faster than the broker.
                if deadline.passed():
                    raise LogUnavailable(
                        "the producer's queue stayed full", action="check the broker", retriable=True
                    ) from None
                self._closed.wait(0.002)
            except KafkaException as error:
                raise append_error(error.args[0], topic, len(value)) from error

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        """See Appender."""
        self._producer.flush(5.0)
        self._closed.set()
        self._report_thread.join(timeout=5.0)

    def _serve_reports(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    try:
        pairs: list[tuple[str, bytes | None]] = list(message.headers() or ())  # type: ignore[arg-type]
    except (UnicodeDecodeError, SystemError):
        # A name that is not UTF-8, which the client cannot return. Ours are ASCII, so these are foreign headers,
        # and every reader drops them alike.
        return ()
    return tuple((name, value or b"") for name, value in pairs)
