"""Statements over what they read, in the place of their tables."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query import inlining
from headrace.consumers.query.constants import moment_us, whole_number
from headrace.consumers.query.database import LockedDatabase, statement_kinds, syntax_tree
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.guard import check
from headrace.consumers.query.inlining import inlined
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_names import resolve

KNOWN = [("iot", "readings"), ("iot", "Größe"), ("odd", "a.b")]
READS = {key: f"FROM {number}" for number, key in enumerate(KNOWN)}


def parsed(expression: str) -> exp.Expression:
    """An expression as sqlglot has it."""
    found = sqlglot.parse_one(expression, dialect="duckdb")
    assert isinstance(found, exp.Expression)
    return found


def put(sql: str) -> str | None:
    """A statement over READS."""
    database = LockedDatabase([], QuerySettings())
    connection = database.lease(16).connection
    try:
        statement = check(
            sql, lambda text: statement_kinds(connection, text), lambda text: syntax_tree(connection, text)
        )
    finally:
        connection.close()
    return inlined(statement, resolve(statement.tables, statement.cte_names, KNOWN), READS)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM iot.readings", 'SELECT * FROM (FROM 0) AS "readings"'),
        ("FROM iot.Readings r SELECT r.x", "FROM (FROM 0) r SELECT r.x"),
        ("SELECT 'ü' FROM iot . \"readings\" AS r(a, b)", "SELECT 'ü' FROM (FROM 0) AS r(a, b)"),
        ('FROM "Größe", readings', 'FROM (FROM 1) AS "Größe", (FROM 0) AS "readings"'),
        ('FROM odd."a.b"', 'FROM (FROM 2) AS "a.b"'),
        ("WITH r AS (FROM iot.readings) FROM r", 'WITH r AS (FROM (FROM 0) AS "readings") FROM r'),
        ("FROM iot.readings -- iot.readings", 'FROM (FROM 0) AS "readings" -- iot.readings'),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_what_is_read_takes_the_place_of_a_table(sql: str, expected: str) -> None:
    """At its place in the text, with the name or the alias by which the statement knows it."""
    assert expected == put(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "DESCRIBE iot.readings",
        "SUMMARIZE iot.readings",
        "EXPLAIN SELECT * FROM iot.readings",
        "WITH readings AS (FROM iot.readings) FROM readings",
        "FROM iot /* of what? */ . readings",
        f"SELECT '{'x' * 100_000}' FROM readings",
        "SELECT (SELECT max(velocity) FROM iot.readings)",
    ],
)
def test_others_need_views(monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    """Where a name may mean something else, where the text has no table, or where it becomes too long."""
    monkeypatch.setattr(inlining, "INLINED_CHARACTERS_MAX", 100_000)
    assert put(sql) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(iot.readings.velocity) AS v FROM iot.readings",
        "SELECT max(readings.velocity) AS v FROM iot.readings",
        "SELECT max(r.velocity) AS v FROM readings r",
        "WITH __live_0 AS (SELECT 9999 AS velocity) SELECT max(velocity) AS v FROM iot.readings",
        "SELECT max(velocity) AS v FROM (TABLE iot.readings)",
        "SELECT (SELECT max(velocity) FROM iot.readings) AS v FROM iot.readings LIMIT 1",
        "SELECT max(a.velocity) AS v FROM iot.readings AS a JOIN readings AS b USING (time, name)",
        "PIVOT iot.readings ON name IN ('truck_1') USING max(velocity) AS v",
    ],
)
def test_a_statement_means_the_same_over_either(engine: QueryEngine, sql: str) -> None:
    """Inlined, or over views where its names need them; rows in memory have a name that no CTE takes."""
    assert engine.query(sql).read_all().num_rows >= 1
    plain = engine.query("SELECT max(velocity) AS v FROM iot.readings").read_all().column(0)[0].as_py()
    if "PIVOT" not in sql:
        assert plain == engine.query(sql).read_all().column(0)[0].as_py()


@pytest.mark.parametrize(
    "expression",
    [
        "TIMESTAMP '2026-01-31 12:30:45.123456'",
        "'2026-01-31T12:30:45'",
        "'2026-01-31'",
        "DATE '2026-01-31'",
        "CAST('2026-01-31 01:02:03' AS TIMESTAMP_NS)",
        "CAST('2026-01-31 23:02:03' AS DATE)",
        "make_timestamp_ns(1767225600123456789)",
        "make_timestamp_ns(-1)",
        "make_timestamp_ns(1767225600000000000) + INTERVAL 15 MINUTE",
        "TIMESTAMP '2026-01-31 00:00:00' - INTERVAL '2' DAY",
        "(TIMESTAMP '1969-12-31 23:59:59.5' + INTERVAL 3 hours)",
    ],
)
def test_known_moments_are_those_of_duckdb(expression: str) -> None:
    """To the microsecond, but for what DuckDB rounds; a bound is wider than that by a second."""
    known = moment_us(parsed(expression))
    with duckdb.connect() as connection:
        ((theirs,),) = connection.execute(f"SELECT epoch_us(CAST({expression} AS TIMESTAMP))").fetchall()
    assert known is not None
    assert abs(known - theirs) <= 1


@pytest.mark.parametrize(
    "expression",
    [
        "now()",
        "TIMESTAMPTZ '2026-01-31 00:00:00+02'",
        "'2026-01-31 00:00:00+02'",
        "'yesterday'",
        "DATE '2026-02-31'",
        "TIMESTAMP '2026-01-31 00:00:00' + INTERVAL 1 MONTH",
        "make_timestamp_ns(1 + 1)",
        "TIME '00:00:00'",
        "make_timestamp(1)",
    ],
)
def test_other_moments_are_left_to_duckdb(expression: str) -> None:
    """Zones, months, and what is no literal."""
    assert moment_us(parsed(expression)) is None


def test_whole_numbers() -> None:
    """With a sign; no others."""
    found = [whole_number(parsed(text)) for text in ("17", "-3", "1.5", "1e3", "'7'", "x")]
    assert [17, -3, None, None, None, None] == found
