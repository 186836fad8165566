"""Parameters of queries: bound values, never a part of the SQL."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.parameters import PARAMETERS_MAX, problem_of
from headrace.consumers.query.query_errors import FunctionRefused, QueryInvalid
from headrace.consumers.query.time_errors import time_invalid
from tests.unit.query.conftest import DAY_NS, START_NS
from tests.unit.query.memory_source import MemorySource


def rows(engine: QueryEngine, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of an answer."""
    table = engine.query(sql, parameters=parameters).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_values_keep_their_types(engine: QueryEngine) -> None:
    """Numbers, texts, booleans, null, moments and lists arrive as values of those types, in any place."""
    assert [(3, 2.5, True, None, "BIGINT", "TIMESTAMP_NS")] == rows(
        engine,
        "SELECT $whole, $number, $flag, $nothing, typeof($large), typeof($moment)",
        whole=3,
        number=2.5,
        flag=True,
        nothing=None,
        large=2**40,
        moment={"timestamp": "2026-01-01T00:00:00.123456789"},
    )
    assert 2 == len(rows(engine, "SELECT * FROM iot.readings ORDER BY time LIMIT $n", n=2))
    assert [(30,)] == rows(engine, "SELECT count(*) FROM readings WHERE name IN $names", names=["truck_1", "truck_2"])


def test_a_text_with_quotes_is_a_value(engine: QueryEngine) -> None:
    """Quotes, comments and names of other parameters in a value mean nothing."""
    for text in ("' OR '1'='1", "$other", "--", "/*", "\\", "\n;DROP", "ü€", "getvariable('__parameter_1')"):
        assert [(text, 7)] == rows(engine, "SELECT $text, $other", text=text, other=7)
        assert [] == rows(engine, "SELECT * FROM iot.readings WHERE name = $text", text=text)


def test_only_parameters_are_replaced(engine: QueryEngine) -> None:
    """`$name` in a text, a quoted name or a comment is no parameter; positions count bytes."""
    sql = "SELECT 'ü $a' AS t, $$ $a $$ AS d, $a + $A AS s /* $a */ FROM iot.readings r LIMIT 1 -- $a"
    assert [("ü $a", " $a ", 4)] == rows(engine, sql, a=2)


def test_a_question_mark_is_named_by_its_place(engine: QueryEngine) -> None:
    """The first one is `1`: drivers of Flight SQL bind values so."""
    assert [("a", 3)] == rows(engine, "SELECT ?, ? + ?", **{"1": "a", "2": 1, "3": 2})
    with pytest.raises(QueryInvalid, match=r"no value for \? number 2 \(bind"):
        rows(engine, "SELECT ?, ?, ?", **{"1": "a"})


def test_columns_and_errors_show_the_name(engine: QueryEngine) -> None:
    """The variable behind a parameter is seen nowhere, and SQL cannot read it."""
    assert ["$a", "($a + 1)"] == engine.query("SELECT $a, $a + 1", parameters={"a": 1}).read_all().column_names
    with pytest.raises(FunctionRefused):
        engine.query("SELECT getvariable('__parameter_0'), $a", parameters={"a": 1})
    with pytest.raises(QueryInvalid) as raised:
        engine.query("SELECT list_sum($a)", parameters={"a": "x"}).read_all()
    assert "__parameter" not in str(raised.value)


def test_parameters_narrow_what_is_read(engine: QueryEngine, source: MemorySource) -> None:
    """A time and a tag that are parameters leave out files and series as literals do."""
    sql = "SELECT count(*) FROM iot.readings WHERE time >= $start AND name = $name"
    start = "2023-11-17"
    found = rows(engine, sql, start=start, name="truck_1")
    asked = source.requests[-1]
    assert found == rows(engine, sql.replace("$start", f"'{start}'").replace("$name", "'truck_1'"))
    assert source.requests[-1] == asked
    assert {"name": ("truck_1",)} == asked["tags"]
    assert asked["start_ns"] > START_NS + DAY_NS


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        ("SELECT $a, $B", {"a": 1}, r"no value for parameter \$B"),
        ("SELECT 1", {"a": 1}, r"the SQL does not name parameter \$a"),
        ("SHOW TABLES", {"a": 1}, r"does not name parameter \$a"),
        ("SELECT ?", {"a": 1}, "without a name"),
        ("SELECT $a", {"a": 10**50}, "too large"),
    ],
)
def test_what_does_not_fit_is_named(engine: QueryEngine, sql: str, parameters: dict[str, Any], message: str) -> None:
    """A parameter without a value, and a value without a parameter, are one line that names it."""
    with pytest.raises(QueryInvalid, match=message):
        engine.query(sql, parameters=parameters)


@pytest.mark.parametrize(
    ("condition", "since", "message"),
    [
        ("time > $since", "yesterday", "$since is 'yesterday', which is neither a time nor a whole number"),
        ("time > $since", {"timestamp": "x"}, "$since is 'x', which is no time"),
        ("time < '2026-01-02 01'", None, "'2026-01-02 01' is neither a time nor a whole number"),
        ("time BETWEEN 'it''s' AND '2026-01-01'", None, "'it's' is neither a time nor a whole number"),
    ],
)
def test_a_text_that_is_no_time_is_named(engine: QueryEngine, condition: str, since: Any, message: str) -> None:
    """With its parameter, where it has one, and with what a time looks like."""
    for sql in (
        "SELECT * FROM iot.readings WHERE ",
        "SELECT max(velocity) FROM iot.readings WHERE name = 'truck_1' AND ",
    ):
        with pytest.raises(QueryInvalid) as raised:
            engine.query(sql + condition, parameters={} if since is None else {"since": since}).read_all()
        assert (message, True) == (raised.value.message, "'2026-01-31 12:00:00'" in raised.value.action)


@pytest.mark.parametrize("condition", ["count(*) > 'many'", "max(time) > 'many'"])
def test_a_text_that_is_no_number_is_not_taken_for_a_time(engine: QueryEngine, condition: str) -> None:
    """DuckDB reports both alike, so what helps names both."""
    with pytest.raises(QueryInvalid, match="'many' is neither") as raised:
        engine.query(f"SELECT name FROM iot.readings GROUP BY name HAVING {condition}").read_all()
    assert raised.value.action.endswith("a whole number has digits alone")


@pytest.mark.parametrize("value", ["CAST('x' AS BIGINT)", "'x'::BIGINT", "CAST($p AS BIGINT)", "CAST(name AS BIGINT)"])
def test_a_cast_to_a_number_gets_no_hint_about_times(engine: QueryEngine, value: str) -> None:
    """Its user named the type."""
    parameters = {"p": "x"} if "$p" in value else {}
    with pytest.raises(QueryInvalid, match="Could not convert string") as raised:
        engine.query(f"SELECT {value} FROM iot.readings", parameters=parameters).read_all()
    assert "" == raised.value.action


@pytest.mark.timeout(20)
def test_an_error_that_repeats_a_long_statement_is_read_once() -> None:
    """The statement has its own words as often as fit: a search for each of them held up the whole node for minutes."""
    repeated = "Could not convert string '" * 30_000
    assert time_invalid(f"Conversion Error: {repeated} to INT32\n\nLINE 1: SELECT '{repeated}'") is None
    found = time_invalid(f"Conversion Error: {repeated}' to INT64\n\nLINE 1: SELECT '{repeated}'\n               ^")
    assert found is not None
    assert len(found.message) < 200


def test_a_value_of_a_row_is_named_as_duckdb_does(engine: QueryEngine) -> None:
    """It is in no place of the SQL, and was converted by the will of its user."""
    with pytest.raises(QueryInvalid, match="Could not convert string 'truck_1' to INT64"):
        engine.query("SELECT CAST(name AS BIGINT) FROM iot.readings").read_all()


def test_values_of_a_request_are_checked() -> None:
    """A request holds an object of names and plain values, of bounded size."""
    assert problem_of({"a": 1, "b": [1, None, 2.5], "c": {"timestamp": "2026-01-01"}}) is None
    wrongs: tuple[object, ...] = (
        [],
        {"a": {"b": 1}},
        {"a": [[1]]},
        {"a": 1, "A": 2},
        {"\ud800": 1},
        {"b": [1, None, "x"]},
        {"b": [1, True]},
        {"b": ["2026-01-01", {"timestamp": "2026-01-01"}]},
        dict.fromkeys(map(str, range(PARAMETERS_MAX + 1))),
    )
    for wrong in wrongs:
        assert problem_of(wrong) is not None
