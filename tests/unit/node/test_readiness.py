"""When a group counts as in sync again after its data was replaced."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group_health import State
from headrace.schemas.presence import Presence
from tests.unit.statuses import STATUS

TOPIC = "c.forward.g"


def test_a_replaced_group_is_in_sync_only_at_an_end_that_was_read_since() -> None:
    """The end of before may be behind what this node has already served: the answers would become older again."""
    group: Any = SimpleNamespace(applied=SimpleNamespace(offset=9), recovery=None)
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 10, durable_offset=lambda _topic: 9, needed_end=lambda _topic: 10
    )
    heartbeat: Any = SimpleNamespace(incarnation="i")
    identity: Any = SimpleNamespace(node="n1")
    readiness = Readiness(identity, {TOPIC: group}, MemoryLog(), consumer, heartbeat, {TOPIC: 10}, 0)
    assert readiness.caught_up(TOPIC)
    asked_before = readiness.restarts(TOPIC)
    readiness.restart(TOPIC)
    assert not readiness.caught_up(TOPIC)
    readiness.note_end(TOPIC, 10, asked_before)
    assert not readiness.caught_up(TOPIC), "an answer may take seconds: this end was asked for before"
    readiness.note_end(TOPIC, 12, readiness.restarts(TOPIC))
    assert not readiness.caught_up(TOPIC)
    readiness.note_end(TOPIC, 10, readiness.restarts(TOPIC))
    assert readiness.caught_up(TOPIC)


def test_a_full_disk_is_named_where_people_look() -> None:
    """By a node that joins, beside what it waits for, and by one whose own log has no space: that one answers still."""
    group: Any = SimpleNamespace(name="g", health=SimpleNamespace(reason="", refuses=lambda _use: False))
    consumer: Any = SimpleNamespace(position=lambda _topic: 0, journal_fault="")
    heartbeat: Any = SimpleNamespace(
        incarnation="i", fenced=False, write_fault="no space left", error="", detector=FailureDetector()
    )
    identity: Any = SimpleNamespace(node="n1")
    readiness = Readiness(identity, {TOPIC: group}, MemoryLog(), consumer, heartbeat, {TOPIC: 0}, 0)
    readiness.surplus = frozenset({TOPIC})
    assert [] == readiness.refusals()
    assert (False, ["writes wait, the log of this node cannot be written: no space left"]) == readiness.ready()
    heartbeat.write_fault = ""
    assert (True, []) == readiness.ready()
    readiness.placement_fault = lambda: "no space left"
    assert (True, []) == readiness.ready()
    readiness.missing = "group h is not open"
    assert (False, ["group h is not open", "groups are not opened here: no space left"]) == readiness.ready()
    readiness.joining, readiness.missing = "joining", ""
    assert ["joining", "groups are not opened here: no space left"] == readiness.refusals()
    readiness.placement_fault = lambda: ""
    assert ["joining"] == readiness.refusals()
    group.health = SimpleNamespace(reason="its files are wrong", refuses=lambda _use: True)
    assert ["joining", "its files are wrong"] == readiness.refusals()
    consumer.journal_fault = "no space left"
    assert ["joining", "journal: no space left"] == readiness.refusals()


def test_a_merge_that_waits_for_files_names_why_they_do_not_come() -> None:
    """The merge follows from a full disk, which is what an operator must look at; without a cause it is named alone."""
    merge = "compaction at version 365 waits for 12ab"
    group: Any = SimpleNamespace(name="g", health=SimpleNamespace(reason=merge, state=State.DEFERRED))
    heartbeat: Any = SimpleNamespace(incarnation="i")
    identity: Any = SimpleNamespace(node="n1")
    consumer: Any = SimpleNamespace(position=lambda _topic: 0)
    readiness = Readiness(identity, {TOPIC: group}, MemoryLog(), consumer, heartbeat, {TOPIC: 0}, 0)
    assert merge == readiness.reason(TOPIC)
    readiness.pulling_reason = {"g": "the disk is full"}.__getitem__
    assert f"the disk is full; {merge}" == readiness.reason(TOPIC)
    group.health = SimpleNamespace(reason="its files are wrong", state=State.WRONG)
    assert "its files are wrong" == readiness.reason(TOPIC)


def test_a_node_that_lost_the_membership_log_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and is of another cluster of this name: beside one that began on an empty broker it is no majority."""
    detector = FailureDetector()
    lost = MembershipLogLost.of("c.membership", "was created again")
    applied = SimpleNamespace(epoch=1, leader="", claimed_ms=0)
    applied.changes = SimpleNamespace(members=("n1", "n2", "n3"), added=())
    group: Any = SimpleNamespace(name="g", applied=applied)
    heartbeat: Any = SimpleNamespace(incarnation="i", fenced=False, detector=detector)
    identity: Any = SimpleNamespace(node="n1")
    consumer: Any = SimpleNamespace(position=lambda _topic: 0)
    readiness = Readiness(identity, {TOPIC: group}, MemoryLog(), consumer, heartbeat, {TOPIC: 0}, 0)
    monkeypatch.setattr(Readiness, "reason", lambda *_: "")
    monkeypatch.setattr(Readiness, "log_answers", True)
    for node, reason in (("n2", str(lost)), ("n3", "membership log, record 7: too new")):
        detector.observe(1_000, replace(STATUS, node=node, group="g", store=f"store of {node}"))
        presence = Presence(node, "i", f"store of {node}", "", 3, 60, False, 0, 4, True, reason)
        detector.observe_presence(1_000, presence)
    assert [True, False, True] == [member.alive for member in readiness.view(TOPIC, 0).members]


def test_what_a_log_of_its_own_has_acknowledged_is_confirmed() -> None:
    """Before the store has it: queries contain it. With a broker, only what is durable here was confirmed by this node."""
    consumer: Any = SimpleNamespace(position=lambda _topic: 4, durable_offset=lambda _topic: 3)
    log: Any = SimpleNamespace(acknowledged_end=lambda _topic: 10)
    heartbeat: Any = SimpleNamespace(incarnation="i")
    confirmed = []
    for each in (log, MemoryLog()):
        readiness = Readiness(SimpleNamespace(node="n1"), {}, each, consumer, heartbeat, {}, 0)  # type: ignore[arg-type]
        confirmed.append((readiness.confirmed_offset(TOPIC), readiness.durable_offset(TOPIC)))
    assert [(9, 3), (3, 3)] == confirmed
