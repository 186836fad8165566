"""Large fragments run as several drivers of one query, and give what one statement gives."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pytest

from headrace.consumers.query import distributed_run, fragment_drivers
from headrace.consumers.query.distribution import distribute
from headrace.consumers.query.fragment_drivers import FragmentDrivers, Work, _PartPauses
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.query_errors import QueryCancelled
from headrace.consumers.scheduling.threaded_driver import Turn
from tests.seeds import seeds
from tests.unit.query.cluster_of_stores import cluster_of_stores
from tests.unit.query.random_statements import SCHEMA, random_query
from tests.unit.query.test_distributed import TABLE, Written, fill


@pytest.fixture(scope="module", params=[1, 5])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Rows with disorder, upserts and deletes, half sealed: at one node, or divided among five."""
    directory = tmp_path_factory.mktemp("cluster")
    with cluster_of_stores(directory, SCHEMA, request.param) as cluster, duckdb.connect() as connection:
        yield fill(cluster, connection)


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of drivers that fragments had, however few rows they read."""
    counts: list[int] = []
    original = FragmentDrivers.batches

    def counted(self: FragmentDrivers, works: list[Work]) -> object:
        counts.append(len(works))
        return original(self, works)

    monkeypatch.setattr(fragment_drivers, "PARALLEL_VALUES_MIN", 1)
    monkeypatch.setattr(FragmentDrivers, "batches", counted)
    return counts


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_parallel_statements_answer_as_one_duckdb(written: Written, drivers: list[int], seed: int) -> None:
    """Random statements, of the allow-list and beyond it: the same rows, int64 to 128 bits, doubles to 1e-9."""
    chance = random.Random(seed)
    for _ in range(8):
        query = random_query(chance)
        node = chance.choice(written.cluster.ring.headers)
        written.check(node, query.sql.replace("{table}", TABLE), query.ordered)
    assert 2 in drivers
    assert 0 == written.cluster.engines[node].scheduler.figures().memory_bytes


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT * FROM {TABLE} WHERE x > 0",
        f"SELECT host, time AS t, n % 7 FROM {TABLE} WHERE x > 0 AND NOT b",
        f"SELECT upper(s), b FROM {TABLE} AS c WHERE c.n IS NOT NULL",
    ],
)
def test_rows_that_a_condition_keeps_come_from_every_driver(written: Written, drivers: list[int], sql: str) -> None:
    """What only filters a table of this node; rows of other nodes come as before."""
    written.check("n0", sql, ordered=False)
    assert ([2] if len(written.cluster.ring.headers) == 1 else []) == drivers


def test_parameters_and_the_moment_are_those_of_the_query(written: Written, drivers: list[int]) -> None:
    """Every driver has the same values, and the columns their names."""
    node, sql = "n0", f"SELECT host, $low FROM {TABLE} WHERE x > $low AND time < now()"
    found = written.cluster.ask(node, sql, parameters={"low": 3.5})
    wanted = written.connection.execute(f"SELECT count(*) FROM {TABLE} WHERE x > 3.5").fetchall()
    assert [(found.num_rows,)] == wanted
    assert ["host", "$low"] == found.column_names


def test_a_tag_of_many_series_leaves_work_for_several_drivers(written: Written, drivers: list[int]) -> None:
    """What a statement reads is counted, and not whether it names a tag."""
    written.check("n0", f"SELECT host, sum(n), max(x) FROM {TABLE} WHERE region <> 'x' GROUP BY host", ordered=False)
    written.check("n0", f"SELECT host, count(*) FROM {TABLE} WHERE region IN ('eu', 'us') GROUP BY host", ordered=False)
    assert {2} == set(drivers)


@pytest.mark.parametrize("order", ["time DESC", "x NULLS LAST, time", "host DESC NULLS FIRST, time"])
def test_first_rows_in_an_order_are_those_of_all_drivers(written: Written, drivers: list[int], order: str) -> None:
    """Each gives its own first rows, and the statement takes the first of these."""
    written.check("n0", f"SELECT * FROM {TABLE} WHERE n IS NOT NULL ORDER BY {order} LIMIT 7 OFFSET 2", ordered=True)
    assert [2] == drivers


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT host, row_number() OVER (PARTITION BY host ORDER BY time) FROM {TABLE} WHERE x > 0",
        f"SELECT a.host, count(*) FROM {TABLE} a JOIN {TABLE} b USING (host, time) GROUP BY a.host",
        f"SELECT time, max(x) FROM {TABLE} GROUP BY time",
        f"SELECT DISTINCT x FROM {TABLE} WHERE n > 0",
        f"SELECT host FROM {TABLE} WHERE x > (SELECT avg(x) FROM {TABLE} WHERE region = 'none')",
    ],
)
def test_what_is_not_understood_gives_the_same_rows(written: Written, drivers: list[int], sql: str) -> None:
    """Windows, joins, keys as fine as rows, and conditions over other rows."""
    written.check("n0", sql, ordered=False)


def test_two_uses_of_a_table_run_in_parallel_each(written: Written, drivers: list[int]) -> None:
    """Both aggregates read what the statement has opened once, each with its own condition."""
    sql = f"""WITH early AS (SELECT host, sum(n) AS s FROM {TABLE} WHERE time < '2026-01-01 01:00:00' GROUP BY host),
        late AS (SELECT host, max(x) AS m FROM {TABLE} WHERE time >= '2026-01-01 02:00:00' GROUP BY host)
        SELECT early.host, s, m FROM early JOIN late USING (host) ORDER BY 1"""
    written.check("n0", sql, ordered=True)
    assert [2, 2] == drivers


def test_a_text_that_comes_again_is_not_divided_again(
    written: Written, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its literals are the same, and so are its tables. Of one with parameters, or `now()`, that is not known."""
    divided: list[str] = []

    def noted(statement: Statement, *given: Any, **named: Any) -> object:
        divided.append(statement.sql)
        return distribute(statement, *given, **named)

    monkeypatch.setattr(distributed_run, "distribute", noted)
    sql = f"SELECT host, count(*) AS again FROM {TABLE} WHERE x > 0.25 GROUP BY host"
    for _ in range(3):
        written.check("n0", sql, ordered=False)
    assert [sql] == divided
    assert [2, 2, 2] == drivers
    divided.clear()
    for low in (0.25, 1.5):
        assert written.cluster.ask("n0", sql.replace("0.25", "$low"), parameters={"low": low}).num_rows
    for _ in range(2):
        assert written.cluster.ask("n0", sql.replace("0.25", "0.25 AND time < now()")).num_rows
    assert 4 == len(divided)


def test_answers_that_are_large_are_left_to_one_driver(
    written: Written, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query begins again with more memory, and has one driver then."""
    monkeypatch.setattr(fragment_drivers, "ANSWER_BYTES_MAX", 0)
    written.check("n0", f"SELECT host, region, count(*) FROM {TABLE} GROUP BY ALL", ordered=False)
    assert [2] == drivers


def test_a_query_has_one_driver_while_others_want_the_workers(
    written: Written, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one of few rows."""
    sql = f"SELECT host, count(*) FROM {TABLE} GROUP BY host"
    monkeypatch.setattr(FragmentDrivers, "free_workers", lambda _: 1)
    written.check("n0", sql, ordered=False)
    monkeypatch.undo()
    written.check("n0", sql, ordered=False)
    assert [] == drivers


def test_a_statement_of_many_sources_is_divided_in_a_turn_of_its_own(
    written: Written, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pause ends that turn before, so all workers but one at most divide such statements."""
    events = list[str]()
    for owner, name in ((Turn, "pause"), (Turn, "set_unbounded_once"), (distributed_run.DistributedRun, "prepared")):
        called = getattr(owner, name)

        def noted(*given: Any, name: str = name, called: Callable[..., Any] = called) -> Any:
            events.append(name)
            return called(*given)

        monkeypatch.setattr(owner, name, noted)
    many = " UNION ALL ".join([f"FROM {TABLE}"] * 17)
    written.check("n0", f"SELECT count(*) FROM ({many})", ordered=False)
    assert "set_unbounded_once" == events[events.index("prepared") - 1]


def test_a_row_limit_ends_all_drivers(written: Written, drivers: list[int]) -> None:
    """Nothing of the query is left behind its last wanted row."""
    found = written.cluster.ask("n0", f"SELECT * FROM {TABLE} WHERE x > 0", row_limit=3)
    assert 3 == found.num_rows
    figures = written.cluster.engines["n0"].scheduler.figures()
    assert (0, 0) == (figures.queries, figures.memory_bytes)


def test_a_kill_ends_the_scans_of_all_drivers(
    written: Written, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the middle of DuckDB's scans, which read files of the coordinator."""
    engine, reached = written.cluster.engines["n0"], threading.Event()

    def endless(self: _PartPauses, row: int) -> None:
        del row
        reached.set()
        while True:
            self._turn.pause()
            time.sleep(0.001)

    monkeypatch.setattr(_PartPauses, "at_row", endless)
    sql = f"SELECT host, count(*) FROM {TABLE} GROUP BY host"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(written.cluster.ask, "n0", sql)
        assert reached.wait(20)
        (report,) = engine.reports()
        engine.kill(report.id)
        with pytest.raises(QueryCancelled):
            asked.result(20)
    figures = engine.scheduler.figures()
    assert (0, 0, 0) == (figures.queries, figures.memory_bytes, figures.reserved)
    assert [2] == drivers
    monkeypatch.undo()
    written.check("n0", sql, ordered=False)
