"""A member of a consumer group, on a client whose answers a test gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.connectors.log import kafka_group
from headrace.connectors.log.kafka_group import KafkaGroupConsumer, PartitionRecord
from headrace.connectors.log.port import LogUnavailable


def message(partition: int, offset: int, code: int | None = None) -> Any:
    """What the client returns; with a code it is an error."""
    error = None if code is None else KafkaError(code)
    values = {"topic": "t", "partition": partition, "offset": offset, "error": error, "timestamp": (1, 0)}
    return SimpleNamespace(key=lambda: None, value=lambda: b"v", **{name: lambda v=v: v for name, v in values.items()})


def test_an_error_loses_no_record_that_came_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not return them again: they are returned first, and the error is raised by the next call."""
    polled = [message(0, 0)]
    more = [message(0, 1), message(1, -1, KafkaError.UNKNOWN), message(0, 2), message(1, 7)]
    client = SimpleNamespace(
        subscribe=lambda *_given, **_named: None,
        poll=lambda _timeout_s: polled.pop() if polled else None,
        consume=lambda _records, _timeout_s: more,
    )
    monkeypatch.setattr(kafka_group, "Consumer", lambda _settings: client)
    consumer = KafkaGroupConsumer("127.0.0.1:1", "g", "m", ["t"], lambda _: None, lambda _: None)
    records = [each for each in consumer.poll(64, 0.0) if isinstance(each, PartitionRecord)]
    assert [(0, 0), (0, 1), (0, 2), (1, 7)] == [(each.partition[1], each.offset) for each in records]
    with pytest.raises(LogUnavailable):
        consumer.poll(64, 0.0)
    assert [] == consumer.poll(64, 0.0)
