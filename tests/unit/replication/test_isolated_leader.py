"""A leader that receives no statuses, or late ones, serves nothing or follows, and does not block another leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.clock import SystemClock
from headrace.connectors.deadline import Deadline
from headrace.consumers.node.node import Node
from headrace.consumers.replication import leader_tasks
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.leader_tasks import RESUMED, NotLeader
from headrace.schemas.records import Role
from tests.unit.nodes import Nodes
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three running nodes."""
    monkeypatch.setattr(leader_tasks, "TURN_S", 0.02)
    nodes = Nodes(tmp_path, ("n1", "n2", "n3"))
    nodes.start(*nodes.names)
    try:
        yield nodes
    finally:
        nodes.stop(*list(nodes.running))


def test_a_leader_without_its_own_heartbeats_is_replaced(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statuses still arrive, without eligibility; the next member in sync claims."""
    three.ready()
    topic = three.topics.forward("n1")

    def leader() -> str:
        found = three.running["n2"].groups[topic].applied.leader
        return found.node if found is not None else ""

    eventually(lambda: leader() == "n1", "the header leading")
    monkeypatch.setattr(three.running["n1"].heartbeat, "_note_own", lambda _statuses: None)
    eventually(lambda: leader() in ("n2", "n3"), "another leader")
    assert not three.running["n1"].ready()[0]
    assert three.running["n2"].heartbeat.detector.alive("n1", "n1")


def test_a_process_that_was_suspended_has_no_role_until_its_next_turn(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that is 3 s old does not count, also before the next turn; that turn takes no role."""
    three.ready()
    node, topic = three.running["n1"], three.topics.forward("n1")
    eventually(lambda: node.role(topic) is Role.LEADER, "the header leading")
    node.leader_tasks.stop()
    assert Role.LEADER is node.role(topic)
    boot_ns, slept_ns = SystemClock.boot_ns, 4_000_000_000
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "boot_ns", lambda clock: boot_ns(clock) + slept_ns)
        assert Role.UNSYNCED is node.role(topic)
        node.leader_tasks.turn()
        assert RESUMED == node.leader_tasks.decision(topic)


def test_a_leader_that_receives_a_later_epoch_before_it_reads_the_claim_follows(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a suspension the process reads the statuses of the others before the claim in its own log."""
    three.ready()
    topic = three.topics.forward("n1")
    old, others = three.running["n1"], [three.running["n2"], three.running["n3"]]
    group, may_apply = old.groups[topic], threading.Event()
    apply, note_own = group._apply, old.heartbeat._note_own

    def received_epochs(receiver: Node) -> set[int]:
        return {status.epoch for status in receiver.heartbeat.live("n1", ("n2", "n3"))}

    def apply_when_allowed(entry: JournalEntry) -> None:
        may_apply.wait()
        apply(entry)

    eventually(lambda: old.role(topic) is Role.LEADER, "the header leading")
    try:
        monkeypatch.setattr(group, "_apply", apply_when_allowed)
        monkeypatch.setattr(old.heartbeat, "_note_own", lambda _statuses: None)
        eventually(lambda: Role.LEADER in [node.role(topic) for node in others], "another leader")
        eventually(lambda: 2 in received_epochs(old), "a status of a member that has read the later claim")
        monkeypatch.setattr(old.heartbeat, "_note_own", note_own)
        eventually(lambda: old.role(topic) is not Role.UNSYNCED, "a role, once it receives again")
        assert (Role.FOLLOWER, 1) == (old.role(topic), group.applied.epoch)
        with pytest.raises(NotLeader, match="another node has claimed it"):
            old.seal("n1")
    finally:
        may_apply.set()
    eventually(lambda: group.applied.epoch == 2, "the claim read at last")
    assert Role.FOLLOWER is old.role(topic)


def test_a_node_that_became_ready_stays_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started node takes no role before its first turn, and loses none at that turn: clients see no gap after the first answer."""
    monkeypatch.setattr(leader_tasks, "TURN_S", 0.5)
    nodes = Nodes(tmp_path, ("n1",))
    nodes.start("n1")
    try:
        node, seen, end = nodes.running["n1"], [False], Deadline(3.0)
        while not end.passed():
            if node.ready()[0] != seen[-1]:
                seen.append(not seen[-1])
            time.sleep(0.002)
        assert [False, True] == seen
    finally:
        nodes.stop("n1")
