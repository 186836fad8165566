"""Questions to Kafka, and the client that asks them, which is replaced when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.log.kafka_errors import MISSING, SILENT, log_error
from connectors.log.port import LogUnavailable

REQUEST_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 2 * REQUEST_TIMEOUT_S
FRESH_S = 2.0
LEARNED_S = 300.0
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Client:
    """A client and how many ask it now: it may only be ended when nobody does."""

    handle: AdminClient
    made_s: float
    askers: int = 0
    given_up: bool = False
    learned_s: dict[str, float] = field(default_factory=dict)

    def learn(self, topic: str) -> None:
        """Let the client know the topic's leader, which it forgets after 15 minutes. Raises KafkaException.

        A question about offsets whose leader the client must look up first crashes the process if any answer about topics comes in at the wrong
        moment: the thread that asks goes on with what librdkafka's own has freed (query_leaders_async_worker in rdkafka_partition.c, 2.16.0).
        """
        now_s = time.monotonic()
        if now_s - self.learned_s.get(topic, -LEARNED_S) < LEARNED_S:
            return
        found = self.handle.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        for partition in found.partitions.values():
            if partition.leader < 0:
                raise KafkaException(partition.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        self.learned_s[topic] = now_s


# A client that the garbage collector finds is ended in whichever thread that runs in, and in one of its own librdkafka aborts the process
# (confluent-kafka-python 2129). Errors make cycles of it, so each is held here until it was ended.
_not_ended: set[_Client] = set()


class KafkaAdmin:
    """Asks, from any thread at once; to be closed.

    A client that meets a broker which just stops or starts may believe for the life of its cache that a topic has no leader or does not exist
    (librdkafka issue 3009), and older calls may never return (2535). So only calls with a time limit are used, a client that failed is not asked
    again, and that a topic does not exist is believed only of a client that was made a moment ago.
    """

    def __init__(self, settings: Mapping[str, Any], bootstrap: str) -> None:
        self._settings = {"allow.auto.create.topics": False, **settings}
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._closed = False

    def ask(self, topic: str, question: Callable[[AdminClient], Answer], *, exists: bool = True) -> Answer:
        """What `question` returns. It waits for futures alone, at most ANSWER_TIMEOUT_S each, and asks for no offsets unless the topic `exists`.
        Raises TopicMissing, LogTruncated, LogUnavailable, and what else it raises."""
        client, fresh = self._enter()
        try:
            if exists:
                client.learn(topic)
            return question(client.handle)
        except TimeoutError as error:
            self._give_up(client)
            raise self._silent() from error
        except KafkaException as error:
            code = error.args[0].code()
            client.learned_s.pop(topic, None)
            if not fresh:
                self._give_up(client)
                if code in MISSING:
                    return self.ask(topic, question, exists=exists)
            raise self._silent() if code in SILENT else log_error(error.args[0], topic) from error
        finally:
            self._leave(client)

    def close(self) -> None:
        """Give up the client, and end it unless it is being asked: then the last who asks does. Who asks later has a client for this once."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            if client is None:
                return
            client.given_up = True
            asked = client.askers > 0
        if not asked:
            _end(client)

    def _silent(self) -> LogUnavailable:
        return LogUnavailable(
            f"Kafka at {self._bootstrap} does not answer", action="check the address and the broker", retriable=True
        )

    def _enter(self) -> tuple[_Client, bool]:
        """The client, and whether it was made a moment ago."""
        with self._lock:
            now_s = time.monotonic()
            client = self._client
            if client is None:
                client = _Client(AdminClient(self._settings), now_s, given_up=self._closed)
                _not_ended.add(client)
                self._client = None if self._closed else client
            client.askers += 1
            return client, now_s - client.made_s < FRESH_S

    def _leave(self, client: _Client) -> None:
        with self._lock:
            client.askers -= 1
            over = client.given_up and not client.askers
        if over:
            # Its end waits for its own threads, which may hang as its calls did.
            threading.Thread(target=_end, args=(client,), name="kafka-client-end", daemon=True).start()

    def _give_up(self, client: _Client) -> None:
        with self._lock:
            client.given_up = True
            if self._client is client:
                self._client = None


def _end(client: _Client) -> None:
    client.handle.__exit__(None, None, None)
    _not_ended.discard(client)
