"""The monitor of a node's logs: what it makes of their ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.node.log_monitor import LogMonitor
from tests.unit.recovery.test_steps import ManualClock

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
    positions = SimpleNamespace(data_age=data_age, restarts=lambda _topic: 0, note_end=lambda *_of: None)
    readiness: Any = SimpleNamespace(positions=positions, fenced=False, note_lost_tables=lambda _why: None)
    tables: Any = SimpleNamespace(verify=lambda: 0, lost="")
    group = SimpleNamespace(name="g", follows=follows, mark_log_lost=lambda _why: None)
    parts: Any = ({TOPIC: group}, identity, consumer)
    topics: Any = None
    LogMonitor(log, tables, *parts, readiness, topics, ManualClock()).turn()
    assert reopened == consumer.reopened
