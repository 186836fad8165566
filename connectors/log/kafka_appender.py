"""The appender of the log on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka_errors import append_error, translated
from headrace.connectors.log.port import CLOSE_FLUSH_S, Headers, LogUnavailable, OnDelivery

FULL_QUEUE_TIMEOUT_S = 300.0


class KafkaAppender:
    """See Appender. Delivery reports are served by a thread of its own."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises LogUnavailable when there can be no client."""
        with translated(""):
            self._producer = Producer(dict(settings))
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

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """See Appender."""
        self._producer.flush(flush_s)
        self._closed.set()
        self._report_thread.join(timeout=5.0)

    def _serve_reports(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)
