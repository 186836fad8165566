"""The appender of the log on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.forks import keep_after_fork
from headrace.connectors.log.kafka_errors import append_error, translated
from headrace.connectors.log.kafka_settings import LETTER_BYTES_MAX, RECORD_BYTES_MAX
from headrace.connectors.log.port import CLOSE_FLUSH_S, Headers, LogUnavailable, OnDelivery
from headrace.connectors.log.topics import DLQ_PREFIX
from headrace.schemas.errors import HeadraceError

FULL_QUEUE_TIMEOUT_S = 300.0
PREPARE_TIMEOUT_S = 5.0
IDLE_POLL_S = 0.1
REPORT_POLL_S = 0.02
STALL_POLLS = 1_500
"""So many polls without a report, of a client that has records: is it stalled, or is Kafka away?"""
STALL_POLLS_MAX = 16 * STALL_POLLS
_log = structlog.get_logger(__name__)


class KafkaAppender:
    """See Appender. Delivery reports are served by a thread of its own.

    A client that fails for good is replaced at the next append, as after a broker that lost the end of a log: it no
    longer knows the producer's last sequence number. So is one that delivers nothing although Kafka answers others.
    """

    # Of the records that the failed client still had nobody knows whether they are in the log: they are reported as
    # unknown. One that arrives late is of an older batch than those of the next client, and replicas drop it.
    # A client that stalls for good was seen in a fault run, after a restart of the broker: its node stayed fenced.

    def __init__(self, settings: Mapping[str, Any], answers: Callable[[str], bool] = lambda _topic: False) -> None:
        """`answers(topic)`: whether Kafka answers another client about a topic.

        Raises LogUnavailable when there can be no client.
        """
        self._settings = dict(settings)
        self._answers = answers
        self._topic = ""
        self._reports = 0
        self._lock = threading.Lock()
        keep_after_fork(self)
        self._producer = self._new_producer()
        self._failed: list[Producer] = []
        self._closed = threading.Event()
        self._wanted = threading.Event()
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
        # The client has one limit for all topics.
        if len(value) > (LETTER_BYTES_MAX if topic.startswith(DLQ_PREFIX) else RECORD_BYTES_MAX):
            raise append_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), topic, len(value))
        deadline, replaced = Deadline(FULL_QUEUE_TIMEOUT_S), False
        self._topic = topic

        def report(error: KafkaError | None, message: Message) -> None:
            _surface()
            self._reports += 1
            if on_delivery is not None:
                on_delivery(
                    None if error else message.offset(), append_error(error, topic, len(value)) if error else None
                )

        while True:
            producer = self._producer
            try:
                producer.produce(topic, value, key=key, partition=0, headers=list(headers), on_delivery=report)
                self._wanted.set()
                return
            except BufferError:
                # The queue is full: waiting is the back-pressure on a caller that is faster than the broker.
                if deadline.passed():
                    raise LogUnavailable(
                        "the producer's queue stayed full", action="check the broker", retriable=True
                    ) from None
                self._closed.wait(0.002)
            except KafkaException as error:
                # It was not queued, so the next client may take it; one that has failed as well is an error.
                if not _is_fatal(error) or replaced:
                    raise append_error(error.args[0], topic, len(value)) from error
                replaced = True
                self._replace(producer)

    def prepare(self, topic: str) -> None:
        """See Appender."""
        with suppress(KafkaException):
            self._producer.list_topics(topic, timeout=PREPARE_TIMEOUT_S)

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        deadline = Deadline(timeout_s)
        return sum(self._flush(producer, deadline) for producer in (*self._failed, self._producer))

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """See Appender."""
        self.flush(flush_s)
        self._closed.set()
        self._wanted.set()
        self._report_thread.join(timeout=5.0)

    def _flush(self, producer: Producer, deadline: Deadline) -> int:
        try:
            return int(producer.flush(deadline.left_s()))
        except KafkaException as error:
            if not _is_fatal(error):
                raise append_error(error.args[0], "", 0) from error
        except SystemError:
            # The error of a client that has failed for good, see `_surface`.
            pass
        self._replace(producer)
        while len(producer) and not deadline.passed():
            _serve(producer, 0.01)
        return len(producer)

    def _new_producer(self) -> Producer:
        with translated(""):
            return Producer(dict(self._settings))

    def _replace(self, producer: Producer) -> None:
        with self._lock:
            # Another thread may have met the same failure.
            if producer is not self._producer:
                return
            self._producer = self._new_producer()
            self._failed.append(producer)
        producer.purge()
        _log.warning("Kafka producer failed and was replaced", records_unknown=len(producer))

    def _serve_reports(self) -> None:
        silence = _Silence()
        while not self._closed.is_set():
            producer = self._producer
            # A client that has nothing would be polled for the whole time, and `close` would wait for that.
            if not len(producer):
                self._wanted.wait(IDLE_POLL_S)
                self._wanted.clear()
            _serve(producer, REPORT_POLL_S if len(producer) else 0.0)
            if silence.is_stall(self._reports, len(producer)) and self._answers(self._topic):
                with suppress(HeadraceError):
                    self._replace(producer)
            for failed in list(self._failed):
                _serve(failed, 0.0)
                if not len(failed):
                    self._failed.remove(failed)


class _Silence:
    """How long a client with records has reported nothing, in polls: a process that was stopped made none."""

    def __init__(self) -> None:
        self._polls, self._limit, self._reports = 0, STALL_POLLS, 0

    def is_stall(self, reports: int, records: int) -> bool:
        """Whether the silence has reached its limit, which doubles each time."""
        if reports != self._reports:
            self._limit = STALL_POLLS
        if reports != self._reports or not records:
            self._polls, self._reports = 0, reports
            return False
        self._polls += 1
        if self._polls < self._limit:
            return False
        self._polls, self._limit = 0, min(2 * self._limit, STALL_POLLS_MAX)
        return True


def _serve(producer: Producer, timeout_s: float) -> None:
    # A failed client is replaced by whoever appends next: without a record to append it hurts nobody.
    with suppress(KafkaException, SystemError):
        producer.poll(timeout_s)


_call_into_c = partial(int)


def _surface() -> None:
    """End the error that a delivery report was called with: its first call would raise it, and the report be lost."""
    # A client that fails for good raises from flush. But confluent-kafka sets the error when it handles that event,
    # and librdkafka continues with the next one, perhaps a delivery report. CPython finds the error behind a call of a
    # C function, and raises SystemError in the report; the call to flush or poll fails with SystemError as well.
    try:
        _call_into_c()
    except SystemError:
        # Not `suppress`: making it is such a call too.
        return


def _is_fatal(error: KafkaException) -> bool:
    cause: KafkaError = error.args[0]
    return cause.fatal() or cause.code() == KafkaError._FATAL
