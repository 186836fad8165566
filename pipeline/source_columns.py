"""The columns of `format("headrace")`: a table's columns in Spark's types, and Arrow batches as Spark takes them.

Spark reads columns by their position. It takes no dictionaries and no timestamps of nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from headrace.pipeline.source_options import OptionInvalid, near
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

GROUP_COLUMN, OFFSET_COLUMN = "_group", "_offset"
METADATA = ((GROUP_COLUMN, pa.string()), (OFFSET_COLUMN, pa.int64()))
_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.float64(): DoubleType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.timestamp("us"): TimestampNTZType(),
}
_NS_PER_US = 1_000


class ColumnUnknown(HeadraceError):
    """A column that the table does not have, or has with another type."""


class TimeTooFine(HeadraceError):
    """A time that is no whole microsecond, which Spark's timestamps cannot hold."""


def source_schema(
    table: TableSchema, columns: Sequence[str] = (), *, time_as_long: bool = False, metadata: bool = False
) -> pa.Schema:
    """Names and Arrow types of the columns that Spark gets: those named, or all: tags, time, fields.

    Raises ColumnUnknown, OptionInvalid.
    """
    types = {**dict.fromkeys(table.tags, pa.string()), TIME_COLUMN: pa.int64() if time_as_long else pa.timestamp("us")}
    types |= {name: kind.arrow for name, kind in table.fields}
    for name in columns:
        if name not in types:
            raise ColumnUnknown(f"{table.database}.{table.table} has no column {name!r}", action=near(name, types))
    if own := [name for name, _ in METADATA if metadata and name in types]:
        raise OptionInvalid(
            f"{table.database}.{table.table} has a column {own[0]!r} of its own, and option metadata adds one",
            action="leave metadata out",
        )
    named = [(name, types[name]) for name in columns or types]
    return pa.schema([*named, *(METADATA if metadata else ())])


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns in Spark's types. Any may be null: one more column makes old rows null there."""
    return StructType([StructField(field.name, _SPARK_TYPES[field.type]) for field in schema])


def chosen_schema(available: pa.Schema, chosen: StructType, table: str) -> pa.Schema:
    """The columns that Spark has planned with, of those that there are. Raises ColumnUnknown.

    They differ after `.schema(…)` of the user, or when the table has changed since the plan was made.
    """
    fields = []
    for field in chosen.fields:
        if field.name not in available.names:
            raise ColumnUnknown(f"{table} has no column {field.name!r}", action=near(field.name, available.names))
        found = available.field(field.name)
        if _SPARK_TYPES[found.type] != field.dataType:
            raise ColumnUnknown(
                f"column {field.name!r} of {table} is {_SPARK_TYPES[found.type].simpleString()}, "
                f"and the query was planned with {field.dataType.simpleString()}",
                action="leave the schema out, or load the table again",
            )
        fields.append(found)
    return pa.schema(fields)


def as_planned(batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str) -> Iterable[pa.RecordBatch]:
    """The batches with the columns of `schema` in its order and types; a column that is missing is null.

    `time` may be nanoseconds as int64 or as a timestamp. Raises TimeTooFine.
    """
    for batch in batches:
        present = set(batch.schema.names)
        columns = [
            _typed(batch.column(field.name), field, table)
            if field.name in present
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _typed(column: pa.Array, field: pa.Field, table: str) -> pa.Array:
    if column.type == field.type:
        return column
    if field.name == TIME_COLUMN:
        return _time(column, field.type, table)
    if pa.types.is_floating(column.type) and pa.types.is_integer(field.type):
        raise ColumnUnknown(
            f"column {field.name!r} of {table} has become float64 since the query was planned",
            action="load the table again, or restart the query",
        )
    # Only dictionaries of text, and int64 in messages that are older than the column's float64.
    return column.cast(field.type, safe=False)


def _time(column: pa.Array, wanted: pa.DataType, table: str) -> pa.Array:
    ns = column.cast(pa.int64())
    if pa.types.is_integer(wanted):
        return ns
    us = pc.divide(ns, _NS_PER_US)
    # Not a safe cast of Arrow: its error names neither the table nor what to do.
    fine = pc.not_equal(pc.multiply(us, _NS_PER_US), ns)
    if pc.any(fine).as_py():
        first = ns.filter(fine)[0].as_py()
        raise TimeTooFine(
            f"{table} has the time {first} ns, which is no whole microsecond as Spark's timestamps are",
            action='read with option time="long", which gives nanoseconds since 1970',
        )
    return us.cast(wanted)


def field_type_of(kind: pa.DataType) -> FieldType | None:
    """The type of the field that holds a column of Spark without a loss, None where none does."""
    if pa.types.is_integer(kind):
        return FieldType.INT64
    if pa.types.is_floating(kind):
        return FieldType.FLOAT64
    if pa.types.is_boolean(kind):
        return FieldType.BOOL
    return FieldType.STRING if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
