"""The columns of a Parquet file that can be fields, and its rows in batches.

Which columns are left out is decided for the whole file before its first row is written: a column that is there in some
rows only, because a later batch has a value that does not fit, would be a surprise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.formats.arrow_tables import field_values, is_field_type
from headrace.connectors.formats.int96_times import INT96_REASON, check_int96, wrapped_columns
from headrace.connectors.formats.interface import ColumnTypeError, FormatOptions
from headrace.connectors.formats.unfit_values import depends_on_values

# Bounds the memory of a file whose row groups are large.
PARQUET_BATCH_ROWS = 262_144


def refused_columns(source: BinaryIO, file: pq.ParquetFile, options: FormatOptions) -> dict[str, str]:
    """The columns of a file that no field can hold, and why. `source` has the bytes of the file.

    Raises ColumnTypeError when that leaves none, TimeRangeError.
    """
    others = {options.time_column, *options.tags}
    wrapped = wrapped_columns(source, file.metadata)
    check_int96(wrapped & others)
    fields = [column for column in file.schema_arrow if column.name not in others]
    refused = {column.name: f"it has type {column.type}" for column in fields if not is_field_type(column.type)}
    refused |= {column.name: f"it has {INT96_REASON}" for column in fields if column.name in wrapped}
    refused |= _misfits(file, [column.name for column in fields if _depends_on_values(column.type)], options)
    if fields and len(refused) == len(fields):
        reasons = "; ".join(f"column {name!r}: {reason}" for name, reason in refused.items())
        action = "convert one to numbers, booleans or text that fit int64 or float64"
        raise ColumnTypeError(f"no column can be a field: {reasons}", action=action)
    return refused


def parquet_batches(file: pq.ParquetFile, refused: Collection[str] = ()) -> Iterator[pa.Table]:
    """The rows of an open Parquet file without some columns, in batches of bounded size, at least one."""
    kept = [name for name in file.schema_arrow.names if name not in refused] if refused else None
    # A file without rows still has columns, whose names are checked.
    empty = True
    for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=kept):
        empty = False
        yield pa.Table.from_batches([batch])
    if empty:
        table = file.schema_arrow.empty_table()
        yield table if kept is None else table.select(kept)


def _depends_on_values(kind: pa.DataType) -> bool:
    """Whether some values of a type fit a field and others do not."""
    return depends_on_values(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _misfits(file: pq.ParquetFile, names: list[str], options: FormatOptions) -> dict[str, str]:
    """The columns with a value that does not fit."""
    declared = options.declared_types(options.table or "")
    refused: dict[str, str] = {}
    for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=names) if names else ():
        for name in names:
            if name in refused:
                continue
            try:
                field_values(name, pa.chunked_array([batch.column(name)]), declared.get(name))
            except ColumnTypeError as error:
                refused[name] = error.message.removeprefix(f"column {name!r} ").removeprefix(f"field {name!r} ")
    return refused
