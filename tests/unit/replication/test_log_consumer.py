"""The log consumer by turns: what it reports while groups are replaced and the journal refuses records."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.replication.group_health import GroupHealth
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.log_prefix import Cursor
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.wal import UpdateFailed
from headrace.schemas.messages import NO_CHAIN

TOPIC = "c.forward.g"
LIMITS = ReplicationLimits(poll_timeout_s=0.0)


class FakeGroup:
    """A group that takes records while it follows."""

    name = "g"
    fault = log_lost = ""
    full = False
    drained = True

    def __init__(self) -> None:
        self.follows = True
        self.health = GroupHealth(threading.Condition())
        self.entries: list[JournalEntry] = []

    def enqueue(self, entries: Sequence[JournalEntry]) -> None:
        """See Group."""
        self.entries += entries


class FakeJournal:
    """A journal that refuses records while it is `full`."""

    full = False

    def append(self, entries: Mapping[str, Sequence[JournalEntry]]) -> None:
        """See Journal."""
        if self.full:
            raise UpdateFailed("No space left on device")

    def checkpoint(self) -> None:
        """See Journal."""
        if self.full:
            raise UpdateFailed("No space left on device")


class FakeListener:
    """Nobody reacts."""

    def on_durable(self) -> None:
        """See LogConsumerListener."""


def consumer_of(records: int) -> tuple[LogConsumer, FakeGroup, Any]:
    """A consumer without a thread, at the beginning of a log of some records."""
    log, group, journal = MemoryLog(), FakeGroup(), FakeJournal()
    log.create_topic(TOPIC, {})
    for number in range(records):
        log.store(TOPIC, f"record {number}".encode(), None, ())
    groups: Any = {TOPIC: group}
    parts: Any = journal
    return (
        LogConsumer(log, "n", groups, {TOPIC: Cursor(0, -1, NO_CHAIN)}, parts, LIMITS, FakeListener()),
        group,
        journal,
    )


def test_a_replaced_group_reports_at_once_what_its_new_files_hold() -> None:
    """Before the consuming thread's next turn: a status in between would count records that are gone for a quorum."""
    consumer, group, _ = consumer_of(5)
    consumer.turn()
    consumer.turn()
    assert (4, 5, 5) == (consumer.durable_offset(TOPIC), consumer.position(TOPIC), len(group.entries))
    group.follows = False
    consumer.release(TOPIC, 0.0)
    consumer.turn()
    assert consumer.release(TOPIC, 0.0)
    consumer.rejoin(TOPIC, Cursor(2, 1, NO_CHAIN))
    assert (1, 2, 2) == (consumer.durable_offset(TOPIC), consumer.durable_version(TOPIC), consumer.position(TOPIC))


def test_a_journal_fault_ends_when_files_of_another_member_have_what_was_refused() -> None:
    """An idle log brings nothing to journal: the node would stay out of sync until the next write."""
    consumer, group, journal = consumer_of(3)
    journal.full = True
    consumer.turn()
    assert LIMITS.journal_retry_s == consumer.turn()
    assert consumer.journal_fault
    group.follows = False
    consumer.release(TOPIC, 0.0)
    consumer.turn()
    consumer.rejoin(TOPIC, Cursor(3, 2, NO_CHAIN))
    group.follows = True
    consumer.turn()
    assert LIMITS.journal_retry_s == consumer.turn()
    assert consumer.journal_fault, "the disk is still full"
    journal.full = False
    consumer.turn()
    assert not consumer.journal_fault


def test_refused_records_are_read_again_until_they_are_journaled() -> None:
    """A repaired journal alone ends no fault while records wait for it, and no record is skipped or counted twice."""
    consumer, group, journal = consumer_of(3)
    journal.full = True
    for _ in range(3):
        consumer.turn()
    assert consumer.journal_fault
    assert -1 == consumer.durable_offset(TOPIC)
    journal.full = False
    assert 0.0 == consumer.turn()
    assert not consumer.journal_fault
    assert [1, 2, 3] == [entry.version for entry in group.entries]
