"""Administrative requests to Kafka, and the client behind them, which is replaced when it fails."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.connectors.log.forks import keep_after_fork
from headrace.connectors.log.kafka_errors import (
    AUTHENTICATION_FAILED,
    CONNECTION_REFUSED,
    MISSING,
    UNREACHABLE,
    log_error,
    translated,
)
from headrace.connectors.log.port import CHECK_CONNECTION, LogUnavailable

REQUEST_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 2 * REQUEST_TIMEOUT_S
CLIENT_FRESH_S = 2.0
LEADERS_CACHED_S = 300.0
ERRORS_KEPT = 16
_TLS_BROKEN = "SSL handshake failed"
Result = TypeVar("Result")


# Compared by identity, since the set of open clients holds them.
@dataclass(eq=False)
class _Client:
    """A client and the number of calls that run on it: it may be closed only when there is none.

    `errors` are those of its connections, which no call reports: to a call the broker just does not answer.
    """

    handle: AdminClient
    created_s: float
    errors: deque[KafkaError]
    running_calls: int = 0
    retired: bool = False
    leaders_cached_s: dict[str, float] = field(default_factory=dict)

    def cache_leaders(self, topic: str, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Make the client cache the leaders of a topic, which it drops after 15 minutes. Raises
        KafkaException.

        An offsets request whose leader the client must look up itself can crash the process. When a metadata
        response arrives at the wrong moment, the calling thread uses memory that librdkafka's own thread has
        freed (`query_leaders_async_worker` in rdkafka_partition.c, 2.16.0).
        """
        now_s = time.monotonic()
        if now_s - self.leaders_cached_s.get(topic, -LEADERS_CACHED_S) < LEADERS_CACHED_S:
            return
        found = self.handle.list_topics(topic, timeout=timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        for partition in found.partitions.values():
            if partition.leader < 0:
                raise KafkaException(partition.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        self.leaders_cached_s[topic] = now_s

    def refusal(self) -> KafkaError | None:
        """Why the broker refuses the connection, as a wrong password; None when it just does not answer."""
        self.handle.poll(0)
        found = tuple(self.errors)
        refusals = (error for error in found if error.code() in CONNECTION_REFUSED)
        # A broker without TLS only closes such a connection: librdkafka has no code of its own for that.
        broken = (error for error in found if _TLS_BROKEN in error.str())
        return next(refusals, None) or next(broken, None)


# The garbage collector closes a client in whichever thread it runs in; in one of the client's own threads
# librdkafka aborts the process (confluent-kafka-python issue 2129). Tracebacks put clients into cycles, so
# each is referenced here until it is closed.
_open_clients: set[_Client] = set()


class KafkaAdmin:
    """Runs requests, from any thread concurrently; to be closed.

    A client that meets a broker while it stops or starts may cache wrong metadata: for its life it reports
    that a topic has no leader or does not exist (librdkafka issue 3009). Older calls may never return (2535).
    So only calls with a time limit are used, and a client that failed is not used again. `TopicMissing` is
    trusted only from a client that was created a moment ago.
    """

    def __init__(self, settings: Mapping[str, Any], bootstrap: str, first_answer_s: float = REQUEST_TIMEOUT_S) -> None:
        """`first_answer_s`: how long the first request waits, for a caller with little time."""
        self._timeout_s = first_answer_s
        self._settings = {"allow.auto.create.topics": False, **settings}
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._closed = False
        self._was_answered = False

    def call(self, topic: str, request: Callable[[AdminClient], Result], *, exists: bool = True) -> Result:
        """Returns `request(client)`, which may wait for futures only, at most ANSWER_TIMEOUT_S each.

        `exists=False` is for a topic that is being created: its leaders are not cached first, so `request`
        must not ask for offsets. Raises TopicMissing, LogTruncated, LogUnavailable, and other errors of
        `request`.
        """
        with translated(topic):
            client, fresh = self._enter()
        try:
            if exists:
                client.cache_leaders(topic, self._timeout_s)
                self._timeout_s = REQUEST_TIMEOUT_S
            result = request(client.handle)
            # What was wrong before is not the cause of what fails later.
            client.errors.clear()
            self._was_answered = True
            return result
        except TimeoutError as error:
            self._retire(client)
            raise self._unavailable(client) from error
        except KafkaException as error:
            code = error.args[0].code()
            client.leaders_cached_s.pop(topic, None)
            # A fresh client that fails is kept for a moment: with the broker away, a new one for every call
            # would exhaust threads.
            if not fresh:
                self._retire(client)
                if code in MISSING:
                    return self.call(topic, request, exists=exists)
            raise self._unavailable(client) if code in UNREACHABLE else log_error(error.args[0], topic) from error
        finally:
            self._leave(client)

    def close(self) -> None:
        """Close the client, or leave that to the last call that runs on it.

        A later call gets a client of its own.
        """
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            if client is None:
                return
            client.retired = True
            in_use = client.running_calls > 0
        if not in_use:
            _close_client(client)

    def _unavailable(self, client: _Client) -> LogUnavailable:
        if refusal := client.refusal():
            wrong = refusal.code() in AUTHENTICATION_FAILED
            what = (
                "user and password, sasl.mechanism and security.protocol"
                if wrong
                else "security.protocol and certificates"
            )
            return LogUnavailable(
                f"Kafka at {self._bootstrap} refuses the connection: {refusal.str()}",
                action=f"check {what} ([kafka] of headrace.toml, -X)",
                # A password that was right is so again, once a broker that has just started knows its accounts.
                retriable=not wrong or self._was_answered,
            )
        return LogUnavailable(f"Kafka at {self._bootstrap} does not answer", action=CHECK_CONNECTION, retriable=True)

    def _enter(self) -> tuple[_Client, bool]:
        """The client, and whether it was created a moment ago."""
        with self._lock:
            now_s = time.monotonic()
            client = self._client
            if client is None:
                errors: deque[KafkaError] = deque(maxlen=ERRORS_KEPT)
                settings: dict[str, Any] = {**self._settings, "error_cb": errors.append}
                client = _Client(AdminClient(settings), now_s, errors, retired=self._closed)
                keep_after_fork(client)
                _open_clients.add(client)
                self._client = None if self._closed else client
            # Else librdkafka would keep every error of a connection until the client is closed.
            client.handle.poll(0)
            client.running_calls += 1
            return client, now_s - client.created_s < CLIENT_FRESH_S

    def _leave(self, client: _Client) -> None:
        with self._lock:
            client.running_calls -= 1
            unused = client.retired and not client.running_calls
        if unused:
            # Closing waits for the client's own threads, which may hang as its calls did.
            threading.Thread(target=_close_client, args=(client,), name="kafka-client-close", daemon=True).start()

    def _retire(self, client: _Client) -> None:
        with self._lock:
            client.retired = True
            if self._client is client:
                self._client = None


def _close_client(client: _Client) -> None:
    client.handle.__exit__(None, None, None)
    _open_clients.discard(client)
