"""The topics of a centre over Kafka: sends manifests and chunks, and reads the verdicts for one sender.

The producer never gives up on a record, however long the line is cut, and never sends one twice to the log. Only after
an error that ends it is the fate of its records unknown; they are sent again by a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_errors import append_error, translated
from headrace.connectors.log.kafka_settings import IN_FLIGHT_MAX, RECORD_BYTES_MAX, client_settings
from headrace.connectors.log.port import LogTruncated, LogUnavailable, Reader, RecordTooLarge, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.sender_ports import Confirmation
from headrace.consumers.sync.state_directory import StateDirectory, check_centre
from headrace.consumers.sync.verdicts import verdicts_for
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncVerdict

METADATA_TIMEOUT_S = 10.0
QUEUE_KBYTES = 256 * 1024
VERDICTS_PER_POLL = 1_000
CLOSE_FLUSH_S = 5.0
LOST_AGAIN_S = 1.0
_log = structlog.get_logger(__name__)


class NotACentre(HeadraceError):
    """A cluster that receives nothing: it has no topics for senders."""


def topic_ids(log: KafkaLog, topics: Topics) -> dict[str, str]:
    """The ids of a centre's topics by name, that of its membership log first. Raises NotACentre, LogUnavailable."""
    names = (topics.membership, topics.sync_manifest, topics.sync_chunk, topics.sync_verdict)
    found = {}
    for name in names:
        try:
            found[name] = log.describe(name).topic_id
        except TopicMissing as error:
            what = "is no cluster" if name == topics.membership else "receives nothing yet"
            raise NotACentre(
                f"{topics.cluster} {what}: it has no topic {name}",
                action="check --to-cluster, and start headrace sync receive there",
                retriable=True,
            ) from error
    return found


class CentreLink:
    """See Centre. Owned by one thread."""

    def __init__(
        self,
        log: KafkaLog,
        topics: Topics,
        state: StateDirectory,
        verdict_offset: int,
        settings: Mapping[str, str],
    ) -> None:
        """`state` names sender and centre. `settings` are librdkafka's, verbatim. Raises LogUnavailable."""
        self._log = log
        self._topics = topics
        self._identity, self._directory = state.identity, state.directory
        self._settings = producer_settings(log.bootstrap, settings)
        self._confirmed: deque[Confirmation] = deque()
        self._outstanding = 0
        self._failed = False
        self._producer = self._new_producer()
        self._partition = state.partition(self._partitions())
        self._offset = verdict_offset
        self._reader: Reader | None = None

    def check(self) -> None:
        """See Centre."""
        check_centre(self._directory, self._identity, self._topics.cluster, topic_ids(self._log, self._topics))

    def send_manifest(self, number: int, value: bytes) -> None:
        """See Centre."""
        self._send(self._topics.sync_manifest, number, -1, value)

    def send_chunk(self, number: int, chunk: int, value: bytes) -> None:
        """See Centre."""
        self._send(self._topics.sync_chunk, number, chunk, value)

    def _send(self, topic: str, number: int, chunk: int, value: bytes) -> None:
        if self._failed:
            self._replace()

        def report(error: KafkaError | None, _message: Message) -> None:
            self._outstanding -= 1
            if error is None:
                self._confirmed.append(Confirmation(number, chunk))
                return
            self._failed = self._failed or error.fatal()
            found = append_error(error, topic, len(value))
            self._confirmed.append(Confirmation(number, chunk, lost=True, error=found.message))

        try:
            # The partition of both topics is chosen here: a chunk must be in the partition of its manifest.
            self._producer.produce(
                topic, value, key=self._identity.sender.encode(), partition=self._partition, on_delivery=report
            )
        except BufferError as error:
            raise LogUnavailable("the producer's queue is full", action="check the line", retriable=True) from error
        except KafkaException as error:
            found = append_error(error.args[0], topic, len(value))
            # Of a record that is too large the producer knows nothing.
            self._failed = self._failed or not isinstance(found, RecordTooLarge)
            raise found from error
        self._outstanding += 1

    def events(self, timeout_s: float) -> tuple[Sequence[Confirmation], Sequence[SyncVerdict], int]:
        """See Centre."""
        # Whatever can come first is waited for: without a record on its way only verdicts can.
        confirming = self._outstanding > 0
        with suppress(KafkaException, SystemError):
            self._producer.poll(timeout_s if confirming else 0.0)
        confirmed = tuple(self._confirmed)
        self._confirmed.clear()
        try:
            verdicts = self._verdicts(0.0 if confirming or confirmed else timeout_s)
        except LogUnavailable:
            # A cut line: what is confirmed is confirmed all the same.
            verdicts = []
            if not confirmed and not timeout_s:
                raise
        return confirmed, verdicts, self._offset

    def _verdicts(self, timeout_s: float) -> list[SyncVerdict]:
        topic = self._topics.sync_verdict
        if self._reader is None:
            self._reader = self._log.reader({topic: self._offset}, follow=True)
        try:
            records = self._reader.poll(VERDICTS_PER_POLL, timeout_s)
        except LogTruncated:
            # Compaction and deletion of the beginning: the newest verdict of each file is still there.
            self._offset = self._log.describe(topic).begin
            self._reader.close()
            self._reader = None
            return []
        if records:
            self._offset = records[-1].offset + 1
        return verdicts_for(self._identity.sender, records)

    def verdict_end(self) -> int:
        """The end of the verdicts that are there now. Raises LogUnavailable, TopicMissing."""
        return self._log.describe(self._topics.sync_verdict).end

    @property
    def verdicts_read(self) -> int:
        """Every verdict below this offset was returned by `events`, also where the topic was compacted."""
        return self._offset if self._reader is None else self._reader.position(self._topics.sync_verdict)

    def close(self) -> None:
        """Release the clients."""
        with suppress(KafkaException, SystemError):
            self._producer.flush(CLOSE_FLUSH_S)
        if self._reader is not None:
            self._reader.close()

    def _new_producer(self) -> Producer:
        with translated(""):
            return Producer(dict(self._settings))

    def _replace(self) -> None:
        """Another producer in the place of one that has failed for good; what it had is reported as lost."""
        failed, self._producer, self._failed = self._producer, self._new_producer(), False
        _log.warning("Kafka producer failed and was replaced", records_unknown=len(failed))
        with suppress(KafkaException, SystemError):
            failed.purge()
            failed.flush(LOST_AGAIN_S)

    def _partitions(self) -> int:
        topic = self._topics.sync_manifest
        try:
            found = self._producer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise LogUnavailable(f"topic {topic}: {error.args[0].str()}", retriable=True) from error
        count = len(found.partitions)
        if not count:
            raise LogUnavailable(f"topic {topic} has no partition yet", retriable=True)
        return count


def producer_settings(bootstrap: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """A producer that keeps order, sends nothing twice, and waits for ever."""
    return {
        **client_settings(bootstrap),
        "enable.idempotence": True,
        "max.in.flight": IN_FLIGHT_MAX,
        "acks": "all",
        "linger.ms": 0,
        # Segments are compressed.
        "compression.type": "none",
        "message.max.bytes": RECORD_BYTES_MAX,
        "batch.size": RECORD_BYTES_MAX,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        # For ever: a sender that gave up would send again what may be in the log already.
        "message.timeout.ms": 0,
        **settings,
    }
