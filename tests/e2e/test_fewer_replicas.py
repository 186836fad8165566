"""Five real nodes of which three hold each row: every node answers from all rows, through every failure."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from headrace.producers.cluster import Cluster
from headrace.producers.deletes import delete_rows
from headrace.producers.writer import WriterSettings
from tests.e2e.actions import (
    connected,
    eventually_unready,
    query,
    running_cluster,
    seal,
    status,
    verify,
    write,
)

NODES = ("n1", "n2", "n3", "n4", "n5")
HOUR_NS = 3_600_000_000_000
PUMPS = 40
HOURS = 24 * 5
SUMS = "SELECT count(*) AS c, sum(flow) AS f, sum(level) AS l, count(DISTINCT pump) AS p, max(time) AS t FROM {table}"
BY_PUMP = (
    "SELECT pump, count(*) AS c, sum(level) AS l FROM {table} WHERE time < '1970-01-04' GROUP BY pump ORDER BY pump"
)


class Scene:
    """A cluster, and one DuckDB that holds what it must hold."""

    def __init__(self, cluster: LocalCluster, shared: Cluster) -> None:
        self.cluster = cluster
        self._shared = shared
        # A quorum of two of three leaves a member behind for a moment, and it may answer.
        self._after: dict[str, int] = {}
        self._expected = duckdb.connect()
        self._expected.execute(
            "CREATE TABLE pumps (pump VARCHAR, time TIMESTAMP_NS, flow DOUBLE, level BIGINT, PRIMARY KEY (pump, time))"
        )

    def write(self, first_hour: int, hours: int, level: int) -> None:
        """Write rows of every pump with a quorum of two; hours that were written before are replaced."""
        numbers = range(PUMPS * hours)
        rows = pa.table(
            {
                "pump": [f"p{number % PUMPS}" for number in numbers],
                "time": pa.array([(first_hour + number // PUMPS) * HOUR_NS for number in numbers], pa.timestamp("ns")),
                "flow": [number / 8 for number in numbers],
                "level": pa.array([level * 10**6 + number for number in numbers], pa.int64()),
            }
        )
        self._after |= write(self._shared, "pumps", rows, ["pump"], quorum=2)
        self._expected.register("rows", rows)
        self._expected.execute("INSERT OR REPLACE INTO pumps SELECT * FROM rows")

    def delete(self, pump: str, start_hour: int, end_hour: int) -> None:
        """Delete rows of one pump with a quorum of two."""
        start_ns, end_ns = start_hour * HOUR_NS, end_hour * HOUR_NS
        settings = WriterSettings(quorum=2)
        self._after |= delete_rows(self._shared, "fleet", "pumps", {"pump": pump}, start_ns, end_ns, settings)
        within = f"time >= make_timestamp_ns({start_ns}) AND time < make_timestamp_ns({end_ns})"
        self._expected.execute(f"DELETE FROM pumps WHERE pump = '{pump}' AND {within}")

    def assert_answers(self, *names: str) -> None:
        """Each node gives exactly the sums of all rows that were written before."""
        for sql in (SUMS, BY_PUMP):
            wanted = self._expected.sql(sql.format(table="pumps")).to_arrow_table().to_pylist()
            for name in names:
                found = query(self.cluster.url(name), sql.format(table="fleet.pumps"), self._after).to_pylist()
                assert wanted == found, f"at node {name}"


@pytest.mark.slow(40)
def test_five_nodes_with_three_replicas_answer_through_failures(broker: BrokerInfo, tmp_path: Path) -> None:
    """Writes with a quorum of two, upserts and deletes: the sums at every node are those of one DuckDB over all rows.

    Also with a node killed, after its restart, and after another one lost its directory. A sixth node joins nothing.
    """
    with (
        running_cluster(tmp_path, broker.bootstrap, "five", 5, replication=3) as cluster,
        connected(cluster) as shared,
    ):
        scene = Scene(cluster, shared)
        scene.write(0, HOURS, 1)
        scene.delete("p7", 0, 48)
        seal(cluster)
        scene.write(24, 48, 2)
        scene.delete("p8", 60, 80)
        scene.assert_answers(*NODES)
        assert [3] * 5 == [len(status(cluster, name)["groups"]) for name in NODES]

        cluster.kill("n1")
        scene.assert_answers(*NODES[1:])
        scene.write(HOURS, 6, 3)
        scene.assert_answers(*NODES[1:])
        cluster.start_node("n1")
        cluster.kill("n2")
        cluster.wipe("n2")
        cluster.start_node("n2")
        cluster.wait_ready()
        scene.assert_answers(*NODES)
        assert 5 == len(verify(cluster))

        # It is started with six names: those of a later start are ignored.
        cluster.file.nodes.append(NodeProcess("n6", ""))
        cluster.start_node("n6")
        assert "n6 is not among the nodes" in eventually_unready(cluster, "n6", "joining")
        assert [] == status(cluster, "n6")["groups"]
        scene.assert_answers("n1")
