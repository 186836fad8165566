"""A node that lost its disk recovers beside a trimmed log: from files of another member first, then from the
log.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.workload.workload import iot
from tests.e2e.actions import (
    assert_holds,
    connected,
    eventually_unready,
    group_status,
    log_text,
    running_cluster,
    seal,
    status,
    write_workload,
)
from tests.waiting import eventually

pytestmark = pytest.mark.slow
WORKLOAD = iot(200, duration_s=600)


@pytest.fixture(scope="module")
def cluster(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes whose leaders keep two records of each log, and whose file copies are slow enough to be
    killed.
    """
    settings: dict[str, Any] = {
        "store_seal_rows": "4000",
        "store_log_keep_records": "2",
        "store_recovery_bytes_per_second": "150000",
    }
    directory, name = tmp_path_factory.mktemp("trimmed"), f"t{uuid.uuid4().hex[:12]}"
    with running_cluster(directory, broker.bootstrap, name, **settings) as running:
        yield running


def begins(cluster: LocalCluster) -> dict[str, int]:
    """The first offset of each group's log."""
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    try:
        return {node.name: log.describe(topics.forward(node.name)).begin for node in cluster.file.nodes}
    finally:
        log.close()


def write_and_trim(cluster: LocalCluster) -> None:
    """Write and seal everything, and wait until every log is trimmed."""
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 3_000)
    seal(cluster)
    eventually(lambda: all(begins(cluster).values()), "logs that were trimmed")


def copying(cluster: LocalCluster, name: str) -> bool:
    """Whether a node has copied bytes of another member's files."""
    found = (cluster.data_directory(name) / "recovering").rglob("*")
    return any(path.is_file() and path.stat().st_size for path in found)


@pytest.mark.slow(13)
def test_a_wiped_node_recovers_from_files_although_source_and_receiver_are_killed(cluster: LocalCluster) -> None:
    """A source and the recovering node itself are killed during the copy; in the end all three nodes are
    equal and complete.
    """
    write_and_trim(cluster)
    cluster.kill("n3")
    cluster.wipe("n3")
    log_length = len(log_text(cluster, "n3"))
    cluster.start_node("n3")
    eventually(lambda: copying(cluster, "n3"), "copied files", briefly=True)
    assert "recovering files from" in eventually_unready(cluster, "n3", "files")
    source = "n1" if "source=n1" in log_text(cluster, "n3")[log_length:] else "n2"
    cluster.kill(source)
    cluster.kill("n3")
    cluster.start_node("n3")
    cluster.start_node(source)
    cluster.wait_ready()
    assert "recovered from files" in log_text(cluster, "n3")[log_length:]
    assert_holds(cluster, WORKLOAD)
    for node in cluster.file.nodes:
        for leftover in ("recovering", "recovered", "replaced"):
            assert not list((cluster.data_directory(node.name) / leftover).glob("*")), f"{leftover} at {node.name}"


@pytest.mark.slow(19)
def test_a_node_that_was_stopped_during_a_trim_recovers_in_place(cluster: LocalCluster) -> None:
    """SIGSTOP, the log is trimmed beyond the node's offset, SIGCONT: the node serves nothing until it has
    replaced its files.
    """
    with connected(cluster) as shared:
        write_workload(
            shared,
            WORKLOAD,
            2_000,
            before_batch=lambda number: cluster.kill("n3", signal.SIGSTOP) if number == 3 else None,
        )
    eventually(lambda: group_status(cluster, "n1", "n3")["leader"] in ("n1", "n2"), "another leader of group n3")
    seal(cluster)
    ends = {group["group"]: group["frontier"] for group in status(cluster, "n1")["groups"]}
    eventually(lambda: all(begins(cluster)[name] >= ends[name] - 5 for name in ends), "logs that were trimmed")
    log_length = len(log_text(cluster, "n3"))
    cluster.kill("n3", signal.SIGCONT)
    eventually(lambda: "recovered from files" in log_text(cluster, "n3")[log_length:], "a recovery from files")
    cluster.wait_ready()
    assert_holds(cluster, WORKLOAD)
