"""Divisions of statements that are remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.consumers.query.checked_statements import CHECKED_CHARACTERS_MAX
from headrace.consumers.query.distribution import Distribution
from headrace.consumers.query.divisions import DIVISIONS_MAX, Division, Divisions, StatementOver
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.table_names import Resolved
from headrace.schemas.tables import FieldType, TableSchema

KEY = ("tsbs", "cpu")
SCHEMA = TableSchema(*KEY, 1, ("host",), (("x", FieldType.FLOAT64),))
DIVISION = Division(Distribution((), {}, {}), (), "SELECT 1")


def over(sql: str, **changes: object) -> StatementOver:
    """A statement over one table."""
    found = StatementOver(BoundStatement(Statement(sql)), Resolved({KEY: KEY}, frozenset()), {KEY: SCHEMA}, True)
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_division_holds_for_the_tables_that_it_was_made_for() -> None:
    """Another schema, another meaning of a name, or aggregates that are not divided: it is made again."""
    known, wanted = Divisions(), over("SELECT max(x) FROM cpu")
    known.put(wanted, DIVISION)
    assert DIVISION is known.get(over("SELECT max(x) FROM cpu"))
    changed = replace(SCHEMA, version=2, fields=(("x", FieldType.INT64),))
    other = Resolved({("cpu",): KEY}, frozenset())
    for another in (
        over("SELECT min(x) FROM cpu"),
        *(replace(wanted, schemas={KEY: changed}, resolved=each) for each in (wanted.resolved, other)),
    ):
        assert known.get(another) is None
    assert known.get(replace(wanted, partial=False)) is None
    assert known.get(replace(wanted, resolved=other)) is None


@pytest.mark.parametrize(
    "wanted",
    [
        over("S" * (CHECKED_CHARACTERS_MAX + 1)),
        over("", bound=BoundStatement(Statement("S", names_now=True))),
        over("", bound=BoundStatement(Statement("S", explain="EXPLAIN "))),
        over("", bound=BoundStatement(Statement("S"), ("p",), (1,))),
    ],
)
def test_what_may_be_divided_otherwise_next_time_is_not_remembered(wanted: StatementOver) -> None:
    """Nor is a text that is long."""
    known = Divisions()
    known.put(wanted, DIVISION)
    assert known.get(wanted) is None


def test_the_divisions_used_last_are_remembered() -> None:
    """There is a limit."""
    known = Divisions()
    for number in range(DIVISIONS_MAX + 1):
        known.put(over(f"SELECT {number}"), DIVISION)
        known.get(over("SELECT 1"))
    assert known.get(over("SELECT 0")) is None
    assert DIVISION is known.get(over("SELECT 1"))
