"""Statements that want the first rows by time: the same answers as over the whole table, from a part of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query import query_run, top_ranges, top_rows
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.planner import PLANNED_BYTES_MAX, ScanPlan
from headrace.consumers.query.query_errors import QueryInvalid
from headrace.consumers.query.table_source import TableExtent
from headrace.consumers.query.top_ranges import HeldOutput
from headrace.consumers.query.top_rows import TopRows, bounds_ns, may_want_top
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.query.conftest import DAY_NS, START_NS
from tests.unit.query.memory_source import MemorySource, readings

SCHEMA = TableSchema("lab", "runs", 1, ("name",), (("velocity", FieldType.FLOAT64), ("minute", FieldType.INT64)))
SECOND_NS = 1_000_000_000
DAYS = 24


@pytest.fixture(autouse=True)
def any_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables count as well."""
    monkeypatch.setattr(top_rows, "TABLE_ROWS_MIN", 0)


@pytest.fixture
def runs(source: MemorySource) -> MemorySource:
    """`lab.runs`: 24 days of a row each 20 minutes, some between microseconds, with a last day in memory."""
    chance = random.Random(5)

    def day(number: int) -> pa.Table:
        found = readings(START_NS + number * DAY_NS, 72, 1_200 * SECOND_NS, ("a", "b", "c"))
        exact = [time + chance.choice((0, 0, 1, 999, -1)) for time in found["time"].to_pylist()]
        columns = {"name": found["name"], "time": pa.array(exact, pa.int64())}
        values = pa.array([float(chance.randrange(100)) for _ in exact])
        return pa.table(columns | {"velocity": values, "minute": pa.array([chance.randrange(60) for _ in exact])})

    source.add(SCHEMA, segments=[day(number) for number in range(DAYS)], live=[day(DAYS)])
    return source


@pytest.fixture
def truth(runs: MemorySource) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB over all rows."""
    with duckdb.connect() as connection:
        connection.register("runs", runs.all_rows("lab", "runs"))
        yield connection


def starts_ns(source: MemorySource) -> list[int | None]:
    """Where the scans since the last look began."""
    found = [each["start_ns"] for each in source.requests]
    source.requests.clear()
    return found


KEYS = (
    "time",
    "time_bucket(INTERVAL '1 hour', time)",
    "time_bucket(INTERVAL '7 minutes', time)",
    "date_trunc('day', time)",
    "date_trunc('month', time)",
    "CAST(time AS DATE)",
)
CONDITIONS = (
    "",
    "WHERE velocity > 90 ",
    "WHERE name = 'b' ",
    "WHERE name = 'a' OR velocity < 2 ",
    "WHERE time < TIMESTAMP '2023-12-01 11:30:00' ",
    "WHERE time >= TIMESTAMP '2023-11-20' AND velocity = 7 ",
    "WHERE velocity > 1000 ",
)


def random_statement(chance: random.Random) -> str:
    """A statement whose rows have one order."""
    key, where, way = chance.choice(KEYS), chance.choice(CONDITIONS), chance.choice(("", " ASC", " DESC", " DESC"))
    limit = f"LIMIT {chance.choice((1, 3, 10, 200))}{chance.choice(('', '', ' OFFSET 5'))}"
    match chance.randrange(5):
        case 0:
            return f"SELECT * FROM runs {where}ORDER BY {key}{way}, time, name {limit}"
        case 1:
            return f"SELECT {key} AS time, count(*) AS n FROM runs {where}GROUP BY 1 ORDER BY 1{way} {limit}"
        case 2:
            having = chance.choice(("", "HAVING sum(velocity) > 100 "))
            listed = f"SELECT {key} AS k, name, sum(velocity), max(minute) AS minute FROM runs"
            return f"{listed} {where}GROUP BY k, name {having}ORDER BY k{way}, name {limit}"
        case 3:
            return f"SELECT name, {key} AS t, quantile_cont(velocity, 0.5) FROM runs {where}GROUP BY ALL ORDER BY t{way}, name {limit}"
        case _:
            return f"SELECT r.name, velocity * 2 AS v, r.time AS t FROM lab.runs AS r {where}ORDER BY t{way}, v {limit}"


def test_answers_are_those_of_the_whole_table(
    engine: QueryEngine, runs: MemorySource, truth: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random statements, of which many find what they want in a range, and others in none."""
    shown: list[int] = []

    class Counted(HeldOutput):
        def show(self) -> None:
            shown.append(self.rows)
            super().show()

    monkeypatch.setattr(query_run, "HeldOutput", Counted)
    for seed in range(60):
        sql = random_statement(random.Random(seed))
        expected = truth.sql(sql.replace("lab.runs", "runs")).to_arrow_table()
        with engine.query(sql) as answer:
            assert expected.to_pylist() == answer.read_all().to_pylist(), f"seed {seed}: {sql}"
    assert 15 < len(shown) < 60


def test_the_newest_rows_are_read_from_the_newest_days(engine: QueryEngine, runs: MemorySource) -> None:
    """One scan, of a part of the last days; the oldest rows from the first ones."""
    assert 3 == engine.query("SELECT * FROM lab.runs ORDER BY time DESC LIMIT 3").read_all().num_rows
    (start_ns,) = starts_ns(runs)
    assert start_ns is not None
    assert start_ns > START_NS + (DAYS - 1) * DAY_NS
    assert 3 == engine.query("SELECT * FROM lab.runs ORDER BY time LIMIT 3").read_all().num_rows
    ends_ns = [each["end_ns"] for each in runs.requests]
    assert ends_ns
    assert all(end_ns is not None and end_ns < START_NS + 2 * DAY_NS for end_ns in ends_ns)


def test_a_range_with_too_few_rows_is_widened(engine: QueryEngine, runs: MemorySource) -> None:
    """Up to the whole table, whose rows are then the answer."""
    assert (
        0 == engine.query("SELECT * FROM lab.runs WHERE velocity > 500 ORDER BY time DESC LIMIT 3").read_all().num_rows
    )
    tried = starts_ns(runs)
    assert len(tried) > 2
    assert tried[-1] is None
    bounds = [each for each in tried if each is not None]
    assert bounds == sorted(bounds, reverse=True)


def test_live_rows_are_the_newest(engine: QueryEngine, runs: MemorySource) -> None:
    """Rows that are not sealed yet are in every range of the newest ones."""
    (row,) = engine.query("SELECT time FROM lab.runs ORDER BY time DESC LIMIT 1").read_all().to_pylist()
    assert row["time"].value >= START_NS + DAYS * DAY_NS


def test_explain_analyze_is_of_the_range(engine: QueryEngine, runs: MemorySource) -> None:
    """It shows what the statement reads, which is a part of the table."""
    with engine.query("EXPLAIN ANALYZE SELECT * FROM lab.runs ORDER BY time DESC LIMIT 3") as answer:
        assert answer.read_all().num_rows
    assert starts_ns(runs)
    assert None not in starts_ns(runs)


@pytest.mark.parametrize("name", ["velocty", "no_such"])
def test_errors_show_the_text_of_the_user(engine: QueryEngine, runs: MemorySource, name: str) -> None:
    """A statement that is wrong is refused as it was written."""
    with pytest.raises(QueryInvalid) as refused:
        engine.query(f"SELECT {name} FROM lab.runs ORDER BY time DESC LIMIT 3").read_all()
    assert name in refused.value.message
    assert "TIMESTAMP" not in refused.value.message


def test_a_row_limit_of_the_caller_counts(engine: QueryEngine, runs: MemorySource) -> None:
    """Fewer rows are enough then; none at all read nothing."""
    sql = "SELECT time FROM lab.runs ORDER BY time DESC LIMIT 1000"
    assert 2 == engine.query(sql, row_limit=2).read_all().num_rows
    starts_ns(runs)
    assert 0 == engine.query(sql, row_limit=0).read_all().num_rows
    assert [] == [each for each in starts_ns(runs) if each is not None]


def test_parameters_are_those_of_the_caller(engine: QueryEngine, runs: MemorySource) -> None:
    """In a range as in the whole statement."""
    sql = "SELECT name FROM lab.runs WHERE name = $who ORDER BY time DESC LIMIT 2"
    assert ["b", "b"] == engine.query(sql, parameters={"who": "b"}).read_all()["name"].to_pylist()


def test_rows_of_many_bytes_are_shown_as_they_come(
    engine: QueryEngine, runs: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that gives more bytes than are kept is given up, and the whole statement streams."""
    monkeypatch.setattr(top_ranges, "HELD_BYTES_MAX", 100)
    assert 50 == engine.query("SELECT * FROM lab.runs ORDER BY time DESC LIMIT 50").read_all().num_rows
    assert starts_ns(runs)[-1] is None


def top_of(sql: str) -> TopRows | None:
    """What a statement over `runs` wants."""
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    table = tree.find(exp.Table)
    assert isinstance(tree, exp.Expression)
    assert table is not None
    # Only widths of buckets are evaluated.
    with duckdb.connect() as connection:
        evaluate = partial(_value, connection)
        return top_rows.top_rows(sql, tree, table, SCHEMA, evaluate) if may_want_top(sql) else None


def _value(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    ((value,),) = connection.execute(f"SELECT CAST(({sql}) AS BIGINT)").fetchall()
    return int(value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM runs LIMIT 5",
        "SELECT * FROM runs ORDER BY velocity DESC LIMIT 5",
        "SELECT * FROM runs ORDER BY time DESC LIMIT 20000",
        "SELECT * FROM runs ORDER BY time DESC LIMIT 10%",
        "SELECT * FROM runs ORDER BY time DESC LIMIT (SELECT 3)",
        "SELECT * FROM runs ORDER BY name, time DESC LIMIT 5",
        "SELECT * FROM runs, runs AS b ORDER BY time DESC LIMIT 5",
        "SELECT * FROM (SELECT * FROM runs) ORDER BY time DESC LIMIT 5",
        "SELECT DISTINCT name FROM runs ORDER BY time DESC LIMIT 5",
        "SELECT *, row_number() OVER (ORDER BY velocity) FROM runs ORDER BY time DESC LIMIT 5",
        "SELECT * FROM runs QUALIFY row_number() OVER () < 3 ORDER BY time DESC LIMIT 5",
        "SELECT * FROM runs USING SAMPLE 10 ORDER BY time DESC LIMIT 5",
        "SELECT * FROM runs ORDER BY time DESC LIMIT 5 -- the newest",
        "SELECT max(velocity) AS time FROM runs ORDER BY time DESC LIMIT 5",
        "SELECT velocity AS time FROM runs ORDER BY time DESC LIMIT 5",
        "SELECT name, max(time) AS newest FROM runs GROUP BY name ORDER BY newest DESC LIMIT 5",
        "SELECT date_trunc('day', time) AS d FROM runs GROUP BY name ORDER BY d DESC LIMIT 5",
        "SELECT minute, count(*) FROM runs GROUP BY minute ORDER BY minute DESC LIMIT 5",
        # A name of a column, which GROUP BY takes, and of an item, which ORDER BY takes.
        "SELECT date_trunc('hour', time) AS minute FROM runs GROUP BY minute ORDER BY minute DESC LIMIT 5",
        "SELECT time_bucket(INTERVAL '1 hour', time, INTERVAL '5 minutes') AS t FROM runs GROUP BY t ORDER BY t LIMIT 5",
        "SELECT time + INTERVAL '1 hour' AS t FROM runs ORDER BY t DESC LIMIT 5",
        "SELECT date_part('hour', time) AS t, count(*) FROM runs GROUP BY t ORDER BY t DESC LIMIT 5",
        "SELECT sum(velocity) FROM runs GROUP BY GROUPING SETS ((time), ()) ORDER BY time DESC LIMIT 5",
        "SELECT * FROM runs ORDER BY time_bucket(INTERVAL '10000 years', time) LIMIT 5",
        "SELECT list(velocity) FROM runs ORDER BY time DESC LIMIT 5",
    ],
)
def test_other_statements_are_run_at_once(sql: str) -> None:
    """What is not sure to have one time in each row, or compares rows, is left as it is."""
    assert top_of(sql) is None


def test_a_long_text_is_not_looked_into() -> None:
    """The form of a text is looked at before the guard bounds its size."""
    sql = "SELECT * FROM runs ORDER BY time LIMIT 5"
    assert may_want_top(sql)
    assert not may_want_top(sql + " " * PLANNED_BYTES_MAX)


def test_a_condition_stays_whole() -> None:
    """That of the user is put in brackets, and a statement without one gets one; clauses in brackets are others'."""
    bound = "CAST('1970-01-02 00:00:00.000000' AS TIMESTAMP)"
    found = top_of("SELECT * FROM runs WHERE name = 'a' OR velocity > 1 ORDER BY time DESC LIMIT 5")
    assert found is not None
    assert (
        f'SELECT * FROM runs WHERE ( name = \'a\' OR velocity > 1 ) AND "runs"."time" >= {bound} ORDER BY time DESC LIMIT 5'
        == found.until(DAY_NS)
    )
    found = top_of("SELECT time, count(*) FILTER (WHERE velocity > 1) FROM runs GROUP BY time ORDER BY time LIMIT 5")
    assert found is not None
    assert (
        "SELECT time, count(*) FILTER (WHERE velocity > 1) FROM runs  WHERE "
        f'"runs"."time" <= {bound} GROUP BY time ORDER BY time LIMIT 5' == found.until(DAY_NS)
    )


EXTENT = TableExtent(0, 400 * DAY_NS, 40_000_000, DAY_NS)


def of_bounds(top: TopRows, plan: ScanPlan, extent: TableExtent = EXTENT) -> list[float]:
    """The bounds, in days from the end at which the rows begin."""
    end_ns = min(extent.newest_ns, plan.end_ns or extent.newest_ns)
    begin_ns = max(extent.oldest_ns, plan.start_ns or 0)
    found = bounds_ns(top, plan, extent)
    return [round((end_ns - each if top.newest else each - begin_ns) / DAY_NS, 6) for each in found]


def test_ranges_grow_from_the_rows_that_are_wanted() -> None:
    """First four times the rows, by the mean rate; then a slice, then eight times as much each, up to an eighth."""
    newest = top_of("SELECT * FROM runs ORDER BY time DESC LIMIT 90 OFFSET 10")
    oldest = top_of("SELECT * FROM runs ORDER BY time LIMIT 100")
    hours = top_of("SELECT time_bucket(INTERVAL '1 hour', time) AS t FROM runs GROUP BY t ORDER BY t DESC LIMIT 6")
    assert newest is not None
    assert oldest is not None
    assert hours is not None
    assert [0.004, 1.0, 8.0] == of_bounds(newest, ScanPlan())
    assert [0.004, 1.0, 8.0] == of_bounds(oldest, ScanPlan())
    # The planner takes a bucket to be up to twice as long as it is.
    assert [0.5, 4.0, 32.0] == of_bounds(hours, ScanPlan())
    # Of a tag's rows nobody knows the rate.
    assert [1.0, 8.0] == of_bounds(newest, ScanPlan(tags={"name": ("a",)}))
    # From where the statement's own bound is, in what it leaves.
    assert [0.004, 1.0] == of_bounds(newest, ScanPlan(start_ns=10 * DAY_NS, end_ns=20 * DAY_NS))
    assert [] == of_bounds(newest, ScanPlan(start_ns=500 * DAY_NS))
    assert [] == of_bounds(newest, ScanPlan(newest=()))


def test_small_tables_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those whose rows are within a moment."""
    monkeypatch.setattr(top_rows, "TABLE_ROWS_MIN", 1_000)
    newest = top_of("SELECT * FROM runs ORDER BY time DESC LIMIT 10")
    assert newest is not None
    assert [] == of_bounds(newest, ScanPlan(), TableExtent(0, 400 * DAY_NS, 999, DAY_NS))
    assert [] == of_bounds(newest, ScanPlan(), TableExtent(7, 7, 5_000, DAY_NS))
