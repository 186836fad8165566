"""The log on Kafka, through confluent-kafka.

Clients are created by the calls below, never at import, so that a process may be spawned first. Delivery reports only say that a record was
taken by the broker or not; whether it counts is read back from the log by whoever cares (DESIGN 2).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
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
from connectors.log.port import (
    AppendFailed,
    AppendUnknown,
    Headers,
    LogTruncated,
    LogUnavailable,
    OnDelivery,
    Record,
    RecordTooLarge,
    TopicMissing,
    TopicState,
)
from schemas.errors import HeadraceError

COMMIT_TIMEOUT_MS = 6_000
REQUEST_TIMEOUT_S = 10.0
RECORD_BYTES_MAX = 16 * 1024 * 1024
PRODUCER_QUEUE_KBYTES = 65_536
CONSUMER_QUEUE_KBYTES = 65_536
FULL_QUEUE_TIMEOUT_S = 300.0
NEW_TOPIC_POLL_S = 0.05
STALL_S = 5.0
STALL_S_MAX = 320.0
_log = structlog.get_logger(__name__)
_MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}
_TRUNCATED = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}


class KafkaLog:
    """All topics of one Kafka cluster. `settings` are librdkafka's, verbatim, and win over ours."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self._base: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "headrace",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            "topic.metadata.propagation.max.ms": 3_000,
            "log_level": 2,
        }
        self._settings = dict(settings or {})
        self._admin_client: AdminClient | None = None
        self._observer: Consumer | None = None
        self._committers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log; `settings` are Kafka topic settings."""
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(RECORD_BYTES_MAX), **settings}
        future = self._admin().create_topics(
            [NewTopic(topic, 1, -1, config=config)], request_timeout=REQUEST_TIMEOUT_S
        )[topic]
        try:
            future.result(timeout=REQUEST_TIMEOUT_S * 2)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _log_error(error.args[0], topic) from error
        except TimeoutError as error:
            raise self._unavailable() from error
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
        future = self._admin().describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            topic_id = str(future.result(timeout=REQUEST_TIMEOUT_S * 2).topic_id)
            begin, end = self._watermarks(topic)
        except KafkaException as error:
            raise _log_error(error.args[0], topic) from error
        except TimeoutError as error:
            raise self._unavailable() from error
        return TopicState(topic_id, begin, end)

    def written_end(self, topic: str) -> int:
        """See Log."""
        partition = TopicPartition(topic, 0)
        future = self._admin().list_offsets(
            {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )[partition]
        try:
            return int(future.result(timeout=REQUEST_TIMEOUT_S * 2).offset)
        except KafkaException as error:
            raise _log_error(error.args[0], topic) from error
        except TimeoutError as error:
            raise self._unavailable() from error

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
        try:
            self._admin().delete_records([partition], request_timeout=REQUEST_TIMEOUT_S)[partition].result(
                timeout=REQUEST_TIMEOUT_S * 2
            )
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                raise AppendFailed(f"topic {topic} may not be trimmed: {error.args[0].str()}") from error
            raise _log_error(error.args[0], topic) from error
        except TimeoutError as error:
            raise self._unavailable() from error

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
            if self._observer is not None:
                self._observer.close()
                self._observer = None
            for committer in self._committers.values():
                committer.close()
            self._committers = {}
            self._admin_client = None

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._admin_client is None:
                self._admin_client = AdminClient({**self._base, **self._settings})
            return self._admin_client

    def _watermarks(self, topic: str) -> tuple[int, int]:
        with self._lock:
            if self._observer is None:
                self._observer = self._consumer("headrace-observer")
            begin, end = self._observer.get_watermark_offsets(
                TopicPartition(topic, 0), timeout=REQUEST_TIMEOUT_S, cached=False
            )
        return int(begin), int(end)

    def _end(self, topic: str) -> int:
        """Where what can be read of a topic ends, -1 when Kafka does not answer."""
        try:
            return self._watermarks(topic)[1]
        except KafkaException:
            return -1

    def _consumer(self, name: str) -> Consumer:
        settings = {
            **self._base,
            "group.id": name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            # Nobody joins a group here; it is also how long a commit waits for a broker that is gone.
            "session.timeout.ms": COMMIT_TIMEOUT_MS,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
            "fetch.max.bytes": 32 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
            "receive.message.max.bytes": 96 * 1024 * 1024,
            "queued.max.messages.kbytes": CONSUMER_QUEUE_KBYTES,
            **self._settings,
        }
        return Consumer(settings)

    def _unavailable(self) -> LogUnavailable:
        return LogUnavailable(
            f"Kafka at {self.bootstrap} does not answer", action="check the address and the broker", retriable=True
        )


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
            if error.code() in _MISSING | _TRUNCATED:
                raise _log_error(error, topic)
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
            raise _log_error(error.args[0], topic) from error
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
                    None if error else message.offset(), _append_error(error, topic, len(value)) if error else None
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
                raise _append_error(error.args[0], topic, len(value)) from error

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


def _log_error(error: KafkaError, topic: str) -> HeadraceError:
    if error.code() in _MISSING:
        return TopicMissing(
            f"topic {topic} does not exist",
            action="check the cluster's name; topics of a cluster are never deleted by us",
        )
    if error.code() in _TRUNCATED:
        return LogTruncated(f"topic {topic} does not hold the offset asked for: {error.str()}")
    return LogUnavailable(f"Kafka: {error.str()}", action="check the broker", retriable=True)


def _append_error(error: KafkaError, topic: str, size_bytes: int) -> HeadraceError:
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(
            f"a record of {size_bytes} bytes is more than topic {topic} takes", action="send smaller batches"
        )
    if error.code() in _MISSING:
        return TopicMissing(
            f"topic {topic} does not exist", action="start the cluster's nodes first, or check its name"
        )
    if error.code() in _REFUSED:
        return AppendFailed(f"topic {topic} refused a record: {error.str()}")
    return AppendUnknown(
        f"a record to {topic} was not confirmed: {error.str()}", action="read the log back before sending it again"
    )
