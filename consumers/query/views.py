"""The SQL that makes one table of DuckDB out of segments and live rows.

Files written under older versions of a schema may lack columns or hold int64 where the table is float64 by now; the view gives every row the
newest schema. Parquet files are given their schema by name, so DuckDB opens none of them before the query reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from schemas.tables import TIME_COLUMN, FieldType, TableSchema

_TIME_TYPE = "TIMESTAMP_NS"
_TAG_TYPE = "VARCHAR"
_FIELD_TYPES = {
    FieldType.FLOAT64: "DOUBLE",
    FieldType.INT64: "BIGINT",
    FieldType.BOOL: "BOOLEAN",
    FieldType.STRING: "VARCHAR",
}


def quoted(name: str) -> str:
    """An identifier as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text literal as SQL."""
    return "'" + text.replace("'", "''") + "'"


def column_types(schema: TableSchema, columns: Sequence[str] | None) -> dict[str, str]:
    """SQL type of each wanted column, in the order of `SELECT *`: tags, time, fields."""
    types = dict.fromkeys(schema.tags, _TAG_TYPE) | {TIME_COLUMN: _TIME_TYPE}
    types |= {name: _FIELD_TYPES[kind] for name, kind in schema.fields}
    return types if columns is None else {name: kind for name, kind in types.items() if name in columns}


def view_query(
    schema: TableSchema, columns: Sequence[str] | None, files: Sequence[Path], live: Sequence[tuple[str, pa.Schema]]
) -> str:
    """The SELECT behind the view of a table; `live` names registered Arrow tables with their schemas (see `live_table`)."""
    types = column_types(schema, columns)
    parts = [_from_files(types, files)] if files else []
    parts += [_from_live(types, frozenset(schema.tags), name, frozenset(arrow.names)) for name, arrow in live]
    return " UNION ALL ".join(parts) if parts else _empty(types)


def live_table(table: pa.Table) -> pa.Table:
    """Live rows as DuckDB takes them without a copy: `time` as a timestamp without zone."""
    position = table.schema.get_field_index(TIME_COLUMN)
    return table.set_column(position, TIME_COLUMN, table.column(position).cast(pa.timestamp("ns")))


def _from_files(types: dict[str, str], files: Sequence[Path]) -> str:
    paths = ", ".join(literal(str(path)) for path in files)
    columns = ", ".join(
        f"{literal(name)}: {{name: {literal(name)}, type: {literal(kind)}, default_value: NULL}}"
        for name, kind in types.items()
    )
    return f"SELECT {', '.join(map(quoted, types))} FROM read_parquet([{paths}], schema = MAP {{{columns}}})"


def _from_live(types: dict[str, str], tags: frozenset[str], name: str, held: frozenset[str]) -> str:
    columns = (_live_column(column, kind, column in tags, column in held) for column, kind in types.items())
    return f"SELECT {', '.join(columns)} FROM {quoted(name)}"


def _live_column(name: str, kind: str, is_tag: bool, is_held: bool) -> str:
    value = f"CAST({quoted(name) if is_held else 'NULL'} AS {kind})"
    present = f"NULLIF({value}, '')" if is_tag else value
    return f"{present} AS {quoted(name)}"


def _empty(types: dict[str, str]) -> str:
    return f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {quoted(name)}' for name, kind in types.items())} WHERE false"
