"""What SQL may do, decided before anything runs."""

from __future__ import annotations

from functools import partial

import duckdb
import pytest

from headrace.consumers.query.database import statement_kinds, syntax_tree
from headrace.consumers.query.guard import _FIRST_WORD, NESTING_MAX, SQL_BYTES_MAX, Statement, check
from headrace.consumers.query.query_errors import FunctionRefused, NotReadOnly, QueryError, QueryInvalid

CONNECTION = duckdb.connect(":memory:")


def checked(sql: str) -> Statement:
    """The statement in `sql`, checked against DuckDB's own parser."""
    connection = CONNECTION.cursor()
    return check(sql, partial(statement_kinds, connection), partial(syntax_tree, connection))


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("COPY (SELECT 1) TO 'x'", "COPY"),
        ("COPY a.b FROM 'x'", "COPY"),
        ("ATTACH 'x'", "ATTACH"),
        ("DETACH x", "DETACH"),
        ("INSTALL httpfs", "INSTALL"),
        ("LOAD httpfs", "LOAD"),
        ("EXPORT DATABASE 'x'", "EXPORT"),
        ("IMPORT DATABASE 'x'", "IMPORT"),
        ("SET memory_limit = '1TB'", "SET"),
        ("RESET memory_limit", "RESET"),
        ("USE memory", "USE"),
        ("PRAGMA database_list", "PRAGMA"),
        ("CALL pragma_version()", "CALL"),
        ("CHECKPOINT", "CHECKPOINT"),
        ("VACUUM", "VACUUM"),
        ("CREATE TABLE x AS SELECT 1", "CREATE"),
        ("CREATE TEMP TABLE x AS SELECT 1", "CREATE"),
        ("CREATE MACRO f() AS 1", "CREATE"),
        ("CREATE SECRET (TYPE s3)", "CREATE"),
        ("DROP TABLE a.b", "DROP"),
        ("ALTER TABLE a.b ADD COLUMN c INT", "ALTER"),
        ("INSERT INTO a.b VALUES (1)", "INSERT"),
        ("UPDATE a.b SET c = 1", "UPDATE"),
        ("DELETE FROM a.b", "DELETE"),
        ("TRUNCATE a.b", "TRUNCATE"),
        ("MERGE INTO a.b USING c.d ON (b.x = d.x) WHEN MATCHED THEN DELETE", "MERGE"),
        ("PREPARE p AS SELECT 1", "PREPARE"),
        ("EXECUTE p", "EXECUTE"),
        ("/* x */ -- y\n begin", "BEGIN"),
        ("EXPLAIN COPY (SELECT 1) TO 'x'", "COPY"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'", "COPY"),
        ("/* a */ EXPLAIN -- b\n ANALYZE INSERT INTO a.b VALUES (1)", "INSERT"),
        ("WITH t AS (INSERT INTO a.b VALUES (1) RETURNING *) SELECT * FROM t", "INSERT"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT 1; DROP TABLE a.b", "2 statements"),
        ("PIVOT a.b ON c", "PIVOT"),
        ("SHOW VARIABLES", "SHOW"),
        ("SELECT * FROM (SHOW TABLES)", "SHOW"),
        ("FROM (SHOW DATABASES)", "SHOW"),
    ],
)
def test_everything_but_one_reading_statement_is_refused_by_name(sql: str, kind: str) -> None:
    """A statement that could change anything is refused, and the message names what it is."""
    with pytest.raises(NotReadOnly) as raised:
        checked(sql)
    assert raised.value.message.startswith(kind) or kind in ("PIVOT", "SHOW")
    assert kind in raised.value.message


def test_many_comments_cost_nothing() -> None:
    """Also before a character that begins no word: one try for each way to divide them would take for ever."""
    for between in ("", "\ufeff", "\u00a0", ";"):
        with pytest.raises(QueryError):
            checked("/**/" * 200 + between + "DROP TABLE a.b")
    assert _FIRST_WORD.match("/**/" * 200 + "1") is None
    assert checked("/**/" * 200 + "EXPLAIN " + "/**/" * 200 + "SELECT 1").explain == "EXPLAIN "
    assert checked("EXPLAIN " + "/**/" * 200 + "ANALYZE SELECT 1").explain == "EXPLAIN ANALYZE "


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('x')",
        "SELECT * FROM read_csv_auto('x')",
        "FROM read_text('x')",
        "FROM read_blob('x')",
        "FROM read_parquet('x')",
        "FROM parquet_scan('x')",
        "FROM parquet_metadata('x')",
        "FROM sniff_csv('x')",
        "FROM glob('*')",
        "FROM query('SELECT 1')",
        "FROM query_table('t')",
        "FROM duckdb_settings()",
        "FROM duckdb_secrets()",
        "FROM pragma_table_info('t')",
        "FROM json_execute_serialized_sql('x')",
        "FROM which_secret('x', 's3')",
        "FROM python_arrow_scan(1, 2, 3)",
        "FROM seq_scan('t')",
        "FROM histogram('t', c)",
        "SELECT getenv('HOME')",
        "SELECT current_setting('temp_directory')",
        "SELECT getvariable('x')",
        "SELECT write_log('x')",
        "SELECT sleep_ms(1000)",
        "SELECT pg_sleep(1000)",
        "SELECT system.main.sleep_ms(1)",
        "SELECT main.getenv('HOME')",
        "SELECT nextval('s')",
        "SELECT 1 WHERE EXISTS (FROM read_text('x'))",
        "WITH a AS (SELECT * FROM glob('*')) SELECT * FROM a",
        "SELECT (SELECT max(content) FROM read_text('x'))",
        "SELECT list_transform([1], lambda x: getenv('HOME'))",
        "SELECT count(*) FILTER (getenv('HOME') = 'x')",
        "SELECT * FROM range(3) ORDER BY getenv('HOME')",
        "SUMMARIZE FROM read_text('x')",
        "DESCRIBE SELECT * FROM read_csv('x')",
        "EXPLAIN ANALYZE SELECT * FROM read_text('x')",
        "SELECT * FROM range(1), LATERAL (SELECT * FROM glob('*'))",
        "VALUES ((SELECT count(*) FROM glob('*')))",
    ],
)
def test_functions_that_reach_outside_are_refused_at_any_depth(sql: str) -> None:
    """Table functions are allowed by name only; a few scalar ones are refused; both hold in subqueries too."""
    with pytest.raises(FunctionRefused):
        checked(sql)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("SELECT * FROM a.b;", {("a", "b")}),
        ("FROM b", {("b",)}),
        ("TABLE a.b", {("a", "b")}),
        ("VALUES (1), (2)", set()),
        ('SELECT * FROM "A b"."c.d"', {("A b", "c.d")}),
        ("SELECT * FROM a.b JOIN c.d USING (x) WHERE EXISTS (FROM e.f)", {("a", "b"), ("c", "d"), ("e", "f")}),
        ("SELECT (SELECT max(x) FROM c.d) FROM a.b", {("a", "b"), ("c", "d")}),
        ("SELECT * FROM a.b UNION ALL SELECT * FROM c.d", {("a", "b"), ("c", "d")}),
        ("PIVOT a.b ON x IN (1, 2) USING sum(z)", {("a", "b")}),
        ("UNPIVOT a.b ON x, y", {("a", "b")}),
        ("SELECT * FROM a.b, unnest([1]), range(3), generate_series(1, 2)", {("a", "b")}),
        ("SELECT * FROM x.y.z", {("x", "y", "z")}),
        ("SELECT 'FROM c.d' || $$ FROM e.f $$ FROM a.b -- FROM g.h", {("a", "b")}),
    ],
)
def test_tables_are_those_that_the_parser_of_the_engine_sees(sql: str, tables: set[tuple[str, ...]]) -> None:
    """Every table reference is found with its full path, at any depth; text and comments are not tables."""
    assert tables == {name.path for name in checked(sql).tables}


def test_names_of_with_clauses_are_distinguished() -> None:
    """Names that WITH defines are reported, plain and recursive ones, so that they need not be tables."""
    statement = checked("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT 2 FROM a), B AS (SELECT 1) SELECT * FROM a, b")
    assert frozenset({"a", "b"}) == statement.cte_names


@pytest.mark.parametrize(
    ("sql", "explain", "inner"),
    [
        ("EXPLAIN SELECT 1", "EXPLAIN ", " SELECT 1"),
        ("explain analyze SELECT 1", "EXPLAIN ANALYZE ", " SELECT 1"),
        ("/* EXPLAIN */ EXPLAIN /* ANALYZE */ SELECT 1", "EXPLAIN ", " /* ANALYZE */ SELECT 1"),
    ],
)
def test_the_statement_under_explain_is_checked(sql: str, explain: str, inner: str) -> None:
    """EXPLAIN and EXPLAIN ANALYZE are understood around a reading statement."""
    statement = checked(sql)
    assert (explain, inner) == (statement.explain, statement.sql)


@pytest.mark.parametrize(
    ("sql", "show", "database"),
    [
        ("SHOW TABLES", "tables", None),
        ("SHOW ALL TABLES", "tables", None),
        ("SHOW TABLES FROM iot", "tables", "iot"),
        ("SHOW DATABASES", "databases", None),
    ],
)
def test_show_is_answered_by_the_engine_itself(sql: str, show: str, database: str | None) -> None:
    """SHOW TABLES and SHOW DATABASES never reach DuckDB, which would list its own."""
    statement = checked(sql)
    assert (show, database) == (statement.show, statement.show_database)


def test_describe_needs_no_rows_and_summarize_does() -> None:
    """DESCRIBE needs the columns of a table only."""
    assert (True, False) == (checked("DESCRIBE a.b").described, checked("SUMMARIZE a.b").described)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "   ",
        ";",
        "-- nothing",
        "SELECT '\x00'",
        "SELECT '\ud800'",
        "EXPLAIN SELECT '\udfff'",
        "SELECT 1 --" + "x" * SQL_BYTES_MAX,
    ],
)
def test_text_that_is_no_statement_is_refused_clearly(sql: str) -> None:
    """Empty, NUL-ridden and endless SQL, and half of a surrogate pair, is invalid, with a message."""
    with pytest.raises(QueryInvalid) as raised:
        checked(sql)
    assert raised.value.message


@pytest.mark.parametrize(
    "opening", ["(", "( ')' ", "( E'\\')' ", "( /* ) */", "( $$)$$ ", "abs(", "[", "{'a': ", "(SELECT "]
)
def test_deep_nesting_is_refused_before_the_parser(opening: str) -> None:
    """Brackets may nest a hundred deep, also among quotes; above that the parser is not called."""

    def parser(_sql: str) -> list[str]:
        pytest.fail("the parser was called")

    with pytest.raises(QueryInvalid, match="nests brackets"):
        check("SELECT " + opening * (NESTING_MAX + 1), parser, lambda _sql: {})


def test_wide_sql_is_not_deep() -> None:
    """Neither brackets beside each other nor balanced ones in quotes are nesting."""
    rows = ", ".join("(1, '()')" for _ in range(2_000))
    assert () == checked(f"SELECT * FROM (VALUES {rows})").tables


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(a), count(*) FROM t WHERE abs(b) > 1",
        "SELECT a + 1 FROM t LIMIT 3",
        "FROM a UNION ALL FROM b",
        "FROM a UNION ALL BY NAME FROM b",
        "SELECT a, sum(b) FROM t GROUP BY a ORDER BY a",
        "SELECT count(DISTINCT a) FROM t",
        "WITH c AS (SELECT max(a) AS m FROM t) FROM c",
    ],
)
def test_statements_that_pass_rows_on(sql: str) -> None:
    """They need little memory, and can stop in their scan: calls, groups, and UNION ALL."""
    assert not checked(sql).holds_rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t ORDER BY a",
        "SELECT DISTINCT a FROM t",
        "SELECT string_agg(a ORDER BY b) FROM t",
        "SELECT row_number() OVER () FROM t",
        "SELECT sum(a) OVER (ORDER BY b) FROM t",
        "FROM a UNION FROM b",
        "FROM a UNION ALL FROM b ORDER BY 1",
        "FROM a UNION ALL FROM b EXCEPT ALL FROM c",
        "FROM a JOIN b USING (x)",
        "SELECT max(x) FROM (SELECT x FROM t ORDER BY y)",
        "SELECT (SELECT x FROM t ORDER BY y LIMIT 1)",
        "WITH c AS (SELECT a FROM t ORDER BY a) FROM c",
        "PIVOT t ON a IN ('x') USING sum(b)",
    ],
)
def test_statements_that_hold_rows(sql: str) -> None:
    """They may have to wait for memory, and never hold every worker: sorts, windows, distinct rows, joins."""
    assert checked(sql).holds_rows


@pytest.mark.parametrize(
    ("sql", "present"),
    [
        ("SELECT now()", True),
        ("SELECT * FROM t WHERE time > Current_Timestamp - INTERVAL 1 HOUR", True),
        ("SELECT current_date, localtime, localtimestamp FROM t", True),
        ("SELECT today()", True),
        ("SELECT get_current_timestamp()", True),
        ("SELECT current_localtimestamp()", True),
        ("SELECT transaction_timestamp()", True),
        ("SELECT max(current_load), snowfall, unknown FROM t", False),
        ("SELECT lag(v) OVER (ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t", False),
    ],
)
def test_statements_that_depend_on_the_moment(sql: str, present: bool) -> None:
    """By whole names: columns such as `current_load`, and frames of windows, are no moment."""
    assert present is checked(sql).names_now
