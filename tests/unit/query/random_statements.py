"""Random statements over one table, and random rows of it divided into groups by series."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from headrace.schemas.tables import FieldType, TableSchema

SCHEMA = TableSchema(
    "tsbs",
    "cpu",
    1,
    ("host", "region"),
    (("b", FieldType.BOOL), ("n", FieldType.INT64), ("s", FieldType.STRING), ("x", FieldType.FLOAT64)),
)
TYPES = {
    "host": pa.string(),
    "region": pa.string(),
    "time": pa.timestamp("ns"),
    "b": pa.bool_(),
    "n": pa.int64(),
    "s": pa.string(),
    "x": pa.float64(),
}
BEGIN_NS = 1_767_225_600_000_000_000
_INT64_ENDS = (2**63 - 1, -(2**63), 2**62)


def random_groups(chance: random.Random, groups: int) -> list[pa.Table]:
    """The rows of each group. Every (series, time) occurs once, every time once, and each series in one group only."""
    rows: list[list[dict[str, object]]] = [[] for _ in range(groups)]
    times = iter(chance.sample(range(4 * 3600), 400))
    for number in range(chance.randrange(1, 9)):
        host = chance.choice([None, f"host_{number}"])
        series = {"host": host or None, "region": chance.choice(["eu", "us", None]) if host else f"region_{number}"}
        group = rows[chance.randrange(groups)]
        group += [
            series | _at(chance, next(times)) | random_values(chance) for _ in range(chance.choice([0, 1, 5, 40]))
        ]
    schema = pa.schema(list(TYPES.items()))
    return [pa.Table.from_pylist(each, schema=schema) for each in rows]


def _at(chance: random.Random, second: int) -> dict[str, object]:
    return {"time": BEGIN_NS + second * 1_000_000_000 + chance.randrange(1_000)}


def random_values(chance: random.Random) -> dict[str, object]:
    """The fields of a row, each of them null at times."""

    def maybe(value: object) -> object:
        return None if chance.random() < 0.2 else value

    return {
        "x": maybe(chance.choice([chance.uniform(-100, 100), 0.0, float(chance.randrange(10))])),
        "n": maybe(chance.choice([chance.randrange(-50, 50), *_INT64_ENDS])),
        "b": maybe(chance.random() < 0.5),
        "s": maybe(chance.choice(["", "a", "b", "ä"])),
    }


_KEYS = (
    "host",
    "region",
    "upper(region)",
    "time_bucket(INTERVAL '1 hour', time)",
    "date_trunc('minute', time)",
    "host || region",
    "CAST(time AS DATE)",
    "coalesce(host, region)",
)
_AGGREGATES = (
    *("count(*)", "count()", "count(x)", "count(host)", "count_if(b)", "count_if(n > 3)"),
    *("sum(n)", "sum(x)", "sum(n + 1.5)", "sum(CASE WHEN b THEN 1 ELSE 0 END)", "avg(n)", "avg(x)", "mean(x)"),
    *("min(x)", "max(n)", "min(s)", "max(time)", "min(host)", "bool_and(b)", "bool_or(x > 3)"),
    *("arg_max(x, time)", "arg_min(n, time)", "max_by(s, time)", "arg_max(host, time)"),
    *("sum(x) FILTER (WHERE n > 0)", "count(*) FILTER (WHERE b)", "arg_max(x, time) FILTER (WHERE region = 'eu')"),
    *("avg(x) FILTER (b)", "max(x) - min(x)", "round(avg(x), 3)", "sum(x) / count(*)", "coalesce(max(n), 0)"),
)
_CONDITIONS = (
    *("host = 'host_1'", "host IN ('host_0', 'host_2')", "region IS NULL", "x > 3", "n BETWEEN -20 AND 20", "NOT b"),
    *("time >= TIMESTAMP '2026-01-01 01:00:00'", "time < '2026-01-01 02:30:00'", "s LIKE 'a%'", "x > 1000"),
    *("epoch_ns(time) % 2 = 0", "b OR x < 0", "region IN ('eu') AND n IS NOT NULL"),
)
UNDIVIDED = (
    *("count(DISTINCT host)", "median(x)", "first(s ORDER BY time)", "string_agg(s, ',' ORDER BY time)"),
    *(
        "arg_max(x, epoch_ns(time))",
        "max(x, 2)",
        "list(n ORDER BY time)",
        "sum(DISTINCT n)",
        "stddev(x)",
        "quantile_cont(x, 0.5)",
    ),
)
"""Aggregates that are computed from rows."""


@dataclass(frozen=True)
class RandomStatement:
    """SQL over the table `{table}`, and whether its rows have an order of their own."""

    sql: str
    ordered: bool


def random_statement(chance: random.Random, beyond: bool = False) -> RandomStatement:
    """A SELECT with aggregates of the allow-list; `beyond`: one of them is not of it."""
    keys = chance.sample(_KEYS, chance.choice([0, 0, 1, 1, 2, 3]))
    aggregates = chance.sample(_AGGREGATES, chance.randrange(1, 5))
    if beyond:
        aggregates.append(chance.choice(UNDIVIDED))
    items = [_item(chance, text, f"k{number}") for number, text in enumerate(keys)]
    items += [_item(chance, text, f"v{number}") for number, text in enumerate(aggregates)]
    where = chance.sample(_CONDITIONS, chance.choice([0, 0, 1, 2]))
    sql = f"SELECT {', '.join(items)} FROM {{table}}"
    sql += f" WHERE {' AND '.join(f'({each})' for each in where)}" if where else ""
    sql += _group_by(chance, keys, items) if keys else ""
    if chance.random() < 0.3:
        sql += f" HAVING {chance.choice(['count(*) > 2', 'max(x) > 3', 'sum(n) IS NOT NULL AND count(x) > 0'])}"
    # Every key in the order: rows that compare equal may come in any.
    ordered = bool(keys) and chance.random() < 0.5
    if ordered:
        first = [f"{chance.choice(['count(*)', 'max(time)'])} DESC"] if chance.random() < 0.5 else []
        places = [f"{number}{chance.choice(['', ' DESC', ' NULLS FIRST'])}" for number in range(1, len(keys) + 1)]
        sql += f" ORDER BY {', '.join(first + places)}"
        sql += chance.choice(["", " LIMIT 3", " LIMIT 2 OFFSET 1"])
    return RandomStatement(sql, ordered)


def _item(chance: random.Random, text: str, alias: str) -> str:
    return chance.choice([text, f"{text} AS {alias}", f'{text} "{alias} Ü"'])


def _group_by(chance: random.Random, keys: list[str], items: list[str]) -> str:
    form = chance.randrange(3)
    if form == 0:
        return " GROUP BY ALL"
    if form == 1:
        return f" GROUP BY {', '.join(str(number) for number in range(1, len(keys) + 1))}"
    return f" GROUP BY {', '.join(keys)}"


_SHAPES = (
    "{0}",
    "SELECT * FROM ({0})",
    "WITH a AS ({0}) SELECT * FROM a",
    "WITH a AS ({0}), b AS ({1}) SELECT * FROM a FULL JOIN (SELECT count(*) AS c FROM b) ON true",
    "SELECT (SELECT count(*) FROM ({0})) AS c, count(*) FROM {table}",
    "SELECT * FROM {table} t WHERE t.time >= (SELECT max(time) - INTERVAL '1 hour' FROM {table} WHERE host = 'host_0')",
    "SELECT host, time, x FROM {table} WHERE x > (SELECT avg(x) FROM {table}) AND b",
    "SELECT a.host, count(*) AS c FROM {table} a JOIN (SELECT host, max(time) AS m FROM {table} GROUP BY host) z"
    " ON a.host = z.host AND a.time < z.m GROUP BY ALL",
    "SELECT host, region, time, n FROM {table} WHERE n > 0 ORDER BY time DESC LIMIT 7",
    "SELECT host FROM {table} LEFT JOIN (SELECT DISTINCT region AS r FROM {table} WHERE b) ON region = r WHERE r IS NULL",
    "SELECT (SELECT min(x) FROM {table} WHERE host = 'host_1') AS low, (SELECT max(x) FROM {table} WHERE n > 3) AS high",
    "SELECT * FROM ({0}), (SELECT count(*) AS c, 'a' AS label FROM {table} WHERE region = 'eu')",
    "SELECT count(*) AS c FROM {table} WHERE n > 5 UNION ALL SELECT count(*) FROM {table} WHERE x > 2 AND host != 'host_3'",
    "SELECT host, time, n, rank() OVER (PARTITION BY host ORDER BY time) AS r FROM {table} WHERE n > 2 QUALIFY r < 4",
    "SELECT host, avg(x) AS a FROM {table} GROUP BY host"
    " HAVING avg(x) > (SELECT avg(x) FROM {table} WHERE region = 'us') AND host IN (SELECT host FROM {table} WHERE n > 7)",
)


_LITERALS: tuple[tuple[str, Sequence[str]], ...] = (
    (r"'host_\d+'", [*(f"'host_{number}'" for number in range(12)), "'a longer text than any other one'"]),
    (r"'(?:eu|us)'", ["'eu'", "'us'", "'none'", "'no region of this table at all'"]),
    (r"'2026-01-01 [\d:]+'", [f"'2026-01-01 0{hour}:17:00'" for hour in range(5)]),
    (r"'a'(?= AS label)", ["'b'", "'a'", "'it''s'", "'a longer text than any other one'"]),
    (r"(?<=[<>] )\d+", [*map(str, range(20)), "1234567890123"]),
    (r"(?<=LIMIT )\d+", [str(number) for number in range(1, 9)]),
)


def random_sibling(chance: random.Random, statement: RandomStatement) -> RandomStatement:
    """The same statement with other literals."""
    # A key may occur twice, with one INTERVAL.
    interval = chance.choice(["'1 hour'", "'2 hours'", "'7 minutes'"])
    sql = re.sub(r"(?<=INTERVAL )'1 (?:hour|minute)'", interval, statement.sql)
    for pattern, literals in _LITERALS:
        sql = re.sub(pattern, partial(_drawn, chance, literals), sql)
    return replace(statement, sql=sql)


def _drawn(chance: random.Random, literals: Sequence[str], _found: re.Match[str]) -> str:
    return chance.choice(literals)


def random_query(chance: random.Random) -> RandomStatement:
    """A whole query: a statement of `random_statement`, alone or inside others."""
    inner = [random_statement(chance, beyond=chance.random() < 0.2) for _ in range(2)]
    shape = chance.choice((*_SHAPES, "{0}", "{0}"))
    sql = shape.replace("{0}", inner[0].sql).replace("{1}", inner[1].sql)
    # The order inside a derived table is none of its rows' outside of it.
    ordered = inner[0].ordered if shape == "{0}" else "ORDER BY time DESC" in shape
    return RandomStatement(sql, ordered)
