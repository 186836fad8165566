"""A SELECT divided into fragments and a final statement gives what DuckDB gives over all rows at once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query.partial_plan import DividedSelect, divide, span_of
from tests.unit.query.random_statements import SCHEMA, UNDIVIDED, random_groups, random_statement

TOLERANCE = 1e-9


def parsed(sql: str) -> tuple[exp.Select, exp.Table]:
    """The SELECT of `cpu` in a statement, and its table."""
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    table = next(each for each in tree.find_all(exp.Table) if each.name == "cpu")
    select = table.find_ancestor(exp.Select)
    assert isinstance(select, exp.Select)
    return select, table


def division(sql: str) -> DividedSelect | None:
    """The parts of a statement."""
    return divide(*parsed(sql), SCHEMA)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """One DuckDB for all statements."""
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


def combined(
    connection: duckdb.DuckDBPyConnection, groups: Sequence[pa.Table], sql: str, found: DividedSelect
) -> duckdb.DuckDBPyRelation:
    """The final statement, over fragments that each saw the rows of one group."""
    whole = connection.sql(sql)
    types = [str(kind) for kind in connection.sql(found.fragment("cpu")).types]
    parts = []
    for number, group in enumerate(groups):
        connection.register(f"group_{number}", group)
        # As over the network: a HUGEINT becomes a decimal of 38 digits in Arrow.
        part = connection.sql(found.fragment(f"group_{number}")).to_arrow_table()
        connection.register(f"part_{number}", part)
        named = zip(found.columns, types, strict=True)
        casts = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in named)
        parts.append(f"SELECT {casts} FROM part_{number}")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW parts AS {' UNION ALL '.join(parts)}")
    return connection.sql(found.final("parts", whole.columns))


def assert_same(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], ordered: bool) -> None:
    """Rows are equal, doubles to TOLERANCE."""
    if not ordered:
        found, wanted = sorted(found, key=_order), sorted(wanted, key=_order)
    assert len(wanted) == len(found)
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            same = one == other or (
                isinstance(one, float) and math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            )
            assert same, (mine, theirs)


def _order(row: tuple[Any, ...]) -> tuple[str, ...]:
    # Doubles last and rounded: those of two runs differ in their last digits.
    exact = tuple(repr(value) for value in row if not isinstance(value, float))
    return (*exact, *(f"{value:.6g}" for value in row if isinstance(value, float)))


@pytest.mark.parametrize("seed", range(20))
def test_parts_give_what_the_whole_gives(seed: int, connection: duckdb.DuckDBPyConnection) -> None:
    """Names, types, null rules, HAVING, ORDER BY and LIMIT of random statements, over groups that may be empty."""
    chance = random.Random(seed)
    groups = random_groups(chance, groups=3)
    connection.register("cpu", pa.concat_tables(groups))
    for _ in range(10):
        statement = random_statement(chance)
        sql = statement.sql.format(table="cpu")
        found = division(sql)
        assert found is not None, sql
        wanted, final = connection.sql(sql), combined(connection, groups, sql, found)
        assert (wanted.columns, wanted.types) == (final.columns, final.types)
        assert_same(final.fetchall(), wanted.fetchall(), statement.ordered)


@pytest.mark.parametrize(
    "sql",
    [
        *(f"SELECT {each} FROM cpu" for each in UNDIVIDED),
        "SELECT max(x) FROM cpu, cpu AS b",
        "SELECT max(x) FROM cpu WHERE host IN (SELECT host FROM cpu)",
        "SELECT sum(count(*)) OVER () FROM cpu GROUP BY host",
        "SELECT host, count(*) FROM cpu GROUP BY ROLLUP (host)",
        "SELECT x, count(*) FROM cpu GROUP BY x",
        "SELECT max(x) FROM cpu USING SAMPLE 10%",
        "SELECT max(random()) FROM cpu",
        "SELECT DISTINCT ON (host) host, x FROM cpu ORDER BY host, time",
        "SELECT max(COLUMNS(*)) FROM cpu",
        "SELECT (SELECT max(cpu.x) FROM cpu WHERE cpu.host = o.host) FROM (SELECT 'a' AS host) o",
        "SELECT x FROM cpu",
        "SELECT * FROM cpu",
        "SELECT host, max(x) AS host FROM cpu GROUP BY 1 HAVING host > 3",
    ],
)
def test_what_is_not_understood_runs_over_rows(sql: str) -> None:
    """Anything but the allow-list is not divided: no exported state, no count(DISTINCT), no outer name."""
    assert division(sql) is None


def test_int64_sums_keep_their_128_bits(connection: duckdb.DuckDBPyConnection) -> None:
    """Three groups whose sums each exceed an int64."""
    groups = [pa.table({"n": pa.array([2**63 - 1] * 5, pa.int64())}) for _ in range(3)]
    connection.register("cpu", pa.concat_tables(groups))
    found = division("SELECT sum(n) AS s, avg(n) AS a FROM cpu")
    assert found is not None
    ((total, mean),) = combined(connection, groups, "SELECT sum(n) AS s, avg(n) AS a FROM cpu", found).fetchall()
    assert (2**63 - 1) * 15 == total
    assert math.isclose(2**63 - 1, mean, rel_tol=TOLERANCE)


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("SELECT max(x) FROM tsbs.cpu", "SELECT max(x) FROM tsbs.cpu"),
        ("SELECT 'ä)(' FROM (SELECT max(x) FROM tsbs.cpu -- a ) \n) s", "SELECT max(x) FROM tsbs.cpu -- a ) \n"),
        ("WITH a AS (SELECT max(x) FROM cpu) SELECT * FROM a", "SELECT max(x) FROM cpu"),
        ("SELECT (SELECT max((x)) FROM cpu) + 1", "SELECT max((x)) FROM cpu"),
        ("SELECT max(x) FROM cpu UNION ALL SELECT 1", None),
        ("SELECT * FROM (FROM cpu SELECT max(x))", None),
    ],
)
def test_the_place_of_a_select_in_its_statement(sql: str, part: str | None) -> None:
    """The SELECT between its own brackets; none where another text may be meant."""
    span = span_of(sql, *parsed(sql))
    assert part == (None if span is None else sql[span.start : span.end])
