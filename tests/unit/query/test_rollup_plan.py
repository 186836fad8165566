"""Which fragments rollups answer: decisions as tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlglot
from sqlglot import exp

from headrace.consumers.query.partial_plan import divide
from headrace.consumers.query.rollup_plan import RollupPlan, is_hourly, plan_rollup, plan_rollup_of
from headrace.consumers.store.rollup_columns import HOUR_NS, Rolled
from headrace.schemas.tables import TableSchema
from tests.unit.query.random_statements import SCHEMA

T = "tsbs.cpu"
HOUR = "time_bucket(INTERVAL '1 hour', time)"


def no_value(expression: str) -> int | None:
    """No constant is computed."""
    del expression
    return None


def planned(sql: str, evaluate: Callable[[str], int | None] = no_value) -> RollupPlan | None:
    """The plan of the only SELECT of a statement; the fragment as text gives the same one."""
    select = sqlglot.parse_one(sql, dialect="duckdb")
    assert isinstance(select, exp.Select)
    table = select.find(exp.Table)
    assert table is not None
    divided = divide(select, table, SCHEMA)
    if divided is None:
        return None
    plan = plan_rollup(divided, SCHEMA, evaluate)
    assert plan == plan_rollup_of(divided.fragment('"tsbs"."cpu"'), SCHEMA, evaluate)
    if plan is not None:
        assert is_hourly(select), sql
    return plan


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {HOUR} AS h, host, avg(x) FROM {T} GROUP BY h, host",
        f"SELECT time_bucket(INTERVAL 2 HOURS, time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '60 minutes', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '7 days', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '1 month', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT date_trunc('hour', time) AS h, min(x) FROM {T} GROUP BY 1",
        f"SELECT date_trunc('week', time) AS h, min(x) FROM {T} GROUP BY 1",
        f"SELECT CAST(time AS DATE) AS d, sum(x), count(x), count(*) FROM {T} GROUP BY ALL",
        f"SELECT host, arg_max(x, time), arg_min(n, time), bool_and(b), bool_or(b) FROM {T} GROUP BY host",
        f"SELECT min(time), max(time), count(time), count(host), min(host) FROM {T}",
        f"SELECT max(x) FILTER (WHERE host = 'a'), max(time) FILTER (WHERE NOT region IS NULL) FROM {T}",
        f"SELECT max(x) FROM {T} WHERE time >= TIMESTAMP '2026-01-01 05:00:00' AND time < '2026-01-02'",
        f"SELECT max(x) FROM {T} WHERE TIMESTAMP '2026-01-01 05:00:00' <= time AND DATE '2026-01-02' > time",
        f"SELECT max(x) FROM {T} WHERE NOT (time < '2026-01-02 00:00:00.000') OR region IN ('a', 'b')",
        f"SELECT max(x) FROM {T} WHERE date_trunc('day', time) = TIMESTAMP '2026-01-01 00:00:00' AND host LIKE 'a%'",
        f"SELECT count(s) FROM {T} HAVING max(x) > 3 ORDER BY max(n) LIMIT 3",
        f"SELECT DISTINCT region, {HOUR} FROM {T}",
    ],
)
def test_rollups_answer(sql: str) -> None:
    """Keys and conditions of tags and whole hours, and aggregates that follow from those of an hour."""
    assert planned(sql) is not None


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT time_bucket(INTERVAL '30 minutes', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '90 minutes', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '1 hour', time, INTERVAL '5 minutes') AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time_bucket(INTERVAL '1 hour', time, TIMESTAMP '2026-01-01 00:30:00') AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT date_trunc('minute', time) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT time AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT {HOUR} + INTERVAL '1 hour' * 2 AS h, epoch_ns(time) AS e, max(n) FROM {T} GROUP BY ALL",
        f"SELECT CAST(time AS VARCHAR) AS h, max(n) FROM {T} GROUP BY 1",
        f"SELECT max(x) FROM {T} WHERE time > TIMESTAMP '2026-01-01 05:00:00'",
        f"SELECT max(x) FROM {T} WHERE time <= TIMESTAMP '2026-01-01 05:00:00'",
        f"SELECT max(x) FROM {T} WHERE TIMESTAMP '2026-01-01 05:00:00' < time",
        f"SELECT max(x) FROM {T} WHERE time = TIMESTAMP '2026-01-01 05:00:00'",
        f"SELECT max(x) FROM {T} WHERE time BETWEEN '2026-01-01' AND '2026-01-02'",
        f"SELECT max(x) FROM {T} WHERE time >= TIMESTAMP '2026-01-01 05:30:00'",
        f"SELECT max(x) FROM {T} WHERE time >= TIMESTAMP '2026-01-01 05:00:00.0000001'",
        f"SELECT max(x) FROM {T} WHERE time >= '2026-01-01 05:00:00+00:30'",
        f"SELECT max(x) FROM {T} WHERE time >= now() - INTERVAL '1 day'",
        f"SELECT max(x) FROM {T} WHERE x > 3",
        f"SELECT max(x) FROM {T} WHERE host = 'a' OR n = 1",
        f"SELECT max(x) FILTER (WHERE b) FROM {T}",
        f"SELECT max(time) FILTER (WHERE x > 0) FROM {T}",
        f"SELECT sum(x) FILTER (WHERE n IS NOT NULL) FROM {T}",
        f"SELECT sum(x + 1) FROM {T}",
        f"SELECT min(s) FROM {T}",
        f"SELECT arg_max(s, time) FROM {T}",
        f"SELECT arg_max(host, time) FROM {T}",
        f"SELECT arg_max(x, n) FROM {T}",
        f"SELECT count_if(b) FROM {T}",
        f"SELECT count(DISTINCT host) FROM {T}",
        f"SELECT median(x) FROM {T}",
        f"SELECT max(x) FROM {T} GROUP BY n",
    ],
)
def test_rows_answer(sql: str) -> None:
    """Whatever differs between two rows of one series and hour, and whatever is not in the list."""
    assert planned(sql) is None


@pytest.mark.parametrize(("value", "is_planned"), [(5 * HOUR_NS, True), (5 * HOUR_NS + 1, False), (None, False)])
def test_other_constants_are_computed(value: int | None, is_planned: bool) -> None:
    """To the nanosecond, and only of types of time: a text may mean another moment elsewhere."""
    asked: list[str] = []

    def evaluate(expression: str) -> int | None:
        asked.append(expression)
        return value

    found = planned(f"SELECT max(x) FROM {T} WHERE time >= now() - INTERVAL '1 day'", evaluate)
    assert is_planned == (found is not None)
    assert "TIMESTAMP_NS" in asked[0]
    assert "typeof" in asked[0]


def test_what_is_wanted_of_rollups() -> None:
    """Each column once, and the tags of keys and conditions."""
    plan = planned(f"SELECT host, avg(x), sum(x), sum(n), max(time) FROM {T} WHERE region = 'eu' GROUP BY host")
    assert plan is not None
    assert ("host", "region") == plan.request.tags
    wanted = [(column.kind, column.field) for column in plan.request.columns]
    kinds = {Rolled.SUM: "x", Rolled.COUNT: "x", Rolled.SUM_HIGH: "n", Rolled.SUM_LOW: "n", Rolled.LAST_TIME: ""}
    assert sorted(kinds.items()) == sorted(wanted)


def test_a_column_with_a_name_of_ours_is_read_from_rows() -> None:
    """Columns of rollups have names that no column of the table may have."""
    schema = TableSchema("tsbs", "cpu", 1, ("__rollup_0",), SCHEMA.fields)
    select = sqlglot.parse_one(f"SELECT max(x) FROM {T}", dialect="duckdb")
    divided = divide(select, select.find(exp.Table), schema)  # type: ignore[arg-type]
    assert divided is not None
    assert plan_rollup(divided, schema, no_value) is None


@pytest.mark.parametrize(
    "fragment",
    [
        'SELECT "x" FROM "tsbs"."cpu"',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" LIMIT 1',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" GROUP BY "host"',
        'SELECT "host" AS "__key_0", MAX("x") AS "__partial_0" FROM "tsbs"."cpu"',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" HAVING MAX("x") > 1',
        'SELECT DISTINCT MAX("x") AS "__partial_0" FROM "tsbs"."cpu"',
        'SELECT 1 AS "a" UNION ALL SELECT 2',
        'SELECT MAX("x") AS "__partial_0" FROM (SELECT * FROM "tsbs"."cpu" WHERE "x" < 3)',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" TABLESAMPLE 10 PERCENT',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu", "tsbs"."cpu" AS "other"',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" WHERE "host" IN (SELECT "host" FROM "tsbs"."cpu")',
        'SELECT MAX("x") AS "__partial_0" FROM "tsbs"."cpu" WHERE random() < 0.5',
        'SELECT random() AS "__key_0", MAX("x") AS "__partial_0" FROM "tsbs"."cpu" GROUP BY 1',
        'SELECT MAX("x") AS',
    ],
)
def test_a_fragment_of_another_form_is_not_answered(fragment: str) -> None:
    """A member trusts no text: what it did not write itself runs over rows."""
    assert plan_rollup_of(fragment, SCHEMA, no_value) is None


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT date_trunc('minute', time), max(x) FROM {T} GROUP BY 1",
        f"SELECT host, x FROM {T}",
        f"SELECT median(x) FROM {T}",
        f"SELECT max(a.x) FROM {T} a JOIN {T} b ON a.host = b.host",
    ],
)
def test_most_statements_fail_the_cheap_test(sql: str) -> None:
    """Without dividing the statement."""
    select = sqlglot.parse_one(sql, dialect="duckdb")
    assert isinstance(select, exp.Select)
    assert not is_hourly(select)
