"""Attempts to break out of the sandbox: SQL that reaches for anything but the tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.query_errors import FunctionRefused, NotReadOnly, QueryError, QueryInvalid, UnknownTable
from headrace.consumers.query.settings import QuerySettings
from tests.unit.query.memory_source import MemorySource

SECRET = "the content of a file that is none of theirs"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the segments."""
    path = tmp_path / "secret.csv"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{outside}'",
        'SELECT * FROM "{outside}"',
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM read_blob('{outside}')",
        "SELECT * FROM read_csv_auto('{outside}')",
        "SELECT * FROM sniff_csv('{outside}')",
        "SELECT * FROM glob('{outside}')",
        "SELECT * FROM query('FROM read_text(''{outside}'')')",
        "SELECT * FROM query_table('{outside}')",
        "SELECT * FROM query_table(['{outside}'])",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{outside}'')'))",
        "COPY (SELECT 1) TO '{outside}'",
        "COPY iot.readings TO '{outside}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}'",
        "ATTACH '{outside}' AS x",
        "EXPORT DATABASE '{outside}'",
        "IMPORT DATABASE '{outside}'",
        "INSTALL httpfs",
        "LOAD '{outside}'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "PRAGMA database_list",
        "SELECT getenv('HOME')",
        "SELECT current_setting('allowed_directories')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_views()",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM __live_0",
        "SELECT * FROM temp.__live_0",
        "SELECT * FROM memory.main.x",
        "CREATE MACRO f() AS TABLE FROM read_text('{outside}')",
        "WITH x AS (FROM read_text('{outside}')) FROM x",
        "SELECT * FROM iot.readings, LATERAL (FROM read_text('{outside}'))",
        "SELECT (FROM read_text('{outside}') SELECT content)",
        "SELECT 1; COPY (SELECT 1) TO '{outside}'",
        "SELECT 1 UNION ALL (COPY (SELECT 1) TO '{outside}')",
        "DESCRIBE '{outside}'",
        "SUMMARIZE '{outside}'",
        "PIVOT '{outside}' ON x IN (1)",
        "FROM parquet_schema('{segment}')",
        "SELECT * FROM '{segment}'",
        "SELECT * FROM read_parquet('{segment}')",
        "SELECT * FROM file('{outside}')",
        "VALUES ((FROM read_text('{outside}') SELECT content))",
        "SELECT * FROM a_python_variable",
    ],
)
def test_nothing_but_tables_can_be_reached(engine: QueryEngine, source: MemorySource, outside: Path, sql: str) -> None:
    """Access to files, settings, other queries and the engine's internals is a typed error without effect."""
    a_python_variable = source.live["iot", "readings"][0]
    segment = source.segments["iot", "readings"][0][0]
    before = sorted(path for path in outside.parent.rglob("*"))
    with pytest.raises((NotReadOnly, FunctionRefused, UnknownTable, QueryInvalid)) as raised:
        engine.query(sql.format(outside=outside, segment=segment)).read_all()
    assert SECRET not in str(raised.value)
    assert f"{SECRET}\n" == outside.read_text()
    assert before == sorted(path for path in outside.parent.rglob("*"))
    assert 10 == a_python_variable.num_rows
    assert 1 == engine.query("SELECT 1").read_all().num_rows


@pytest.fixture
def unguarded_connection(source: MemorySource) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection of a locked instance, without the guard in front of it."""
    database = LockedDatabase([source.directory], QuerySettings())
    instance = database.lease(64)
    yield instance.connection
    database.give_back(instance, reusable=False)
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM '{outside}'",
        "SELECT * FROM read_csv('{inside}/../{name}')",
        "SELECT * FROM read_csv('{inside}/link.csv/../../{name}')",
        "SELECT * FROM glob('{outside}')",
        "COPY (SELECT 1) TO '{outside}'",
        "ATTACH '{outside}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET threads = 64",
        "SET memory_limit = '1TB'",
        "SET temp_directory = '{inside}'",
        "SELECT * FROM sniff_csv('{outside}')",
        "SELECT * FROM a_python_variable",
        "SELECT getenv('HOME')",
        "CREATE PERSISTENT SECRET s (TYPE http)",
    ],
)
def test_the_locked_database_refuses_without_the_guard(
    unguarded_connection: duckdb.DuckDBPyConnection, source: MemorySource, outside: Path, sql: str
) -> None:
    """DuckDB itself is locked: no file outside of the segments, no extension, no setting, no Python object."""
    a_python_variable = source.live["iot", "readings"][0]
    with pytest.raises(duckdb.Error):
        unguarded_connection.execute(sql.format(outside=outside, inside=source.directory, name=outside.name)).fetchall()
    assert f"{SECRET}\n" == outside.read_text()
    assert 10 == a_python_variable.num_rows


def test_one_query_cannot_see_the_views_of_another(engine: QueryEngine) -> None:
    """Each query has a catalog of its own, which no other query can name."""
    with engine.query("SELECT current_database() AS catalog FROM iot.readings") as result:
        (name,) = {row["catalog"] for row in next(result.batches()).to_pylist()}
        with pytest.raises(UnknownTable):
            engine.query(f"SELECT * FROM {name}.iot.readings")


def test_hostile_queries_release_their_permits(engine: QueryEngine) -> None:
    """Refused queries, and texts that would slow a parser down, release their permits."""
    for sql in (
        "",
        "(",
        "SELECT",
        "COPY x TO 'y'",
        "SELECT " + "(" * 3_000,
        "SELECT " + "( ')' " * 3_000,
        "SELECT " + "abs(" * 90 + "1" + ")" * 90,
        "SELECT " + "-" * 3_000 + "1",
        "SELECT 1" + " + 1" * 20_000,
    ):
        with contextlib.suppress(QueryError):
            engine.query(sql).close()
    assert 0 == engine.statistics.running


def test_segments_have_the_path_that_queries_may_read(tmp_path: Path) -> None:
    """Also where the data directory is a link, without a look at each file; others are resolved one by one."""
    (tmp_path / "real" / "day").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real = (tmp_path / "real").resolve()
    database = LockedDatabase([tmp_path / "link", real / "day"], QuerySettings())
    # No such file is there, so nobody has asked the kernel for it.
    assert real / "day" / "a.parquet" == database.readable(tmp_path / "link" / "day" / "a.parquet")
    segment = real / "day" / "b.parquet"
    assert segment is database.readable(segment)
    assert real / "c.parquet" == database.readable(tmp_path / "other" / ".." / "real" / "c.parquet")
    database.close()
