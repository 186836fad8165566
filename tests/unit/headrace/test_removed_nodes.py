"""`headrace up` of a cluster from which nodes were removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from headrace import local_cluster
from headrace.cluster_file import read_cluster_file
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.placement import leaving_reason
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.exile import NodeExiled
from headrace.local_cluster import LocalCluster, NodeDied, NotReady
from headrace.node_log import reports_removal
from headrace.node_probe import JOINING
from tests.unit.headrace.test_node_ports import Process


class Cluster(LocalCluster):
    """Nodes n1 to n3, of which n3 was removed: with its data it ends, and with an empty directory it waits to join."""

    exiled = False
    """Whether n3 has the data directory of the node that was removed."""

    def launch(self, command: Sequence[str], log: IO[bytes]) -> Process:
        """Start the node."""
        name = command[command.index("--id") + 1]
        directory = self.data_directory(name)
        self.exiled = self.exiled and directory.exists()
        ends = name == "n3" and self.exiled
        if ends:
            log.write(f"{NodeExiled.of(self.cluster, name, directory)}\n".encode())
        directory.mkdir(exist_ok=True)
        (directory / "meta.json").touch()
        return Process(2**30 + len(self._children), 0 if ends else None)

    def ended(self, name: str) -> None:
        """The process of a node has ended."""
        pid = self.node(name).pid
        self._children[pid] = Process(pid, 0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """All three run, and n3 has ended by itself since: nobody of this machine has noted why."""
    made = Cluster(tmp_path, nodes=3, bootstrap="127.0.0.1:1")

    def probe(url: str) -> tuple[bool, Any]:
        joins = made.node("n3").http in url
        return not joins, json.dumps({"reasons": [f"{JOINING}n3"]}) if joins else {}

    monkeypatch.setattr(local_cluster, "probe", probe)
    assert ["n1", "n2", "n3"] == made.start()
    made.joining.clear()
    with (tmp_path / "n3.log").open("a") as log:
        log.write(f"{NodeExiled.of(made.cluster, 'n3', made.data_directory('n3'))}\n2026 [info] group closed\n")
    made.ended("n3")
    made.exiled = True
    return made


def test_a_removed_node_is_not_started_beside_another(cluster: Cluster) -> None:
    """It would end at once, and whoever asked for another node would wait for it. `up` notes it as removed."""
    cluster.ended("n2")
    assert ["n2"] == cluster.start(restarted=["n2"])
    assert [False, False, True] == [node.removed for node in read_cluster_file(cluster.directory).nodes]
    assert 0 == cluster.node("n3").pid
    cluster.stop_node("n3")
    assert [] == cluster.start()


@pytest.mark.parametrize("noted", [True, False])
def test_a_removed_node_without_data_is_started(cluster: Cluster, noted: bool) -> None:
    """As a node that waits to join, as its last line advised; later it is one like any other."""
    if noted:
        assert [] == cluster.start()
        assert cluster.node("n3").removed
    shutil.rmtree(cluster.data_directory("n3"))
    assert (["n3"], {"n3"}) == (cluster.start(), cluster.joining)
    assert not cluster.node("n3").removed
    cluster.ended("n3")
    assert ["n3"] == cluster.start()


def test_a_removed_node_that_is_asked_for_ends_again(cluster: Cluster) -> None:
    """It decides by what it reads. It has not been started then, and no process has its pid."""
    cluster.stop_node("n3")
    assert [] == cluster.start(restarted=["n3"])
    assert (0, True) == (cluster.node("n3").pid, cluster.node("n3").removed)


def test_a_removed_node_may_end_while_it_is_waited_for(cluster: Cluster) -> None:
    """Also one that another process has started, whose exit code nobody has. It is no node that died."""
    cluster._children.clear()
    cluster.wait_ready(["n3"])
    assert (0, True) == (cluster.node("n3").pid, cluster.node("n3").removed)
    with pytest.raises(NodeDied):
        cluster.wait_ready(["n2"])


def test_a_removed_node_that_has_not_ended_is_not_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hands over what is left, and ends: it is never ready again. Other reasons are waited out."""
    state = MembershipState(table=SlotTable.create(("n1", "n2"), 2, 60), removed=("n3",))
    reasons = ["group n2: no role yet", leaving_reason(state, "n3")]
    shutil.rmtree(cluster.data_directory("n3"))
    assert ["n3"] == cluster.start()
    cluster.joining.clear()
    monkeypatch.setattr(local_cluster, "probe", lambda _url: (False, json.dumps({"reasons": reasons})))
    cluster.wait_ready(["n3"], timeout_s=60.0)
    assert {"n3"} == cluster.leaving
    reasons.pop()
    with pytest.raises(NotReady, match="no role yet"):
        cluster.wait_ready(["n3"], timeout_s=0.2)


def test_what_keeps_a_restarted_node_is_shown_first(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost log keeps all members, and the one that was asked for may be the one that others wait for."""
    monkeypatch.setattr(local_cluster, "probe", lambda _url: (False, "its log is lost"))
    cluster.ended("n2")
    monkeypatch.setattr(LocalCluster.wait_ready, "__defaults__", (None, 0.2, lambda _line: None))
    with pytest.raises(NotReady, match="node n2 is not ready"):
        cluster.start(restarted=["n2"])


@pytest.mark.parametrize(
    ("lines", "removed"),
    [
        (["node n3 was removed from cluster c and ends", "2026 [info] group closed"], True),
        (["node n3 was removed from cluster c and ends", "node n3 starts"], False),
        (["node n3 was removed from cluster c and ends", "node n3 serves on http://x"], False),
        (["node n3 starts", "node n3 serves on http://x", "node n3 was removed from cluster c and ends"], True),
        (["node n33 was removed from cluster c and ends"], False),
        ([], False),
    ],
)
def test_the_newest_process_of_a_node_decides(tmp_path: Path, lines: Sequence[str], removed: bool) -> None:
    """What an earlier one reported is of a directory that may be gone."""
    assert not reports_removal(tmp_path, "n3")
    (tmp_path / "n3.log").write_text("".join(f"{line}\n" for line in lines))
    assert removed is reports_removal(tmp_path, "n3")
