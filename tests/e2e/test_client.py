"""The Python client against running nodes: read your own writes, deletes, and quorums."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import headrace
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from tests.e2e.actions import running_cluster

pytestmark = pytest.mark.broker
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three running nodes."""
    with running_cluster(tmp_path_factory.mktemp("nodes"), broker.bootstrap, cluster_name) as running:
        yield running


def test_a_client_reads_its_own_writes_and_knows_when_copies_are_missing(cluster: LocalCluster) -> None:
    """Writes and deletes are visible at once; quorum 2 is still acknowledged without a dead node, quorum 3
    never.
    """
    workload = iot(10, duration_s=600)
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        for name, rows in workload.batches():
            with client.writer("fleet", name, tags=workload.tags, quorum=3, quorum_timeout_ms=20_000) as writer:
                writer.write(rows)
        for name, expected in workload_checksums(workload).items():
            found = client.query(f"SELECT * FROM fleet.{name}").to_arrow()
            assert [] == compare(expected, checksums(found, workload.tags))

        with client.writer("db", "t", ["host"], quorum=2, quorum_timeout_ms=20_000) as two_members:
            two_members.write([{"time": T0, "host": f"h{number}", "v": number} for number in range(24)])
            client.delete("db", "t", {"host": "h5"}, start=T0)
            numbers = sorted(row["v"] for row in client.query("SELECT * FROM db.t").to_dicts())
            assert [number for number in range(24) if number != 5] == numbers
            with pytest.raises(headrace.QueryError, match="nothing"):
                client.query("SELECT * FROM db.nothing")

            cluster.kill("n3")
            two_members.write([{"time": T0, "host": "h3", "v": 300}])
            with (
                client.writer("db", "t", quorum=3, quorum_timeout_ms=500) as all_members,
                pytest.raises(headrace.QuorumTimeout) as raised,
            ):
                all_members.write([{"time": T0, "host": "h4", "v": 400}])
        (members,) = raised.value.lagging.values()
        assert ["n3"] == [node for node, state in members.items() if state != "holds it"]
        answer = client.query("SELECT host, v FROM db.t WHERE v >= 100 ORDER BY v").to_dicts()
    assert [("h3", 300), ("h4", 400)] == [(row["host"], row["v"]) for row in answer]
