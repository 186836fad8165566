"""A leader that does not hear, or hears late: it serves nothing or follows, and it must not keep the others from leading."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.node import Node
from consumers.replication import broadcast, duties
from consumers.replication.broadcast import boot_ns
from consumers.replication.duties import WAKING, NotLeader
from consumers.replication.journal import JournalEntry
from schemas.records import Role
from tests.unit.nodes import Nodes
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that run."""
    monkeypatch.setattr(duties, "TURN_S", 0.02)
    nodes = Nodes(tmp_path, ("n1", "n2", "n3"))
    nodes.start(*nodes.names)
    try:
        yield nodes
    finally:
        nodes.stop(*list(nodes.running))


def test_a_leader_that_no_longer_hears_itself_is_followed_by_another(three: Nodes) -> None:
    """Its statuses go on to arrive, without eligibility; the next member in sync claims."""
    three.ready()
    topic = three.topics.forward("n1")

    def leader() -> str:
        found = three.running["n2"].groups[topic].applied.leader
        return found.node if found is not None else ""

    eventually(lambda: leader() == "n1", "the header leading")
    three.running["n1"].broadcast._note_own = lambda _heard: None
    eventually(lambda: leader() in ("n2", "n3"), "another leader")
    assert not three.running["n1"].ready()[0]
    assert three.running["n2"].broadcast.board.alive("n1", "n1")


def test_a_process_that_was_stopped_does_not_answer_with_its_role_of_before(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided 3 s ago and more does not count, also in the moment before the next turn; that turn takes no role."""
    three.ready()
    node, topic = three.running["n1"], three.topics.forward("n1")
    eventually(lambda: node.role(topic) is Role.LEADER, "the header leading")
    node.duties.stop()
    assert Role.LEADER is node.role(topic)
    slept_ns = 4_000_000_000
    with monkeypatch.context() as patched:
        for module in (duties, broadcast):
            patched.setattr(module, "boot_ns", lambda: boot_ns() + slept_ns)
        assert Role.UNSYNCED is node.role(topic)
        node.duties._look()
        assert WAKING == node.duties.decision(topic)


def test_a_leader_that_hears_of_a_later_claim_before_it_reads_it_follows(three: Nodes) -> None:
    """As a process that was stopped: the statuses of the others are read back before the claim in its own log."""
    three.ready()
    topic = three.topics.forward("n1")
    old, others = three.running["n1"], [three.running["n2"], three.running["n3"]]
    group, may_apply = old.groups[topic], threading.Event()
    apply, hear = group._apply, old.broadcast._note_own

    def spoken_epochs(listener: Node) -> set[int]:
        return {status.epoch for status in listener.broadcast.live("n1", ("n2", "n3"))}

    def apply_when_told(entry: JournalEntry) -> None:
        may_apply.wait()
        apply(entry)

    eventually(lambda: old.role(topic) is Role.LEADER, "the header leading")
    try:
        group._apply = apply_when_told
        old.broadcast._note_own = lambda _heard: None
        eventually(lambda: Role.LEADER in [node.role(topic) for node in others], "another leader")
        eventually(lambda: 2 in spoken_epochs(old), "a status of a member that has read the later claim")
        old.broadcast._note_own = hear
        eventually(lambda: old.role(topic) is not Role.UNSYNCED, "a role, once it hears again")
        assert (Role.FOLLOWER, 1) == (old.role(topic), group.applied.epoch)
        with pytest.raises(NotLeader, match="another node has claimed it"):
            old.seal("n1")
    finally:
        may_apply.set()
    eventually(lambda: group.applied.epoch == 2, "the claim read at last")
    assert Role.FOLLOWER is old.role(topic)
