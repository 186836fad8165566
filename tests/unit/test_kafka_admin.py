"""Clients that ask Kafka: one that failed is replaced, and one that hangs keeps nobody else waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.log import kafka_admin
from connectors.log.kafka_admin import FRESH_S, KafkaAdmin
from connectors.log.port import LogUnavailable, TopicMissing
from tests.waiting import eventually


class Numbered(int):
    """Stands for AdminClient; `ended` holds the numbers of those that were ended."""

    ended: list[int]

    def __exit__(self, *_of_an_error: object) -> None:
        self.ended.append(self)


class Clients:
    """Each one made has a number from 1, and the clock is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.ended: list[int] = []
        self.now_s = 100.0
        monkeypatch.setattr(kafka_admin, "AdminClient", self._make)
        monkeypatch.setattr(kafka_admin.time, "monotonic", lambda: self.now_s)

    def _make(self, _settings: object) -> Numbered:
        self.made += 1
        client = Numbered(self.made)
        client.ended = self.ended
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
    clients.now_s += FRESH_S
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
