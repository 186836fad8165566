"""Intervals in the planner's tree mean what they mean to DuckDB."""

from __future__ import annotations

import duckdb
import pytest

from headrace.consumers.query.guard import Statement
from headrace.consumers.query.planner import parse
from headrace.consumers.query.sql_nodes import sql_of

CONNECTION = duckdb.connect(":memory:")
UNITS = (
    *("us", "usec", "usecs", "microsecond", "microseconds", "ms", "msec", "msecs", "milliseconds", "s", "sec", "secs"),
    *("second", "m", "min", "mins", "minutes", "h", "hr", "hrs", "hours", "d", "days", "w", "weeks", "mon", "mons"),
    *("months", "quarters", "y", "yr", "yrs", "year", "decade", "decades", "century", "centuries", "millennium"),
)


def value(expression: str) -> object:
    """The moment, and the text, of an interval behind a moment."""
    return CONNECTION.cursor().execute(f"SELECT v, v::VARCHAR FROM (SELECT {expression} AS v)").fetchall()


def written(expression: str) -> str | None:
    """An expression as the planner writes it anew; None where it leaves the statement alone."""
    tree = parse(Statement(f"SELECT {expression}"))
    return None if tree is None else sql_of(tree.expressions[0])


@pytest.mark.parametrize("count", ["3", "-2", "1.5", " 7 "])
def test_every_unit_keeps_its_length(count: str) -> None:
    """Also those that only a text may have, such as `5 min`: written behind the text they would be a name."""
    for unit in UNITS:
        expression = f"TIMESTAMP '2026-01-01' - INTERVAL '{count} {unit.upper()}' + INTERVAL '0{unit}'"
        found = written(expression)
        assert found is not None, expression
        assert value(expression) == value(found), expression


@pytest.mark.parametrize("text", ["5 days", "1 day 2 hours", "90", "1 hour-30 minutes", "-1 day", "1 day 2 hours ago"])
def test_a_text_of_whole_units_is_planned(text: str) -> None:
    """A text of several parts stays one text."""
    expression = f"TIMESTAMP '2026-01-01' - INTERVAL '{text}'"
    found = written(expression)
    assert found is not None
    assert value(expression) == value(found)


@pytest.mark.parametrize(
    "interval",
    [
        *("INTERVAL '1 day 12:00:00'", "INTERVAL '12:00:00 1 day'", "INTERVAL '1 hour ago'"),
        *("INTERVAL /* a comment */ '-1 day -02:00'", "INTERVAL 5 x", "INTERVAL '5' x", "INTERVAL '3 cent'"),
        *("INTERVAL ('5') min", "INTERVAL (5) mins", "INTERVAL '3 q'", "INTERVAL '3 Q'", "INTERVAL '1 ns'"),
    ],
)
def test_a_text_with_more_than_a_number_and_a_unit_is_left_to_duckdb(interval: str) -> None:
    """A clock behind a unit, or `ago`, is a part of the interval that no part of a plan may lack."""
    assert written(f"TIMESTAMP '2026-01-01' - {interval}") is None
