"""The views of a query's tables: SQL over segment files, and Arrow rows, that give every row the newest schema.

Files of older schema versions may lack columns, or hold int64 where the table is float64 by now. Every scan pauses
within each file and between batches of rows in memory, so that it can wait there for its next turn.

Views show times in nanoseconds, most files have microseconds. DuckDB would convert every time before it compares it, so
the bounds of a query stand in the scans of files once more, as microseconds: they leave few times to convert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.consumers.query.database import PAUSE_FUNCTION, PAUSE_ROWS, Instance
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema, TimeResolution

ROW_NUMBER = "file_row_number"
SCANNED_COLUMN = ", default_value: NULL}"
"""The text of a view has this once for each column of each scan of files."""
REGISTERED = "temp.main"
"""Where DuckDB has the rows that are registered in a connection."""
TimeBounds = tuple[int | None, int | None]
"""Times in [start, end) in ns; None for a side without a bound."""
_TIME_TYPE = "TIMESTAMP_NS"
_MICROS_TYPE = "TIMESTAMP"
_TAG_TYPE = "VARCHAR"
_ARROW_TYPES = {
    "VARCHAR": pa.string(),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "DOUBLE": pa.float64(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
}
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


class PausingRows:
    """Unsealed rows as DuckDB reads them: every scan reads them from the beginning, with a pause before each batch."""

    def __init__(self, table: pa.Table, instance: Instance) -> None:
        self._table = table
        self._instance = instance

    def __arrow_c_schema__(self) -> object:
        return self._table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._table.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        row = 0
        if not self._table.num_rows and self._instance.pauses is not None:
            self._instance.pauses.at_row(row)
        for batch in self._table.to_batches(max_chunksize=PAUSE_ROWS):
            if self._instance.pauses is not None:
                self._instance.pauses.at_row(row)
            yield batch
            row += batch.num_rows


@dataclass(frozen=True, slots=True)
class FilePauses:
    """A pause behind so many files each. `name` is that of a registered table without rows; see `pause_table`."""

    files: int
    name: str


def pause_table(schema: TableSchema, columns: Sequence[str] | None) -> pa.Table:
    """A table without rows, whose scan pauses.

    It has real columns: DuckDB leaves out what compares constants, and reads no table for it.
    """
    kinds = {name: _ARROW_TYPES[kind] for name, kind in column_types(schema, columns).items()}
    return pa.schema(list(kinds.items())).empty_table()


def column_types(schema: TableSchema, columns: Sequence[str] | None) -> dict[str, str]:
    """SQL type of each wanted column, in the order of `SELECT *`: tags, time, fields."""
    types = dict.fromkeys(schema.tags, _TAG_TYPE) | {TIME_COLUMN: _TIME_TYPE}
    types |= {name: _FIELD_TYPES[kind] for name, kind in schema.fields}
    return types if columns is None else {name: kind for name, kind in types.items() if name in columns}


def view_query(
    schema: TableSchema,
    columns: Sequence[str] | None,
    files: Sequence[Path],
    live: Sequence[tuple[str, pa.Schema]],
    *,
    bounds: TimeBounds = (None, None),
    pause_rows: int = 0,
    behind: FilePauses | None = None,
) -> str:
    """The SELECT of a table's view; `live` are names and schemas of registered tables (see `live_table`).

    `bounds`: rows of other times need not be shown. `pause_rows`: the scans of files pause at rows that are a multiple
    of it, a power of two, and as `behind` has it; 0 = never.
    """
    types = column_types(schema, columns)
    # All files of a table have the resolution that its first change fixed. Those of 0.1.0 may have either.
    near = _micros_within(bounds) if schema.recorded_resolution is TimeResolution.US and TIME_COLUMN in types else []
    tags = frozenset(schema.tags)
    step = len(files) if behind is None else behind.files
    parts: list[str] = []
    for start in range(0, len(files), max(1, step)):
        parts.append(_from_files(types, files[start : start + step], near, pause_rows))
        if behind is not None:
            parts.append(_from_live(types, tags, behind.name, frozenset(types)))
    parts += [_from_live(types, tags, name, frozenset(arrow.names)) for name, arrow in live]
    return " UNION ALL ".join(parts) if parts else _empty(types)


def spilling(select: str) -> str:
    """The SELECT of a view, for a statement that did not fit into its memory.

    DuckDB does not spill what it sorts from the parts of a UNION ALL. It spills rows that it has computed before.
    """
    return f"WITH __rows AS MATERIALIZED ({select}) FROM __rows"


def joined(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The rows of several groups as few tables, one for each Arrow schema among them, without a copy."""
    # Each table of a view costs DuckDB a plan of its own, which takes longer than to read a small one.
    by_schema: dict[pa.Schema, list[pa.Table]] = {}
    for table in tables:
        by_schema.setdefault(table.schema, []).append(table)
    return [pa.concat_tables(alike) for alike in by_schema.values()]


def live_table(table: pa.Table) -> pa.Table:
    """Unsealed rows with `time` as a timestamp without zone, which DuckDB reads from Arrow without a copy."""
    position = table.schema.get_field_index(TIME_COLUMN)
    if position < 0:
        return table
    return table.set_column(position, TIME_COLUMN, table.column(position).cast(pa.timestamp("ns")))


def _micros_within(bounds: TimeBounds) -> list[str]:
    """The conditions of bounds over times in microseconds."""
    signs = zip((">=", "<"), bounds, strict=True)
    # Rounded up: a whole microsecond is at or behind a time just when it is at or behind the next whole one.
    return [
        f"{quoted(TIME_COLUMN)} {sign} make_timestamp({-(-at // TimeResolution.US.nanoseconds)})"
        for sign, at in signs
        if at is not None
    ]


def _from_files(types: dict[str, str], files: Sequence[Path], near: Sequence[str], pause_rows: int) -> str:
    """The rows of files, with the conditions `near` over times in microseconds, if there are any."""
    # With a schema given by name DuckDB opens no file before the query reads it; otherwise planning would
    # read the footer of every segment.
    paths = ", ".join(literal(str(path)) for path in files)
    columns = ", ".join(
        f"{literal(name)}: {{name: {literal(name)}, type: {literal(kind)}{SCANNED_COLUMN}"
        for name, kind in (types | ({TIME_COLUMN: _MICROS_TYPE} if near else {})).items()
    )
    shown = ", ".join(_file_column(name, bool(near)) for name in types)
    source = f"SELECT {shown} FROM read_parquet([{paths}], schema = MAP {{{columns}}}"
    # DuckDB would take the name for the table's own column.
    if not pause_rows or ROW_NUMBER in types:
        return f"{source})" + (f" WHERE {' AND '.join(near)}" if near else "")
    # Read in every row, evaluated in few; a remainder takes longer than a mask.
    condition = f"CASE WHEN ({ROW_NUMBER} & {pause_rows - 1}) = 0 THEN {PAUSE_FUNCTION}({ROW_NUMBER}) ELSE true END"
    return f"{source}, {ROW_NUMBER} = true) WHERE {' AND '.join([*near, condition])}"


def _file_column(name: str, in_micros: bool) -> str:
    if name != TIME_COLUMN or not in_micros:
        return quoted(name)
    return f"CAST({quoted(name)} AS {_TIME_TYPE}) AS {quoted(name)}"


def _from_live(types: dict[str, str], tags: frozenset[str], name: str, present: frozenset[str]) -> str:
    columns = (_live_column(column, kind, column in tags, column in present) for column, kind in types.items())
    # By its whole path, which no CTE of the statement can take.
    return f"SELECT {', '.join(columns)} FROM {REGISTERED}.{quoted(name)}"


def _live_column(name: str, kind: str, is_tag: bool, is_present: bool) -> str:
    value = f"CAST({quoted(name) if is_present else 'NULL'} AS {kind})"
    # Unsealed rows write an absent tag as an empty text; queries show null.
    content = f"NULLIF({value}, '')" if is_tag else value
    return f"{content} AS {quoted(name)}"


def _empty(types: dict[str, str]) -> str:
    return f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {quoted(name)}' for name, kind in types.items())} WHERE false"
