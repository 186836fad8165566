"""Tables and answers of thousands of columns: the same answer at every node, with as much memory as it takes."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from headrace.consumers.query.answer_width import columns_mb
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.query_errors import QueryCancelled, QueryMemory
from headrace.consumers.query.query_timer import Interrupter, QueryTimer
from headrace.consumers.query.scan_memory import FRAGMENT_MB, SCAN_MB, ScanMemory
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import NoWaits
from headrace.consumers.query.whole_sorts import sorted_whole
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.query.cluster_of_stores import cluster_of_stores
from tests.unit.query.memory_source import MemorySource, readings

COLUMNS = 1_500
NAMES = tuple(f"f{number}" for number in range(COLUMNS))
WIDE = TableSchema("wide", "t", 1, ("host",), tuple((name, FieldType.FLOAT64) for name in NAMES))
SMALL = pa.schema([("a", pa.int64())])


def test_every_node_gives_the_same_answer(tmp_path: Path) -> None:
    """A scan for another node that outgrows its memory begins again with more, as the query of a node does."""
    with cluster_of_stores(tmp_path, WIDE, nodes=4) as cluster:
        tags, fields = {"host": "h"}, {name: float(number) for number, name in enumerate(NAMES)}
        cluster.write([(tags, 0, fields)])
        cluster.seal()
        holders = cluster.ring.group(cluster.group_of(tags))
        (other,) = set(cluster.ring.headers) - set(holders)
        assert cluster.ask(holders[0], "SELECT * FROM wide.t") == cluster.ask(other, "SELECT * FROM wide.t")
        assert 1 == cluster.exchanged[-1][1].num_rows


def test_an_answer_of_many_columns_takes_the_next_memory(engine: QueryEngine) -> None:
    """DuckDB meets the limit behind the first rows, when a query cannot begin again. So it begins with more."""
    for value in ("velocity", "max(velocity)"):
        sql = f"SELECT {', '.join(f'{value} AS c{number}' for number in range(2_000))} FROM iot.readings LIMIT 1"
        with engine.query(sql) as result:
            assert (1, 2_000) == result.read_all().shape


@pytest.mark.parametrize("limit", ["LIMIT 1", "limit 2 OFFSET 1;"])
def test_the_newest_rows_of_a_wide_table_are_sorted(source: MemorySource, limit: str) -> None:
    """DuckDB's heap of the first rows needs 340 KB for each column. What meets the limit with that is sorted whole."""
    one = pa.array([1.0] * 3)
    source.add(WIDE, live=[readings(0, 3, names=("h",), **dict.fromkeys(NAMES, one)).rename_columns({"name": "host"})])
    engine = QueryEngine(source, [source.directory], QuerySettings(memory_limit_mb=400))
    times = engine.query(f"SELECT * FROM wide.t ORDER BY time DESC {limit}").read_all()["time"].cast(pa.int64())
    engine.close()
    assert [20_000_000_000, 10_000_000_000, 0][int(limit != "LIMIT 1") :][: len(times)] == times.to_pylist()


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        ("FROM t ORDER BY a LIMIT 5", "FROM t ORDER BY a LIMIT (SELECT 5)"),
        ("FROM t ORDER BY a limit 5 offset 2;\n", "FROM t ORDER BY a LIMIT (SELECT 5) offset 2"),
        ("FROM t WHERE a = 'limit 5'", "FROM t WHERE a = 'limit 5'"),
        ("FROM (FROM t LIMIT 5)", "FROM (FROM t LIMIT 5)"),
        ("FROM t LIMIT 5%", "FROM t LIMIT 5%"),
        *((sql, sql) for sql in ("FROM a UNION ALL FROM b ORDER BY c LIMIT 5", f"FROM t LIMIT {2**63 - 1}")),
        *((sql, sql) for sql in ("FROM t ORDER BY a + -- LIMIT\n3", "FROM t LIMIT 1" + " " * 300_000 + "--")),
    ],
)
def test_only_the_limit_of_the_statement_changes(sql: str, whole: str) -> None:
    """The one at its end: in a text or in brackets there is another end.

    DuckDB takes no such limit of a set operation, and none above 2^62. A megabyte of spaces takes no longer than others.
    """
    assert whole == sorted_whole(sql)
    if "FROM t" not in sql:
        return
    with duckdb.connect() as database:
        database.execute("CREATE TABLE t (a BIGINT)")
        assert database.sql(sql).fetchall() == database.sql(whole).fetchall()


def test_a_query_at_its_limit_names_the_setting_and_the_node(source: MemorySource) -> None:
    """Also of a scan for another node, which is read at that one."""
    error = QueryMemory.above(32, "n2")
    assert "32 MB that it may use at node n2" in error.message
    engine = QueryEngine(source, [source.directory], QuerySettings(memory_limit_mb=32))
    with pytest.raises(QueryMemory, match="at this node") as met:
        engine.query("SELECT list(i) FROM range(10000000) t(i) GROUP BY i // 3").read_all()
    engine.close()
    assert all("query.memory_per_query_mb" in each.action for each in (error, met.value))


def test_a_scan_begins_with_what_its_columns_need() -> None:
    """And never with more than one query may have."""
    memory = ScanMemory("n1", QuerySettings())
    assert (SCAN_MB, FRAGMENT_MB, 750) == memory.sizes_mb(SMALL, computes=False)
    assert (FRAGMENT_MB, 750) == memory.sizes_mb(SMALL, computes=True)
    wide = pa.schema([(name, pa.float64()) for name in NAMES])
    assert SCAN_MB < columns_mb(wide) < FRAGMENT_MB
    assert (FRAGMENT_MB, 750) == memory.sizes_mb(wide, computes=False)
    little = ScanMemory("n1", QuerySettings(memory_limit_mb=32))
    assert (32,) == little.sizes_mb(wide, computes=True) == little.sizes_mb(SMALL, computes=False)


def test_one_scan_at_a_time_has_much_memory() -> None:
    """Another one waits, until it is cancelled, and takes nothing away from those that have little."""
    memory, interrupter = ScanMemory("n1", QuerySettings()), Interrupter()
    timer = QueryTimer(interrupter, 60_000)
    with memory.lent(750, timer, NoWaits()), memory.lent(FRAGMENT_MB, timer, NoWaits()):
        other = QueryTimer(interrupter, 60_000)
        other.cancel()
        with pytest.raises(QueryCancelled), memory.lent(750, other, NoWaits()):
            pass
        other.finish()
    with memory.lent(750, timer, NoWaits()):
        pass
    timer.finish()
    interrupter.close()
