"""After a seal and a stop the data directory is plain Parquet: DuckDB reads the same rows without
Headrace.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.workload import iot
from tests.e2e.actions import connected, running_cluster, seal, write, write_workload
from tests.present import present

WORKLOAD = iot(100, duration_s=1_200)


def segment_pattern(cluster: LocalCluster, name: str, table: str) -> str:
    """The glob pattern of a table's segments at a node, of all groups."""
    return str(cluster.data_directory(name) / "segments" / "*" / "fleet" / table / "*" / "*.parquet")


def newest_rows(cluster: LocalCluster, name: str, table: str, tags: str) -> pa.Table:
    """The rows of a table with upserts, read as documented: of equal series and times the row of the latest
    file name.
    """
    found = duckdb.sql(
        f"""SELECT * EXCLUDE filename FROM read_parquet('{segment_pattern(cluster, name, table)}', filename = true, union_by_name = true)
        QUALIFY row_number() OVER (PARTITION BY {tags}, time ORDER BY filename DESC) = 1"""
    )
    return present(found).to_arrow_table()


@pytest.mark.slow(25)
def test_duckdb_reads_the_segments_of_a_stopped_node(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> None:
    """A table without upserts directly, one with upserts and late columns by its file names; equal at every
    node.
    """
    pumps = pa.table({"pump": ["a", "b", None], "time": pa.array([1_000, 2_000, 3_000]), "flow": [1.0, 2.0, 3.0]})
    upserts = pa.table(
        {"pump": ["b", "c"], "time": pa.array([2_000, 2_000]), "flow": [20.0, None], "state": ["on", "off"]}
    )
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="9000") as cluster:
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 4_000)
            write(shared, "pumps", pumps, ["pump"])
            seal(cluster)
            write(shared, "pumps", upserts, ["pump"])
            seal(cluster)
        cluster.stop()
        expected = workload_checksums(WORKLOAD)
        for node in cluster.file.nodes:
            for table in WORKLOAD.tables:
                stored = duckdb.sql(f"SELECT * FROM read_parquet('{segment_pattern(cluster, node.name, table)}')")
                rows = present(stored).to_arrow_table()
                assert [] == compare(expected[table], checksums(rows, WORKLOAD.tags))
            found = newest_rows(cluster, node.name, "pumps", "pump").to_pylist()
            at = {(row["pump"] or "", row["time"].microsecond): (row["flow"], row["state"]) for row in found}
            assert {("a", 1): (1.0, None), ("b", 2): (20.0, "on"), ("c", 2): (None, "off"), ("", 3): (3.0, None)} == at
            assert [] == list(cluster.data_directory(node.name).rglob("*.partial"))
