"""The log on Kafka, through confluent-kafka.

Clients are created by the calls below, never at import: librdkafka's threads do not survive a fork. A
delivery report states only whether the broker took a record; whether the record counts is decided by those
who read it from the log.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.connectors.deadline import Deadline
from headrace.connectors.log import kafka_topics
from headrace.connectors.log.client_check import check_client_settings
from headrace.connectors.log.closing import close_topic
from headrace.connectors.log.forks import keep_after_fork
from headrace.connectors.log.kafka_admin import ANSWER_TIMEOUT_S, REQUEST_TIMEOUT_S, KafkaAdmin
from headrace.connectors.log.kafka_appender import KafkaAppender
from headrace.connectors.log.kafka_errors import DENIED, log_error, read_error
from headrace.connectors.log.kafka_settings import (
    FOLLOW_SETTINGS,
    RECORD_BYTES_MAX,
    appender_settings,
    client_settings,
    consumer_settings,
)
from headrace.connectors.log.port import (
    UNKNOWN_EPOCH,
    LogUnavailable,
    Record,
    TopicConfiguration,
    TopicMissing,
    TopicState,
)
from headrace.schemas.errors import HeadraceError

NEW_TOPIC_POLL_S = 0.05
STALL_TIMEOUT_S = 5.0
STALL_TIMEOUT_S_MAX = 320.0
CLIENT_ERRORS_KEPT = 16
_log = structlog.get_logger(__name__)


class KafkaLog:
    """All topics of one Kafka cluster. `settings` are librdkafka's, verbatim, and override ours."""

    def __init__(
        self, bootstrap: str, settings: Mapping[str, str] | None = None, first_answer_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        """`first_answer_s`: see KafkaAdmin. Raises ClientSettingsRefused."""
        check_client_settings(settings or {})
        self._base = client_settings(bootstrap)
        self._settings = dict(settings or {})
        self._admin = KafkaAdmin({**self._base, **self._settings}, bootstrap, first_answer_s)
        self.bootstrap = bootstrap

    def create_topic(self, topic: str, settings: Mapping[str, str], *, copies: int = 0, partitions: int = 1) -> None:
        """See Log; `settings` are Kafka topic settings."""
        # With LogAppendTime a broker expires records by their arrival, not by the age of their rows.
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(RECORD_BYTES_MAX), **settings}
        wanted = kafka_topics.NewLog(topic, config, copies, partitions)
        self._admin.call(topic, lambda client: kafka_topics.create_topic(client, wanted), exists=False)
        self._await_topic(topic)

    def configuration(self, topic: str) -> TopicConfiguration:
        """See Log."""
        return self._admin.call(topic, lambda client: kafka_topics.configuration(client, topic), exists=False)

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log."""
        self._admin.call(topic, lambda client: kafka_topics.configure(client, topic, settings), exists=False)

    def close_topic(self, topic: str) -> int:
        """See Log."""
        return close_topic(self, topic)

    def delete_topic(self, topic: str) -> None:
        """See Log."""
        with contextlib.suppress(TopicMissing):
            self._admin.call(topic, lambda client: kafka_topics.delete_topic(client, topic), exists=False)

    def topic_names(self, prefix: str) -> list[str]:
        """The topics that begin with a prefix, sorted. Raises LogUnavailable, AccessDenied."""
        return self._admin.call("", lambda client: kafka_topics.topic_names(client, prefix), exists=False)

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
            begin, end = kafka_topics.begin(client, topic), kafka_topics.end(client, topic)
            topic_id = str(described.result(ANSWER_TIMEOUT_S).topic_id)
            return TopicState(topic_id, begin.result(ANSWER_TIMEOUT_S).offset, end.result(ANSWER_TIMEOUT_S).offset)

        return self._admin.call(topic, describe)

    def acknowledged_end(self, topic: str) -> int:
        """See Log."""
        del topic
        return 0

    @property
    def write_fault(self) -> str:
        """See Log; Kafka's disk is its own affair."""
        return ""

    def written_end(self, topic: str) -> int:
        """See Log."""
        level = IsolationLevel.READ_UNCOMMITTED
        return self._admin.call(
            topic, lambda client: int(kafka_topics.end(client, topic, level).result(ANSWER_TIMEOUT_S).offset)
        )

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> KafkaReader:
        """See Log."""
        # Without a callback of errors a refused log-in is a line in librdkafka's own log, and nothing else.
        errors: deque[KafkaError] = deque(maxlen=CLIENT_ERRORS_KEPT)
        settings = {**(FOLLOW_SETTINGS if follow else {}), "error_cb": errors.append}
        return KafkaReader(lambda: self._consumer(name or "headrace-reader", **settings), starts, self._end, errors)

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log; a failed commit is left to the next call, since nobody recovers from these offsets."""
        with contextlib.suppress(HeadraceError):
            self._admin.call("", lambda client: kafka_topics.commit(client, name, offsets), exists=False)

    def trim(self, topic: str, before: int) -> None:
        """See Log."""
        self._admin.call(topic, lambda client: kafka_topics.trim(client, topic, before))

    def appender(self, *, repeats: bool = False) -> KafkaAppender:
        """See Log."""
        settings = appender_settings(self.bootstrap, self._settings, repeats=repeats)
        return KafkaAppender(settings, lambda topic: self._end(topic) >= 0)

    def close(self) -> None:
        """See Log."""
        self._admin.close()

    def _end(self, topic: str) -> int:
        """The end of the committed records of a topic, -1 while unknown."""
        try:
            return self._admin.call(
                topic, lambda client: int(kafka_topics.end(client, topic).result(ANSWER_TIMEOUT_S).offset)
            )
        except HeadraceError:
            return -1

    def _consumer(self, name: str, **ours: Any) -> Consumer:
        return Consumer(consumer_settings(self.bootstrap, name, self._settings, **ours))


class KafkaReader:
    """See Reader.

    A consumer that delivers nothing although its topic has records is replaced: librdkafka's can stall for
    good when a broker restarts (librdkafka issue 4492), and a caller that waits for the next record would
    wait for ever. So is a consumer that reported an error, which is already behind the record it is about.
    """

    def __init__(
        self,
        consumer: Callable[[], Consumer],
        starts: Mapping[str, int],
        end: Callable[[str], int] = lambda _topic: -1,
        client_errors: deque[KafkaError] | None = None,
    ) -> None:
        """`consumer()` creates one, whose errors that are about no topic arrive in `client_errors`.

        `end(topic)` is the topic's end by another client, -1 while unknown.
        """
        self._make_consumer = consumer
        self._end = end
        self._client_errors: deque[KafkaError] = deque() if client_errors is None else client_errors
        self._positions = dict(starts)
        self._paused: set[str] = set()
        self._answered: set[str] = set()
        self._error: HeadraceError | None = None
        self._checked_positions: dict[str, int] = {}
        self._behind: dict[str, int] = {}
        """The positions at the last check of topics that had more records."""
        self._stall_timeout_s = STALL_TIMEOUT_S
        self._next_stall_check_s = time.monotonic() + STALL_TIMEOUT_S
        self._consumer: Consumer | None = None
        keep_after_fork(self)
        self._open()

    def _open(self) -> Consumer:
        """The consumer, created and assigned when there is none."""
        if self._consumer is None:
            with self._translated():
                consumer = self._consumer = self._make_consumer()
                consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in self._positions.items()])
                if self._paused:
                    consumer.pause([TopicPartition(topic, 0) for topic in self._paused])
        return self._consumer

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what librdkafka raises as an error of the log; the next call has another consumer."""
        try:
            yield
        except KafkaException as error:
            self._close_consumer()
            raise log_error(error.args[0], "") from error

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        self._raise_error()
        if time.monotonic() >= self._next_stall_check_s:
            self._replace_stalled_consumer()
        consumer = self._open()
        with self._translated():
            first = consumer.poll(timeout_s)
            # `consume` alone would wait the whole time for its full number; `poll` returns with the first record.
            more = consumer.consume(max_records - 1, 0) if first is not None and max_records > 1 else []
        records = self._accepted([first, *more]) if first is not None else []
        if not records:
            self._note_client_errors()
            self._raise_error()
        return records

    def _accepted(self, messages: Iterable[Message]) -> list[Record]:
        """The records up to the first message with an error, which is raised once they are returned."""
        records = []
        for message in messages:
            try:
                record = self._accept(message)
            except HeadraceError as error:
                self._error = error
                break
            if record is not None:
                records.append(record)
        return records

    def _note_client_errors(self) -> None:
        """Keep the first error of the whole client that does not pass by itself."""
        while self._client_errors:
            error = self._client_errors.popleft()
            if self._error is None and (error.code() in DENIED or error.fatal()):
                self._error = log_error(error, "")

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._close_consumer()
            raise error

    def _replace_stalled_consumer(self) -> None:
        """Replace the consumer when a topic had records at the last check, and its position is still the same."""
        # Records that are there now are no sign: they may have reached a topic that was idle until now.
        before, self._behind = self._behind, {}
        checked, self._checked_positions = self._checked_positions, dict(self._positions)
        for topic, position in self._positions.items():
            if topic in self._paused or checked.get(topic, position) != position:
                continue
            end = self._end(topic)
            # Kafka does not answer: a new consumer would deliver nothing either, and each further topic would
            # wait for its timeout.
            if end < 0:
                break
            if end > position:
                self._behind[topic] = position
        stalled = next((topic for topic, position in self._behind.items() if before.get(topic) == position), "")
        # Over a slow line a single fetch may take long: each further consumer gets twice the time.
        self._stall_timeout_s = min(2 * self._stall_timeout_s, STALL_TIMEOUT_S_MAX) if stalled else STALL_TIMEOUT_S
        if stalled:
            _log.warning("replacing a stalled consumer", topic=stalled)
            self._close_consumer()
            self._open()
        self._next_stall_check_s = time.monotonic() + self._stall_timeout_s

    def _accept(self, message: Message) -> Record | None:
        topic, offset, error = message.topic() or "", message.offset(), message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # Transaction markers are never delivered: only this event moves the position behind them.
                self._positions[topic] = max(self._positions[topic], offset or 0)
                self._answered.add(topic)
                return None
            # The error of a batch of records has the offset of the first one, which may be read already.
            raised = read_error(error, topic, 0, max(offset or 0, self._positions.get(topic, 0)))
            if raised is not None:
                raise raised
            return None
        assert offset is not None, "a record without an offset"
        self._positions[topic] = offset + 1
        self._answered.add(topic)
        value, epoch = message.value() or b"", message.leader_epoch()
        return Record(
            *(topic, offset, message.timestamp()[1], message.key(), value, _headers(message)),
            leader_epoch=UNKNOWN_EPOCH if epoch is None else epoch,
        )

    def answered(self, topic: str) -> bool:
        """See Reader."""
        return topic in self._answered

    def position(self, topic: str) -> int:
        """See Reader."""
        return self._positions[topic]

    # A call that fails leaves a consumer in an unknown state: the next poll opens one at the positions noted here.

    def seek(self, topic: str, offset: int) -> None:
        """See Reader."""
        self._positions[topic] = offset
        self._apply(lambda consumer: consumer.seek(TopicPartition(topic, 0, offset)))

    def pause(self, topics: Iterable[str]) -> None:
        """See Reader."""
        partitions = [TopicPartition(topic, 0) for topic in topics]
        self._paused |= {each.topic for each in partitions}
        self._apply(lambda consumer: consumer.pause(partitions))

    def resume(self, topics: Iterable[str]) -> None:
        """See Reader."""
        partitions = [TopicPartition(topic, 0) for topic in topics]
        self._paused -= {each.topic for each in partitions}
        self._apply(lambda consumer: consumer.resume(partitions))

    def _apply(self, call: Callable[[Consumer], object]) -> None:
        if self._consumer is not None:
            with contextlib.suppress(HeadraceError), self._translated():
                call(self._consumer)

    def close(self) -> None:
        """See Reader."""
        self._close_consumer()

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaException):
                consumer.close()


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    try:
        pairs: list[tuple[str, bytes | None]] = list(message.headers() or ())  # type: ignore[arg-type]
    except (UnicodeDecodeError, SystemError):
        # A name that is not UTF-8, which the client cannot return. Ours are ASCII, so these are foreign headers,
        # and every reader drops them alike.
        return ()
    return tuple((name, value or b"") for name, value in pairs)
