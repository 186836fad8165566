"""What is reused of a statement whose literals alone differ from those of an earlier one."""

from __future__ import annotations

import random
from functools import partial
from itertools import product

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from headrace.consumers.query import checked_statements
from headrace.consumers.query.checked_statements import TEMPLATES_MAX, TREES_MAX, CheckedStatements
from headrace.consumers.query.database import statement_kinds, syntax_tree
from headrace.consumers.query.guard import Statement, check
from headrace.consumers.query.planner import PLANNED_BYTES_MAX, parse, plan_scans
from headrace.consumers.query.scope import position_of
from headrace.consumers.query.table_names import resolve
from headrace.consumers.query.templates import Template, template_of
from tests.unit.query.test_planner import SCHEMAS, evaluate

CONNECTION = duckdb.connect(":memory:")
CHECK = partial(check, kinds=partial(statement_kinds, CONNECTION), tree=partial(syntax_tree, CONNECTION))


def known_after(*texts: str) -> CheckedStatements:
    """What is remembered behind these statements."""
    found = CheckedStatements()
    for sql in texts:
        if found.get(sql) is None:
            found.put(sql, CHECK(sql), CHECK)
    return found


def places(tree: exp.Expression | None) -> list[int | None]:
    """Where the tables of a tree are in its text."""
    assert tree is not None
    return [position_of(table) for table in tree.find_all(exp.Table)]


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("SELECT max(load) FROM readings WHERE name = {} AND velocity > {}", [("'a'", "1"), ("'b, c'", "250")]),
        (
            "SELECT {} AS x, r.* FROM iot.readings AS r WHERE r.time >= {}",
            [("7", "'2024-01-01'"), ("70", "'2024-05-06'")],
        ),
        ("SELECT count(*) FROM readings WHERE time < make_timestamp_ns({})", [("1704067200000000000",), ("5",)]),
        ("SELECT load FROM readings WHERE time > '2024-01-01' - INTERVAL {} HOUR LIMIT {}", [("1", "2"), ("12", "30")]),
        ("SELECT load FROM readings WHERE time > '2024-01-05'::DATE - INTERVAL {}", [("'1 day'",), ("'30 minutes'",)]),
        ("SELECT date_trunc({}, time), count(*) FROM readings GROUP BY {}", [("'hour'", "1"), ("'day'", "1")]),
        ("SELECT name FROM readings WHERE name IN ({}, {})", [("'a'", "'b'"), ("'long name'", "'a'")]),
        ("SELECT name FROM readings WHERE name = 'x' OR time < {}", [("'now'",), ("'2024-01-01'",)]),
        ("SELECT {} || name, (SELECT max(code) FROM events WHERE name = {}) FROM iot.readings", [("'a'", "'b'")]),
        (
            "SELECT {} AS k, a.v, b.v FROM (SELECT max(load) AS v FROM readings) a, (SELECT {} AS v FROM iot.readings) b",
            [("'x'", "1"), ("'long text'", "12345"), ("''", "2")],
        ),
        ("WITH a AS (SELECT * FROM events WHERE code = {}) SELECT * FROM a, iot.readings", [("1",), ("12345",)]),
        ("SELECT sum(load * {}) FROM readings", [("1.5",), ("0.25",), ("2",)]),
        ("SELECT load FROM readings WHERE name = {}", [("''",), ("'(x'",), ("'it''s'",), ("E'\\n'",), ("'ü'",)]),
        ("SELECT row_number() OVER (ORDER BY time DESC) AS n FROM readings QUALIFY n = {}", [("1",), ("2",)]),
    ],
)
def test_a_statement_of_a_known_template_is_what_a_check_finds(form: str, values: list[tuple[str, ...]]) -> None:
    """Whatever the literals are: the same statement, the same tree, and the same plan."""
    for first, second, third in product(values, repeat=3):
        known = known_after(form.format(*first), form.format(*second))
        sql = form.format(*third)
        checked = CHECK(sql)
        assert (known.get(sql) or checked) == checked
        for _ in range(2):
            with known.tree(checked) as tree:
                assert repr(parse(checked)) == repr(tree)
                assert places(parse(checked)) == places(tree)
        resolved = resolve(checked.tables, checked.cte_names, SCHEMAS)
        parsed = partial(known.tree, checked)
        expected = plan_scans(checked, resolved, SCHEMAS, evaluate)
        for _ in range(2):
            assert expected == plan_scans(checked, resolved, SCHEMAS, evaluate, parsed=parsed)


def test_the_third_statement_of_a_template_is_not_checked() -> None:
    """It is known from the second one on, with its tables where they are in its own text."""
    known = known_after("SELECT 1 FROM events", "SELECT 12 FROM events")
    found = known.get("SELECT 12345 FROM events")
    assert isinstance(found, Statement)
    assert [len("SELECT 12345 FROM ")] == [name.position for name in found.tables]
    assert known_after("SELECT 1 FROM events").get("SELECT 2 FROM events") is None


@pytest.mark.parametrize(
    ("texts", "other"),
    [
        (("SELECT * FROM 'a'", "SELECT * FROM 'b'"), "SELECT * FROM 'c.parquet'"),
        (("SELECT 'a'", "SELECT 'b'"), "SELECT 'now'"),
        (("SELECT 'a'", "SELECT 'b'"), "SELECT '(('"),
        (("SELECT 1", "SELECT 2"), "SELECT 1; SELECT 2"),
        (("SELECT 1", "SELECT 2"), "SELECT 1 -- 2"),
        (("SELECT 'a'", "SELECT 'b'"), "SELECT E'\\''"),
        (("EXPLAIN SELECT 1", "EXPLAIN SELECT 2"), "EXPLAIN SELECT 3"),
    ],
)
def test_what_is_more_than_a_value_is_checked_each_time(texts: tuple[str, ...], other: str) -> None:
    """Names of files, the present, comments, and statements beside another are found by the guard alone."""
    assert known_after(*texts).get(other) is None


@pytest.mark.parametrize(
    ("sql", "literals"),
    [
        ("SELECT 'a' , 10 + 1.5", ("'a'", "10", "1.5")),
        ('SELECT a1, t2.b3 FROM "x 9" WHERE c = -7', ("7",)),
        ("SELECT 1e5", None),
        ("SELECT 0x10", None),
        ("SELECT 007", None),
        ("SELECT $1, 2", None),
        ("SELECT X'00'", None),
        ("SELECT a", None),
        ("SELECT 1 -- 2", None),
        ("SELECT 1 /* 2 */ + 3", None),
        ("SELECT 4 - -2 / 3", ("4", "2", "3")),
    ],
)
def test_literals_are_found_where_nothing_else_can_be_meant(sql: str, literals: tuple[str, ...] | None) -> None:
    """Numbers in words are none, and a text with unusual tokens has no template."""
    found = template_of(sql)
    assert literals == (found and found.literals)
    if isinstance(found, Template):
        assert [sql[end - len(text) : end] for text, end in zip(found.literals, found.ends, strict=True)] == [
            *found.literals
        ]


PLAIN = ["SELECT", "a1", '"x 9"', "t2.b3", "(", ")", ",", ">=", "=", "-", "/", "*", "::", "\n"]
LITERALS = ["'a'", "''", "'b, 7'", "0", "10", "1.5", "9223372036854775807"]


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.sampled_from(LITERALS)), min_size=1, max_size=20), st.randoms())
def test_the_literals_of_any_plain_text_are_found(pairs: list[tuple[str, str]], chance: random.Random) -> None:
    """In their order, wherever spaces are; the rest of the text is that of every text of the template."""
    spaces = [chance.choice([" ", "  ", "\n"]) for _ in pairs]
    texts = [
        "".join(f"{plain}{space}{literal} " for (plain, literal), space in zip(given, spaces, strict=True))
        for given in (
            pairs,
            [(plain, chance.choice([x for x in LITERALS if _kind(x) == _kind(literal)])) for plain, literal in pairs],
        )
    ]
    one, other = map(template_of, texts)
    assert one is not None
    assert other is not None
    assert [literal for _, literal in pairs] == [*one.literals]
    assert one.key == other.key
    assert [literal for literal in one.literals if _kind(literal) == "text"] == one.texts


def _kind(literal: str) -> str:
    return "text" if literal.startswith("'") else "decimal" if "." in literal else "whole"


def test_trees_are_lent_to_one_at_a_time() -> None:
    """Statements that are planned at once have trees of their own, and one whose plan failed lends its tree no more."""
    sql = "SELECT load FROM readings WHERE name = 'a'"
    known = known_after(sql, sql.replace("'a'", "'b'"))
    statement = CHECK(sql)
    with known.tree(statement) as one, known.tree(statement) as two, known.tree(statement) as three:
        assert 3 == len({id(one), id(two), id(three)})
    for _ in range(TREES_MAX):
        with pytest.raises(KeyError), known.tree(statement):
            raise KeyError(sql)
    with known.tree(statement) as tree:
        assert repr(parse(statement)) == repr(tree)


def test_a_text_is_parsed_once_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one after the other. What fails with its tree leaves none, and one that nobody understands is not tried again."""
    texts = list[str]()

    def noted(statement: Statement) -> object:
        texts.append(statement.sql)
        return parse(statement)

    monkeypatch.setattr(checked_statements, "parse", noted)
    known, statement = CheckedStatements(), CHECK("SELECT load FROM readings WHERE name = 'a'")
    for _ in range(3):
        with known.tree(statement) as tree:
            assert repr(parse(statement)) == repr(tree)
    assert 1 == len(texts)
    with known.tree(statement), known.tree(statement):
        assert 2 == len(texts)
    with pytest.raises(KeyError), known.tree(statement):
        raise KeyError
    with known.tree(statement):
        assert 3 == len(texts)
    long = CHECK(f"SELECT load FROM readings WHERE name = '{'a' * PLANNED_BYTES_MAX}'")
    for _ in range(2):
        with known.tree(long) as tree:
            assert tree is None
    assert 4 == len(texts)


def test_templates_are_forgotten_in_turn() -> None:
    """Those that were not used for the longest time, so that users with many cannot fill the memory."""
    kept = "SELECT {} AS kept FROM events"
    known = known_after(kept.format(1), kept.format(2))
    for number in range(TEMPLATES_MAX + 10):
        known.put(f"SELECT 1 AS c{number}", Statement(f"SELECT 1 AS c{number}"), CHECK)
        if number % 100 == 0:
            assert known.get(kept.format(number + 10)) is not None
    assert known.get(kept.format(9_999)) is not None
    assert TEMPLATES_MAX == known.templates
