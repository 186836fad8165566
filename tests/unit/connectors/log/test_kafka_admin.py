"""Admin clients of Kafka: one that failed is replaced, and one that hangs blocks no other caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.connectors.log import kafka_admin
from headrace.connectors.log.kafka_admin import CLIENT_FRESH_S, LEADERS_CACHED_S, REQUEST_TIMEOUT_S, KafkaAdmin
from headrace.connectors.log.port import LogUnavailable, TopicMissing
from tests.waiting import eventually


class Numbered(int):
    """A double of AdminClient; `ended` has the numbers of closed clients, `looked_up` the topics of each."""

    ended: list[int]
    looked_up: list[tuple[int, str]]
    leader: int
    timeouts_s: list[float]
    error_cb: Callable[[KafkaError], None]
    refused: bool
    tls_broken: bool

    def poll(self, _timeout_s: float) -> None:
        """Serve the errors of its connections: a refusal, between two that are none."""
        for code in (KafkaError._TRANSPORT, *[KafkaError._AUTHENTICATION] * self.refused, KafkaError._ALL_BROKERS_DOWN):
            self.error_cb(KafkaError(code, f"error {code}"))
        if self.tls_broken:
            text = "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?"
            self.error_cb(KafkaError(KafkaError._TRANSPORT, text))

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        """One partition, with a leader as long as there is one."""
        self.timeouts_s.append(timeout)
        self.looked_up.append((int(self), topic))
        partition = SimpleNamespace(leader=self.leader, error=None)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: partition})})

    def __exit__(self, *_of_an_error: object) -> None:
        self.ended.append(self)


class Clients:
    """Clients are numbered from 1 as they are created, and the test sets the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.ended: list[int] = []
        self.looked_up: list[tuple[int, str]] = []
        self.timeouts_s: list[float] = []
        self.leader = 1
        self.refused = False
        self.tls_broken = False
        self.now_s = 100.0
        monkeypatch.setattr(kafka_admin, "AdminClient", self._make)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def _make(self, settings: Mapping[str, Any]) -> Numbered:
        self.made += 1
        client = Numbered(self.made)
        client.ended, client.looked_up, client.leader = self.ended, self.looked_up, self.leader
        self.last = client
        client.tls_broken = self.tls_broken
        client.timeouts_s, client.error_cb, client.refused = self.timeouts_s, settings["error_cb"], self.refused
        return client


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """No client was created yet."""
    return Clients(monkeypatch)


def number_of(client: object) -> int:
    """A request that a client answers with its number."""
    assert isinstance(client, Numbered)
    return int(client)


def failing(code: int, *numbers: int) -> Callable[[Any], Any]:
    """A request that these clients fail; others answer with their number."""

    def request(client: Any) -> Any:
        if client in numbers:
            raise KafkaException(KafkaError(code))
        return client

    return request


def test_only_a_new_client_may_report_a_missing_topic(clients: Clients) -> None:
    """An older client caches the metadata of a broker that was starting.

    The next client finds an existing topic at once.
    """
    admin = KafkaAdmin({}, "here")
    assert admin.call("t", number_of) == 1
    clients.now_s += CLIENT_FRESH_S
    assert admin.call("t", failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 1)) == 2
    clients.now_s += CLIENT_FRESH_S
    with pytest.raises(TopicMissing):
        admin.call("t", failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 2, 3))
    assert clients.made == 3


@pytest.mark.parametrize(
    ("refused", "words"), [(False, "does not answer"), (True, "refuses the connection: error -169")]
)
def test_a_connection_that_is_refused_is_no_broker_that_is_away(clients: Clients, refused: bool, words: str) -> None:
    """A wrong password: the call only learns that nobody answers, and the client's errors have the cause."""
    clients.refused = refused
    admin = KafkaAdmin({}, "kafka:9092")
    with pytest.raises(LogUnavailable, match=f"Kafka at kafka:9092 {words}"):
        admin.call("t", failing(KafkaError._TRANSPORT, 1))


def test_a_wrong_password_is_not_tried_again(clients: Clients) -> None:
    """Nobody can help by waiting, and the address is right: the action has the user and the password."""
    clients.refused = True
    with pytest.raises(LogUnavailable, match="refuses the connection") as why:
        KafkaAdmin({}, "kafka:9092").call("t", failing(KafkaError._TRANSPORT, 1))
    assert not why.value.retriable
    assert why.value.action.startswith("check user and password")


def test_a_password_that_was_right_is_tried_again(clients: Clients) -> None:
    """A broker that starts again may not know its accounts at once: no process ends for that."""
    admin = KafkaAdmin({}, "kafka:9092")
    assert 1 == admin.call("t", failing(KafkaError._TRANSPORT))
    clients.last.refused = True
    with pytest.raises(LogUnavailable, match="refuses the connection") as why:
        admin.call("t", failing(KafkaError._TRANSPORT, 1))
    assert why.value.retriable


def test_tls_against_a_listener_without_it_is_named(clients: Clients) -> None:
    """The broker only closes the connection; librdkafka has the reason in a text, under the code of any lost one."""
    clients.tls_broken = True
    with pytest.raises(LogUnavailable, match="refuses the connection: SSL handshake failed: .*PLAINTEXT broker") as why:
        KafkaAdmin({}, "kafka:9092").call("t", failing(KafkaError._TRANSPORT, 1))
    assert "security.protocol" in why.value.action
    assert why.value.retriable


def test_a_broker_that_does_not_answer_may_be_one_with_tls(clients: Clients) -> None:
    """It drops a connection without TLS, and nothing has the reason: what to check names the setting."""
    with pytest.raises(LogUnavailable, match="does not answer") as why:
        KafkaAdmin({}, "kafka:9092").call("t", failing(KafkaError._TRANSPORT, 1))
    assert "security.protocol" in why.value.action


def test_a_refusal_of_before_is_no_cause_of_what_fails_later(clients: Clients) -> None:
    """A broker that has just started knows no accounts. It answered since, and is away now."""
    clients.refused = True
    admin = KafkaAdmin({}, "kafka:9092")
    assert 1 == admin.call("t", failing(KafkaError._TRANSPORT))
    clients.last.refused = False
    with pytest.raises(LogUnavailable, match="Kafka at kafka:9092 does not answer"):
        admin.call("t", failing(KafkaError._TRANSPORT, 1))


def test_a_failed_client_is_replaced_but_not_at_every_call(clients: Clients) -> None:
    """While the broker is away there is one new client every CLIENT_FRESH_S, whatever the number of calls."""
    admin = KafkaAdmin({}, "here")
    for _ in range(10):
        with pytest.raises(LogUnavailable, match="Kafka at here does not answer"):
            admin.call("t", failing(KafkaError._TRANSPORT, 1))
    assert clients.made == 1
    clients.now_s += CLIENT_FRESH_S
    with pytest.raises(LogUnavailable):
        admin.call("t", failing(KafkaError._TRANSPORT, 1))
    assert admin.call("t", failing(KafkaError._TRANSPORT, 1)) == 2


def test_who_has_little_time_waits_no_longer_for_the_first_answer(clients: Clients) -> None:
    """Of a broker that is not there librdkafka finds that out after 10 s. Once it answered it has that time."""
    admin = KafkaAdmin({}, "here", 2.0)
    clients.leader = -1
    for _ in range(2):
        with pytest.raises(LogUnavailable):
            admin.call("t", lambda client: client)
    clients.leader = 1
    clients.now_s += CLIENT_FRESH_S
    with pytest.raises(LogUnavailable):
        admin.call("t", lambda client: client)
    for topic in ("t", "u"):
        admin.call(topic, lambda client: client)
    assert [2.0] * 4 + [REQUEST_TIMEOUT_S] == clients.timeouts_s
    KafkaAdmin({}, "here").call("t", lambda client: client)
    assert REQUEST_TIMEOUT_S == clients.timeouts_s[-1]


def test_a_client_that_hangs_is_replaced_and_blocks_no_other_call(clients: Clients) -> None:
    """Other calls proceed meanwhile; after the timeout the next request goes to a new client."""
    admin = KafkaAdmin({}, "here")
    in_use, answer = threading.Event(), threading.Event()

    def hang(_client: Any) -> None:
        in_use.set()
        assert answer.wait(60.0)
        raise TimeoutError

    def hanging() -> None:
        with pytest.raises(LogUnavailable):
            admin.call("t", hang)

    thread = threading.Thread(target=hanging)
    thread.start()
    assert in_use.wait(60.0)
    assert admin.call("t", number_of) == 1
    answer.set()
    thread.join(60.0)
    assert not thread.is_alive()
    assert admin.call("t", number_of) == 2
    assert clients.made == 2


def test_a_client_is_closed_once_and_only_when_it_is_idle(clients: Clients) -> None:
    """Failed or closed, a client ends with its last request; until then no other thread may free it."""
    admin = KafkaAdmin({}, "here")

    def close_while_in_use(client: object) -> int:
        admin.close()
        assert clients.ended == []
        return number_of(client)

    assert admin.call("t", close_while_in_use) == 1
    eventually(lambda: clients.ended == [1], "the end of a client that was closed while in use")
    admin = KafkaAdmin({}, "here")
    assert admin.call("t", number_of) == 2
    clients.now_s += CLIENT_FRESH_S
    assert admin.call("t", failing(KafkaError._TRANSPORT, 1)) == 2
    with pytest.raises(LogUnavailable):
        admin.call("t", failing(KafkaError._TRANSPORT, 2))
    eventually(lambda: clients.ended == [1, 2], "the end of a client that failed")
    assert admin.call("t", number_of) == 3
    admin.close()
    admin.close()
    assert clients.ended == [1, 2, 3]


def test_a_call_after_close_has_a_client_that_ends_with_its_answer(clients: Clients) -> None:
    """A late thread of a stopping node still gets its answer, and leaves no client open."""
    admin = KafkaAdmin({}, "somewhere")
    assert admin.call("t", number_of) == 1
    admin.close()
    assert [admin.call("t", number_of), admin.call("t", number_of)] == [2, 3]
    eventually(lambda: sorted(clients.ended) == [1, 2, 3], "the end of all clients")


def test_a_leader_is_looked_up_before_it_is_needed_and_before_its_entry_expires(clients: Clients) -> None:
    """Once for each client and topic, again after a while or a failure, never for a topic that need not exist."""
    admin = KafkaAdmin({}, "here")
    admin.call("new", lambda client: client, exists=False)
    for topic in ("t", "t", "u"):
        admin.call(topic, lambda client: client)
    assert clients.looked_up == [(1, "t"), (1, "u")]
    clients.now_s += LEADERS_CACHED_S
    admin.call("t", lambda client: client)
    with pytest.raises(LogUnavailable):
        admin.call("t", failing(KafkaError._TRANSPORT, 1))
    admin.call("t", lambda client: client)
    assert clients.looked_up[2:] == [(1, "t"), (2, "t")]


def test_no_request_is_sent_for_a_topic_without_a_leader(clients: Clients) -> None:
    """librdkafka would look the leader up itself, on a path that may crash."""
    clients.leader = -1
    with pytest.raises(LogUnavailable):
        KafkaAdmin({}, "here").call("t", lambda client: pytest.fail(f"used {client}"))
