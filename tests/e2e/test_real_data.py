"""Real sensor data with gaps and duplicate times is read back as DuckDB reads it from the files: the last of
equal times wins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import query, running_cluster, seal, verify
from tests.forked import run_forked
from tests.present import present

REAL = Path(__file__).parents[3] / "shared" / "data" / "real"
FILES = sorted(REAL.glob("nab_*.csv"))

pytestmark = pytest.mark.skipif(not FILES, reason="the folder with real data is not here")


def expected(file: Path) -> list[tuple[int, float]]:
    """(time in ns, value) of a file in order of time, the last row of each time."""
    found = duckdb.sql(
        f"""SELECT epoch_ns(timestamp), value
        FROM (SELECT *, row_number() OVER () AS number FROM read_csv('{file}', parallel = false))
        QUALIFY row_number() OVER (PARTITION BY timestamp ORDER BY number DESC) = 1 ORDER BY 1"""
    )
    return present(found).fetchall()


def write(cluster: LocalCluster, file: Path) -> dict[str, int]:
    """Write a file as a table of its name, as one series."""
    done = run_forked(
        *("write", str(file), "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--database", "nab"),
        # The files have times twice, of the hour at the end of summer.
        *("--format", "csv", "--table", file.stem, "--tag", "sensor=one", "--time-column", "timestamp"),
        *("--no-tags", "--json"),
    )
    assert 0 == done.returncode, done.stderr
    written: dict[str, int] = json.loads(done.stdout)
    return written


def found(cluster: LocalCluster, name: str, file: Path) -> list[tuple[int, float]]:
    """The same as `expected`, from a node."""
    rows = query(cluster.url(name), f"SELECT epoch_ns(time) AS at, value FROM nab.{file.stem} ORDER BY time")
    return list(zip(rows["at"].to_pylist(), rows["value"].to_pylist(), strict=True))


@pytest.mark.slow(51)
def test_every_file_is_read_back_bit_by_bit_from_every_node(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """Written twice, unsealed and sealed, from memtables and from segments: equal times, and values equal bit
    by bit.
    """
    with running_cluster(tmp_path, broker.bootstrap, cluster_name) as cluster:
        for file in FILES:
            written = write(cluster, file)
            assert written["rows"] == present(duckdb.sql(f"SELECT count(*) FROM '{file}'")).fetchall()[0][0]
            assert 0 == written["rejected"]
        verify(cluster)
        assert_equal(cluster)
        seal(cluster)
        for file in FILES:
            write(cluster, file)
        verify(cluster)
        assert_equal(cluster)
        seal(cluster)
        assert_equal(cluster, ["n2"])


def assert_equal(cluster: LocalCluster, names: Sequence[str] = ("n1", "n2", "n3")) -> None:
    """The nodes hold every file."""
    for file in FILES:
        rows = expected(file)
        for name in names:
            assert rows == found(cluster, name, file), f"{file.name} at {name}"
