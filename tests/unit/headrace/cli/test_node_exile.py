"""`headrace node run` of a node that was removed from its cluster: it ends without a failure, and reports why."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from headrace.cli.node import _run_until_stopped
from headrace.connectors.log.port import read_to_end
from headrace.consumers.membership.bootstrap import replay
from headrace.consumers.node.node import Node
from headrace.consumers.node.other_store import NodeRuns
from headrace.node_log import reports_removal
from headrace.schemas.framing import format_headers
from headrace.schemas.membership_records import ChangeKind, Exile, Formal, MembershipChange, MetadataClaim
from headrace.schemas.messages import Leadership
from headrace.schemas.records import encode_membership, format_of_membership
from headrace.terminal.output import Output
from tests.unit.membership.test_changes import change, pre_done, run, slots_done
from tests.unit.nodes import Nodes
from tests.waiting import eventually

LINE = "node n2 was removed from cluster c and ends; what it held is at other nodes"


def remove(nodes: Nodes) -> None:
    """Append a whole removal of n2 at once, as if n1 had led it."""
    state = replay(read_to_end(nodes.log, nodes.topics.membership, timeout_s=10))
    leader = Leadership(state.epoch + 1, "n1", "test")
    records: list[MembershipChange] = []

    def add(*found: MembershipChange) -> None:
        nonlocal state
        state = run(state, *found)
        records.extend(found)

    add(MetadataClaim(leader))
    add(change(state, ChangeKind.REMOVE, "n2", "r1"))
    add(*pre_done(state))
    add(Formal(leader, 1))
    add(*slots_done(state))
    add(Exile(leader, "n2"))
    for record in records:
        headers = format_headers(format_of_membership(record))
        nodes.log.store(nodes.topics.membership, encode_membership("test", record), None, headers)


def test_a_removed_node_ends_now_and_at_its_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both times without an error, with one line, by which `headrace up` knows it; its groups are deleted."""
    nodes = Nodes(tmp_path, ("n1", "n2"), replication=1)
    node = Node(nodes.settings("n2"), nodes.log)

    def remove_once_it_serves() -> None:
        eventually(lambda: bool(node.http_address), "the node serves")
        while node.exile is None:
            remove(nodes)
            # A claim of the node itself may have come in between: then nothing of it counted.
            threading.Event().wait(2.0)

    remover = threading.Thread(target=remove_once_it_serves, daemon=True)
    remover.start()
    _run_until_stopped(node, Output(json_output=False))
    remover.join(30)
    shown = capsys.readouterr().err
    assert LINE in shown
    assert not list((tmp_path / "n2" / "index").glob("*")), "the data of its groups is left"

    _run_until_stopped(Node(nodes.settings("n2"), nodes.log), Output(json_output=False))
    shown = capsys.readouterr().err
    assert LINE in shown
    assert "serves on" not in shown
    for text, removed in ((shown, True), ("node n2 serves on http://x\n", False)):
        (tmp_path / "n2.log").write_text(text)
        assert removed is reports_removal(tmp_path, "n2")


def test_a_copy_of_a_directory_ends_the_command_with_an_error(tmp_path: Path) -> None:
    """Two processes of n1: the command that began later fails, with the address of the first one."""
    nodes = Nodes(tmp_path, ("n1",))
    nodes.start("n1")
    nodes.stop("n1")
    copied = Nodes(tmp_path / "copy", ("n1",))
    copied.log = nodes.log
    shutil.copytree(tmp_path / "n1", tmp_path / "copy" / "n1")
    nodes.start("n1")
    nodes.ready()
    try:
        with pytest.raises(NodeRuns, match=f"node n1 runs already at {nodes.running['n1'].http_address}"):
            _run_until_stopped(Node(copied.settings("n1"), nodes.log), Output(json_output=False))
        assert nodes.running["n1"].exile is None
    finally:
        nodes.stop("n1")
