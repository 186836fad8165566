"""How many parts a scan of files has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.consumers.query.database import PAUSE_FUNCTION, PAUSE_ROWS, streamed
from headrace.consumers.query.file_pauses import (
    ALONE_VALUES,
    FILE_PAUSES_MAX,
    PART_PAUSES_MAX,
    PART_VALUES,
    STEP_ALONE_VALUES_MAX,
    STEP_VALUES_MAX,
    parts_of_driver,
    parts_of_rows,
    parts_of_statement,
    step_values_max,
)
from headrace.consumers.query.guard import Statement, TableName
from headrace.consumers.query.views import FilePauses, PausingRows, pause_table, view_query
from headrace.schemas.tables import FieldType, TableSchema

SCHEMA = TableSchema("db", "t", 1, ("host",), (("v", FieldType.INT64),))


@pytest.mark.parametrize(
    ("values", "beside", "alone", "driver", "driver_alone"),
    [
        (0, 1, 1, 1, 1),
        (STEP_VALUES_MAX, 1, 1, 1, 1),
        (STEP_VALUES_MAX + 1, 2, 1, 1, 1),
        (PART_VALUES + 1, 11, 1, 2, 1),
        (ALONE_VALUES, FILE_PAUSES_MAX, 1, ALONE_VALUES // PART_VALUES, 1),
        (3 * ALONE_VALUES, FILE_PAUSES_MAX, 3, PART_PAUSES_MAX, 3),
        (1 << 40, FILE_PAUSES_MAX, FILE_PAUSES_MAX, PART_PAUSES_MAX, PART_PAUSES_MAX),
    ],
)
def test_parts_follow_from_the_values_of_a_scan(
    values: int, beside: int, alone: int, driver: int, driver_alone: int
) -> None:
    """A query that is alone has fewer; both have a limit."""
    assert (beside, alone) == tuple(parts_of_rows(values, alone=each) for each in (False, True))
    assert (driver, driver_alone) == tuple(parts_of_driver(values, alone=each) for each in (False, True))


def test_a_query_that_is_alone_reads_more_at_once() -> None:
    """Beside others a step is short."""
    assert (STEP_VALUES_MAX, STEP_ALONE_VALUES_MAX) == (step_values_max(alone=False), step_values_max(alone=True))
    assert STEP_VALUES_MAX < STEP_ALONE_VALUES_MAX < ALONE_VALUES


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("SELECT host, v + 1 FROM db.t WHERE v > 3", FILE_PAUSES_MAX),
        ("SELECT count(*) FROM db.t WHERE v > 3", 1),
        ("SELECT host, max(v) FROM db.t GROUP BY host", 1),
        ("SELECT host FROM db.t WHERE v > (SELECT 1)", 1),
    ],
)
def test_only_statements_that_give_rows_as_they_are_found_pause_behind_files(sql: str, parts: int) -> None:
    """In any other DuckDB reads all pauses first."""
    statement = Statement(sql, has_subquery="(SELECT" in sql, tables=(TableName(("db", "t"), 0),))
    assert parts == parts_of_statement(statement, ALONE_VALUES, alone=False)
    assert 1 == parts_of_statement(Statement(sql, holds_rows=True), ALONE_VALUES, alone=False)


@pytest.mark.parametrize(
    ("sql", "order"),
    [
        ("SELECT host, v FROM ({}) WHERE v >= 0", "FPFPFP"),
        ("SELECT max(v) FROM ({})", "PPPFFF"),
        ("SELECT host, v FROM ({}) ORDER BY v", "PPPFFF"),
    ],
)
def test_the_order_in_which_duckdb_reads_files_and_pauses(tmp_path: Path, sql: str, order: str) -> None:
    """If it reads them in turn in an aggregate, too, then those can pause behind files again."""
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in files:
        rows = {"host": ["a"], "time": pa.array([1], pa.timestamp("ns")), "v": [1]}
        pq.write_table(pa.table(rows), path)
    read: list[str] = []

    def noted(what: str) -> bool:
        read.append(what)
        return True

    pauses: Any = SimpleNamespace(pauses=SimpleNamespace(at_row=lambda _: noted("P")))
    with duckdb.connect(config={"threads": 1, "async_threads": 0}) as connection:
        connection.create_function(PAUSE_FUNCTION, lambda _: noted("F"), ["BIGINT"], "BOOLEAN", side_effects=True)
        connection.register("pause", PausingRows(pause_table(SCHEMA, None), pauses))
        view = view_query(SCHEMA, None, files, [], pause_rows=PAUSE_ROWS, behind=FilePauses(1, "pause"))
        assert streamed(connection, sql.format(view), 1).read_all().num_rows
        connection.remove_function(PAUSE_FUNCTION)
    assert order == "".join(read)
