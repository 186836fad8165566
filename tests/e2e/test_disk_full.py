"""A node with a full disk stops to acknowledge and reports why; it continues by itself once there is space,
and nothing is missing.

Case 3 of the seven in which TDengine 2's replication fails. There a version is given before the record is
written. A write that fails on a full disk leaves a version that is missing or used twice with different
content. The node then needs a restart. Here the log gives the version, and a node with a full disk merely
lags. `verify` compares versions and content in the end.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.producers.acks import QuorumTimeout
from headrace.workload.workload import iot
from tests.e2e.actions import (
    assert_holds,
    connected,
    eventually_unready,
    fill,
    kill_all,
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
    """Three nodes; the data directory of n2 is on a small disk."""
    created = local_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="20000")
    small_disk(created.data_directory("n2"), DISK_MB)
    created.start()
    return created


@pytest.mark.slow(24)
def test_a_full_disk_stops_a_node_until_there_is_space(cluster: LocalCluster) -> None:
    """First segments, then the journal fill the disk: the node reports why, the others continue, and free
    space is all it needs.
    """
    try:
        ballast = fill(cluster.data_directory("n2"))
        batch = next(iter(WORKLOAD.batches(60_000)))[1]
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 5_000)
            eventually_unready(cluster, "n2", "No space left on device")

            def journal_is_full() -> bool:
                write(shared, "readings", batch, WORKLOAD.tags)
                return "No space left" in status(cluster, "n2")["journal_fault"]

            eventually(journal_is_full, "a journal without space")
            with pytest.raises(QuorumTimeout) as raised:
                write(shared, "readings", batch, WORKLOAD.tags, quorum=3)
            assert "n2" in str(raised.value)
            write(shared, "readings", batch, WORKLOAD.tags, quorum=2)
        assert_holds(cluster, WORKLOAD, ["n1", "n3"])
        ballast.unlink()
        cluster.wait_ready()
        assert_holds(cluster, WORKLOAD)
        seal(cluster)
        verify(cluster)
    finally:
        kill_all(cluster)


@pytest.mark.slow(10)
def test_a_node_killed_on_a_full_disk_recovers_with_space(cluster: LocalCluster) -> None:
    """Restarted while the disk is full, a node reports the cause, stops on SIGTERM, and recovers everything
    once there is space.
    """
    try:
        ballast = fill(cluster.data_directory("n2"))
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 5_000)
        eventually_unready(cluster, "n2", "No space left on device")
        cluster.kill("n2")
        log_length = len(log_text(cluster, "n2"))
        cluster.start_node("n2")
        eventually(lambda: "No space left" in log_text(cluster, "n2")[log_length:], "the reason of the node")
        started = time.monotonic()
        cluster.stop_node("n2")
        assert STOP_S > time.monotonic() - started
        assert "Traceback" not in log_text(cluster, "n2")
        ballast.unlink()
        cluster.start_node("n2")
        cluster.wait_ready()
        assert_holds(cluster, WORKLOAD)
    finally:
        kill_all(cluster)
