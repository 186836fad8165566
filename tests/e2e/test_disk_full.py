"""A node whose disk is full stops acknowledging and says so; it goes on by itself once there is space, and nothing is missing.

Case 3 of the seven in which the original, TDengine 2's replication, fails: there a version is given before the record is written, so a write that
fails on a full disk leaves a version that is used twice or missing, here with this content and there with that; and the node needs a restart. Here
the log gives the version, a node with a full disk merely does not get further, and `verify` compares versions and content in the end.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors.kafka.broker import BrokerInfo
from consumers.membership.quorum import QuorumTimeout
from headrace.local_cluster import LocalCluster
from headrace.workload.workload import iot
from tests.e2e.actions import (
    assert_holds,
    connected,
    end,
    eventually_says,
    fill,
    local_cluster,
    log_text,
    seal,
    status,
    verify,
    write,
    write_workload,
)
from tests.e2e.conftest import MakeDisk
from tests.waiting import eventually

DISK_MB = 48
STOP_S = 15.0
WORKLOAD = iot(500, duration_s=1_200)


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path: Path, small_disk: MakeDisk) -> LocalCluster:
    """Three nodes; the data of n2 lies on a small disk."""
    made = local_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="20000")
    small_disk(made.data_directory("n2"), DISK_MB)
    made.start()
    return made


@pytest.mark.slow
def test_a_full_disk_stops_a_node_until_there_is_space(cluster: LocalCluster) -> None:
    """First segments, then the journal hit the end of the disk: the node says why, the others go on, and space is all it needs."""
    try:
        ballast = fill(cluster.data_directory("n2"))
        some = next(iter(WORKLOAD.batches(60_000)))[1]
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 5_000)
            eventually_says(cluster, "n2", "No space left on device")

            def journal_is_full() -> bool:
                write(shared, "readings", some, WORKLOAD.tags)
                return "No space left" in status(cluster, "n2")["journal_fault"]

            eventually(journal_is_full, "a journal that takes nothing more")
            with pytest.raises(QuorumTimeout) as raised:
                write(shared, "readings", some, WORKLOAD.tags, quorum=3)
            assert "n2" in str(raised.value)
            write(shared, "readings", some, WORKLOAD.tags, quorum=2)
        assert_holds(cluster, WORKLOAD, ["n1", "n3"])
        ballast.unlink()
        cluster.wait_ready()
        assert_holds(cluster, WORKLOAD)
        seal(cluster)
        verify(cluster)
    finally:
        end(cluster)


@pytest.mark.slow
def test_a_node_killed_on_a_full_disk_comes_back_with_space(cluster: LocalCluster) -> None:
    """Killed and started again while the disk is full, a node says what it lacks, stops when told, and with space has everything."""
    try:
        ballast = fill(cluster.data_directory("n2"))
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 5_000)
        eventually_says(cluster, "n2", "No space left on device")
        cluster.kill("n2")
        said_before = len(log_text(cluster, "n2"))
        cluster.start_node("n2")
        eventually(lambda: "No space left" in log_text(cluster, "n2")[said_before:], "what the node lacks")
        started = time.monotonic()
        cluster.stop_node("n2")
        assert STOP_S > time.monotonic() - started
        assert "Traceback" not in log_text(cluster, "n2")
        ballast.unlink()
        cluster.start_node("n2")
        cluster.wait_ready()
        assert_holds(cluster, WORKLOAD)
    finally:
        end(cluster)
