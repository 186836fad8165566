"""Questions to Kafka, and the client that asks them, which is replaced when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectors.log.kafka_errors import MISSING, SILENT, log_error
from connectors.log.port import LogUnavailable

REQUEST_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 2 * REQUEST_TIMEOUT_S
FRESH_S = 2.0
Answer = TypeVar("Answer")


class KafkaAdmin:
    """Asks, from any thread at once.

    A client that meets a broker which just stops or starts may believe for the life of its cache that a topic has no leader or does not exist
    (librdkafka issue 3009), and older calls may never return (2535). So only futures with a time limit are used, a client that failed is not asked
    again, and that a topic does not exist is believed only of a client that was made a moment ago.
    """

    def __init__(self, settings: Mapping[str, Any], bootstrap: str) -> None:
        self._settings = dict(settings)
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._made_s = 0.0

    def ask(self, topic: str, question: Callable[[AdminClient], Answer]) -> Answer:
        """What `question` returns. It waits for futures, at most ANSWER_TIMEOUT_S each. Raises TopicMissing, LogTruncated, LogUnavailable, and what
        else it raises."""
        client, fresh = self._current()
        try:
            return question(client)
        except TimeoutError as error:
            self._give_up(client)
            raise self._silent() from error
        except KafkaException as error:
            code = error.args[0].code()
            if not fresh:
                self._give_up(client)
                if code in MISSING:
                    return self.ask(topic, question)
            raise self._silent() if code in SILENT else log_error(error.args[0], topic) from error

    def close(self) -> None:
        """Give up the client."""
        with self._lock:
            self._client = None

    def _silent(self) -> LogUnavailable:
        return LogUnavailable(
            f"Kafka at {self._bootstrap} does not answer", action="check the address and the broker", retriable=True
        )

    def _current(self) -> tuple[AdminClient, bool]:
        """The client, and whether it was made a moment ago."""
        with self._lock:
            now_s = time.monotonic()
            if self._client is None:
                self._client, self._made_s = AdminClient(self._settings), now_s
            return self._client, now_s - self._made_s < FRESH_S

    def _give_up(self, client: AdminClient) -> None:
        with self._lock:
            if self._client is not client:
                return
            self._client = None
        # Other threads may wait for its answers; and its end waits for its own threads, which may hang as its calls did.
        end = threading.Timer(ANSWER_TIMEOUT_S, _forget, ([client],))
        end.daemon = True
        end.start()


def _forget(clients: list[AdminClient]) -> None:
    clients.clear()
