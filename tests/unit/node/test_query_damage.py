"""What a query that could not read a file does to the data of its node: nothing, unless a digest differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.consumers.node.node import Node
from headrace.consumers.store import Store, StoreDamaged
from tests.unit.nodes import Nodes, corrupt, running_nodes
from tests.waiting import eventually

QUERY = {"sql": "SELECT * FROM plant.pumps"}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node whose rows are in files, which were all checked once."""
    with running_nodes(tmp_path, monkeypatch, ("a",), keep_records=1_000_000) as nodes:
        nodes.write()
        nodes.holds_everything("a")
        nodes.seal()
        eventually(lambda: store_of(nodes.running["a"]).segments() != [], "files")
        yield nodes


def store_of(node: Node) -> Store:
    """The store of the only group."""
    (group,) = node.groups.values()
    return group.store


def query(node: Node) -> httpx.Response:
    """All rows over HTTP."""
    return httpx.post(f"{node.http_address}/api/v1/query", json=QUERY, timeout=60)


def test_a_scan_that_fails_over_good_files_condemns_nothing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is compared with its digest, and the node serves on."""
    node, store = nodes.running["a"], store_of(nodes.running["a"])
    (before,) = node.groups.values()

    def failed(*_names: str, **_conditions: object) -> None:
        raise StoreDamaged("a limit of Arrow, and no damage at all")

    with monkeypatch.context() as patch:
        patch.setattr(store, "scan", failed)
        checked = node.scrubber.files_checked
        answer = query(node)
    assert (500, "SegmentUnreadable") == (answer.status_code, answer.json()["error"]["kind"])
    assert answer.json()["error"]["retriable"], "other nodes have files of their own"
    eventually(lambda: node.scrubber.files_checked >= checked + len(store.segments()), "a round over all files")
    (after,) = node.groups.values()
    assert before is after
    assert (0, {}, "") == (node.scrubber.files_rotted, node.identity.wrong, before.health.reason)
    assert 200 == query(node).status_code


def test_a_file_with_another_digest_is_replaced(nodes: Nodes) -> None:
    """The query that meets it fails; the check that it asks for finds the difference, and the group recovers."""
    node, store = nodes.running["a"], store_of(nodes.running["a"])
    (before,) = node.groups.values()
    for entry in store.segments():
        corrupt(store.segments_directory / entry.name)
    assert 200 != query(node).status_code
    eventually(lambda: before not in node.groups.values() and node.ready()[0], "a group that was replaced")
    nodes.holds_everything("a")
    assert 1 == node.scrubber.files_rotted
