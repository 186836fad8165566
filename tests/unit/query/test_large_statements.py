"""Statements that chain a thousand conditions, or join hundreds of tables: understood or not, they are answered."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.consumers.query import planner, predicates
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.planner import PLANNED_BYTES_MAX, ScanPlan
from headrace.consumers.query.predicates import SLACK_NS
from headrace.consumers.query.query_errors import QueryTimeout
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.scope import SOURCES_MAX
from headrace.consumers.query.session import Session
from headrace.consumers.query.table_source import Waits
from tests.unit.query.memory_source import MemorySource
from tests.unit.query.test_engine import rows
from tests.unit.query.test_planner import DAY_2024_NS, plan

MANY = " AND ".join(["2>1"] * 980)


@pytest.mark.parametrize("chained", [MANY, MANY.replace("AND", "OR")])
@pytest.mark.parametrize("ending", ["", " ORDER BY time DESC LIMIT 100", " AND name = 'truck_1'"])
def test_a_thousand_conditions_are_answered(engine: QueryEngine, chained: str, ending: str) -> None:
    """However deep their tree is for a parser in Python."""
    sql = f"SELECT velocity FROM iot.readings WHERE ({chained}){ending}"
    assert 6_500 < len(sql) < PLANNED_BYTES_MAX
    wanted = f"SELECT velocity FROM iot.readings{' WHERE' * ('AND' in ending)}{ending.replace(' AND', '')}"
    assert sorted(rows(engine, wanted), key=repr) == sorted(rows(engine, sql), key=repr)


def test_bounds_behind_a_thousand_conditions_narrow_the_scan() -> None:
    """Also in brackets, and where only aggregates of one series are wanted."""
    found = plan(f"SELECT max(velocity) FROM iot.readings WHERE {MANY} AND (time >= TIMESTAMP '2024-01-01')")
    assert DAY_2024_NS - SLACK_NS == found.start_ns
    series = plan("SELECT count(*) FROM iot.readings WHERE (name = 'a') AND (time >= TIMESTAMP '2024-01-01')").series
    assert series is not None
    assert (DAY_2024_NS, ("a",)) == (series.start_ns, series.tags["name"])


def test_a_tree_that_is_too_deep_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python cannot follow narrows nothing, and fails nothing."""

    def too_deep(*_given: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(planner, "occurrence_of", too_deep)
    assert ScanPlan() == plan("SELECT velocity, load FROM iot.readings WHERE time >= TIMESTAMP '2024-01-01'")


def test_names_of_many_joined_tables_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take the square of their number: 430 tables took 13 s."""
    looked = list[str]()

    def noted(condition: Any, *rest: Any) -> None:
        looked.append(str(condition))
        predicates.narrow(condition, *rest)

    monkeypatch.setattr(planner, "narrow", noted)
    for joins in (SOURCES_MAX - 1, SOURCES_MAX):
        looked.clear()
        joined = " ".join(f"JOIN iot.readings AS r{number} USING (name)" for number in range(joins))
        sql = f"SELECT 1 FROM iot.readings AS r {joined} WHERE r.time >= TIMESTAMP '2024-01-01'"
        narrow = plan(sql)
        assert (joins < SOURCES_MAX) == bool(looked) == (narrow.columns is not None)


class Interrupted:
    """A connection whose query is interrupted while it takes rows."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        """Everything else."""
        return getattr(self._connection, name)

    def register(self, name: str, rows: pa.Table) -> None:
        """As DuckDB does it."""
        raise duckdb.InterruptException(f"INTERRUPT Error: Interrupted! {name} {rows.num_rows}")


def test_the_end_of_its_time_while_it_takes_rows_is_a_timeout(engine: QueryEngine, source: MemorySource) -> None:
    """And no failure that nobody expects."""

    class Nothing(Waits):
        def outside(self, _on: Any) -> Any:
            return nullcontext()

    timer = QueryTimer(engine.interrupter, 1)
    with ExitStack() as resources:
        session = Session(engine.database, resources, source.fence(), timer, 32, 0, lambda: None, Nothing())
        session._connection = Interrupted(session._connection)  # type: ignore[assignment]
        while not timer.expired:
            pass
        with pytest.raises(QueryTimeout):
            session.register("rows", pa.table({"a": [1]}))
    timer.finish()
    assert [(30,)] == rows(engine, "SELECT count(*) FROM iot.readings")
