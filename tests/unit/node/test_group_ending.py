"""The shell that ends a group: nothing is deleted before its log is closed, drained and accepted elsewhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.closing import is_closed
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import RecordTooLarge, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node import group_ending
from headrace.consumers.node.group_ending import GroupEnding
from headrace.consumers.replication.election import Decision
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Role
from tests.unit.statuses import STATUS

TOPICS = Topics("c")
BIRTH = GroupKey("n3", 2)
TOPIC = TOPICS.forward("n3", 2)
KEPT_S = 10.0


class Sender:
    """A hand-over that takes two turns."""

    made: list[Sender]

    def __init__(self, *_: object) -> None:
        self.turns, self.closed = 0, False
        Sender.made.append(self)

    def turn(self, _view: object) -> None:
        """Send."""
        self.turns += 1

    def handed_over(self, _view: object) -> bool:
        """Whether the others have accepted it."""
        return self.turns >= 2

    def close(self) -> None:
        """Release it."""
        self.closed = True


class Scene:
    """A group that ended, at a node that leads it, on a log with three records."""

    def __init__(self, *, due: bool = False) -> None:
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, {})
        for _ in range(3):
            self.log.store(TOPIC, b"row", None, ())
        self.decision = Decision(Role.LEADER, False)
        self.read = 3
        changes = SimpleNamespace(due={GroupKey("n1", 1): ("record",) if due else ()})
        self.group = SimpleNamespace(key="n3@2", birth_key=GroupKey("n3", 2))
        self.group.applied = SimpleNamespace(offset=2, changes=changes)
        group: Any = self.group
        self.groups = GroupRegistry()
        self.groups.put(TOPIC, group)
        consumer: Any = SimpleNamespace(position=lambda _: self.read, durable_offset=lambda _: self.read - 1)
        tasks: Any = SimpleNamespace(decision=lambda _: self.decision)
        heartbeat: Any = SimpleNamespace(node="n3", incarnation="a", detector=FailureDetector())
        self.detector = heartbeat.detector
        self.now_s = 0.0
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self.ending = GroupEnding(self.log, TOPICS, self.groups, consumer, tasks, heartbeat, KEPT_S, clock)

    def turn(self, turns: int = 1) -> None:
        """Some turns, with so much time between them that a topic was kept for long enough."""
        for _ in range(turns):
            self.now_s += KEPT_S
            self.ending.turn([BIRTH])

    def exists(self) -> bool:
        """Whether the topic does."""
        try:
            self.log.describe(TOPIC)
        except TopicMissing:
            return False
        return True


@pytest.fixture(autouse=True)
def senders(monkeypatch: pytest.MonkeyPatch) -> list[Sender]:
    """The senders that were made."""
    Sender.made = []
    monkeypatch.setattr(group_ending, "HandOverSender", Sender)
    return Sender.made


def test_a_follower_does_nothing() -> None:
    """The member that leads, or may claim, acts alone; the topic takes records as before."""
    scene = Scene()
    scene.decision = Decision(Role.FOLLOWER, False)
    scene.turn(3)
    assert not is_closed(scene.log, TOPIC)
    # A closed log takes no claim: who may claim acts as well.
    scene.decision = Decision(Role.FOLLOWER, True)
    scene.turn(2)
    assert not scene.exists()


def test_it_is_closed_drained_and_deleted() -> None:
    """What was appended a moment before the closing is read and applied first."""
    scene = Scene()
    scene.log.store(TOPIC, b"late", None, ())
    scene.turn(3)
    assert scene.exists(), "deleted before its last record was read"
    with pytest.raises(RecordTooLarge):
        scene.log.store(TOPIC, b"later", None, ())
    scene.read = 4
    scene.turn(3)
    assert scene.exists(), "deleted before its last record was applied"
    scene.group.applied.offset = 3
    scene.turn()
    assert not scene.exists()
    # Until the membership log forgets the group.
    scene.turn(3)


def test_a_closed_topic_is_kept_for_those_who_follow_it() -> None:
    """They are no members, so nobody knows how far they have read. One that is closed again is kept again."""
    scene = Scene()
    scene.turn()
    for step_s in (0.0, KEPT_S / 2, KEPT_S / 2 - 0.1):
        scene.now_s += step_s
        scene.ending.turn([BIRTH])
        assert is_closed(scene.log, TOPIC)
    # Somebody who does not know of the end corrects the setting, and a writer is quick.
    scene.log.configure(TOPIC, {"max.message.bytes": "1000000"})
    scene.log.store(TOPIC, b"late", None, ())
    scene.read, scene.group.applied.offset = 4, 3
    scene.now_s += 0.1
    for _ in range(3):
        scene.ending.turn([BIRTH])
    assert scene.exists()
    scene.turn()
    assert not scene.exists()


def test_it_stays_open_until_every_group_has_the_new_table() -> None:
    """A group behind it may still hand late records over to the one that ended."""
    scene = Scene()
    scene.ending.table = SlotTable.create(("n1",), 1, 8, version=4)
    behind = replace(STATUS, group="n1", node="n1", settled=3)
    scene.detector.observe(1_000, behind)
    scene.turn(3)
    assert not is_closed(scene.log, TOPIC)
    scene.detector.observe(1_001, replace(behind, settled=4))
    scene.turn(2)
    assert not scene.exists()


def test_what_is_due_is_handed_over_first(senders: list[Sender]) -> None:
    """Also without a leadership; then the sender is released."""
    scene = Scene(due=True)
    scene.turn(2)
    assert scene.exists()
    scene.turn(2)
    assert (1, 2, False) == (len(senders), senders[0].turns, scene.exists())
    scene.turn()
    assert senders[0].closed


def test_a_topic_that_somebody_opened_again_is_not_deleted() -> None:
    """What it has taken since is drained as well."""
    scene = Scene()
    scene.turn()
    scene.log.configure(TOPIC, {"max.message.bytes": "1000000"})
    scene.log.store(TOPIC, b"late", None, ())
    scene.turn(4)
    assert scene.exists()
    assert is_closed(scene.log, TOPIC)
    scene.read, scene.group.applied.offset = 4, 3
    scene.turn(2)
    assert not scene.exists()


def test_a_log_that_does_not_answer_is_tried_again() -> None:
    """And a group that was closed here is left alone."""
    scene = Scene()
    scene.log.unavailable = True
    scene.turn(2)
    scene.log.unavailable = False
    scene.turn(2)
    assert not scene.exists()
    scene.groups.remove(TOPIC)
    scene.turn()


def test_topics_close_in_the_order_of_their_ends() -> None:
    """A group that ended before may have late records for a later one, whose topic must take them until then."""
    scene, later = Scene(), TOPICS.forward("n4", 1)
    ended = [BIRTH, GroupKey("n4", 1)]
    scene.log.create_topic(later, {})
    group: Any = SimpleNamespace(
        key="n4", birth_key=ended[1], applied=SimpleNamespace(offset=2, changes=SimpleNamespace(due={}))
    )
    scene.groups.put(later, group)
    for _ in range(3):
        scene.log.store(later, b"row", None, ())
    scene.decision = Decision(Role.FOLLOWER, False)
    scene.ending.turn(ended)
    scene.decision = Decision(Role.LEADER, False)
    scene.read = 2
    for _ in range(3):
        scene.ending.turn(ended)
        assert (True, False) == (is_closed(scene.log, TOPIC), is_closed(scene.log, later))
    # The first one is drained and gone; the node looks at those that are left.
    scene.read, scene.now_s = 3, KEPT_S
    scene.ending.turn(ended)
    assert not scene.exists()
    scene.ending.turn(ended[1:])
    assert is_closed(scene.log, later)


def test_a_topic_waits_for_an_earlier_end_at_other_nodes() -> None:
    """Also where this node is no member of the group that ended before."""
    scene = Scene()
    earlier = GroupKey("n2", 1)
    for _ in range(3):
        scene.ending.turn([earlier, BIRTH])
    assert scene.exists()
    assert not is_closed(scene.log, TOPIC)
    scene.turn(3)
    assert not scene.exists()
