"""Verification that reads files: recorded digests agree, and a disk has changed bytes since."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace._member_views import LogView
from headrace.admin_client import AdminClient
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.node.node import Node
from tests.unit.nodes import corrupt, running_nodes
from tests.waiting import eventually

TIMEOUT_S = 60.0


def test_a_changed_file_is_found_where_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its member is named and recovers at once; the others, and a comparison of what was sealed, find nothing."""
    with running_nodes(tmp_path, monkeypatch, ("a", "b", "c"), keep_records=1_000_000) as nodes:
        nodes.write()
        for name in nodes.running:
            nodes.holds_everything(name)
        nodes.seal()
        node_b = nodes.running["b"]
        eventually(
            lambda: len({files_of(node) for node in nodes.running.values()}) == 1 and bool(files_of(node_b)), "files"
        )
        admin = AdminClient(LogView(nodes.log, nodes.topics, read_slot_table(nodes.log, nodes.topics)))

        def verified(*, read_files: bool) -> tuple[bool, int, list[str]]:
            verdicts = admin.verify(TIMEOUT_S, lambda _line: None, read_files=read_files)
            assert 3 * [{"a", "b", "c"}] == [set(each.members) for each in verdicts]
            differences = [text for each in verdicts for text in each.differences]
            return all(each.ok for each in verdicts), sum(each.files_read for each in verdicts), differences

        files = 3 * len(files_of(node_b))
        assert (True, files, []) == verified(read_files=True)
        (before, changed), *_ = [
            (group, entry.name) for group in node_b.groups.values() for entry in group.store.segments()
        ]
        corrupt(before.store.segments_directory / changed)
        assert (True, 0, []) == verified(read_files=False)
        ok, read, (difference,) = verified(read_files=True)
        assert (False, files) == (ok, read)
        assert difference.startswith(f"b: segment {changed} is not what was sealed")
        eventually(lambda: before not in node_b.groups.values() and node_b.ready()[0], "a group that was replaced")
        assert (True, files, []) == verified(read_files=True)
        nodes.holds_everything("b")


def files_of(node: Node) -> frozenset[str]:
    """The segments of a node."""
    return frozenset(entry.name for group in node.groups.values() for entry in group.store.segments())
