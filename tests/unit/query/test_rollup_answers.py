"""Answers with rollups: equal to those without, and to DuckDB's over the rows, whatever was written late or deleted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query import local_source
from headrace.consumers.query.partial_plan import divide
from headrace.consumers.query.rollup_plan import plan_rollup
from headrace.consumers.query.views import live_table, view_query
from headrace.consumers.store import Store
from headrace.schemas.tables import DatabaseSchema
from tests.seeds import seeds
from tests.unit.query.cluster_of_stores import SETTINGS, cluster_of_stores
from tests.unit.query.random_statements import BEGIN_NS, SCHEMA, TYPES, RandomStatement, random_values
from tests.unit.query.test_distributed import Written
from tests.unit.query.test_partial_plan import assert_same
from tests.unit.store.builders import Row, row_batch
from tests.waiting import eventually

ALWAYS = SETTINGS.model_copy(update={"rollup_rows_min": 1, "rollup_segment_rows_min": 1})
"""Also where a rollup does not pay."""
DAYS = DatabaseSchema("tsbs", slice_ns=86_400_000_000_000, buckets=2)
TABLE = "tsbs.cpu"
SECOND_NS = 1_000_000_000
SERIES = [{"host": f"host_{number}", "region": "eu" if number % 3 else "us"} for number in range(6)] + [{"region": "a"}]
HOURLY = f"SELECT time_bucket(INTERVAL '1 hour', time) AS h, host, avg(x) AS a, sum(n) AS s, count(*) AS c FROM {TABLE}"


@contextmanager
def clusters(directory: Path, nodes: int) -> Iterator[tuple[Written, Written]]:
    """A cluster that uses rollups and one that does not, which get the same records."""
    with ExitStack() as opened:
        connection = opened.enter_context(duckdb.connect())
        connection.execute("SET threads = 1")
        each = [
            opened.enter_context(cluster_of_stores(directory / name, SCHEMA, nodes, settings))
            for name, settings in (("with", ALWAYS), ("without", ALWAYS.model_copy(update={"rollups": False})))
        ]
        yield Written(each[0], connection), Written(each[1], connection)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollups are used for tables of any size."""
    monkeypatch.setattr(local_source, "ROLLUP_TABLE_ROWS_MIN", 0)


def drivers(written: Written, node: str, sql: str) -> list[dict[str, Any]]:
    """The rows of EXPLAIN ANALYZE without the final statement."""
    found = written.cluster.ask(node, f"EXPLAIN ANALYZE {sql}").to_pylist()
    return [row for row in found if row["driver"] != "final"]


def day_of(chance: random.Random, every_s: int, hours: int = 24) -> list[Row]:
    """Rows of every series through a day."""
    return [
        (tags, BEGIN_NS + second * SECOND_NS, random_values(chance))
        for second in range(0, hours * 3_600, every_s)
        for tags in SERIES
    ]


@pytest.mark.slow(9)
@pytest.mark.parametrize("nodes", [1, 5])
def test_hourly_aggregates_of_a_day_read_no_segment(tmp_path: Path, nodes: int) -> None:
    """At a node with all groups, and at one that asks others."""
    chance = random.Random(nodes)
    with clusters(tmp_path, nodes) as (written, without):
        for each in (written, without):
            each.write(day_of(random.Random(9), 600))
            each.cluster.seal()
        written.register()
        for condition in ("", " WHERE time >= '2026-01-01' AND time < '2026-01-02'", " WHERE host IN ('host_1')"):
            sql = f"{HOURLY}{condition} GROUP BY h, host ORDER BY h, host"
            node = chance.choice(written.cluster.ring.headers)
            written.check(node, sql, ordered=True)
            without.check(node, sql, ordered=True)
            found = drivers(written, node, sql)
            if nodes == 1 and "IN" in condition:
                # Of few series the rows are read before a statement is divided.
                assert {"rows"} == {row["driver"] for row in found}
                continue
            assert "rollup" in {row["driver"] for row in found}
            assert {0} == {row["segments_read"] for row in found} == {row["row_groups_read"] for row in found}
            assert sum(row["segments_skipped"] for row in found) == len(
                [entry for group in written.cluster.stores.values() for entry in group[0].segments()]
            )
            assert {"partial"} == {row["driver"] for row in drivers(without, node, sql)} or nodes == 1


def test_half_hours_read_rows(tmp_path: Path) -> None:
    """Also those of a condition: hours that are cut are not those of the rollup."""
    with clusters(tmp_path, 1) as (written, _):
        written.write(day_of(random.Random(3), 600))
        written.cluster.seal()
        written.register()
        for condition in ("time >= '2026-01-01 00:30:00'", "time > '2026-01-01 03:00:00'", "x > 0"):
            sql = f"{HOURLY} WHERE {condition} GROUP BY h, host"
            written.check("n0", sql, ordered=False)
            assert "rollup" not in {row["driver"] for row in drivers(written, "n0", sql)}


_KEYS = (
    *("host", "region", "upper(region)", "CAST(time AS DATE)", "date_trunc('hour', time)", "date_trunc('week', time)"),
    *("time_bucket(INTERVAL '1 hour', time)", "time_bucket(INTERVAL '5 hours', time)"),
)
_AGGREGATES = (
    *("count(*)", "count(x)", "count(s)", "count(host)", "sum(n)", "sum(x)", "avg(n)", "avg(x)", "min(x)", "max(n)"),
    *("min(n)", "max(x)", "max(time)", "min(time)", "min(host)", "bool_and(b)", "bool_or(b)", "min(b)", "max(b)"),
    *("arg_max(x, time)", "arg_min(n, time)", "arg_max(b, time)", "arg_max(x, time) FILTER (WHERE region = 'eu')"),
    *("sum(n) FILTER (WHERE host = 'host_1')", "count(*) FILTER (WHERE time >= '2026-01-01 02:00:00')"),
)
_CONDITIONS = (
    *("host = 'host_1'", "host IN ('host_0', 'host_2')", "region IS NULL", "host IS NOT NULL AND region = 'eu'"),
    *("time >= TIMESTAMP '2026-01-01 01:00:00'", "time < '2026-01-01 03:00:00'", "NOT (time < '2026-01-01 02:00:00')"),
    *("date_trunc('day', time) = TIMESTAMP '2026-01-01 00:00:00'", "time < DATE '2026-01-02' OR region = 'us'"),
)


def hourly_statement(chance: random.Random) -> RandomStatement:
    """A statement that rollups answer."""
    keys = chance.sample(_KEYS, chance.randrange(4))
    items = [*keys, *chance.sample(_AGGREGATES, chance.randrange(1, 6))]
    where = chance.sample(_CONDITIONS, chance.randrange(3))
    sql = f"SELECT {', '.join(f'{each} AS c{number}' for number, each in enumerate(items))} FROM {{table}}"
    sql += f" WHERE {' AND '.join(f'({each})' for each in where)}" if where else ""
    return RandomStatement(sql + (" GROUP BY ALL" if keys else ""), ordered=False)


class Scene:
    """A store with random records, and the rows that it must have."""

    def __init__(self, store: Store, connection: duckdb.DuckDBPyConnection, chance: random.Random) -> None:
        self.store, self.connection, self.chance = store, connection, chance
        self.rows: dict[tuple[tuple[tuple[str, str], ...], int], dict[str, Any]] = {}
        self.version = self.clock_s = 0

    def step(self) -> None:
        """One random record."""
        getattr(self, self.chance.choice(["write", "write", "late", "again", "delete", "seal", "seal", "merge"]))()

    def write(self) -> None:
        """Rows in order of time. Every time is one row's alone, so that no two are equally new."""
        count = self.chance.randrange(1, 80)
        self._write([self._row(self._next()) for _ in range(count)])

    def late(self) -> None:
        """Rows of hours that may be sealed."""
        used = {time for _, time in self.rows}
        chosen = [self.chance.randrange(self.clock_s + 1) for _ in range(20)]
        late = [second for second in dict.fromkeys(chosen) if BEGIN_NS + second * SECOND_NS not in used]
        self._write([self._row(second) for second in late])

    def again(self) -> None:
        """Rows that are there, with other values."""
        chosen = self.chance.sample(list(self.rows), min(len(self.rows), 3))
        self._write([(dict(tags), time, random_values(self.chance)) for tags, time in chosen])

    def delete(self) -> None:
        """Some time of one host."""
        begin_ns = BEGIN_NS + self.chance.randrange(self.clock_s + 1) * SECOND_NS
        end_ns = begin_ns + self.chance.choice([600, 7_200]) * SECOND_NS
        host = self.chance.choice(SERIES[:-1])["host"]
        self.store.delete(self._record(), 1, "tsbs", "cpu", {"host": (host,)}, begin_ns, end_ns)
        for tags, time in list(self.rows):
            if dict(tags).get("host") == host and begin_ns <= time < end_ns:
                del self.rows[tags, time]

    def seal(self) -> None:
        """Every row into files."""
        self.store.freeze(self._record(), 1, b"").run()

    def merge(self) -> None:
        """What the leader would merge."""
        for plan in self.store.plan_compaction():
            self.store.compact(self._record(), plan.inputs).run()

    def lose(self) -> None:
        """Some rollups, by a bad disk: gone, cut or with other bytes. What was decoded is forgotten."""
        for path in sorted(self.store.rollups.root.rglob("*.rollup")):
            what, data = self.chance.choice(["stays", "stays", "gone", "cut", "flipped"]), bytearray(path.read_bytes())
            if what == "gone":
                path.unlink()
            elif what == "cut":
                path.write_bytes(data[: self.chance.randrange(len(data))])
            elif what == "flipped":
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                path.write_bytes(data)
        self.store.rollups.forget()

    def check(self, statements: int) -> int:
        """Random statements give what DuckDB gives over the rows; of how many files rollups were used."""
        rows = [dict(tags) | {"time": time} | fields for (tags, time), fields in self.rows.items()]
        self.connection.register("all_rows", pa.Table.from_pylist(rows, schema=pa.schema(list(TYPES.items()))))
        used = 0
        for _ in range(statements):
            sql = hourly_statement(self.chance).sql.replace("{table}", "all_rows")
            found, of_files = self._answer(sql)
            used += of_files
            wanted = self.connection.sql(sql)
            assert wanted.types == found.types, sql
            try:
                assert_same(found.fetchall(), wanted.fetchall(), ordered=False)
            except AssertionError as error:
                raise AssertionError(sql) from error
        return used

    def _answer(self, sql: str) -> tuple[duckdb.DuckDBPyRelation, int]:
        """The answer by rollups, and by rows where there are none."""
        select = sqlglot.parse_one(sql, dialect="duckdb")
        assert isinstance(select, exp.Select)
        table = select.find(exp.Table)
        assert table is not None
        divided = divide(select, table, SCHEMA)
        assert divided is not None, sql
        plan = plan_rollup(divided, SCHEMA, lambda text: self.connection.sql(f"SELECT {text}").fetchall()[0][0])
        assert plan is not None, sql
        with self.store.scan("tsbs", "cpu", rollup=plan.request) as scan:
            self.connection.register("unsealed", live_table(scan.table))
            rows = view_query(SCHEMA, None, scan.files, [("unsealed", live_table(scan.table).schema)])
            types = list(map(str, self.connection.sql(divided.fragment("all_rows")).types))
            parts = divided.fragment(f"({rows})")
            if scan.rollup is not None:
                self.connection.register("rolled", scan.rollup)
                parts += f" UNION ALL {plan.sql('rolled', types)}"
            # As a table: the files are closed with the scan.
            final = divided.final(f"({parts})", self.connection.sql(sql).columns)
            self.connection.execute(f"CREATE OR REPLACE TABLE found AS {final}")
        used = 0 if scan.rollup is None else scan.rollup.column(0).num_chunks
        return self.connection.sql("FROM found"), used

    def _record(self) -> int:
        self.version += 1
        return self.version

    def _next(self) -> int:
        self.clock_s += self.chance.choice([1, 7, 200])
        return self.clock_s

    def _row(self, second: int) -> Row:
        return self.chance.choice(SERIES), BEGIN_NS + second * SECOND_NS, random_values(self.chance)

    def _write(self, rows: list[Row]) -> None:
        if rows:
            self.store.write(self._record(), 1, SCHEMA, DAYS, row_batch(SCHEMA, rows))
        self.rows |= {(tuple(sorted(tags.items())), time): dict(fields) for tags, time, fields in rows}


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_answers_are_those_of_the_rows(tmp_path: Path, seed: int) -> None:
    """Whatever comes late, twice or is deleted, sealed or merged, and whatever happens to the files of rollups."""
    chance = random.Random(seed)
    store = Store.open(tmp_path, "n1", ALWAYS)
    with closing(store), duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        scene, used = Scene(store, connection, chance), 0
        scene.write()
        for _ in range(5):
            for _ in range(chance.randrange(3, 9)):
                scene.step()
            used += scene.check(4)
            scene.lose()
            used += scene.check(4)
        eventually(lambda: not store.rollups.statistics.pending, "every rollup that was missed is made")
        assert used > 0
