"""A leader that is heard and does not hear: it serves nothing, and it must not keep the others from leading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.replication import duties
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
