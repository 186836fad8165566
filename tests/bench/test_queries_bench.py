"""The queries of TSBS: which there are, and when two answers are the same."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bench import queries
from headrace.bench.chdb_peer import as_clickhouse, chdb_peer
from headrace.bench.content import ContentDiffers
from headrace.bench.tsbs_queries import LAST_ROW_QUERIES, cpu_queries, iot_queries
from headrace.workload import iot
from tests.bench.test_cluster_benches import assert_nothing_left

CPU = """single-groupby-1-1-1 single-groupby-1-1-12 single-groupby-1-8-1 single-groupby-5-1-1 single-groupby-5-1-12
single-groupby-5-8-1 cpu-max-all-1 cpu-max-all-8 double-groupby-1 double-groupby-5 double-groupby-all high-cpu-1
high-cpu-all lastpoint groupby-orderby-limit"""
IOT = """last-loc single-last-loc low-fuel high-load stationary-trucks long-driving-sessions long-daily-sessions
avg-vs-projected-fuel-consumption avg-daily-driving-duration avg-daily-driving-session avg-load daily-activity
breakdown-frequency"""


def test_every_query_of_tsbs_is_asked() -> None:
    """Those of both workloads by their names, also on a day of fewer hours than a query's range."""
    for hours in (1, 24):
        assert CPU.split() == [query.name for query in cpu_queries(100, queries.START_NS, hours, 1)]
        assert IOT.split() == [query.name for query in iot_queries(100, queries.START_NS, hours, 1)]
    assert {*CPU.split(), *IOT.split()} >= LAST_ROW_QUERIES


def test_answers_are_the_same_to_the_last_digits_of_doubles() -> None:
    """The order counts only where the query has one; times may have other precisions; nulls are values."""
    one = pa.table({"host": ["a", "b"], "x": [1.0, None], "t": pa.array([1_000, 2_000], pa.timestamp("ns"))})
    other = pa.table({"host": ["b", "a"], "x": [None, 1.0 + 1e-12], "t": pa.array([2, 1], pa.timestamp("us"))})
    assert queries.same(one, other, ordered=False)
    assert not queries.same(one, other, ordered=True)
    assert not queries.same(one, one.set_column(1, "x", pa.array([1.001, None])), ordered=False)
    assert not queries.same(one, one.slice(1), ordered=False)
    assert not queries.same(one, one.rename_columns(["host", "y", "t"]), ordered=False)


@pytest.mark.soak
@pytest.mark.broker
def test_the_queries_bench_compares_every_answer(tmp_path: Path) -> None:
    """All answers of a small run are those of DuckDB, and nothing is left."""
    sizes = {"hosts": "10", "trucks": "10", "hours": "1", "rounds": "1"}
    result = queries.run({**sizes, "dir": str(tmp_path)})
    assert all(each["equal"] for each in result["queries"])
    assert result["geomean_ratio"] <= result["slowest_ratio"]
    assert_nothing_left(tmp_path)


def test_rows_that_are_missing_have_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of the peers would answer alike, and sooner."""
    load = iot(10, duration_s=100)
    bench = queries.Bench("http://n1", {}, 2, 1, None)
    counts = iter([100, 100, 100, 99])
    monkeypatch.setattr(queries, "_over_http", lambda _url, _sql: pa.table({"rows": [next(counts)]}))
    bench.check_rows([load])
    with pytest.raises(ContentDiffers, match="diagnostics has 99 rows instead of 100"):
        bench.check_rows([load])


class _Chdb:
    """What the bench knows of the package."""

    __version__ = "4.4.0"
    engine_version = "26.9"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False

    def Session(self, directory: str) -> _Chdb:  # noqa: N802
        """See chdb.session."""
        self.asked.append(directory)
        return self

    def query(self, sql: str, kind: str = "") -> pa.Table | None:
        """A DateTime."""
        self.asked.append(sql)
        return pa.table({"t": pa.array([1_767_225_600], pa.uint32())}) if kind == "ArrowTable" else None

    def close(self) -> None:
        """The end."""
        self.closed = True


def test_chdb_is_a_peer_where_it_is_installed(tmp_path: Path) -> None:
    """It has the tables in the order of the segments, and as many threads; without the package there is none."""

    def missing(name: str) -> object:
        raise ImportError(name)

    package = _Chdb()
    assert chdb_peer(tmp_path, 2, missing) is None
    peer = chdb_peer(tmp_path, 2, lambda _: package)
    assert peer is not None
    assert {"chdb": "4.4.0", "clickhouse": "26.9"} == peer.versions
    peer.load("cpu", ["hostname"], ["/a.parquet", "/b.parquet"])
    assert [datetime(2026, 1, 1)] == peer.ask("SELECT time AS t FROM cpu").column("t").to_pylist()
    sql = "SELECT time_bucket(INTERVAL '10 minutes', time) AS ten, epoch(time) FROM cpu"
    assert (
        "SELECT toStartOfInterval(time, INTERVAL 10 minutes) AS ten, toUnixTimestamp(time) FROM cpu"
        == as_clickhouse(sql)
    )
    peer.close()
    assert package.closed
    asked = " ".join(package.asked)
    assert "max_threads = 2" in asked
    assert "ORDER BY (hostname, time)" in asked
    assert "AS SELECT * FROM file('/a.parquet', Parquet)" in asked
    assert "INSERT INTO cpu SELECT * FROM file('/b.parquet', Parquet)" in asked
