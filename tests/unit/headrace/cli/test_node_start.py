"""What a node does once, before it serves."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from headrace.cli.node import _run_until_stopped, _without_collection, load_node_settings
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.node import Node
from headrace.consumers.store import StoreFull
from headrace.terminal.output import Output
from tests.unit.nodes import Nodes


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self, ended: list[str]) -> None:
        self.itself = self
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append("collected")


def test_no_collection_looks_at_what_was_imported() -> None:
    """None runs meanwhile, and none behind it has the objects that were made; later garbage is collected."""
    ended, kept = list[str](), list[list[int]]()
    before = gc.get_freeze_count()
    with _without_collection():
        assert not gc.isenabled()
        kept.extend([number] for number in range(10_000))
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    followed = {id(each) for each in gc.get_objects()}
    assert followed.isdisjoint(map(id, kept))
    Cycle(ended)
    gc.collect()
    assert ["collected"] == ended


def test_a_node_that_starts_on_a_full_disk_is_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that runs tries the same work again; one that starts has ended, and whoever frees space must know it."""
    nodes = Nodes(tmp_path, ("n1",))
    node = Node(nodes.settings("n1"), nodes.log)

    def full(_on_progress: object) -> None:
        raise StoreFull("index n1 cannot be written: No space left on device")

    monkeypatch.setattr(node, "_open", full)
    with pytest.raises(StoreFull) as raised:
        _run_until_stopped(node, Output(json_output=False))
    assert "free disk space, then start it again" == raised.value.action


def test_a_node_that_was_born_with_another_kind_of_id_goes_on(tmp_path: Path) -> None:
    """An edge of an earlier build may have a space in its id. A new node is refused with one."""
    flags = {"node.id": "edge 1", "node.data_dir": str(tmp_path), "node.log": "local"}
    with pytest.raises(ClusterInvalid, match="'edge 1' cannot be a part"):
        load_node_settings(flags)
    Identity("headrace", "edge 1", "store", {}).save(tmp_path)
    assert "edge 1" == load_node_settings(flags).node.id
