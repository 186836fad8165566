"""A real cluster of five nodes with three replicas gets a sixth node and loses another, under writes and queries."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.client import connect
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from tests.e2e.actions import running_cluster, status, verify_by_command
from tests.e2e.change_load import ChangeLoad, running
from tests.forked import run_forked
from tests.waiting import eventually

CHANGE_TIMEOUT_S = 120


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


def shown(cluster: LocalCluster) -> dict[str, Any]:
    """What `headrace cluster show` has."""
    done = run_forked("cluster", "show", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(cluster: LocalCluster, name: str) -> set[str]:
    """The groups of which a node has segments."""
    return {each.name for each in (cluster.data_directory(name) / "segments").iterdir()}


def is_missing(cluster: LocalCluster, topic: str) -> bool:
    """Whether a topic does not exist."""
    log = KafkaLog(cluster.bootstrap)
    try:
        log.describe(topic)
    except TopicMissing:
        return True
    finally:
        log.close()
    return False


@pytest.mark.slow(120)
def test_a_node_joins_and_another_leaves_under_writes_and_queries(broker: BrokerInfo, tmp_path: Path) -> None:
    """Each answer of each node has every acknowledged row once; the members are those of the source's example.

    The removed process exits with 0, its topic is gone, and nobody keeps segments of slots that it does not hold.
    """
    with (
        running_cluster(tmp_path, broker.bootstrap, "grow", 5, replication=3, store_seal_age_ms="2000") as cluster,
        connect(bootstrap=cluster.bootstrap, cluster=cluster.cluster) as client,
    ):
        load = ChangeLoad(client, lambda: {node.name: node.http for node in cluster.file.nodes if node.running})
        with running(load):
            eventually(lambda: load.rows_written >= 400, "rows before the change")
            cluster.file.nodes.append(NodeProcess("n6", ""))
            cluster.start_node("n6")
            eventually(lambda: status(cluster, "n6")["ready"] is False, "n6 waits to join")
            added = change(cluster, "add", "n6")
            assert "done" == added["phase"] and added["version"] == 2 and added["slots_moved"] == 10_000 // 6
            cluster.wait_ready()
            load.ask("n6")
            between = load.rows_written
            eventually(lambda: load.rows_written >= between + 200, "rows between the changes")
            load.ask_no_more("n3")
            removed = change(cluster, "remove", "n3")
            assert "done" == removed["phase"] and removed["version"] == 3
            ended = time.monotonic()
            eventually(lambda: not cluster.node("n3").running, "the removed node ends", 60)
            eventually(lambda: is_missing(cluster, Topics(cluster.cluster).forward("n3")), "its topic is deleted", 60)
            after = load.rows_written
            eventually(lambda: load.rows_written >= after + 200, "rows after the changes")
        assert [] == load.faults
        for node in cluster.file.nodes:
            if node.name != "n3":
                assert load.answers[node.name] >= 3, load.errors[-5:]
                assert load.check(node.name, cluster.url(node.name)), load.errors[-5:]
        assert [] == load.faults
        assert time.monotonic() - ended < 600
        table = shown(cluster)
        assert table["change"] is None and [] == [node for node in table["nodes"] if not node["online"]]
        for node in table["nodes"]:
            mine = {group["group"] for group in table["groups"] if node["id"] in group["members"]}
            eventually(lambda: {each.split("@")[0] for each in held(cluster, node["id"])} <= mine, "nothing is left")
        assert 5 == len(verify_by_command(cluster))
