"""The statuses a node sends: changes at once, everything again before the node counts as offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.replication.failure_detector import HEARTBEAT_INTERVAL_MS, OFFLINE_MS
from headrace.consumers.replication.heartbeat import PRESENCE_REPEAT_S, Heartbeat, StatusReader
from headrace.consumers.replication.sent_statuses import RECEIPTS_REPEATED, REPEAT_S, SentStatuses
from headrace.schemas.presence import Presence
from headrace.schemas.receipts import RECEIPT_BYTES, receipt_of, value_digest
from headrace.schemas.records import Status, encode_status
from tests.manual_clock import ManualClock
from tests.unit.statuses import STATUS

ONE = replace(STATUS, group="one")
TWO = replace(ONE, group="two")


def test_only_the_group_that_changed_is_sent_again() -> None:
    """A status that differs only in its sending time is not due; one with a new durable offset is."""
    sent = SentStatuses()
    assert [ONE, TWO] == sent.due([ONE, TWO], 0.0)
    later, moved = replace(ONE, sent_boot_ns=8), replace(TWO, durable_offset=13, sent_boot_ns=8)
    assert [moved] == sent.due([later, moved], 0.01)
    assert [] == sent.due([later, moved], 0.02)


def test_everything_is_sent_again_within_the_interval() -> None:
    """A group that never changes is sent at least every interval, however often another one changes."""
    sent = SentStatuses()
    sent.due([ONE, TWO], 0.0)
    assert [] == sent.due([ONE, TWO], REPEAT_S - 0.001)
    assert [ONE, TWO] == sent.due([ONE, TWO], REPEAT_S)
    assert 2 * REPEAT_S <= HEARTBEAT_INTERVAL_MS / 1_000


def test_a_status_that_was_not_sent_is_still_due() -> None:
    """A status that the log refused is due again at the next turn."""
    sent = SentStatuses()
    sent.due([ONE, TWO], 0.0)
    sent.forget("one")
    assert [ONE] == sent.due([ONE, TWO], 0.01)


def test_a_status_has_the_receipts_that_the_one_before_did_not_have() -> None:
    """And a few older ones, since the one before may be lost; one that was not sent counts for nothing."""
    receipts = b"".join(receipt_of(offset, value_digest(b"")) for offset in range(1_000))
    sent, size = SentStatuses(), RECEIPT_BYTES
    [first] = sent.due([replace(ONE, receipts=receipts[: 500 * size])], 0.0)
    assert first.receipts == receipts[: 500 * size]
    [second] = sent.due([replace(ONE, receipts=receipts[: 700 * size])], 0.01)
    assert second.receipts == receipts[(500 - RECEIPTS_REPEATED) * size : 700 * size]
    [repeated] = sent.due([replace(ONE, receipts=receipts[: 700 * size])], 1.0)
    assert repeated.receipts == receipts[(700 - RECEIPTS_REPEATED) * size : 700 * size]
    # As many records since that its window no longer has the newest of before.
    [third] = sent.due([replace(ONE, receipts=receipts[800 * size : 900 * size])], 1.1)
    assert third.receipts == receipts[800 * size : 900 * size]
    sent.forget("one")
    [again] = sent.due([replace(ONE, receipts=receipts[800 * size :])], 1.11)
    assert again.receipts == receipts[800 * size :]


def test_a_reader_trusts_the_brokers_clock_for_what_was_there_before_it_only() -> None:
    """Ten minutes between two old statuses are ten minutes; between two new ones they are a step of the clock."""
    broker_ms = [0]
    log = MemoryLog(clock_ms=lambda: broker_ms[0])
    log.create_topic("status", {})

    def send(node: str, timestamp_ms: int) -> None:
        broker_ms[0] = timestamp_ms
        log.store("status", encode_status(replace(STATUS, node=node)), None, ())

    for node, timestamp_ms in (("n3", 0), ("n2", 600_000), ("n1", 600_001)):
        send(node, timestamp_ms)
    reader = StatusReader(log, "status")
    reader.follow(0.0)
    assert [True, True, False] == [reader.detector.alive("g", node) for node in ("n1", "n2", "n3")]
    for timestamp_ms in (600_002, 1_200_000, 1_200_001):
        send("n1", timestamp_ms)
        reader.follow(0.0)
    assert [True, True, False] == [reader.detector.alive("g", node) for node in ("n1", "n2", "n3")]
    reader.close()


def heartbeat_of(log: MemoryLog, clock: ManualClock, incarnation: str) -> Heartbeat:
    """The heartbeat of one run of node n1, without threads."""
    log.create_topic("status", {})

    def statuses() -> list[Status]:
        return [replace(ONE, node="n1", incarnation=incarnation, sent_boot_ns=clock.boot_ns())]

    return Heartbeat(log, "status", "n1", incarnation, statuses, clock)


def test_a_node_is_fenced_until_it_has_read_its_own_status_back() -> None:
    """That of an earlier run proves nothing; each end of a fence is counted, at the moment it ends."""
    log, clock = MemoryLog(), ManualClock()
    earlier, beat = heartbeat_of(log, clock, "before"), heartbeat_of(log, clock, "now")
    beat.receive_turn()
    earlier.send_turn()
    beat.receive_turn()
    assert (True, 0) == (beat.fenced, beat.fencings)
    for fencings in (1, 2):
        beat.send_turn()
        beat.receive_turn()
        assert (False, fencings) == (beat.fenced, beat.fencings)
        clock.now_s += OFFLINE_MS / 1_000
        assert beat.fenced
    beat.stop()


def test_a_status_from_a_time_to_come_does_not_keep_a_node_unfenced() -> None:
    """A foreign record under the names of this very run: a node that is cut off would serve for as long as it names."""
    log, clock = MemoryLog(), ManualClock()
    beat = heartbeat_of(log, clock, "now")
    beat.send_turn()
    log.store("status", encode_status(replace(ONE, node="n1", incarnation="now", sent_boot_ns=2**63 - 1)), None, ())
    beat.receive_turn()
    before = beat.fenced
    clock.now_s += OFFLINE_MS / 1_000
    assert (False, True) == (before, beat.fenced)
    beat.stop()


def test_a_foreign_record_among_the_statuses_is_logged_once() -> None:
    """With its offset. Those that were there when a node starts were logged by the nodes of that time."""
    log, clock = MemoryLog(), ManualClock()
    beat = heartbeat_of(log, clock, "now")
    log.store("status", b"of before", None, ())
    with capture_logs() as logs:
        beat.receive_turn()
        log.store("status", b"no status", None, ())
        beat.send_turn()
        for _ in range(2):
            beat.receive_turn()
    assert [("a record cannot be read", "status", 1)] == [
        (each["event"], each["topic"], each["offset"]) for each in logs
    ]
    assert not beat.fenced
    beat.stop()


def test_a_log_of_this_process_alone_that_is_full_fences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can lead there, so an edge node answers from what it has. One that starts has read nothing yet."""
    log, clock = MemoryLog(), ManualClock()
    beat = heartbeat_of(log, clock, "now")
    monkeypatch.setattr(MemoryLog, "write_fault", "no space left")
    assert beat.fenced
    beat.send_turn()
    beat.receive_turn()
    clock.now_s += OFFLINE_MS / 1_000
    assert (False, "no space left") == (beat.fenced, beat.write_fault)
    monkeypatch.setattr(MemoryLog, "write_fault", "")
    assert beat.fenced
    beat.stop()


def test_a_change_while_statuses_are_sent_is_sent_next() -> None:
    """It may have come behind the moment at which the statuses were taken."""
    log, clock = MemoryLog(), ManualClock()
    beat = heartbeat_of(log, clock, "now")
    taken = beat._statuses

    def changing() -> Sequence[Status]:
        beat.send_now()
        return taken()

    beat._statuses = changing
    beat.send_turn()
    assert beat.send_due
    beat._statuses = taken
    beat.send_turn()
    assert not beat.send_due


def test_a_status_that_the_log_refused_is_sent_at_the_next_turn() -> None:
    """Not only when it would be repeated anyhow: it may be what a writer waits for. Why it was refused is shown."""
    log, clock = MemoryLog(record_bytes_max=1), ManualClock()
    beat = heartbeat_of(log, clock, "now")
    assert beat.send_turn() > 0.0
    assert "status" in beat.error
    assert 0 == log.describe("status").end
    log._record_bytes_max = 1_000_000
    assert (0.0, "") == (beat.send_turn(), beat.error)
    assert 1 == log.describe("status").end


def test_a_node_without_a_group_reports_itself() -> None:
    """At each change, and again within a second; an earlier build skips the record, and all others stay as they are."""
    log, clock = MemoryLog(), ManualClock()
    log.create_topic("c.status", {})
    presence = Presence("n4", "i", "store", "", 3, 60, True, 0, 1, False)
    heartbeat = Heartbeat(log, "c.status", "n4", "i", list[Status], clock)
    heartbeat.presence = lambda: replace(presence, sent_boot_ns=clock.boot_ns())
    reader = StatusReader(log, "c.status", clock=clock)

    def sent() -> list[Presence]:
        before = log.describe("c.status").end
        heartbeat.send_turn()
        reader.follow(0)
        return reader.detector.presences() if log.describe("c.status").end > before else []

    assert [replace(presence, sent_boot_ns=clock.boot_ns())] == sent()
    assert {"n4"} == reader.senders
    assert [] == sent()
    clock.now_s += PRESENCE_REPEAT_S
    assert 1 == len(sent())
    presence = replace(presence, epoch=1)
    assert [1] == [each.epoch for each in sent()]
    assert [] == reader.detector.online()
