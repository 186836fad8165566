"""An offline replay has the files that its logs have loaded from other members, or ends with an error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.node.replay_files import LoadedFilesMissing, ReplayFiles
from headrace.consumers.replication.leader_tasks import NotLeader
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.presence import Presence, encode_presence
from tests.unit.migration.conftest import moving
from tests.unit.migration.moves import LIMITS, TABLE, TARGET, Moves, MovingNode, topic_of
from tests.waiting import eventually

TOPICS = Topics("c")
NODE, OTHER = TABLE.group("n4")


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[Moves]:
    """Slots have moved to a group of two nodes, and the first one is rebuilt from the logs alone."""
    with moving(tmp_path / "nodes") as moves:
        moves.hand_over()
        moves.turns(count=8)
        moves.state = MembershipState(records=1, table=TABLE, changes=1)
        complete = moves.nodes[OTHER].target
        assert not complete.store.awaited()
        moves.nodes[NODE].leave()
        for group in moves.nodes[NODE].groups.values():
            group.store.close()
        moves.directory = tmp_path / "rebuilt"
        rebuilt = moves.nodes[NODE] = MovingNode(moves, NODE)
        rebuilt.open(TARGET, moves.founding)
        yield moves


@contextmanager
def replayed(moves: Moves, *online: str) -> Iterator[ReplayFiles]:
    """The files of a replay while some nodes are online."""
    log = MemoryLog()
    log.create_topic(TOPICS.status, {})
    for name in online:
        server = moves.nodes[name].server
        assert server is not None
        presence = Presence(name, "i", f"store-{name}", server.url, 2, TABLE.slots, True, 0, 1, True)
        log.store(TOPICS.status, encode_presence(presence), name.encode(), ())
    files = ReplayFiles(NODE, log, TOPICS, moves.nodes[NODE].groups, moves.state, LIMITS)
    try:
        yield files
    finally:
        files.close()


def test_a_replay_fetches_the_files_that_its_logs_have_loaded(moved: Moves) -> None:
    """They are in no log. Afterwards the store has the files of the other member, byte for byte."""
    rebuilt, complete = moved.nodes[NODE].target.store, moved.nodes[OTHER].target.store
    with replayed(moved, OTHER) as files:
        awaited = files.awaited
        assert awaited > 0

        def is_complete() -> bool:
            files.turn()
            return not files.awaited

        eventually(is_complete, "all files")
        assert 0 < files.fetched <= awaited
    assert {each.content_digest for each in complete.segments()} == {each.content_digest for each in rebuilt.segments()}
    assert not rebuilt.awaited()


def test_a_replay_without_other_members_names_what_it_lacks(moved: Moves) -> None:
    """It never ends as if nothing was missing, and it orders nothing that only a running node may."""
    with replayed(moved) as files:
        awaited = files.awaited
        for _ in range(3):
            files.turn()
        assert (awaited, 0) == (files.awaited, files.fetched)
        error = files.missing()
        assert f"the logs have loaded {awaited} files that are not in them" in error.message
        assert "nothing was replaced" in (error.action or "")
        assert not files.leads(topic_of(TARGET))
        with pytest.raises(NotLeader):
            files.append_loads(topic_of(TARGET), ())
        with pytest.raises(NotLeader):
            files.report(SlotDone(1, NODE, ()))


def test_files_that_others_have_merged_end_a_replay(moved: Moves) -> None:
    """No member has them one by one any more: the node recovers from their files, and the replay cannot."""
    with replayed(moved, OTHER) as files:
        files.replace_data(topic_of(TARGET), "file a was merged", frozenset())
        with pytest.raises(LoadedFilesMissing, match="file a was merged"):
            files.turn()
