"""The monitor of a node's logs: what it makes of their ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.log_monitor import LogMonitor
from tests.manual_clock import ManualClock

TOPIC = "c.forward.g"


class Consumer:
    """A log consumer that needs the first five records, and notes when it is to open its logs again."""

    def __init__(self) -> None:
        self.reopened: list[str] = []

    def needed_end(self, _topic: str) -> int:
        """See LogConsumer."""
        return 5

    def rejoin(self, topic: str, cursor: object) -> None:
        """See LogConsumer."""
        assert cursor is None
        self.reopened.append(topic)


def monitor_of(
    log: Log,
    tables: Any,
    groups: Any,
    identity: Any,
    consumer: Any,
    readiness: Any,
    clock: ManualClock,
    cluster_topics: Any = None,
) -> LogMonitor:
    """A monitor over the parts that a test needs."""
    return LogMonitor(log, tables, groups, identity, consumer, readiness, cluster_topics, clock)


@pytest.mark.parametrize(("end", "follows", "reopened"), [(5, True, []), (4, True, [TOPIC]), (4, False, [])])
def test_a_log_that_ends_before_what_was_read_is_opened_again(end: int, follows: bool, reopened: list[str]) -> None:
    """Its reader may wait behind the end without an error. A group that does not follow has nothing to compare."""
    log, consumer = MemoryLog(), Consumer()
    log.create_topic(TOPIC, {})
    for number in range(5):
        log.store(TOPIC, b"record %d" % number, None, ())
    log.truncate(TOPIC, end)
    identity = SimpleNamespace(topics={TOPIC: log.describe(TOPIC).topic_id})
    data_age = SimpleNamespace(ask=lambda _topic: 0, note=lambda *_of: None)
    positions = SimpleNamespace(data_age=data_age, ask=lambda _topic: 0, note_end=lambda *_of: None)
    readiness = SimpleNamespace(positions=positions, fenced=False, note_lost_tables=lambda _why: None)
    tables = SimpleNamespace(verify=lambda: 0, lost="")
    group = SimpleNamespace(name="g", follows=follows, mark_log_lost=lambda _why: None)
    monitor_of(log, tables, {TOPIC: group}, identity, consumer, readiness, ManualClock()).turn()
    assert reopened == consumer.reopened


def test_a_table_log_that_stays_unreadable_is_logged_once() -> None:
    """A record of a later build stays: the reason is shown for as long, and was a line each second. The next one is new."""
    log, topics = MemoryLog(), Topics("c")
    log.create_topic(topics.table, {})
    readiness, cluster_topics = SimpleNamespace(positions=None), SimpleNamespace(warnings=[])
    monitor = monitor_of(log, SchemaLog(log, topics), {}, None, None, readiness, ManualClock(), cluster_topics)
    with capture_logs() as logs:
        log.store(topics.table, b"", None, [("format", b"9")])
        assert all(monitor.schema_turn() > 0 for _ in range(3))
        assert ["format 9" in each for each in monitor.warnings()] == [True]
        log.delete_topic(topics.table)
        assert monitor.schema_turn() > 0
    assert ["table log not readable"] * 2 == [each["event"] for each in logs]


def test_a_deleted_topic_is_named_with_the_choices_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without what helps where a cluster was misspelt: that one had its topics."""
    log, found, clock = MemoryLog(), list[str](), ManualClock()

    def missing(topic: str) -> None:
        raise TopicMissing(f"topic {topic} does not exist", action="check the cluster's name")

    monkeypatch.setattr(log, "describe", missing)
    age = SimpleNamespace(ask=lambda _topic: 0)
    positions = SimpleNamespace(data_age=age, ask=lambda _topic: 0, log_answers=False)
    readiness = SimpleNamespace(positions=positions, fenced=False, note_lost_tables=lambda _why: None)
    tables = SimpleNamespace(verify=lambda: 0, lost="")
    group = SimpleNamespace(name="g", follows=True, mark_log_lost=found.append)
    identity = SimpleNamespace(topics={})
    monitor = monitor_of(log, tables, {TOPIC: group}, identity, Consumer(), readiness, clock)
    while not found:
        monitor.turn()
        clock.now_s += 1.0
    command = "headrace accept-gap --group g (at an edge also --node HOST:PORT)"
    assert found[0].startswith(f"topic {TOPIC} does not exist; the data is kept; ")
    assert found[0].endswith(f"{command}, once a node that started again has made the topic")
