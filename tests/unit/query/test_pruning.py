"""Pruning changes what is read, never what is answered: the engine against plain DuckDB over every row."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.query_errors import QueryError
from headrace.schemas.tables import FieldType, TableSchema, TimeResolution
from tests.memory_directory import memory
from tests.unit.query.memory_source import MemorySource

DAY_NS = 86_400_000_000_000
START_NS = 1_700_006_400_000_000_000
NOW_NS = START_NS + 3 * DAY_NS
SCHEMA = TableSchema("iot", "r", 2, ("fleet", "name"), (("load", FieldType.FLOAT64), ("v", FieldType.INT64)))
EVENTS = TableSchema("iot", "e", 1, ("name",), (("code", FieldType.INT64),))


def user_rows(day: int, count: int, unit_ns: int, **columns: object) -> pa.Table:
    """Rows spread over a day, on round and on odd units of time."""
    times = [START_NS + day * DAY_NS + row * DAY_NS // count + (row % 3) * unit_ns for row in range(count)]
    names = [("a", "b", None)[row % 3] for row in range(count)]
    return pa.table({"name": pa.array(names, pa.string()), "time": pa.array(times, pa.int64()), **columns})


@pytest.fixture(scope="module", params=[None, TimeResolution.US])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[QueryEngine, duckdb.DuckDBPyConnection]]:
    """The engine over a source that prunes as much as allowed, and DuckDB over the same rows in one table.

    The tables have no resolution, and files of either; or microseconds.
    """
    directory = Path(tempfile.mkdtemp(dir=memory()))
    source = MemorySource(directory)
    resolution: TimeResolution | None = request.param
    unit_ns = 1 if resolution is None else resolution.nanoseconds
    old = [user_rows(day, 12, unit_ns, v=list(range(12)), load=list(range(12))) for day in range(2)]
    new = [
        user_rows(day, 12, unit_ns, v=list(range(12)), load=[row / 4 for row in range(12)], fleet=["x", "y"] * 6)
        for day in (2, 3)
    ]
    live = [
        user_rows(4, 12, unit_ns, v=list(range(12)), load=[None] * 11 + [1.5], fleet=["", "x", "y"] * 4),
        user_rows(5, 3, unit_ns, v=[7, None, 9]),
    ]
    source.add(replace(SCHEMA, recorded_resolution=resolution), segments=[*old, *new], live=live)
    events = replace(EVENTS, recorded_resolution=resolution)
    source.add(events, segments=[user_rows(day, 6, unit_ns, code=list(range(6))) for day in range(0, 6, 2)])
    engine = QueryEngine(source, [directory], clock_ns=lambda: NOW_NS)
    whole = duckdb.connect(":memory:")
    whole.execute("CREATE SCHEMA iot")
    whole.execute(f"CREATE MACRO now() AS make_timestamp({NOW_NS // 1_000})")
    for table in ("r", "e"):
        whole.register("rows", source.all_rows("iot", table))
        whole.execute(f"CREATE TABLE iot.{table} AS FROM rows")
    yield engine, whole
    engine.close()
    whole.close()
    shutil.rmtree(directory)


moments = st.integers(-1, 14).map(lambda half_days: START_NS // 1_000_000_000 + half_days * 43_200) | st.integers(
    0, 6
).map(lambda day: START_NS // 1_000_000_000 + day * 86_400 + 1)
texts = st.builds(lambda moment: duckdb_text(moment), moments)


def duckdb_text(seconds: int) -> str:
    """A moment as DuckDB reads it."""
    days, rest = divmod(seconds - START_NS // 1_000_000_000, 86_400)
    return f"2023-11-{15 + days:02} {rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


constants = st.one_of(
    texts.map(lambda text: f"'{text}'"),
    texts.map(lambda text: f"TIMESTAMP '{text}'"),
    texts.map(lambda text: f"'{text}.000000001'::TIMESTAMP_NS"),
    texts.map(lambda text: f"'{text}.000002'::TIMESTAMP"),
    texts.map(lambda text: f"DATE '{text[:10]}'"),
    st.integers(0, 80).map(lambda hours: f"now() - INTERVAL {hours} HOUR"),
    st.integers(0, 5).map(lambda days: f"(TIMESTAMP '2023-11-15' + INTERVAL '{days} days')"),
    st.just("NULL"),
)
times = st.sampled_from(
    ["{t}time", "{t}time", "({t}time)", "{t}time::TIMESTAMP", "{t}time::DATE", "date_trunc('day', {t}time)"]
)
buckets = st.sampled_from(
    ["time_bucket(INTERVAL '6 hours', {t}time)", "date_trunc('hour', {t}time)", "{t}time + INTERVAL 1 DAY"]
)
operators = st.sampled_from(["<", "<=", ">", ">=", "="])
on_time = st.one_of(
    st.builds("{} {} {}".format, times | buckets, operators, constants),
    st.builds("{} {} {}".format, constants, operators, times),
    st.builds("{} BETWEEN {} AND {}".format, times, constants, constants),
    st.builds("epoch_ns({{t}}time) {} {}".format, operators, moments.map(lambda seconds: seconds * 1_000_000_000 + 1)),
    st.builds("epoch_ms({{t}}time) {} {}".format, operators, moments.map(lambda seconds: seconds * 1_000)),
    st.builds("epoch({{t}}time) {} {}".format, operators, moments),
)
on_tags = st.sampled_from(
    [
        "{t}name = 'a'",
        "'b' = {t}name",
        "{t}name IN ('a', 'b')",
        "{t}name = ''",
        "{t}name IS NULL",
        "{t}name <> 'a'",
        "{t}name IN ('')",
    ]
)
leaves = on_time | on_tags
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("{} AND {}".format, inner, inner),
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
single = st.sampled_from(
    [
        "SELECT count(*) FROM iot.r WHERE {0}",
        "SELECT * FROM iot.r WHERE {0}",
        "SELECT name, fleet, load FROM r WHERE {0}",
        "FROM iot.r SELECT v WHERE {0}",
        "SELECT sum(v), max(time) FROM iot.r WHERE {0} GROUP BY name",
        "SELECT v FROM (SELECT v, time, name FROM iot.r) WHERE {0}",
        "WITH c AS (SELECT * FROM iot.r WHERE {0}) SELECT c.v, e.code FROM c JOIN iot.e USING (name)",
        "SELECT v FROM iot.r WHERE {0} UNION ALL SELECT code FROM iot.e",
        "SELECT time - INTERVAL 1 DAY AS time, v FROM iot.r WHERE {0}",
        "SELECT v AS time FROM iot.r WHERE {0}",
        "SELECT code FROM iot.e WHERE EXISTS (SELECT 1 FROM iot.r WHERE {0})",
        "SELECT v, lag(v) OVER (PARTITION BY name ORDER BY time, fleet, v) FROM iot.r WHERE {0}",
    ]
)
joined = st.sampled_from(
    [
        "SELECT r.v, e.code FROM iot.r r JOIN iot.e e ON r.name = e.name WHERE {r} AND {e}",
        "SELECT r.v, e.code FROM iot.r r LEFT JOIN iot.e e ON r.name = e.name WHERE {r}",
        "SELECT r.v, e.code FROM iot.r r LEFT JOIN iot.e e ON r.name = e.name WHERE {e}",
        "SELECT r.v, e.code FROM iot.r r LEFT JOIN iot.e e ON r.name = e.name AND {e}",
        "SELECT r.v, e.code FROM iot.r r LEFT JOIN iot.e e ON r.name = e.name AND {r}",
        "SELECT r.v, e.code FROM iot.r r RIGHT JOIN iot.e e ON r.name = e.name AND {r} WHERE {e}",
        "SELECT r.v, e.code FROM iot.r r FULL JOIN iot.e e ON r.name = e.name WHERE {r}",
        "SELECT r.v, e.code FROM iot.r r FULL JOIN iot.e e ON r.name = e.name AND {e}",
        "SELECT r.v, e.code FROM iot.r r JOIN iot.e e ON r.name = e.name AND {r} AND {e}",
        "SELECT r.v FROM iot.r r SEMI JOIN iot.e e ON r.name = e.name AND {e} WHERE {r}",
        "SELECT r.v FROM iot.r r ANTI JOIN iot.e e ON r.name = e.name AND {e} WHERE {r}",
        "SELECT r.v FROM iot.r r ANTI JOIN iot.e e ON r.name = e.name AND {r}",
        "SELECT e.code, r.v FROM iot.e e ASOF JOIN iot.r r ON e.name = r.name AND e.time >= r.time WHERE {r}",
        "SELECT e.code, r.v FROM iot.e e ASOF LEFT JOIN iot.r r ON e.name = r.name AND e.time >= r.time WHERE {e}",
        "SELECT r.v FROM iot.r r, iot.r e WHERE r.time = e.time AND {r} AND {e}",
        "SELECT r.v FROM iot.r r WHERE {r} AND r.name NOT IN (SELECT e.name FROM iot.e e WHERE e.name IS NOT NULL AND {e})",
        "SELECT r.v, (SELECT max(code) FROM iot.e e WHERE e.name = r.name AND {e}) FROM iot.r r WHERE {r}",
    ]
)
statements = st.one_of(
    st.builds(lambda sql, condition: sql.replace("{0}", condition.replace("{t}", "")), single, conditions),
    st.builds(
        lambda sql, r, e: sql.replace("{r}", f"({r})".replace("{t}", "r.")).replace("{e}", e.replace("{t}", "e.")),
        joined,
        conditions,
        conditions.filter(lambda condition: " OR " not in condition),
    ),
)


@pytest.mark.slow(6)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(statement=statements)
@example(
    "SELECT e.code, r.v FROM iot.e e ASOF JOIN iot.r r ON e.name = r.name AND e.time >= r.time WHERE r.time < '2023-11-16'"
)
@example("SELECT r.v, e.code FROM iot.r r POSITIONAL JOIN iot.e e WHERE r.time > '2023-11-17'")
def test_answers_are_those_of_all_rows(pair: tuple[QueryEngine, duckdb.DuckDBPyConnection], statement: str) -> None:
    """For any conditions, joins and uses of the tables, the answer equals that of DuckDB over all rows.

    Errors agree too.
    """
    engine, whole = pair
    reference = statement.replace("FROM r ", "FROM iot.r ")
    try:
        expected = whole.sql(reference).to_arrow_table()
    except duckdb.Error:
        with pytest.raises(QueryError):
            engine.query(statement).read_all()
        return
    found = engine.query(statement).read_all()
    assert sorted(map(repr, expected.to_pylist())) == sorted(map(repr, found.to_pylist()))
    assert expected.schema.types == found.schema.types


def test_scans_are_pruned(pair: tuple[QueryEngine, duckdb.DuckDBPyConnection]) -> None:
    """Some scans have conditions, so the comparison above is not between two full reads."""
    engine, _ = pair
    before = engine.statistics.files_scanned
    engine.query("SELECT * FROM iot.r WHERE time >= '2023-11-17 01:00' AND time < '2023-11-17 20:00'").read_all()
    assert 1 == engine.statistics.files_scanned - before
