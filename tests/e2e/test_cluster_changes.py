"""A real cluster of five nodes with three replicas gets a sixth node and loses another, under writes and queries."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.client import connect
from headrace.cluster_change import ClusterChanges
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from tests.e2e.actions import running_cluster, verify_by_command
from tests.e2e.change_faults import foreign_segments
from tests.e2e.change_load import ChangeLoad, Pace, running
from tests.forked import run_forked
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.broker]
CHANGE_TIMEOUT_S = 120
ENDED_S = 120.0
"""Within this time after a change the removed process, its topic, and segments of slots that moved are gone."""


def change(cluster: LocalCluster, *words: str) -> dict[str, Any]:
    """Run `headrace cluster …` to the end of the change; its JSON."""
    done = run_forked(
        *("cluster", *words, "--timeout", str(CHANGE_TIMEOUT_S)),
        *("--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json"),
        timeout_s=CHANGE_TIMEOUT_S + 60,
    )
    assert 0 == done.returncode, f"{words}: {done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def members(cluster: LocalCluster) -> dict[str, list[str]]:
    """The members of each group in `headrace cluster show`, when no change runs and all nodes are online."""
    done = run_forked("cluster", "show", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json")
    found = json.loads(done.stdout)
    assert found["change"] is None
    assert [] == [node["id"] for node in found["nodes"] if not node["online"]]
    return {group["group"]: group["members"] for group in found["groups"]}


def foreign(cluster: LocalCluster, log: KafkaLog) -> list[str]:
    """Segments at nodes that do not hold their slots."""
    table = read_slot_table(log, Topics(cluster.cluster))
    return [
        path
        for node in table.nodes
        for path in foreign_segments(table, node, cluster.data_directory(node) / "segments")
    ]


def is_missing(log: KafkaLog, topic: str) -> bool:
    """Whether a topic does not exist."""
    try:
        log.describe(topic)
    except TopicMissing:
        return True
    return False


def in_ring(found: dict[str, list[str]], nodes: list[str], replicas: int) -> bool:
    """Whether the members of each group are its header and the nodes behind it on a ring."""
    places = {node: place for place, node in enumerate(nodes)}
    return all(
        found[header] == [nodes[(places[header] + step) % len(nodes)] for step in range(replicas)] for header in nodes
    )


@pytest.mark.slow(80)
@pytest.mark.timeout(400)
def test_a_node_joins_and_another_leaves_under_writes_and_queries(
    broker: BrokerInfo, tmp_path: Path, cluster_name: str
) -> None:
    """Each answer of each node has every acknowledged row once, and each group has the next nodes of the ring.

    The removed process exits with 0, its topic is gone, and nobody keeps segments of slots that it does not hold.
    """
    with (
        running_cluster(
            tmp_path, broker.bootstrap, cluster_name, 5, replication=3, store_seal_age_ms="4000"
        ) as cluster,
        connect(bootstrap=cluster.bootstrap, cluster=cluster.cluster) as client,
        closing(KafkaLog(cluster.bootstrap)) as log,
        closing(ClusterChanges(log, Topics(cluster.cluster))) as changes,
    ):
        cluster.file.nodes.append(NodeProcess("n6", ""))
        cluster.start_node("n6")
        # Days are written again in between, so that queries do not read more files all the time. Faster writes and
        # queries found nothing more, and took a core from all other tests; the runs of faults in soak have them.
        pace = Pace(days_max=16, write_pause_s=0.3, query_pause_s=6.0)
        load = ChangeLoad(client, lambda: {node.name: cluster.url(node.name) for node in cluster.file.nodes}, pace=pace)
        with running(load):
            load.ask_no_more("n6")
            eventually(lambda: load.rows_written >= 400, "rows before the change")
            eventually(lambda: changes.waits_to_join("n6"), "n6 waits to join")
            added = change(cluster, "add", "n6")
            assert ("done", 2, 10_000 // 6) == (added["phase"], added["version"], added["slots_moved"])
            assert in_ring(members(cluster), list(read_slot_table(log, Topics(cluster.cluster)).nodes), 3)
            load.ask("n6")
            before = load.rows_written
            eventually(lambda: load.rows_written >= before + 100, "rows between the changes")
            load.ask_no_more("n3")
            removed = change(cluster, "remove", "n3")
            assert ("done", 3) == (removed["phase"], removed["version"])
            eventually(lambda: not cluster.node("n3").running, "the removed node ends", ENDED_S)
            # It raises NodeDied unless the exit code is 0 and the node has reported its removal.
            cluster.wait_ready()
            assert cluster.node("n3").removed
            eventually(lambda: is_missing(log, Topics(cluster.cluster).forward("n3")), "its topic is deleted", ENDED_S)
            before = load.rows_written
            eventually(lambda: load.rows_written >= before + 100, "rows after the changes")
        table = read_slot_table(log, Topics(cluster.cluster))
        assert "n3" not in table.nodes
        assert in_ring(members(cluster), list(table.nodes), 3)
        for node in table.nodes:
            assert load.answers[node] >= 3, load.errors[-5:]
            assert load.check(node, cluster.url(node)), load.errors[-5:]
        assert [] == load.faults
        eventually(lambda: not foreign(cluster, log), "no segments of slots that a node does not hold", ENDED_S)
        verify_by_command(cluster)
