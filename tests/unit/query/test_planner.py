"""What each statement needs to read, and when nothing may be narrowed."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import duckdb
import pytest
from sqlglot import exp

from headrace.consumers.query.database import statement_kinds, syntax_tree
from headrace.consumers.query.guard import check
from headrace.consumers.query.planner import PLANNED_BYTES_MAX, ScanPlan, parse, plan_scans
from headrace.consumers.query.predicates import DAY_NS, SLACK_NS
from headrace.consumers.query.table_names import resolve
from headrace.schemas.tables import FieldType, TableSchema

CONNECTION = duckdb.connect(":memory:")
SECOND_NS = 1_000_000_000
DAY_2024_NS = 1_704_067_200 * SECOND_NS
READINGS = TableSchema(
    "iot", "readings", 1, ("fleet", "name"), (("load", FieldType.FLOAT64), ("velocity", FieldType.FLOAT64))
)
EVENTS = TableSchema("iot", "events", 1, ("name",), (("code", FieldType.INT64),))
SCHEMAS = {("iot", "readings"): READINGS, ("iot", "events"): EVENTS}


def evaluate(expression: str) -> int | None:
    """Constants by a DuckDB of its own."""
    try:
        found = CONNECTION.cursor().execute(f"SELECT CAST(({expression}) AS HUGEINT)").fetchall()
    except duckdb.Error:
        return None
    value: int | None = found[0][0]
    return value


def plans(sql: str) -> dict[str, ScanPlan]:
    """The plan of each table by its name."""
    connection = CONNECTION.cursor()
    statement = check(sql, partial(statement_kinds, connection), partial(syntax_tree, connection))
    resolved = resolve(statement.tables, statement.cte_names, SCHEMAS)
    return {key[1]: plan for key, plan in plan_scans(statement, resolved, SCHEMAS, evaluate).items()}


def plan(sql: str) -> ScanPlan:
    """The plan of `iot.readings`."""
    return plans(sql)["readings"]


@pytest.mark.parametrize(
    ("condition", "start_ns", "end_ns"),
    [
        ("time >= '2024-01-01'", 0, None),
        ("time > TIMESTAMP '2024-01-01'", 0, None),
        ("'2024-01-01' <= time", 0, None),
        ("time < DATE '2024-01-01'", None, 0),
        ("DATE '2024-01-01' >= time", None, 0),
        ("time = '2024-01-01'", 0, 0),
        ("time BETWEEN '2024-01-01' AND '2024-01-02'", 0, DAY_NS),
        ("time >= '2024-01-01' AND time < '2024-01-02' AND velocity > 3", 0, DAY_NS),
        ("(time >= '2024-01-01') AND ((time < '2024-01-02') AND time < '2024-01-03')", 0, DAY_NS),
        ("time >= TIMESTAMP '2024-01-02' - INTERVAL 1 DAY", 0, None),
        ("time >= TIMESTAMP_NS '2024-01-01 00:00:00.000000001'", 0, None),
        ("time >= make_timestamp(2024, 1, 1, 0, 0, 0)", 0, None),
        ("time >= date_trunc('day', TIMESTAMP '2024-01-01 17:00')", 0, None),
        ("epoch_ns(time) >= 1704067200000000000", 0, None),
        ("epoch_us(time) >= 1704067200000000", 0, None),
        ("epoch_ms(time) >= 1704067200000 AND epoch_ms(time) < 1704067200000 + 86400000", 0, DAY_NS),
        ("epoch(time) < 1704067200", None, 0),
        ("readings.time >= '2024-01-01'", 0, None),
        ("iot.readings.time >= '2024-01-01'", 0, None),
        ("\"TIME\" >= '2024-01-01'", 0, None),
        ("time >= '2024-01-01T00:00:00Z'", 0, None),
        ("time >= '2024-01-01' AND time IS NOT NULL AND (name = 'x' OR velocity > 1)", 0, None),
    ],
)
def test_conditions_on_time_narrow_the_range(condition: str, start_ns: int | None, end_ns: int | None) -> None:
    """Comparisons of time with constants that must hold become a range, a second wider at each end."""
    found = plan(f"SELECT velocity FROM iot.readings WHERE {condition}")
    first = None if start_ns is None else DAY_2024_NS + start_ns - SLACK_NS
    last = None if end_ns is None else DAY_2024_NS + end_ns + SLACK_NS + 1
    assert (first, last) == (found.start_ns, found.end_ns)


@pytest.mark.parametrize(
    ("condition", "width_ns"),
    [
        ("time::DATE = '2024-01-01'", DAY_NS),
        ("CAST(time AS DATE) = DATE '2024-01-01'", DAY_NS),
        ("date_trunc('hour', time) = '2024-01-01'", 3_600 * SECOND_NS),
        ("time_bucket(INTERVAL '5 minutes', time) = '2024-01-01'", 600 * SECOND_NS),
    ],
)
def test_rounded_times_narrow_with_the_width_of_the_rounding(condition: str, width_ns: int) -> None:
    """A time rounded down is within a bucket of the time itself, so the range is a bucket wider at each end."""
    found = plan(f"SELECT velocity FROM iot.readings WHERE {condition}")
    assert (DAY_2024_NS - width_ns, DAY_2024_NS + width_ns + 1) == (found.start_ns, found.end_ns)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT velocity FROM iot.readings",
        "SELECT velocity FROM iot.readings WHERE time >= '2024-01-01' OR velocity > 3",
        "SELECT velocity FROM iot.readings WHERE NOT time < '2024-01-01'",
        "SELECT velocity FROM iot.readings WHERE time <> '2024-01-01'",
        "SELECT velocity FROM iot.readings WHERE time >= 'not a time'",
        "SELECT velocity FROM iot.readings WHERE time >= (SELECT max(time) FROM iot.events)",
        "SELECT velocity FROM iot.readings WHERE time >= make_timestamp(CAST(random() * 1e15 AS BIGINT))",
        "SELECT velocity FROM iot.readings WHERE time + INTERVAL 1 DAY >= '2024-01-01'",
        "SELECT velocity FROM iot.readings HAVING max(time) > '2024-01-01'",
        "SELECT time - INTERVAL 1 DAY AS time FROM iot.readings WHERE time >= '2024-01-01'",
        "SELECT velocity FROM iot.readings AS r (time, b, c, d, e) WHERE time >= '2024-01-01'",
        "SELECT * FROM iot.readings TABLESAMPLE 10% WHERE time >= '2024-01-01'",
        "SELECT * FROM iot.readings WHERE time >= '2024-01-01' USING SAMPLE 3",
        "SELECT * FROM (SELECT * FROM iot.readings) WHERE time >= '2024-01-01'",
        "SELECT * FROM iot.readings POSITIONAL JOIN iot.events WHERE readings.time >= '2024-01-01'",
        "SELECT * FROM iot.events e ASOF JOIN iot.readings r ON e.time >= r.time WHERE r.time < '2024-01-01'",
        "SELECT * FROM iot.readings JOIN iot.events USING (name) WHERE time >= '2024-01-01'",
        "SELECT * FROM iot.readings r LEFT JOIN iot.events e ON r.time >= '2024-01-01'",
        "SELECT * FROM iot.readings r FULL JOIN iot.events e ON r.time >= '2024-01-01'",
        "SELECT * FROM iot.readings r ANTI JOIN iot.events e ON r.time >= '2024-01-01'",
        "SELECT * FROM iot.events WHERE EXISTS (FROM iot.readings WHERE events.time >= '2024-01-01')",
        "WITH readings AS (SELECT 1) SELECT * FROM iot.readings, readings WHERE readings.time >= '2024-01-01'",
        "SELECT * FROM iot.readings WHERE time > '2024-01-01' UNION ALL SELECT * FROM iot.readings",
        "SELECT * FROM iot.readings WHERE name = '' OR name IS NULL",
        "SELECT * FROM iot.readings WHERE name = ''",
        "SELECT * FROM iot.readings WHERE name > 'a' AND name LIKE 'b%'",
        "SELECT * FROM iot.readings WHERE name IN (SELECT name FROM iot.events)",
        "SELECT * FROM iot.readings WHERE upper(name) = 'A'",
        "SELECT * FROM iot.readings WHERE name = fleet",
        "SELECT * FROM iot.readings WHERE velocity = 'a'",
    ],
)
def test_conditions_that_prove_nothing_narrow_nothing(sql: str) -> None:
    """Where a row that fails the condition can still matter, every row is read."""
    found = plan(sql)
    assert (None, None, {}, False) == (found.start_ns, found.end_ns, found.tags, found.empty)


@pytest.mark.parametrize(
    ("condition", "tags"),
    [
        ("name = 'a'", {"name": ("a",)}),
        ("'a' = name", {"name": ("a",)}),
        ("name IN ('b', 'a')", {"name": ("a", "b")}),
        ("name IN ('b', 'a') AND name = 'b' AND fleet = 'x'", {"name": ("b",), "fleet": ("x",)}),
        ("\"NAME\" = 'a'", {"name": ("a",)}),
        ("r.name = 'a' AND e.name = 'b'", {"name": ("a",)}),
    ],
)
def test_equal_tags_are_pushed_down(condition: str, tags: dict[str, tuple[str, ...]]) -> None:
    """Equality with text and IN over text become the values that a tag may have."""
    tables = "iot.readings r JOIN iot.events e USING (time)" if "r." in condition else "iot.readings"
    assert tags == plan(f"SELECT velocity FROM {tables} WHERE {condition}").tags


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT velocity FROM iot.readings", ("velocity",)),
        ("SELECT count(*) FROM iot.readings", ("time",)),
        ("SELECT name, max(VELOCITY) FROM iot.readings WHERE fleet = 'x' GROUP BY ALL", ("fleet", "name", "velocity")),
        ("SELECT load FROM iot.readings ORDER BY time", ("time", "load")),
        ("SELECT r.load, e.code FROM iot.readings r JOIN iot.events e USING (name)", ("name", "load")),
        ("SELECT (SELECT max(load) FROM iot.readings) AS most", ("load",)),
        ("SELECT * FROM (SELECT load FROM iot.readings)", ("load",)),
        ("SELECT * FROM iot.readings", None),
        ("FROM iot.readings", None),
        ("SELECT readings.* FROM iot.readings", None),
        ("SELECT * EXCLUDE (load) FROM iot.readings", None),
        ("SELECT COLUMNS('l.*') FROM iot.readings", None),
        ("SELECT #1 FROM iot.readings", None),
        ("SELECT r FROM iot.readings r", None),
        ("SELECT to_json(readings) FROM iot.readings", None),
        ("SELECT b FROM iot.readings AS r (a, b, c, d, e)", None),
        ("SELECT load FROM iot.readings NATURAL JOIN iot.events", None),
        ("PIVOT iot.readings ON name IN ('a') USING max(load)", None),
        ("SUMMARIZE iot.readings", None),
        ("SELECT load FROM iot.readings UNION ALL SELECT velocity FROM iot.readings", ("load", "velocity")),
    ],
)
def test_columns_are_those_that_are_named(sql: str, columns: tuple[str, ...] | None) -> None:
    """Columns named anywhere in the statement are read, in table order; a star, or anything like one, reads all."""
    assert columns == plan(sql).columns


@pytest.mark.parametrize(
    "join",
    [
        "iot.readings r JOIN iot.events e ON r.name = e.name WHERE r.time >= '2024-01-01'",
        "iot.readings r LEFT JOIN iot.events e ON r.name = e.name WHERE r.time >= '2024-01-01'",
        "iot.events e LEFT JOIN iot.readings r ON r.name = e.name WHERE r.time >= '2024-01-01'",
        "iot.events e FULL JOIN iot.readings r ON r.name = e.name WHERE r.time >= '2024-01-01'",
        "iot.readings r JOIN iot.events e ON r.name = e.name AND r.time >= '2024-01-01'",
        "iot.events e LEFT JOIN iot.readings r ON r.name = e.name AND r.time >= '2024-01-01'",
        "iot.events e, iot.readings r WHERE r.name = e.name AND r.time >= '2024-01-01'",
    ],
)
def test_conditions_are_pushed_through_joins_where_they_must_hold(join: str) -> None:
    """WHERE narrows every table of an ordinary join.

    ON narrows both sides of an inner and the right side of a left join.
    """
    found = plans(f"SELECT r.velocity, e.code FROM {join}")
    assert DAY_2024_NS - SLACK_NS == found["readings"].start_ns
    assert found["events"].start_ns is None


def test_a_table_used_twice_is_read_for_both_uses() -> None:
    """Ranges, values and columns of all uses are joined."""
    found = plan(
        "SELECT a.load FROM iot.readings a, iot.readings b WHERE a.time >= '2024-01-02' AND b.time >= '2024-01-01'"
        " AND a.time < '2024-01-05' AND a.name = 'x' AND b.name IN ('y', 'x') AND a.fleet = 'z'"
    )
    assert (DAY_2024_NS - SLACK_NS, None) == (found.start_ns, found.end_ns)
    assert {"name": ("x", "y")} == found.tags


def test_a_range_without_times_reads_no_rows() -> None:
    """A contradiction needs no scan at all."""
    assert plan("SELECT load FROM iot.readings WHERE time > '2024-01-05' AND time < '2024-01-01'").empty


def test_describe_reads_no_rows() -> None:
    """DESCRIBE needs the schema only."""
    assert plan("DESCRIBE SELECT * FROM iot.readings").empty


@pytest.mark.parametrize("year", ["0001", "1500", "2400", "9999"])
def test_times_beyond_nanoseconds_do_not_overflow(year: str) -> None:
    """A bound out of the range of int64 nanoseconds is dropped or clamped."""
    after = plan(f"SELECT load FROM iot.readings WHERE time >= TIMESTAMP '{year}-01-01'")
    before = plan(f"SELECT load FROM iot.readings WHERE time < TIMESTAMP '{year}-01-01'")
    assert all(bound is None or -(2**63) <= bound < 2**63 for bound in (after.start_ns, before.end_ns))
    assert (after.start_ns is None) == (year < "1600")
    assert (before.end_ns is None) == (year > "2300")


def test_long_sql_is_not_narrowed() -> None:
    """For SQL beyond the limit all rows are read instead of parsing it in Python."""
    values = ", ".join(f"'{number:08}'" for number in range(PLANNED_BYTES_MAX // 10))
    assert ScanPlan() == plan(f"SELECT load FROM iot.readings WHERE name IN ({values})")


def test_a_copy_of_a_tree_is_planned_by_its_own_nodes() -> None:
    """What is kept with a tree is not that of its copies, whose conditions may be others."""
    connection = CONNECTION.cursor()
    sql = "SELECT max(load) FROM readings WHERE name = 'a'"
    statement = check(sql, partial(statement_kinds, connection), partial(syntax_tree, connection))
    resolved = resolve(statement.tables, statement.cte_names, SCHEMAS)
    tree = parse(statement)
    assert tree is not None
    planned = partial(plan_scans, statement, resolved, SCHEMAS, evaluate)
    for name in "ab":
        (literal,) = tree.find_all(exp.Literal)
        literal.set("this", name)
        (found,) = planned(parsed=partial(nullcontext, tree)).values()
        assert {"name": (name,)} == found.tags
        tree = tree.copy()
