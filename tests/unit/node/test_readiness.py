"""What keeps a group from serving, and when it counts as in sync again after its data was replaced."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.node.group_statuses import GroupStatuses
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.node.readiness import NoTasks, Readiness, Standing
from headrace.consumers.node.status_report import _member_status
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.log_witness import read_elsewhere, witness_of_cut
from headrace.schemas.presence import Presence
from headrace.schemas.records import Role
from tests.unit.statuses import STATUS

TOPIC = "c.forward.g"


class Tasks(NoTasks):
    """What a test lets the tasks of a node know."""

    def __init__(self, fault: str = "", pulling: Mapping[str, str] | None = None) -> None:
        self._fault, self._pulling = fault, pulling or {}

    def placement_fault(self) -> str:
        """See ServingTasks."""
        return self._fault

    def pulling_reason(self, group: str) -> str:
        """See ServingTasks."""
        return self._pulling.get(group, "")


def readiness_of(group: Any, consumer: Any, heartbeat: Any) -> Readiness:
    """The readiness of a node with one group, at the end of its log."""
    groups = {TOPIC: group}
    positions = LogPositions(groups, consumer, {TOPIC: 0})
    return Readiness(groups, MemoryLog(), consumer, heartbeat, positions, {TOPIC: "present"})


def test_a_replaced_group_is_in_sync_only_at_an_end_that_was_read_since() -> None:
    """The end of before may be behind what this node has already served: the answers would become older again."""
    group: Any = SimpleNamespace(applied=SimpleNamespace(offset=9), recovery=None)
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 10, durable_offset=lambda _topic: 9, needed_end=lambda _topic: 10
    )
    positions = LogPositions({TOPIC: group}, consumer, {TOPIC: 10})
    assert positions.caught_up(TOPIC)
    asked_before = positions.ask(TOPIC)
    positions.restart(TOPIC)
    assert not positions.caught_up(TOPIC)
    positions.note_end(TOPIC, 10, asked_before)
    assert not positions.caught_up(TOPIC), "an answer may take seconds: this end was asked for before"
    positions.note_end(TOPIC, 12, positions.ask(TOPIC))
    assert not positions.caught_up(TOPIC)
    positions.note_end(TOPIC, 10, positions.ask(TOPIC))
    assert positions.caught_up(TOPIC)


def test_a_group_that_is_replaced_while_somebody_looks_is_not_in_sync() -> None:
    """The schedule: a thread has found it at the end of its log; its data is replaced; the thread notes what it found."""
    group: Any = SimpleNamespace(applied=SimpleNamespace(offset=9), recovery=None)
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 10, durable_offset=lambda _topic: 9, needed_end=lambda _topic: 10
    )
    looks, replaced = threading.Event(), threading.Event()

    class Known(set[str]):
        """Ends that are known, of which the look at one takes long."""

        def __contains__(self, topic: object) -> bool:
            found = super().__contains__(topic)
            looks.set()
            replaced.wait(0.3)
            return found

    positions = LogPositions({TOPIC: group}, consumer, {TOPIC: 10})
    positions._ends_known = Known(positions._ends_known)
    looking = threading.Thread(target=positions.caught_up, args=(TOPIC,))
    looking.start()
    assert looks.wait(5.0)
    positions.restart(TOPIC)
    replaced.set()
    looking.join()
    assert not positions.caught_up(TOPIC)


def test_a_log_without_what_another_member_has_read_is_not_the_whole_log() -> None:
    """The schedule: the log is cut, and the disk of a member is replaced. It read what was left, and served that.

    A member that is behind the others under load is not kept from its place: it asks what they have read first.
    """
    group: Any = SimpleNamespace(applied=SimpleNamespace(offset=9), recovery=None)
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 10, durable_offset=lambda _topic: 9, needed_end=lambda _topic: 10
    )
    positions = LogPositions({TOPIC: group}, consumer, {TOPIC: 10})
    elsewhere: list[float | None] = [None]
    positions.elsewhere = lambda _topic: elsewhere[0]
    assert positions.caught_up(TOPIC), "what others have read is not known, and nothing serves yet"
    positions.note_end(TOPIC, 10, positions.ask(TOPIC))
    elsewhere[0] = 12.0
    assert not positions.caught_up(TOPIC)
    positions.note_end(TOPIC, 10, positions.ask(TOPIC))
    assert not positions.caught_up(TOPIC)
    asked = positions.ask(TOPIC)
    elsewhere[0] = 14.0
    positions.note_end(TOPIC, 13, asked)
    consumer.position, consumer.durable_offset, group.applied.offset = lambda _topic: 13, lambda _topic: 12, 12
    assert positions.caught_up(TOPIC)


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        ({"durable_offset": 12}, True),
        ({"durable_offset": 9}, False),
        ({"durable_offset": 3, "log_lost": True}, True),
        ({"durable_offset": 12, "topic_id": "another"}, False),
        ({"durable_offset": 12, "node": "n1"}, False),
    ],
)
def test_a_member_waits_while_another_one_has_read_more_than_its_log_holds(other: dict[str, Any], waits: bool) -> None:
    """It names that member. What it has reported itself, before its disk was replaced, is no other member."""
    health = SimpleNamespace(reason="", refuses=lambda _use: False)
    applied, store = SimpleNamespace(offset=9, leader="n3"), SimpleNamespace(awaited=list)
    replica = SimpleNamespace(state=SimpleNamespace(base=LogBase()))
    group: Any = SimpleNamespace(name="g", members=(), health=health, applied=applied, store=store, replica=replica)
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 10,
        needed_end=lambda _topic: 10,
        durable_offset=lambda _topic: 9,
        journal_fault="",
        topic_fault=lambda _topic: "",
    )
    live = [replace(STATUS, **{"node": "n2", "topic_id": "present"} | other)]
    readiness = readiness_of(
        group, consumer, SimpleNamespace(node="n1", fenced=False, live=lambda _group, _members: live)
    )
    reason = f"topic {TOPIC} may have been cut: node n2 has read more of it" if waits else ""
    assert reason == readiness.reason(TOPIC)


def test_what_a_member_before_an_accepted_gap_has_read_counts_for_nothing() -> None:
    """It may be unable to follow for long, as with a full disk. One behind the gap has read what the log must hold."""
    base = LogBase("present", 4, 30, b"chain")
    before, behind = (replace(STATUS, topic_id="present", version=each, durable_offset=90) for each in (30, 31))
    assert (-1, 90) == (read_elsewhere([before], "present", base), read_elsewhere([before, behind], "present", base))
    assert witness_of_cut([before], "present", base, 5) is None
    assert witness_of_cut([before], "present", LogBase(), 5) is before
    assert witness_of_cut([before, behind], "present", base, 90) is behind


def test_a_full_disk_is_named_where_people_look() -> None:
    """By a node that joins, beside what it waits for, and by one whose own log has no space: that one answers still."""
    group: Any = SimpleNamespace(name="g", health=SimpleNamespace(reason="", refuses=lambda _use: False))
    consumer: Any = SimpleNamespace(position=lambda _topic: 0, journal_fault="")
    heartbeat: Any = SimpleNamespace(
        incarnation="i", fenced=False, write_fault="no space left", error="", detector=FailureDetector()
    )
    readiness = readiness_of(group, consumer, heartbeat)
    tasks, readiness.standing = readiness.tasks, Standing(surplus=frozenset({TOPIC}))
    assert [] == readiness.refusals()
    assert (False, ["writes wait, the log of this node cannot be written: no space left"]) == readiness.ready()
    heartbeat.write_fault = ""
    assert (True, []) == readiness.ready()
    readiness.tasks = Tasks(fault="no space left")
    assert (True, []) == readiness.ready()
    readiness.standing = Standing(surplus=frozenset({TOPIC}), missing="group h is not open")
    assert (False, ["group h is not open", "groups are not opened here: no space left"]) == readiness.ready()
    readiness.standing = Standing(joining="joining")
    assert ["joining", "groups are not opened here: no space left"] == readiness.refusals()
    readiness.tasks = tasks
    assert ["joining"] == readiness.refusals()
    group.health = SimpleNamespace(reason="its files are wrong", refuses=lambda _use: True)
    assert ["joining", "its files are wrong"] == readiness.refusals()
    consumer.journal_fault = "no space left"
    assert ["joining", "journal: no space left"] == readiness.refusals()


@pytest.mark.parametrize(
    ("leader", "other", "waits"), [(None, "before", True), (None, "present", False), ("n2", "before", False)]
)
def test_an_empty_log_does_not_count_while_another_member_has_read_the_log_before(
    leader: str | None, other: str, waits: bool
) -> None:
    """A topic is made again, and the disk of a member is replaced: it would serve nothing, and nobody could accept the
    gap. In a log with a leader members have served: one that was away with the data of before keeps them from nothing.
    """
    health = SimpleNamespace(reason="", refuses=lambda _use: False)
    applied = SimpleNamespace(offset=-1, leader=leader)
    store = SimpleNamespace(awaited=list)
    replica = SimpleNamespace(state=SimpleNamespace(base=LogBase()))
    members = ("n1", "n2")
    group: Any = SimpleNamespace(
        name="g", members=members, health=health, applied=applied, store=store, replica=replica
    )
    consumer: Any = SimpleNamespace(
        position=lambda _topic: 0,
        needed_end=lambda _topic: 0,
        durable_offset=lambda _topic: -1,
        journal_fault="",
        topic_fault=lambda _topic: "",
    )
    read = replace(STATUS, durable_offset=-1)
    live = [replace(read, node="n1", topic_id="present"), replace(read, node="n2", topic_id=other, log_lost=waits)]
    readiness = readiness_of(
        group, consumer, SimpleNamespace(node="n1", fenced=False, live=lambda _group, _members: live)
    )
    reason = readiness.reason(TOPIC)
    assert waits is reason.startswith(f"node n2 has read another topic {TOPIC}")
    assert waits is bool(reason)
    assert readiness.objections() == ([f"group g: {reason}"] if waits else [])


def test_a_merge_that_waits_for_files_names_why_they_do_not_come() -> None:
    """The merge follows from a full disk, which is what an operator must look at; without a cause it is named alone."""
    merge = "compaction at version 365 waits for 12ab"
    group: Any = SimpleNamespace(name="g", health=SimpleNamespace(reason=merge, state=State.DEFERRED))
    readiness = readiness_of(group, SimpleNamespace(position=lambda _topic: 0), SimpleNamespace())
    assert merge == readiness.reason(TOPIC)
    readiness.tasks = Tasks(pulling={"g": "the disk is full"})
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
    readiness = readiness_of(group, consumer, heartbeat)
    statuses = GroupStatuses(identity, {TOPIC: group}, consumer, heartbeat, readiness, 0)
    monkeypatch.setattr(Readiness, "reason", lambda *_: "")
    for node, reason in (("n2", str(lost)), ("n3", "membership log, record 7: too new")):
        detector.observe(1_000, replace(STATUS, node=node, group="g", store=f"store of {node}"))
        presence = Presence(node, "i", f"store of {node}", "", 3, 60, False, 0, 4, True, reason)
        detector.observe_presence(1_000, presence)
    assert [True, False, True] == [member.alive for member in statuses.view(TOPIC, 0).members]


def test_what_a_log_of_its_own_has_acknowledged_is_confirmed() -> None:
    """Before the store has it: queries contain it. With a broker, only what is durable here was confirmed by this node."""
    consumer: Any = SimpleNamespace(position=lambda _topic: 4, durable_offset=lambda _topic: 3)
    log: Any = SimpleNamespace(acknowledged_end=lambda _topic: 10)
    parts: Any = SimpleNamespace()
    confirmed = []
    for each in (log, MemoryLog()):
        readiness = Readiness({}, each, consumer, parts, parts, {})
        confirmed.append((readiness.confirmed_offset(TOPIC), readiness.durable_offset(TOPIC)))
    assert [(9, 3), (3, 3)] == confirmed


@pytest.mark.parametrize(("fenced", "shown"), [(False, (True, "follower", 0)), (True, (False, "unknown", 9_000))])
def test_a_node_that_receives_nothing_does_not_know_the_others(fenced: bool, shown: tuple[bool, str, int]) -> None:
    """Their newest statuses are as old as its silence: none of them is shown as present."""
    detector = FailureDetector()
    detector.observe(1_000, replace(STATUS, node="n2", group="g", role=Role.FOLLOWER))
    heartbeat = SimpleNamespace(fenced=fenced, detector=detector, silence_ms=9_000 if fenced else 0)
    node: Any = SimpleNamespace(name="n1", heartbeat=heartbeat)
    group: Any = SimpleNamespace(name="g")
    status = _member_status(node, TOPIC, group, "n2")
    assert shown == (status["online"], status["role"], status["silent_ms"])
