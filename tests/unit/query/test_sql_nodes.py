"""SQL that is written anew means what it meant: DuckDB gives the same value and type for both texts."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query.sql_nodes import is_of_row, sql_of

EXPRESSIONS = (
    "INTERVAL '1 year 2 months'",
    "INTERVAL '1 month 2 days 03:04:05'",
    "INTERVAL 5 MINUTE",
    "INTERVAL '90' SECOND",
    "INTERVAL (3) HOUR",
    "INTERVAL '1.5 hours'",
    "INTERVAL '-2 days'",
    "INTERVAL 1 WEEK",
    "INTERVAL '2 weeks'",
    "INTERVAL 1 QUARTER",
    "INTERVAL '10 minutes'",
    "INTERVAL 10 MILLISECONDS",
    "interval '1h'",
    "'10 minutes'::interval",
    "date_trunc('week', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "date_trunc('quarter', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "date_trunc('decade', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "date_trunc('millisecond', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "datetrunc('hour', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "time_bucket(INTERVAL '1 week', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "time_bucket(INTERVAL '7 minutes', TIMESTAMP '2026-03-05 13:47:11.123456', TIMESTAMP '2026-01-01 00:01:00')",
    "time_bucket(INTERVAL '7 minutes', TIMESTAMP '2026-03-05 13:47:11.123456', INTERVAL '2 minutes')",
    "time_bucket(INTERVAL '1 month', TIMESTAMP '2026-03-05 13:47:11.123456')",
    "epoch(TIMESTAMP '2026-03-05 13:47:11.123456')",
    "epoch_ms(TIMESTAMP '2026-03-05 13:47:11.123456')",
    "epoch_us(TIMESTAMP '2026-03-05 13:47:11.123456')",
    "7//2",
    "-7//2",
    "-7%3",
    "7/2",
    "round(2.567,1)",
    "round(-2.5)",
    "1.0/3",
    "'a'||NULL",
    "1e3",
    "0.1+0.2",
    "TRUE AND NULL",
    "NULL IS NULL",
    "5 BETWEEN 1 AND 3",
    "NOT 1=2",
    "'A' ILIKE 'a'",
    "'a_b' LIKE 'a\\_b'",
    "length('äö')",
    "upper('straße')",
    "CASE 1 WHEN 1 THEN 'x' ELSE 'y' END",
    "CASE WHEN NULL THEN 1 END",
    "coalesce(NULL,2)",
    "ifnull(NULL,3)",
    "nullif(1,1)",
    "greatest(1,NULL,3)",
    "least(2,1)",
    "abs(-2)",
    "ceil(1.2)",
    "ceiling(1.2)",
    "floor(-1.2)",
    "sqrt(2)",
    "if(1=1,2,3)",
    "CAST('2026-01-01' AS DATE)",
    "CAST(TIMESTAMP '2026-03-05 13:47:11.123456' AS TIME)",
    "1::DECIMAL(10,2)/3",
    "2**3",
    "(1,2)=(1,2)",
    "1 IS DISTINCT FROM NULL",
    "CAST(1.5 AS INT)",
    "TRY_CAST('x' AS INT)",
    "'it''s'",
    "E'a\\nb'",
    "1 in (1,2)",
    "NULL in (1,2)",
    "1==1",
    "1<>2",
    "1!=2",
    "make_timestamp(0)",
    "make_date(2026,1,2)",
    "make_timestamp(2026,1,2,3,4,5)",
    "trunc(1.7)",
    "mod(7,3)",
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """One DuckDB for all expressions."""
    with duckdb.connect() as opened:
        yield opened


def parsed(text: str) -> exp.Expression:
    """The tree of an expression."""
    tree = sqlglot.parse_one(text, dialect="duckdb")
    assert isinstance(tree, exp.Expression)
    return tree


def answer(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[object, object]:
    """Value and type of an expression."""
    relation = connection.sql(f"SELECT {text}")
    return relation.types, relation.fetchall()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_what_is_allowed_is_written_with_its_meaning(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Intervals, buckets, casts, divisions and nulls. What is not allowed is never written."""
    tree = parsed(text)
    if is_of_row(tree):
        assert answer(connection, text) == answer(connection, sql_of(tree))


def test_most_of_them_are_allowed() -> None:
    """The list above tests what it is meant to test."""
    assert sum(is_of_row(parsed(text)) for text in EXPRESSIONS) > 60


@pytest.mark.parametrize(
    "text",
    ["random()", "uuid()", "sum(x)", "row_number() OVER ()", "(SELECT 1)", "x IN (SELECT 1)", "list(x)", "unnest(x)"],
)
def test_what_is_not_of_a_row_is_not_allowed(text: str) -> None:
    """Chance, aggregates, windows, subqueries, and functions that nobody has looked at."""
    assert not is_of_row(parsed(text))
