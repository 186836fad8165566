"""The log consumer by turns: what it reports while groups are replaced and the journal refuses records."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.connectors.deadline import GONE_AFTER_S
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import TopicState
from headrace.consumers.replication.group_health import Aspect, Event, GroupHealth, State
from headrace.consumers.replication.group_state import GapRecord
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.log_prefix import Cursor
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.topic_identity import GROWTH_PER_S, UNCONFIRMED_S
from headrace.consumers.wal import UpdateFailed
from headrace.schemas.messages import NO_CHAIN
from headrace.schemas.receipts import receipt_of, value_digest
from tests.manual_clock import ManualClock

TOPIC = "c.forward.g"
BEGINNING = Cursor(0, -1, NO_CHAIN)
LIMITS = ReplicationLimits(poll_timeout_s=0.0)


class FakeGroup:
    """A group that takes records while it follows."""

    name = key = "g"
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

    def mark_log_lost(self, reason: str) -> None:
        """See Group."""
        self.follows = False
        self.health.report(Event.LOSE, reason)


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


def fill(log: MemoryLog, records: int, text: str = "record") -> None:
    """Append some records."""
    for number in range(records):
        log.store(TOPIC, f"{text} {number}".encode(), None, ())


def consumer_over(log: MemoryLog, clock: ManualClock, cursor: Cursor = BEGINNING) -> tuple[LogConsumer, FakeGroup, Any]:
    """A consumer without a thread, at the beginning of a log."""
    group, journal = FakeGroup(), FakeJournal()
    groups: Any = {TOPIC: group}
    parts: Any = journal
    return LogConsumer(log, "n", groups, {TOPIC: cursor}, parts, LIMITS, FakeListener(), clock), group, journal


def consumer_of(records: int, cursor: Cursor = BEGINNING, begin: int = 0) -> tuple[LogConsumer, FakeGroup, Any]:
    """A consumer without a thread, behind a cursor, of a log of some records that may be trimmed."""
    log = MemoryLog()
    log.create_topic(TOPIC, {})
    fill(log, records)
    log.trim(TOPIC, begin)
    return consumer_over(log, ManualClock(), cursor)


def test_a_replaced_group_reports_at_once_what_its_new_files_hold() -> None:
    """Before the consuming thread's next turn: a status in between would count records that are gone for a quorum."""
    consumer, group, _ = consumer_of(5)
    consumer.turn()
    consumer.turn()
    assert (4, 5, 5) == (consumer.durable_offset(TOPIC), consumer.position(TOPIC), len(group.entries))
    assert consumer.receipts(TOPIC)
    group.follows = False
    consumer.release(TOPIC, 0.0)
    consumer.turn()
    assert consumer.release(TOPIC, 0.0)
    consumer.rejoin(TOPIC, Cursor(2, 1, NO_CHAIN))
    assert (1, 2, 2) == (consumer.durable_offset(TOPIC), consumer.durable_version(TOPIC), consumer.position(TOPIC))
    assert b"" == consumer.receipts(TOPIC), "they would confirm records that the new files do not hold"


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


@pytest.mark.parametrize(("kept", "written"), [(4, 6), (0, 10), (9, 1), (9, 5)])
def test_a_log_that_was_truncated_and_written_on_is_not_followed(kept: int, written: int) -> None:
    """Ten records are read, the end is cut off, and the log is at least as long again before the next poll.

    No record of it is taken: its receipts would confirm writes for a copy that has another beginning.
    """
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    fill(log, 10)
    consumer, group, _ = consumer_over(log, clock)
    consumer.turn()
    consumer.turn()
    shown = consumer.receipts(TOPIC)
    log.truncate(TOPIC, kept)
    fill(log, written, "another")
    for _ in range(5):
        consumer.turn()
    fill(log, 1, "one more")
    for _ in range(5):
        consumer.turn()
    assert group.health.holds(State.LOST)
    assert "truncated" in group.health.cause(Aspect.LOG)
    assert (10, 9, shown) == (len(group.entries), consumer.durable_offset(TOPIC), consumer.receipts(TOPIC))


def test_a_new_leader_that_lost_nothing_is_followed() -> None:
    """Each record is taken once, also where the journal refuses some and where leaders change at every record."""
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    consumer, group, journal = consumer_over(log, clock)
    for number in range(20):
        fill(log, 1 + number % 2, f"round {number}")
        log.elect(TOPIC)
        journal.full = number % 3 == 0
        consumer.turn()
        consumer.turn()
    journal.full = False
    for _ in range(50):
        consumer.turn()
    assert [(number + 1, number) for number in range(30)] == [(entry.version, entry.offset) for entry in group.entries]
    assert "" == group.health.reason
    assert 30 == consumer.position(TOPIC)


@pytest.mark.parametrize(
    ("records", "opened", "silence_s"), [(3, False, 0.0), (3, True, UNCONFIRMED_S), (3, True, 0.01), (0, True, 0.0)]
)
def test_a_topic_that_was_created_again_is_not_followed(records: int, opened: bool, silence_s: float) -> None:
    """The new topic is longer than what was read. It is recognised at the start, behind a silence, behind a short one
    where little was read, and at once at the beginning, where there is no earlier record to compare.
    """
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    fill(log, records)
    consumer, group, _ = consumer_over(log, clock)
    consumer.restore({TOPIC: log.describe(TOPIC).topic_id}, {})
    if opened:
        consumer.turn()
        consumer.turn()
    log.delete_topic(TOPIC)
    log.create_topic(TOPIC, {})
    fill(log, 10, "another")
    clock.now_s += silence_s
    for _ in range(5):
        consumer.turn()
    assert "recreated" in group.health.cause(Aspect.LOG)
    assert (records if opened else 0) == len(group.entries)


def test_a_topic_that_was_created_again_is_recognised_before_it_has_a_record() -> None:
    """At the start of a node, which must not wait for a record to see that its data is of another log."""
    log = MemoryLog()
    log.create_topic(TOPIC, {})
    consumer, group, _ = consumer_over(log, ManualClock())
    consumer.restore({TOPIC: "the id of another topic"}, {})
    consumer.turn()
    assert "recreated" in group.health.cause(Aspect.LOG)


class DescribedLog(MemoryLog):
    """A log that counts how often a topic is described."""

    described = 0

    def describe(self, topic: str) -> TopicState:
        """See Log."""
        self.described += 1
        return super().describe(topic)


@pytest.mark.parametrize(("offset", "answers"), [(0, 10), (int(UNCONFIRMED_S * GROWTH_PER_S), 2)])
def test_a_topic_is_described_rarely_behind_its_beginning(offset: int, answers: int) -> None:
    """A log that is made again needs longer to reach a later position, so an answer counts for longer."""
    log, clock = DescribedLog(), ManualClock()
    log.create_topic(TOPIC, {})
    log.gap(TOPIC, offset)
    consumer, group, _ = consumer_over(log, clock)
    consumer.turn()
    opened = log.described
    for _ in range(10):
        fill(log, 1)
        clock.now_s += UNCONFIRMED_S / 4
        consumer.turn()
    assert (10, answers) == (len(group.entries), log.described - opened)


def test_receipts_of_before_a_restart_are_shown_with_later_ones() -> None:
    """A process that was killed before its status showed a record shows it again, in the order of the log."""
    consumer, _, _ = consumer_of(2)
    consumer.restore({}, {TOPIC: b"recorded"})
    assert b"recorded" == consumer.receipts(TOPIC)
    consumer.turn()
    consumer.turn()
    later = b"".join(receipt_of(number, value_digest(f"record {number}".encode())) for number in range(2))
    assert b"recorded" + later == consumer.receipts(TOPIC)


@pytest.mark.parametrize(("journaled", "versions"), [(b"record 1", [3, 4]), (b"another record", [])])
def test_a_log_is_followed_only_behind_the_newest_journaled_record(journaled: bytes, versions: list[int]) -> None:
    """A log that was cut and written on has as many records: only the content of that one shows it."""
    consumer, group, _ = consumer_of(4, Cursor(2, 1, record_digest(journaled)))
    for _ in range(3):
        consumer.turn()
    assert versions == [entry.version for entry in group.entries]
    assert group.health.holds(State.LOST) is not bool(versions)


@pytest.mark.parametrize(("begin", "versions"), [(2, [3, 4]), (3, [])])
def test_a_log_that_begins_behind_the_next_record_is_not_followed(begin: int, versions: list[int]) -> None:
    """One record that is missing is too many; one that is trimmed and not needed any more is none."""
    consumer, group, _ = consumer_of(4, Cursor(2, 1, record_digest(b"record 1")), begin)
    for _ in range(3):
        consumer.turn()
    assert versions == [entry.version for entry in group.entries]
    assert group.health.holds(State.TRIMMED) is not bool(versions)


@pytest.mark.parametrize(("offset", "reads"), [(2, True), (3, False)])
def test_a_log_that_ends_before_the_newest_record_is_not_read(offset: int, reads: bool) -> None:
    """Else the records that are written next would be taken for those behind it."""
    consumer, _, _ = consumer_of(3, Cursor(offset + 1, offset, record_digest(b"record 2")))
    assert reads is (consumer.turn() == 0.0)


def test_receipts_of_several_polls_are_shown_together() -> None:
    """A status between two polls may be lost, so each has those of some thousand records."""
    consumer, _, _ = consumer_of(2)
    expected = b"".join(receipt_of(offset, record_digest(b"record %d" % offset)) for offset in range(3))
    for _ in range(2):
        consumer.turn()
    assert expected[:16] == consumer.receipts(TOPIC)
    assert isinstance(consumer._log, MemoryLog)
    consumer._log.store(TOPIC, b"record 2", None, ())
    consumer.turn()
    assert expected == consumer.receipts(TOPIC)


def test_no_record_is_taken_for_a_group_that_lost_its_log() -> None:
    """The reader may still have records of the other log."""
    consumer, group, _ = consumer_of(0)
    consumer.turn()
    group.health.report(Event.LOSE, "another log")
    assert isinstance(consumer._log, MemoryLog)
    consumer._log.store(TOPIC, b"of the other log", None, ())
    consumer.turn()
    assert [] == group.entries
    assert -1 == consumer.durable_offset(TOPIC)


def test_a_repaired_journal_has_a_fault_until_it_holds_what_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may not deliver the records again at once: the node is not in sync meanwhile."""
    consumer, _, journal = consumer_of(1)
    journal.full = True
    for _ in range(2):
        consumer.turn()
    journal.full = False
    reader: Any = consumer._reader
    with monkeypatch.context() as patch:
        patch.setattr(reader, "poll", lambda _records, _timeout_s: [])
        consumer.turn()
    assert consumer.journal_fault
    consumer.turn()
    assert not consumer.journal_fault


def test_a_log_that_loses_an_accepted_gap_before_it_is_read_is_lost() -> None:
    """Its reader gets no error: the end is compared again and again until the gap was read."""
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    fill(log, 6)
    gap = GapRecord(5, record_digest(b"record 5"))
    consumer, group, _ = consumer_over(log, clock, Cursor(40, 1, NO_CHAIN, gap=gap))
    assert 6 == consumer.needed_end(TOPIC)
    log.truncate(TOPIC, 4)
    consumer.turn()
    assert not group.health.holds(State.LOST), "a broker that has just started knows fewer records than there are"
    for _ in range(2):
        clock.now_s += GONE_AFTER_S / 2
        consumer.turn()
    assert group.health.holds(State.LOST)
    assert "holds offsets 0 to 4, this node needs 6" in group.health.cause(Aspect.LOG)


def test_an_accepted_gap_that_was_read_is_not_expected_any_more() -> None:
    """A log that is whole up to its gap is read as any other; a cut while it is open is found at the next look."""
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    fill(log, 6)
    consumer, group, _ = consumer_over(
        log, clock, Cursor(40, 1, NO_CHAIN, gap=GapRecord(5, record_digest(b"record 5")))
    )
    consumer.turn()
    consumer.turn()
    assert (44, 5, 6) == (consumer.durable_version(TOPIC), consumer.durable_offset(TOPIC), consumer.needed_end(TOPIC))
    assert group.health.state is None


def test_a_log_that_is_cut_while_a_gap_is_unread_is_compared_again() -> None:
    """The reader is at the new end, and would wait there."""
    log, clock = MemoryLog(), ManualClock()
    log.create_topic(TOPIC, {})
    fill(log, 6)
    consumer, group, journal = consumer_over(
        log, clock, Cursor(40, 1, NO_CHAIN, gap=GapRecord(5, record_digest(b"record 5")))
    )
    journal.full = True
    consumer.turn()
    consumer.turn()
    log.truncate(TOPIC, 4)
    journal.full = False
    for _ in range(8):
        clock.now_s += GONE_AFTER_S / 2
        consumer.turn()
    assert group.health.holds(State.LOST)
