"""What a statement tells of the types of its parameters before they have values."""

from __future__ import annotations

from functools import partial

import duckdb
import pyarrow as pa
import pytest

from headrace.consumers.query import guard
from headrace.consumers.query.database import statement_kinds, syntax_tree
from headrace.consumers.query.parameter_types import TIME_TYPE, parameter_schema
from headrace.schemas.tables import FieldType, TableSchema

FLOAT, INT, BOOL, TEXT = pa.float64(), pa.int64(), pa.bool_(), pa.string()
PUMPS = TableSchema(
    "plant",
    "pumps",
    1,
    ("pump",),
    (("Flow", FieldType.FLOAT64), ("n", FieldType.INT64), ("ok", FieldType.BOOL), ("note", FieldType.STRING)),
)
LINES = TableSchema("plant", "lines", 1, ("line", "pump"), (("n", FieldType.STRING),))


def types(condition: str, *tables: TableSchema) -> list[pa.DataType]:
    """The types of the parameters of a condition on the tables, in the order of the values `?`."""
    with duckdb.connect() as connection:
        statement = guard.check(
            f"SELECT * FROM pumps AS p WHERE {condition}",
            kinds=partial(statement_kinds, connection),
            tree=partial(syntax_tree, connection),
        )
    names = sorted({each.name for each in statement.parameters}, key=int)
    return list(parameter_schema(names, statement.hints, tables or (PUMPS,)).types)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("flow > ? AND p.pump = ? AND ? = ok AND n <> ?", [FLOAT, TEXT, BOOL, INT]),
        ("time >= ? AND time < ?", [TIME_TYPE, TIME_TYPE]),
        ("FLOW BETWEEN ? AND ?", [FLOAT, FLOAT]),
        ("? BETWEEN n AND 9", [INT]),
        ("n IN (?, 7, ?) AND note NOT IN (?)", [INT, INT, TEXT]),
        ("note LIKE ? AND pump NOT ILIKE ?", [TEXT, TEXT]),
        ("n IS NOT DISTINCT FROM ?", [INT]),
        ("time::DATE = ? AND ?::DOUBLE > 1 AND CAST(? AS timestamp) < time", [pa.date32(), FLOAT, TIME_TYPE]),
        ("EXISTS (SELECT 1 FROM pumps WHERE n = ?) AND NOT (ok = ? OR flow = ?)", [INT, BOOL, FLOAT]),
        ("ok LIMIT ? OFFSET ?", [INT, INT]),
        ("lower(pump) = ? AND missing = ? AND n + ? > 2 AND ? IS NULL", [TEXT] * 4),
        ("note = $1 AND n = $2", [TEXT, INT]),
        ("n::VARCHAR = ?", [TEXT]),
    ],
)
def test_a_parameter_has_the_type_of_what_it_stands_beside(condition: str, wanted: list[pa.DataType]) -> None:
    """The column, the type of a cast, or a number of rows. Anything else is a text."""
    assert wanted == types(condition)


def test_a_column_of_two_types_tells_nothing() -> None:
    """Which of the tables is meant is not looked for; a column of one type in both is known."""
    assert [TEXT, TEXT, FLOAT] == types("n = ? AND pump = ? AND flow = ?", PUMPS, LINES)
    assert [TEXT] == types("flow = ?", LINES)
