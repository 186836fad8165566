"""`headrace up` of a cluster that grows: its file, its nodes, and those that wait to join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.up import _cluster_of
from headrace.cluster_file import FILE_NAME, ClusterFile, read_cluster_file, write_cluster_file
from headrace.connectors.kafka.broker_errors import BrokerLost
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.placement import joining_reason
from headrace.consumers.membership.slot_table import SlotTable
from headrace.local_cluster import LocalCluster
from headrace.node_probe import first_reason, is_joining
from headrace.node_process import NodeProcess
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import UsageInvalid

THREE = [NodeProcess(f"n{number}", f"127.0.0.1:{number}") for number in (1, 2, 3)]


def test_the_file_of_a_cluster_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A file of an earlier build, or of a cluster in which all nodes had every row, has as many copies as nodes."""
    write_cluster_file(tmp_path, ClusterFile("c", "k:1", THREE, 2))
    assert ClusterFile("c", "k:1", THREE, 2) == read_cluster_file(tmp_path)
    content = json.loads((tmp_path / FILE_NAME).read_text())
    for replication in ({"replication": 0}, {}):
        without = {key: value for key, value in content.items() if key != "replication"}
        (tmp_path / FILE_NAME).write_text(json.dumps(without | replication))
        assert 3 == read_cluster_file(tmp_path).replication
    with pytest.raises(HeadraceError, match="no cluster was started"):
        read_cluster_file(tmp_path / "none")


def test_more_nodes_than_before_are_new_ones(tmp_path: Path) -> None:
    """They change nothing of the cluster's birth: without a number all nodes of that time had every row."""
    write_cluster_file(tmp_path, ClusterFile("c", "k:1", THREE, 0))
    local = _cluster_of(tmp_path, None, 5, None)
    assert ["n1", "n2", "n3", "n4", "n5"] == [node.name for node in local.file.nodes]
    assert (3, "") == (local.replication, local.node("n5").http)
    assert 3 == len(_cluster_of(tmp_path, None, 3, 3).file.nodes)
    with pytest.raises(UsageInvalid, match="has 3 nodes, not 2") as refused:
        _cluster_of(tmp_path, None, 2, None)
    assert "headrace cluster remove" in refused.value.action


def test_a_cluster_grows_by_the_nodes_that_it_lacks(tmp_path: Path) -> None:
    """Also one that was just made, whose copies are those of its first nodes."""
    local = LocalCluster(tmp_path, nodes=2)
    local.grow(3)
    local.grow(3)
    assert (["n1", "n2", "n3"], 2) == ([node.name for node in local.file.nodes], local.replication)


def test_a_cluster_whose_kafka_is_gone_does_not_begin_with_an_empty_one(tmp_path: Path) -> None:
    """It would be on another port, and its logs would be new: the nodes would wait, and nobody would know why."""
    write_cluster_file(tmp_path, ClusterFile("c", "127.0.0.1:1", THREE, 0))
    for node in THREE:
        (tmp_path / node.name).mkdir()
    with pytest.raises(BrokerLost, match="logs of cluster c") as lost:
        LocalCluster.load(tmp_path).start()
    assert "restore" in lost.value.action
    assert not (tmp_path / "broker").exists()


def test_a_node_that_waits_to_join_says_so() -> None:
    """By the reason of its health route; any other reason is waited out."""
    state = MembershipState(table=SlotTable.create(("n1", "n2"), 2, 60))
    reason = joining_reason(state, "n3")
    assert "headrace cluster add n3" in reason
    assert is_joining(json.dumps({"ok": False, "reasons": [reason]}))
    assert not is_joining(json.dumps({"ok": False, "reasons": ["group n1: no role yet"]}))
    assert "no answer" == first_reason("no answer")
    assert not is_joining({"ok": True, "reasons": []})
