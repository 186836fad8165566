"""Files of a list that a donor has sent: staged while their loads are on their way, and what scans wait for meanwhile."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.consumers.migration import puller
from headrace.consumers.migration.cut_source import CutSource
from headrace.consumers.migration.pull import Pull, is_settled
from headrace.consumers.recovery.file_copy import SourceFailed
from headrace.consumers.replication.group import Group
from headrace.consumers.store import Store
from headrace.schemas.group_changes import GroupKey
from tests.unit.migration.moves import GAINED, Moves, MovingNode
from tests.unit.migration.test_puller import finished, slot_of_entry

pytestmark = pytest.mark.slow(1.5)


def test_slots_whose_files_are_here_do_not_wait_for_others(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the loads were carried out, a scan waits for the slots of files that are awaited, and no others."""
    node = moves.nodes["n4"]
    keep_away(node, monkeypatch)
    moves.turns("n4", count=4)
    awaited = {slot_of_entry(entry) for entry in node.target.store.awaited()}
    assert awaited == node.puller.pulling("n4")
    assert awaited < frozenset(GAINED)
    assert node.puller.wait_until_pulled("n4", frozenset(GAINED) - awaited, 0.0)


def keep_away(node: MovingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of one donor comes to a node; its lists do."""
    source = node.source

    def without_files(name: str, key: GroupKey) -> CutSource | None:
        found = source(name, key)
        if found is not None and key.group == "n2":
            for call in ("stage", "stage_together"):
                monkeypatch.setattr(found, call, partial(_refused, name))
        return found

    monkeypatch.setattr(node, "source", without_files)


def _refused(name: str, *_arguments: object) -> bool:
    raise SourceFailed(f"{name} has no file for you", retriable=True)


def test_a_load_that_ends_while_a_member_looks_is_not_complete(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it awaits counts as of a later moment: else the change ends, and donors remove what was not fetched."""
    moves.hand_over()
    node, ended = moves.nodes["n4"], list[int]()
    keep_away(node, monkeypatch)
    awaited = Store.awaited

    def noted(pull: Pull, group: Group) -> bool:
        # The job ends at this moment.
        ended.extend([1] if pull.pair.donor.group == "n2" else [])
        return is_settled(pull, group)

    monkeypatch.setattr(puller, "is_settled", noted)
    monkeypatch.setattr(Store, "awaited", lambda store: awaited(store) if ended else [])
    for _ in range(4):
        ended.clear()
        moves.turns("n4", count=1)
    monkeypatch.undo()
    awaited_slots = {slot_of_entry(entry) for entry in node.target.store.awaited()}
    assert awaited_slots
    assert awaited_slots.isdisjoint(slot for done in moves.reports if done.node == "n4" for slot in done.slots)


def test_files_of_a_list_are_staged_while_their_loads_are_on_their_way(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the load attaches them. What the load has attached is not fetched again."""
    node = moves.nodes["n4"]
    with monkeypatch.context() as patched:
        patched.setattr(node, "append_loads", lambda _topic, _loads: None)
        moves.turns("n4", count=4)
    assert [] == node.target.store.awaited()
    staged = {path.stem for path in node.target.store.staging_directory.glob("*.parquet")}
    listed = {load.content_digest.hex() for pull in node.puller._pulls.values() for load in pull.missing}
    assert listed == staged
    received = node.puller.rate.received_bytes
    node.clock.now_s += puller.READ_BACK_TIMEOUT_S
    moves.turns("n4", count=1)
    assert [] == node.target.store.awaited()
    assert listed == {entry.content_digest for entry in node.target.store.segments()}
    moves.hand_over()
    moves.turns(count=6)
    assert received == node.puller.rate.received_bytes
    finished(moves)
