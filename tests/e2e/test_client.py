"""The Python client against running nodes: read your own writes, deletes, and what a quorum is worth."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import headrace
from connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from tests.e2e.actions import running_cluster

pytestmark = pytest.mark.broker
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three running nodes."""
    with running_cluster(tmp_path_factory.mktemp("nodes"), broker.bootstrap, cluster_name) as made:
        yield made


def test_a_client_reads_its_own_writes_and_knows_when_copies_are_missing(cluster: LocalCluster) -> None:
    """A fleet comes back whole at once; a delete hides at once; two copies go on without a dead node, three never do."""
    workload = iot(10, duration_s=600)
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        for name, rows in workload.batches():
            with client.writer("fleet", name, tags=workload.tags, quorum=3, quorum_timeout_ms=20_000) as writer:
                writer.write(rows)
        for name, expected in workload_checksums(workload).items():
            found = client.query(f"SELECT * FROM fleet.{name}").to_arrow()
            assert [] == compare(expected, checksums(found, workload.tags))

        with client.writer("db", "t", ["host"], quorum=2, quorum_timeout_ms=20_000) as pair:
            pair.write([{"time": T0, "host": f"h{number}", "v": number} for number in range(24)])
            client.delete("db", "t", {"host": "h5"}, start=T0)
            numbers = sorted(row["v"] for row in client.query("SELECT * FROM db.t").to_dicts())
            assert [number for number in range(24) if number != 5] == numbers
            with pytest.raises(headrace.QueryError, match="nothing"):
                client.query("SELECT * FROM db.nothing")

            cluster.kill("n3")
            pair.write([{"time": T0, "host": "h3", "v": 300}])
            with (
                client.writer("db", "t", quorum=3, quorum_timeout_ms=500) as whole,
                pytest.raises(headrace.QuorumTimeout) as raised,
            ):
                whole.write([{"time": T0, "host": "h4", "v": 400}])
        (members,) = raised.value.lagging.values()
        assert ["n3"] == [node for node, standing in members.items() if standing != "holds it"]
        answer = client.query("SELECT host, v FROM db.t WHERE v >= 100 ORDER BY v").to_dicts()
    assert [("h3", 300), ("h4", 400)] == [(row["host"], row["v"]) for row in answer]
