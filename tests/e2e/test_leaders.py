"""Leaders and followers that die, stop and return: another leads, no unsynced node serves, and all end
equal.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as product
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.port import read_to_end
from headrace.local_cluster import LocalCluster
from headrace.producers.cluster import Cluster
from headrace.workload.workload import iot
from tests.e2e.actions import (
    assert_follows_first,
    assert_holds,
    connected,
    eventually_unready,
    group_status,
    log_text,
    readiness,
    running_cluster,
    seal,
    verify,
    write_workload,
)
from tests.waiting import WAIT_S, eventually

pytestmark = pytest.mark.slow
WORKLOAD = iot(200, duration_s=600)
FENCE_S = 3.0


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that seal every few thousand rows."""
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="4000") as running:
        yield running


@pytest.fixture
def real_cluster(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> Iterator[LocalCluster]:
    """The same, each node of which has begun as a Python of its own."""
    with running_cluster(
        tmp_path, broker.bootstrap, cluster_name, kind=LocalCluster, store_seal_rows="4000"
    ) as running:
        yield running


def leads(cluster: LocalCluster, name: str, group: str, leader: str) -> bool:
    """Whether a node is ready and knows this leader of a group."""
    return leader == group_status(cluster, name, group)["leader"] and readiness(cluster, name)[0]


@pytest.mark.slow(18)
def test_the_header_dies_and_another_node_leads_until_its_return(cluster: LocalCluster) -> None:
    """After the death of a leader another one leads and seals; the returning header has everything and
    follows.
    """
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 5_000)
        cluster.kill("n1")
        write_workload(shared, WORKLOAD, 5_000)
        write_workload(shared, WORKLOAD, 5_000)
    eventually(lambda: group_status(cluster, "n2", "n1")["leader"] in ("n2", "n3"), "another leader of group n1")
    eventually(lambda: readiness(cluster, "n2")[0] and readiness(cluster, "n3")[0], "two nodes that serve")
    assert {"n2", "n3"} == set(next(each for each in seal(cluster) if each["group"] == "n1")["members"])
    log_before = log_text(cluster, "n1")
    cluster.start_node("n1")
    cluster.wait_ready()
    assert_follows_first(cluster, "n1", "n1", log_before)
    assert_holds(cluster, WORKLOAD)
    seal(cluster)
    verify(cluster)


@pytest.mark.slow(25)
def test_one_of_three_serves_nothing_but_still_accepts_records(cluster: LocalCluster) -> None:
    """Without a majority the last node reports it and confirms no quorum of two.

    It accepts and seals records, and serves when the others are back.
    """
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 5_000)
        cluster.kill("n2")
        cluster.kill("n3")
        assert "not a majority" in eventually_unready(cluster, "n1", "of 3 members are online")
        before = {group: group_status(cluster, "n1", group) for group in ("n1", "n2", "n3")}
        write_workload(shared, WORKLOAD, 2_000)
        write_workload(shared, WORKLOAD, 2_000)
    for group, earlier in before.items():
        eventually(
            lambda group=group, earlier=earlier: group_status(cluster, "n1", group)["frontier"] > earlier["frontier"],
            f"a seal of group {group} without its leader",
        )
    with product.connect(cluster.bootstrap, cluster.cluster) as client:
        row = [{"time": 0, "pump": "p1", "flow": 1.0}]
        with client.writer("fleet", "pumps", ["pump"], quorum=2) as two_members, pytest.raises(product.QuorumTimeout):
            two_members.write(row)
    cluster.start_node("n2")
    cluster.start_node("n3")
    cluster.wait_ready()
    assert_holds(cluster, WORKLOAD)
    seal(cluster)
    verify(cluster)


def first_answer(connection: socket.socket) -> bytes:
    """The status line of the answer to a request that was sent while the node was stopped."""
    return connection.recv(4_096).split(b"\r\n")[0]


def request_while_stopped(cluster: LocalCluster, name: str, path: str) -> socket.socket:
    """Send a request that waits in the socket of a stopped node."""
    host, port = cluster.node(name).http.split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return connection


def newest_status(shared: Cluster, name: str) -> int:
    """The offset of the newest status of a node."""
    records = read_to_end(shared.log, shared.topics.status, timeout_s=WAIT_S)
    keys = [(group.encode(), name.encode()) for group in shared.slot_table.headers]
    # The key of a status is group and node; without a group it is that of another kind of record.
    return max(record.offset for record in records if (record.key or b"").partition(b"/")[::2] in keys)


@pytest.mark.slow(18)
@pytest.mark.parametrize("name", ["n2", pytest.param("n3", marks=pytest.mark.soak)])
def test_a_stopped_node_that_continues_serves_nothing_until_its_heartbeat_is_read_back(
    real_cluster: LocalCluster, name: str
) -> None:
    """Nothing is served after SIGCONT before the node has sent a status; another node leads its group, and it
    becomes a complete follower.
    """
    # Not of forks: how a process continues after SIGSTOP is what this test is about.
    cluster = real_cluster
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 5_000)
        cluster.kill(name, signal.SIGSTOP)
        other = next(each.name for each in cluster.file.nodes if each.name != name)
        eventually(lambda: leads(cluster, other, name, other) or not_led_by(cluster, other, name), "another leader")
        write_workload(shared, WORKLOAD, 3_000)
        threading.Event().wait(FENCE_S)
        paths = ["/health/ready", "/api/v1/query?q=SELECT%20count(*)%20FROM%20fleet.readings", "/health/ready"]
        connections = [request_while_stopped(cluster, name, path) for path in paths]
        log_before = log_text(cluster, name)
        sent_before = newest_status(shared, name)
        cluster.kill(name, signal.SIGCONT)
        for connection in connections:
            with connection:
                # The node may be quick to send its status, read it back, and only then look at its sockets.
                refused = b"503" in first_answer(connection)
                assert refused or newest_status(shared, name) > sent_before
    cluster.wait_ready()
    assert_follows_first(cluster, name, name, log_before)
    assert_holds(cluster, WORKLOAD)
    seal(cluster)
    verify(cluster)


def not_led_by(cluster: LocalCluster, observer: str, group: str) -> bool:
    """Whether a node knows a leader of a group other than its header."""
    return group_status(cluster, observer, group)["leader"] not in ("", group)
