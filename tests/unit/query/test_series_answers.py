"""Aggregates of few series that are computed without DuckDB: their answers are DuckDB's, in value, name and type."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.query_errors import SegmentUnreadable
from headrace.consumers.query.session import Session
from headrace.consumers.store import StoreDamaged, StoreSettings
from tests.unit.query.cluster_of_stores import StoredCluster, cluster_of_stores
from tests.unit.store.builders import CPU, Row

SECOND_NS = 1_000_000_000
START_NS = 1_767_225_600 * SECOND_NS
TABLE = "plant.cpu"
LOST = "lost"
"""A host with a value that is no number."""
FINE = "fine"
"""A host with times between microseconds."""


def rows_of() -> list[Row]:
    """Three hours of six hosts, each value absent now and then."""
    chance = random.Random(7)
    rows: list[Row] = []
    for second in range(0, 3 * 3_600, 60):
        for host in ("a", "b", "it's", LOST, FINE):
            fields: dict[str, Any] = {
                "busy": chance.randrange(-500, 500),
                "load": chance.random(),
                "up": second % 7 < 3,
            }
            fields = {name: value for name, value in fields.items() if chance.random() < 0.9}
            if host == LOST and second == 600:
                fields["load"] = math.nan
            rows.append(({"host": host, "rack": "r1"}, START_NS + second * SECOND_NS + 500 * (host == FINE), fields))
    return rows


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoredCluster, duckdb.DuckDBPyConnection]]:
    """One node with all rows, two hours of them sealed, and DuckDB with the same."""
    rows = rows_of()
    settings = StoreSettings(row_group_rows=128)
    with cluster_of_stores(tmp_path_factory.mktemp("cluster"), CPU, 1, settings) as cluster, duckdb.connect() as whole:
        late = START_NS + 2 * 3_600 * SECOND_NS
        cluster.write([row for row in rows if row[1] < late])
        cluster.seal()
        cluster.write([row for row in rows if row[1] >= late])
        absent: dict[str, Any] = dict.fromkeys(CPU.field_types())
        plain = [{**tags, "time": at, **absent, **fields} for tags, at, fields in rows]
        columns = {
            "host": pa.array([row["host"] for row in plain], pa.string()),
            "rack": pa.array([row["rack"] for row in plain], pa.string()),
            "time": pa.array([row["time"] for row in plain], pa.timestamp("ns")),
            **{name: pa.array([row[name] for row in plain], kind.arrow) for name, kind in CPU.fields},
        }
        table = pa.table(columns)
        whole.execute("CREATE SCHEMA plant")
        whole.register("rows", table)
        whole.execute(f"CREATE TABLE {TABLE} AS FROM rows")
        yield cluster, whole


class Counted:
    """The statements that DuckDB ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        run = Session.run

        def counted(session: Session, sql: str, **given: Any) -> Any:
            self.count += 1
            return run(session, sql, **given)

        monkeypatch.setattr(Session, "run", counted)


def engine_of(cluster: StoredCluster) -> QueryEngine:
    """The engine of the only node."""
    (engine,) = cluster.engines.values()
    return engine


def agree(cluster: StoredCluster, whole: duckdb.DuckDBPyConnection, sql: str) -> None:
    """The answer is DuckDB's: names, types and values, doubles to 1e-9."""
    with engine_of(cluster).query(sql) as result:
        ours = result.read_all()
    theirs = whole.sql(sql).to_arrow_table()
    assert theirs.schema.names == ours.schema.names, sql
    assert theirs.schema.types == ours.schema.types, sql
    for expected, found in zip(theirs.to_pylist(), ours.to_pylist(), strict=True):
        for name, value in expected.items():
            if isinstance(value, float) and math.isfinite(value):
                assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9), sql
            else:
                assert repr(value) == repr(found[name]), sql


ITEMS = [
    "max(busy), count(*)",
    "min(load) AS least, MAX(load) AS most, avg(load), sum(load)",
    "sum(busy), avg(busy), count(busy), count(up)",
    "max(time), min(time), count(load)",
    "min(c.busy), count(*) AS rows",
]


def conditions(chance: random.Random) -> str:
    """A host or two, and bounds on time in the ways in which people write them."""
    hosts = chance.sample(["a", "b", "it''s", LOST, FINE, "none"], 2)
    where = f"host = '{hosts[0]}'" if chance.random() < 0.7 else f"host IN ('{hosts[0]}', '{hosts[1]}')"
    at = START_NS + chance.randrange(0, 180) * 60 * SECOND_NS
    text = f"2026-01-01 {chance.randrange(0, 3):02}:{chance.randrange(60):02}:00"
    moments = [
        f"make_timestamp_ns({at})",
        f"make_timestamp_ns({at}) + INTERVAL 15 MINUTE",
        f"TIMESTAMP '{text}'",
        f"'{text}'",
    ]
    for operator in chance.sample(["<", "<=", ">", ">="], chance.randrange(3)):
        where += f" AND time {operator} {chance.choice(moments)}"
    if chance.random() < 0.2:
        where += f" AND time BETWEEN TIMESTAMP '2026-01-01 00:10:00' AND TIMESTAMP '{text}'"
    return where


@pytest.mark.parametrize("items", ITEMS)
def test_answers_are_those_of_duckdb(
    written: tuple[StoredCluster, duckdb.DuckDBPyConnection], items: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random literals of few templates, so that most are computed without DuckDB."""
    cluster, whole = written
    chance, counted = random.Random(items), Counted(monkeypatch)
    for _ in range(120):
        agree(cluster, whole, f"SELECT {items} FROM {TABLE} AS c WHERE {conditions(chance)}")
    assert counted.count < 110


def test_duckdb_runs_the_first_two_of_a_template_and_what_is_not_exact(
    written: tuple[StoredCluster, duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and types come from it, and the template of the second; also values that are no numbers, and finer times."""
    cluster, whole = written
    counted = Counted(monkeypatch)

    def runs(sql: str) -> int:
        before = counted.count
        agree(cluster, whole, sql)
        return counted.count - before

    sql = f"SELECT max(load) AS peak FROM {TABLE} WHERE host = '{{}}' AND time < make_timestamp_ns({{}})"
    minute = 60 * SECOND_NS
    assert [1, 1, 0, 0] == [runs(sql.format(host, START_NS + 9 * minute)) for host in ("a", "b", "none", "b")]
    assert [0, 1] == [runs(sql.format(LOST, START_NS + at * minute)) for at in (9, 11)]
    assert [1, 0] == [runs(sql.format(host, START_NS + 9 * minute)) for host in (FINE, "a")]
    # A bound that SQL may round.
    assert [1, 0] == [runs(sql.format("a", START_NS + 9 * minute + more)) for more in (1, 0)]


def test_a_column_has_the_name_of_its_own_statement(written: tuple[StoredCluster, duckdb.DuckDBPyConnection]) -> None:
    """A name may be written as a text. Its statement differs from another one in the place of a literal alone."""
    cluster, whole = written
    for least, most in (("a", "b"), ("low", "high"), ("high", "low"), ("x", "x2"), ("a", "b")):
        items = f"min(busy) AS '{least}', max(busy) AS '{most}'"
        agree(cluster, whole, f"SELECT {items} FROM {TABLE} WHERE host = 'a' AND time < '2026-01-01 01:00:00'")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT max(busy) FROM {t}",
        "SELECT max(busy) FROM {t} WHERE time >= TIMESTAMP '2026-01-01'",
        "SELECT max(busy) FROM {t} WHERE host = ''",
        "SELECT max(busy) FROM {t} WHERE host <> 'a'",
        "SELECT max(busy) FROM {t} WHERE host = 'a' OR rack = 'r1'",
        "SELECT max(busy) FROM {t} WHERE host = 'a' AND busy > 3",
        "SELECT max(busy) FROM {t} WHERE host = 'a' AND 1 = 1",
        "SELECT max(busy + 1) FROM {t} WHERE host = 'a'",
        "SELECT max(busy) + 1 FROM {t} WHERE host = 'a'",
        "SELECT max(DISTINCT busy) FROM {t} WHERE host = 'a'",
        "SELECT max(busy) FILTER (WHERE up) FROM {t} WHERE host = 'a'",
        "SELECT max(busy) OVER () FROM {t} WHERE host = 'a' ORDER BY ALL LIMIT 1",
        "SELECT max(busy, 2) FROM {t} WHERE host = 'a'",
        "SELECT max(host), max(note), max(up) FROM {t} WHERE host = 'a'",
        "SELECT max(busy) FROM {t} WHERE host = 'a' HAVING max(busy) > 3",
        "SELECT max(busy) FROM {t} WHERE host = 'a' GROUP BY rack",
        "SELECT max(busy) FROM {t} WHERE host = 'a' LIMIT 0",
        "SELECT DISTINCT max(busy) FROM {t} WHERE host = 'a'",
        "SELECT max(busy) FROM {t} TABLESAMPLE 50% WHERE host = 'a' AND false",
        "SELECT max(busy) FROM {t}, (SELECT 1) WHERE host = 'a'",
        "SELECT max(busy) FROM (FROM {t}) WHERE host = 'a'",
        "SELECT max(busy) AS busy, count(busy) FROM {t} WHERE host = 'a'",
        "SELECT count(*) AS host FROM {t} WHERE host = 'a'",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND host = 'b'",
        "SELECT count(*) FROM {t} WHERE host = rack",
        "SELECT count(*) FROM {t} WHERE host IN (SELECT 'a')",
        "SELECT count(*) FROM {t} WHERE host NOT IN ('a')",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND time > CAST('2026-01-01 01:00:00' AS DATE)",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND time > TIMESTAMP_MS '2026-01-01 01:00:00.0005'",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND time > TIMESTAMP '2026-01-01 01:00:00.0000001'",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND time >= TIMESTAMP '2026-01-01' + INTERVAL '1' MONTH",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND time >= TIMESTAMP '1960-01-01'",
        "SELECT count(*) FROM {t} WHERE host = 'a' AND CAST(time AS DATE) = DATE '2026-01-01'",
    ],
)
def test_other_statements_are_duckdbs(
    written: tuple[StoredCluster, duckdb.DuckDBPyConnection], statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is not understood as a whole, the second time too."""
    cluster, whole = written
    counted = Counted(monkeypatch)
    for _ in range(2):
        agree(cluster, whole, statement.format(t=TABLE))
    assert 2 <= counted.count


def test_a_limit_of_rows_and_explain_are_duckdbs(
    written: tuple[StoredCluster, duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both want more, or less, than the answer."""
    cluster, _ = written
    engine, counted = engine_of(cluster), Counted(monkeypatch)
    sql = f"SELECT max(busy), count(up) FROM {TABLE} WHERE host = 'a'"
    for _ in range(2):
        with engine.query(sql, row_limit=0) as result:
            assert 0 == result.read_all().num_rows
        with engine.query(f"EXPLAIN {sql}") as result:
            assert "explain_value" in result.read_all().column_names
    assert 4 == counted.count


def test_a_segment_that_cannot_be_read_is_an_error_of_the_node(
    written: tuple[StoredCluster, duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where DuckDB would not have been asked: the error names it, and the node checks its files."""
    cluster, whole = written
    sql = f"SELECT sum(busy), count(up) FROM {TABLE} WHERE host = 'a'"
    for _ in range(3):
        agree(cluster, whole, sql)
    engine, reports = engine_of(cluster), list[bool]()

    def damaged(*_names: str, **_conditions: object) -> list[GroupScan]:
        raise StoreDamaged("segment s cannot be read")

    monkeypatch.setattr(engine.source, "scan", damaged)
    monkeypatch.setattr(engine, "on_unreadable", lambda: reports.append(True))
    with pytest.raises(SegmentUnreadable, match="segment s cannot be read"):
        engine.query(sql)
    assert [True] == reports
