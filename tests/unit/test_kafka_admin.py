"""Clients that ask Kafka: one that failed is replaced, and one that hangs keeps nobody else waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.log import kafka_admin
from connectors.log.kafka_admin import FRESH_S, LEARNED_S, KafkaAdmin
from connectors.log.port import LogUnavailable, TopicMissing
from tests.waiting import eventually


class Numbered(int):
    """Stands for AdminClient; `ended` holds the numbers of those that were ended, `looked_up` what was asked of which."""

    ended: list[int]
    looked_up: list[tuple[int, str]]
    leader: int

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        """One partition, with a leader as long as there is one."""
        assert timeout > 0
        self.looked_up.append((int(self), topic))
        partition = SimpleNamespace(leader=self.leader, error=None)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: partition})})

    def __exit__(self, *_of_an_error: object) -> None:
        self.ended.append(self)


class Clients:
    """Each one made has a number from 1, and the clock is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.ended: list[int] = []
        self.looked_up: list[tuple[int, str]] = []
        self.leader = 1
        self.now_s = 100.0
        monkeypatch.setattr(kafka_admin, "AdminClient", self._make)
        monkeypatch.setattr(kafka_admin.time, "monotonic", lambda: self.now_s)

    def _make(self, _settings: object) -> Numbered:
        self.made += 1
        client = Numbered(self.made)
        client.ended, client.looked_up, client.leader = self.ended, self.looked_up, self.leader
        return client


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """No client made yet."""
    return Clients(monkeypatch)


def failing(code: int, *numbers: int) -> Callable[[Any], Any]:
    """A question that these clients fail; others answer with their number."""

    def question(client: Any) -> Any:
        if client in numbers:
            raise KafkaException(KafkaError(code))
        return client

    return question


def test_that_a_topic_is_missing_is_believed_of_a_new_client_only(clients: Clients) -> None:
    """An older one may have met a broker that was just starting, and remembers; a topic that is there is found by the next client at once."""
    admin = KafkaAdmin({}, "here")
    assert admin.ask("t", lambda client: client) == 1
    clients.now_s += FRESH_S
    assert admin.ask("t", failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 1)) == 2
    clients.now_s += FRESH_S
    with pytest.raises(TopicMissing):
        admin.ask("t", failing(KafkaError.UNKNOWN_TOPIC_OR_PART, 2, 3))
    assert clients.made == 3


def test_a_client_that_failed_is_not_asked_again_but_not_replaced_at_every_call(clients: Clients) -> None:
    """While the broker is away there is one new client every FRESH_S, however often it is asked."""
    admin = KafkaAdmin({}, "here")
    for _ in range(10):
        with pytest.raises(LogUnavailable, match="Kafka at here does not answer"):
            admin.ask("t", failing(KafkaError._TRANSPORT, 1))
    assert clients.made == 1
    clients.now_s += FRESH_S
    with pytest.raises(LogUnavailable):
        admin.ask("t", failing(KafkaError._TRANSPORT, 1))
    assert admin.ask("t", failing(KafkaError._TRANSPORT, 1)) == 2


def test_a_client_that_hangs_is_replaced_and_keeps_nobody_waiting(clients: Clients) -> None:
    """Others ask meanwhile; after its time the next question goes to a new client."""
    admin = KafkaAdmin({}, "here")
    asked, answer = threading.Event(), threading.Event()

    def hang(_client: Any) -> None:
        asked.set()
        assert answer.wait(60.0)
        raise TimeoutError

    def hanging() -> None:
        with pytest.raises(LogUnavailable):
            admin.ask("t", hang)

    thread = threading.Thread(target=hanging)
    thread.start()
    assert asked.wait(60.0)
    assert admin.ask("t", lambda client: client) == 1
    answer.set()
    thread.join(60.0)
    assert not thread.is_alive()
    assert admin.ask("t", lambda client: client) == 2
    assert clients.made == 2


def test_a_client_is_ended_once_and_only_when_nobody_asks_it(clients: Clients) -> None:
    """Whether it failed or was closed, it is ended when the last question to it is over; until then no other thread may free it."""
    admin = KafkaAdmin({}, "here")

    def close_while_asked(client: int) -> int:
        admin.close()
        assert clients.ended == []
        return client

    assert admin.ask("t", close_while_asked) == 1
    eventually(lambda: clients.ended == [1], "the end of a client that was closed while it was asked")
    admin = KafkaAdmin({}, "here")
    assert admin.ask("t", lambda client: client) == 2
    clients.now_s += FRESH_S
    assert admin.ask("t", failing(KafkaError._TRANSPORT, 1)) == 2
    with pytest.raises(LogUnavailable):
        admin.ask("t", failing(KafkaError._TRANSPORT, 2))
    eventually(lambda: clients.ended == [1, 2], "the end of a client that failed")
    assert admin.ask("t", lambda client: client) == 3
    admin.close()
    admin.close()
    assert clients.ended == [1, 2, 3]


def test_who_asks_after_the_end_has_a_client_that_ends_with_the_answer(clients: Clients) -> None:
    """A thread that is late when a node stops still gets its answer, and leaves no client behind."""
    admin = KafkaAdmin({}, "somewhere")
    assert admin.ask("t", int) == 1
    admin.close()
    assert [admin.ask("t", int), admin.ask("t", int)] == [2, 3]
    eventually(lambda: sorted(clients.ended) == [1, 2, 3], "the end of all clients")


def test_a_leader_is_looked_up_before_it_is_needed_and_before_it_is_forgotten(clients: Clients) -> None:
    """Once a client and topic, again after a while or a failure, and not for a topic that need not exist."""
    admin = KafkaAdmin({}, "here")
    admin.ask("new", lambda client: client, exists=False)
    for topic in ("t", "t", "u"):
        admin.ask(topic, lambda client: client)
    assert clients.looked_up == [(1, "t"), (1, "u")]
    clients.now_s += LEARNED_S
    admin.ask("t", lambda client: client)
    with pytest.raises(LogUnavailable):
        admin.ask("t", failing(KafkaError._TRANSPORT, 1))
    admin.ask("t", lambda client: client)
    assert clients.looked_up[2:] == [(1, "t"), (2, "t")]


def test_a_topic_without_a_leader_is_asked_nothing(clients: Clients) -> None:
    """That is what librdkafka would look up by itself, in a way that may crash."""
    clients.leader = -1
    with pytest.raises(LogUnavailable):
        KafkaAdmin({}, "here").ask("t", lambda client: pytest.fail(f"asked {client}"))
