"""What a node reports that Kafka does not let in at its start."""

from __future__ import annotations

import threading

import pytest

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.node.kafka_wait import KafkaWait


def failure_of(error: LogUnavailable) -> LogUnavailable:
    """The error of a start whose first step always fails with another one."""

    def step() -> None:
        raise error

    with pytest.raises(LogUnavailable) as raised:
        KafkaWait("kafka:9092", 0.0, threading.Event(), lambda _: None).await_answer(step)
    return raised.value


def test_a_wrong_password_is_not_an_address_to_check() -> None:
    """The error is that of the connection, with its action, and is not to be tried again."""
    refused = LogUnavailable("Kafka at kafka:9092 refuses the connection: x", action="check user and password")
    found = failure_of(refused)
    assert (refused.message, False) == (found.message, found.retriable)
    assert "check user and password; then start the node again" == found.action


def test_a_broker_that_is_away_is_named_with_the_time_that_was_waited() -> None:
    """It may come back by itself."""
    found = failure_of(LogUnavailable("nobody", retriable=True))
    assert ("Kafka at kafka:9092 did not answer within 0 s: nobody", True) == (found.message, found.retriable)
    assert found.action.startswith("check the address, the broker")
