"""Answers with rollups: equal to those without, and to DuckDB's over the rows, whatever was written late or deleted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.consumers.store import Store
from tests.unit.query.cluster_of_stores import SETTINGS, StoredCluster, cluster_of_stores
from tests.unit.query.random_statements import BEGIN_NS, SCHEMA, RandomStatement, random_statement, random_values
from tests.unit.query.test_distributed import Written
from tests.unit.store.builders import Row
from tests.waiting import eventually

ALWAYS = SETTINGS.model_copy(update={"rollup_rows_min": 1})
"""Also where a rollup does not pay."""
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


def every_store(cluster: StoredCluster) -> list[Store]:
    """The stores of all nodes."""
    return [store for stores in cluster.stores.values() for store in stores]


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
    """Random records for two clusters, and what DuckDB has of them."""

    def __init__(self, written: Written, without: Written, chance: random.Random) -> None:
        self.both = (written, without)
        self.chance = chance
        self.clock_s = 0

    def step(self) -> None:
        """One random record."""
        chance = self.chance
        getattr(self, chance.choice(["write", "write", "write", "late", "again", "delete", "seal", "seal", "merge"]))()

    def write(self) -> None:
        """Rows in order of time; every time is one row's alone, so that no two are equally new."""
        self._write([self._row(self._next()) for _ in range(self.chance.randrange(1, 60))])

    def late(self) -> None:
        """Rows of hours that may be sealed."""
        used = {time for _, time in self.both[0].rows}
        chosen = [self.chance.randrange(self.clock_s + 1) for _ in range(20)]
        late = [second for second in dict.fromkeys(chosen) if BEGIN_NS + second * SECOND_NS not in used]
        self._write([self._row(second) for second in late])

    def again(self) -> None:
        """Rows that are there, with other values."""
        known = list(self.both[0].rows)
        rows = self.chance.sample(known, min(len(known), self.chance.randrange(1, 4)))
        self._write([(dict(tags), time, random_values(self.chance)) for tags, time in rows])

    def delete(self) -> None:
        """Some time of one host."""
        begin_ns = BEGIN_NS + self.chance.randrange(self.clock_s + 1) * SECOND_NS
        end_ns = begin_ns + self.chance.choice([600, 7_200]) * SECOND_NS
        host = self.chance.choice(SERIES).get("host", "host_0")
        for each in self.both:
            each.delete(host, begin_ns, end_ns)

    def seal(self) -> None:
        """Some groups, or all."""
        headers = self.both[0].cluster.ring.headers
        chosen = self.chance.sample(headers, self.chance.randrange(1, len(headers) + 1))
        for each in self.both:
            each.cluster.seal(*chosen)

    def merge(self) -> None:
        """What the leader of each group would merge."""
        for each in self.both:
            each.cluster.compact()

    def lose(self) -> None:
        """Some rollups, by a bad disk: gone, cut or with other bytes."""
        for path in sorted(self.both[0].cluster.directory.glob("**/*.rollup")):
            what = self.chance.choice(["stays", "stays", "gone", "cut", "flipped"])
            data = bytearray(path.read_bytes())
            if what == "gone":
                path.unlink()
            elif what == "cut":
                path.write_bytes(data[: self.chance.randrange(len(data))])
            elif what == "flipped":
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                path.write_bytes(data)

    def check(self, statements: int) -> int:
        """Random statements at random nodes of both; of how many fragments rollups were a part."""
        self.both[0].register()
        self.both[1].rows = self.both[0].rows
        used = 0
        for _ in range(statements):
            query = hourly_statement(self.chance) if self.chance.random() < 0.8 else random_statement(self.chance)
            node, sql = self.chance.choice(self.both[0].cluster.ring.headers), query.sql.replace("{table}", TABLE)
            for each in self.both[: self.chance.choice([1, 1, 2])]:
                each.check(node, sql, query.ordered)
            used += sum(row["driver"] == "rollup" for row in drivers(self.both[0], node, sql))
        return used

    def _next(self) -> int:
        self.clock_s += self.chance.choice([1, 7, 200])
        return self.clock_s

    def _row(self, second: int) -> Row:
        return self.chance.choice(SERIES), BEGIN_NS + second * SECOND_NS, random_values(self.chance)

    def _write(self, rows: list[Row]) -> None:
        for each in self.both:
            values = {time: fields for _, time, fields in rows}
            each.write([(tags, time, values[time]) for tags, time, _ in rows])


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_rows(tmp_path: Path, seed: int) -> None:
    """Whatever comes late, twice or is deleted, sealed or merged, and whatever happens to the files of rollups."""
    chance = random.Random(seed)
    with clusters(tmp_path, chance.choice([1, 3])) as (written, without):
        scene, used = Scene(written, without, chance), 0
        scene.write()
        for _ in range(3):
            for _ in range(chance.randrange(4, 9)):
                scene.step()
            used += scene.check(3)
            scene.lose()
            # A store that was opened again has nothing in memory.
            for store in every_store(written.cluster):
                store.rollups.forget()
            used += scene.check(3)
        eventually(lambda: not any(store.rollups.statistics.pending for store in every_store(written.cluster)), "made")
        assert used > 0
