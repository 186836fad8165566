"""What operators meet when they change members: dead nodes, the only copy of rows, and a full disk at the receiver."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, connect
from headrace.cluster_change import ClusterChanges
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.node_process import NodeProcess
from tests.e2e.actions import fill, query, running_cluster, verify
from tests.e2e.change_load import rows_of
from tests.e2e.conftest import MakeDisk
from tests.e2e.test_cluster_changes import change
from tests.forked import run_forked
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.broker]
DAYS = 30
DISK_MB = 32
ENDED_S = 120.0
COUNT = "SELECT count(*) AS rows, sum(flow)::BIGINT AS flow FROM fleet.pumps"


def cluster_command(cluster: LocalCluster, *words: str) -> Any:
    """Run `headrace cluster …`; its JSON, of standard error if it fails."""
    done = run_forked(
        "cluster", *words, "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json", timeout_s=180
    )
    return json.loads(done.stderr.splitlines()[-1] if done.returncode else done.stdout)


def write_days(client: Client) -> tuple[int, int]:
    """Write some days of readings; what COUNT must find."""
    rows = [rows_of(day, 1) for day in range(DAYS)]
    with client.writer("fleet", "pumps", ["pump"]) as writer:
        for each in rows:
            writer.write(each)
    return sum(map(len, rows)), int(sum(sum(each["flow"].to_pylist()) for each in rows))


def answers(cluster: LocalCluster, client: Client, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """What COUNT finds at each node."""
    found = (query(cluster.url(name), COUNT, client.flush()).to_pylist()[0] for name in names)
    return [(each["rows"], each["flow"]) for each in found]


def eventually_offline(cluster: LocalCluster, name: str) -> None:
    """Wait until the cluster counts a node as offline."""

    def is_offline() -> bool:
        return [name] == [each["id"] for each in report(cluster)["nodes"] if not each["online"]]

    eventually(is_offline, f"{name} offline")


@pytest.mark.slow(15)
def test_a_dead_node_with_the_only_copy_stays(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """It is not removed (`OnlyCopy`), and nothing else changes while its group has no majority (`NoMajority`)."""
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, 3, replication=1) as cluster:
        cluster.kill("n3")
        eventually_offline(cluster, "n3")
        refused = cluster_command(cluster, "remove", "n3")["error"]
        assert "OnlyCopy" == refused["type"], refused
        refused = cluster_command(cluster, "remove", "n2")["error"]
        assert ("NoMajority", True) == (refused["type"], "group n3" in refused["message"]), refused
        shown = cluster_command(cluster, "show")
        assert (1, None) == (shown["version"], shown["change"])


@pytest.mark.slow(80)
def test_a_dead_node_is_replaced_by_one_whose_disk_is_full(
    broker: BrokerInfo, tmp_path: Path, cluster_name: str, small_disk: MakeDisk
) -> None:
    """The dead one learns of its removal when it starts again, and ends. The change that adds the other one waits for
    space, names the disk, and ends by itself; meanwhile the former holders answer.
    """
    # No row is sealed before the cut, so that files are copied behind it, where the test waits for them.
    slow: dict[str, Any] = {"store_seal_age_ms": "3600000", "store_migration_bytes_per_second": "10000"}
    with (
        running_cluster(tmp_path, broker.bootstrap, cluster_name, 3, replication=2, **slow) as cluster,
        connect(bootstrap=cluster.bootstrap, cluster=cluster.cluster) as client,
        closing(KafkaLog(cluster.bootstrap)) as log,
        closing(ClusterChanges(log, Topics(cluster.cluster))) as changes,
    ):
        expected = write_days(client)
        assert [expected] == answers(cluster, client, ("n1",))
        cluster.kill("n3")
        eventually_offline(cluster, "n3")
        assert "done" == change(cluster, "remove", "n3")["phase"]
        assert [expected] * 2 == answers(cluster, client, ("n1", "n2"))
        cluster.start_node("n3")

        def has_ended() -> bool:
            # It raises NodeDied unless the exit code is 0 and the node has reported its removal.
            cluster.wait_ready(["n3"])
            return cluster.node("n3").removed

        eventually(has_ended, "the removed node ends", ENDED_S)

        # The cut of the removal has sealed the first ones.
        assert expected == write_days(client)
        small_disk(cluster.data_directory("n4"), DISK_MB)
        cluster.file.nodes.append(NodeProcess("n4", ""))
        cluster.start_node("n4")
        eventually(lambda: changes.waits_to_join("n4"), "n4 waits to join")
        cluster_command(cluster, "add", "n4", "--no-wait")
        eventually(lambda: "migrating" == running_change(cluster).get("phase"), "files are on their way")
        ballast = fill(cluster.data_directory("n4"))

        def names_the_disk() -> bool:
            waiting_for = running_change(cluster).get("waiting_for", ())
            waits = [each for each in waiting_for if each.startswith("node n4")]
            return any("No space left" in each or "the disk is full" in each for each in waits)

        eventually(names_the_disk, f"the change names the disk: {running_change(cluster)}")
        assert [expected] * 2 == answers(cluster, client, ("n1", "n2"))
        assert "migrating" == running_change(cluster)["phase"]
        ballast.unlink()
        eventually(lambda: not running_change(cluster), "the change ends", ENDED_S)
        cluster.wait_ready()
        assert [expected] * 3 == answers(cluster, client, ("n1", "n2", "n4"))


@pytest.mark.slow(30)
def test_a_node_that_joined_is_rebuilt_from_the_logs(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """`headrace replay`: its logs have loads, whose files come from the other members; rows and files are the same."""
    with (
        running_cluster(
            tmp_path, broker.bootstrap, cluster_name, 3, replication=2, store_seal_age_ms="2000"
        ) as cluster,
        connect(bootstrap=cluster.bootstrap, cluster=cluster.cluster) as client,
    ):
        expected = write_days(client)
        cluster.file.nodes.append(NodeProcess("n4", ""))
        cluster.start_node("n4")
        assert "done" == change(cluster, "add", "n4")["phase"]
        assert [expected] == answers(cluster, client, ("n4",))
        cluster.stop_node("n4")
        directory = cluster.data_directory("n4")
        done = run_forked(
            *("replay", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--id", "n4", "--json"),
            *("--replace", "--data-dir", str(directory)),
            environment=cluster.environment,
            timeout_s=180,
        )
        assert 0 == done.returncode, done.stderr
        assert 0 < json.loads(done.stdout)["loaded_files"]
        cluster.start_node("n4")
        cluster.wait_ready()
        assert [expected] == answers(cluster, client, ("n4",))
        assert sum(group["segments"] for group in verify(cluster)) > 0


def report(cluster: LocalCluster) -> dict[str, Any]:
    """What a node shows as the command does: a test that waits asks often, and a command costs half a second of CPU."""
    return NodeClient(cluster.url("n1")).cluster()


def running_change(cluster: LocalCluster) -> dict[str, Any]:
    """The change that runs, empty when none does."""
    found: dict[str, Any] | None = report(cluster)["change"]
    return found or {}
