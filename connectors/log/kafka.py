"""The log on Kafka, through confluent-kafka.

Clients are created by the calls below, never at import, so that a process may be spawned first. Delivery reports only say that a record was
taken by the broker or not; whether it counts is read back from the log by whoever cares (DESIGN 2).
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

from connectors.log.deadline import Deadline
from connectors.log.kafka_admin import ANSWER_TIMEOUT_S, REQUEST_TIMEOUT_S, KafkaAdmin
from connectors.log.kafka_errors import MISSING, REFUSED, TRUNCATED, append_error, log_error
from connectors.log.kafka_settings import client_settings, consumer_settings
from connectors.log.port import (
    AppendFailed,
    Headers,
    LogUnavailable,
    OnDelivery,
    Record,
    TopicMissing,
    TopicState,
)
from schemas.errors import HeadraceError

RECORD_BYTES_MAX = 16 * 1024 * 1024
PRODUCER_QUEUE_KBYTES = 65_536
FULL_QUEUE_TIMEOUT_S = 300.0
NEW_TOPIC_POLL_S = 0.05
STALL_S = 5.0
STALL_S_MAX = 320.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_log = structlog.get_logger(__name__)


class KafkaLog:
    """All topics of one Kafka cluster. `settings` are librdkafka's, verbatim, and win over ours."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self._base = client_settings(bootstrap)
        self._settings = dict(settings or {})
        self._admin = KafkaAdmin({**self._base, **self._settings}, bootstrap)
        self._committers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log; `settings` are Kafka topic settings."""
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(RECORD_BYTES_MAX), **settings}

        def create(client: AdminClient) -> None:
            wanted = NewTopic(topic, 1, -1, config=config)
            try:
                client.create_topics([wanted], request_timeout=REQUEST_TIMEOUT_S)[topic].result(ANSWER_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._admin.ask(topic, create, exists=False)
        self._await_topic(topic)

    def _await_topic(self, topic: str) -> None:
        """A broker may answer for a moment that it does not know the topic that was made just now."""
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
            described = client.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)[topic]
            begin, end = _offset(client, topic, _EARLIEST), _offset(client, topic, _LATEST)
            topic_id = str(described.result(ANSWER_TIMEOUT_S).topic_id)
            return TopicState(topic_id, begin.result(ANSWER_TIMEOUT_S).offset, end.result(ANSWER_TIMEOUT_S).offset)

        return self._admin.ask(topic, describe)

    def written_end(self, topic: str) -> int:
        """See Log."""
        return self._admin.ask(topic, lambda client: _end(client, topic, IsolationLevel.READ_UNCOMMITTED))

    def reader(self, starts: Mapping[str, int], *, name: str = "") -> KafkaReader:
        """See Log."""
        return KafkaReader(lambda: self._consumer(name or "headrace-reader"), starts, self._end)

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log; failures are left to the next call, since nobody depends on these offsets."""
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

        self._admin.ask(topic, trim)

    def appender(self) -> KafkaAppender:
        """See Log."""
        settings = {
            **self._base,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
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
        """Where what can be read of a topic ends, -1 when Kafka does not say."""
        try:
            return self._admin.ask(topic, lambda client: _end(client, topic, IsolationLevel.READ_COMMITTED))
        except HeadraceError:
            return -1

    def _consumer(self, name: str) -> Consumer:
        return Consumer(consumer_settings(self.bootstrap, name, self._settings))


def _end(client: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    return int(_offset(client, topic, _LATEST, isolation).result(ANSWER_TIMEOUT_S).offset)


def _offset(
    client: AdminClient, topic: str, which: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> Future[Any]:
    partition = TopicPartition(topic, 0)
    asked = client.list_offsets({partition: which}, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return asked[partition]


class KafkaReader:
    """See Reader.

    A consumer that hands out nothing although its topic goes on is replaced: librdkafka's can stand still for good when a broker restarts
    (librdkafka issue 4492), and whoever only waits for the next record never learns of it.
    """

    def __init__(
        self, consumer: Callable[[], Consumer], starts: Mapping[str, int], end: Callable[[str], int] = lambda _topic: -1
    ) -> None:
        """`consumer()` makes one, `end(topic)` asks somebody else where the topic ends, -1 for unknown."""
        self._make_consumer = consumer
        self._end = end
        self._positions = dict(starts)
        self._paused: set[str] = set()
        self._looked_at: dict[str, int] = {}
        self._patience_s = STALL_S
        self._look_s = time.monotonic() + STALL_S
        self._consumer = consumer()
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in self._positions.items()])
        if self._paused:
            self._consumer.pause([TopicPartition(topic, 0) for topic in self._paused])

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        if time.monotonic() >= self._look_s:
            self._look_for_stall()
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        more = self._consumer.consume(max_records - 1, 0) if max_records > 1 else []
        return [record for message in (first, *more) if (record := self._accept(message)) is not None]

    def _look_for_stall(self) -> None:
        """Replace the consumer when a topic has not moved since the last look and holds more."""
        before, self._looked_at = self._looked_at, dict(self._positions)
        stalled = ""
        for topic, position in self._positions.items():
            if topic in self._paused or before.get(topic) != position:
                continue
            end = self._end(topic)
            if end < 0:
                break
            stalled = stalled or (topic if end > position else "")
        # Over a slow line a single fetch may take long: each further consumer is given twice the time.
        self._patience_s = min(2 * self._patience_s, STALL_S_MAX) if stalled else STALL_S
        if stalled:
            _log.warning("consumer stands still and is replaced", topic=stalled)
            self._consumer.close()
            self._consumer = self._make_consumer()
            self._assign()
        self._look_s = time.monotonic() + self._patience_s

    def _accept(self, message: Message) -> Record | None:
        topic, offset, error = message.topic() or "", message.offset(), message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # The end lies past transaction markers, which no record shows.
                self._positions[topic] = max(self._positions[topic], offset or 0)
                return None
            if error.code() in MISSING | TRUNCATED:
                raise log_error(error, topic)
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
    """See Appender. A thread of its own serves delivery reports."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._closed = threading.Event()
        self._server = threading.Thread(target=self._serve, name="delivery-reports", daemon=True)
        self._server.start()

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
        self._server.join(timeout=5.0)

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    pairs: list[tuple[str, bytes | None]] = list(message.headers() or ())  # type: ignore[arg-type]
    return tuple((name, value or b"") for name, value in pairs)
