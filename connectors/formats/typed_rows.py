"""Typed columns of messages (Avro, Arrow) as rows of readings. What is wrong with a row costs its own row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.arrow_tables import field_values, is_text, plain_array, readable_column, tag_values
from headrace.connectors.formats.chunks import Rejections, TableChunk
from headrace.connectors.formats.interface import (
    NS_PER_UNIT,
    TAG_TYPE,
    TIME_ABSENT,
    ColumnTypeError,
    DefaultTimes,
    FormatOptions,
    InvalidLine,
    check_column,
    default_times_of,
)
from headrace.connectors.formats.lines import Integers, Lines
from headrace.connectors.formats.row_rules import rows_with_text
from headrace.connectors.formats.text_columns import Columns, scaled, time_refusals, times_of_text, to_arrow
from headrace.connectors.formats.unfit_values import unfit_values
from headrace.schemas.tables import FieldType

Mask = npt.NDArray[np.bool_]
_NO_TIME = "the time has type {}: times are timestamps, integers or text"


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Columns by name, and the line of each row, ascending."""

    columns: pa.Table
    lines: Integers

    def select(self, kept: Mask) -> TypedRows:
        """Some of the rows."""
        if kept.all():
            return self
        return TypedRows(self.columns.filter(pa.array(kept)), self.lines[kept])


def numbered_lines(messages: Integers, numbers: Integers) -> Lines:
    """Lines without text: each has its message and its number in that."""
    nothing = np.empty(0, np.uint8)
    ends = np.zeros(len(messages), np.int64)
    return Lines(nothing, np.empty(0, np.uint64), ends, ends, ends, messages, numbers)


def chosen_columns(
    columns: Mapping[tuple[str, ...], pa.ChunkedArray], options: FormatOptions
) -> dict[str, pa.ChunkedArray]:
    """Columns by the names that they have in a reading; with `sources` those that these name."""
    if not options.sources:
        return {".".join(path): column for path, column in columns.items()}
    return {name: columns[path] for path, name in options.sources if path in columns}


def paths_of_tags(options: FormatOptions) -> set[tuple[str, ...]]:
    """The paths of columns that become tags; see `chosen_columns`."""
    if not options.sources:
        return {(name,) for name in options.tags}
    return {path for path, name in options.sources if name in options.tags}


def typed_chunks(
    rows: TypedRows, options: FormatOptions, default_times: DefaultTimes, rejections: Rejections
) -> Iterator[TableChunk]:
    """The rows of each table; those that cannot be rows of a table are rejected."""
    rows = _with_text(_readable(rows, options, rejections), rejections)
    times, rows = _timed(rows, options, default_times, rejections)
    if options.table_column is None:
        yield from _chunk(options.table or "", rows, times, options, rejections)
        return
    names = _table_names(rows, options, rejections)
    for name in names.unique().drop_null().to_pylist():
        own = np.asarray(pc.fill_null(pc.equal(names, name), fill_value=False))
        try:
            check_column("table", name)
        except InvalidLine as error:
            rejections.add(rows.lines[own], str(error))
            continue
        yield from _chunk(name, rows.select(own), times[own], options, rejections)


def _readable(rows: TypedRows, options: FormatOptions, rejections: Rejections) -> TypedRows:
    """The rows without a value in a column of a type that nothing can be read of, which becomes one of nulls.

    Before any other step: Arrow has no selection, no join or no cast of such types.
    """
    good = np.ones(len(rows.lines), np.bool_)
    columns = rows.columns
    for index, (name, column) in enumerate(zip(columns.column_names, columns.columns, strict=True)):
        readable = readable_column(column)
        if readable is None:
            readable = pa.chunked_array([pa.nulls(len(column))])
            # A table name of another type is none: the row goes to the table of the options.
            if name != options.table_column:
                bad = _has_value(column)
                rejections.add(rows.lines[bad], _refused_type(name, column.type, options))
                good &= ~bad
        if readable is not column:
            columns = columns.set_column(index, name, readable)
    return TypedRows(columns, rows.lines).select(good)


def _has_value(column: pa.ChunkedArray) -> Mask:
    """Which rows are not null."""
    try:
        return np.asarray(pc.is_valid(column), np.bool_)
    except pa.ArrowNotImplementedError:
        return np.ones(len(column), np.bool_)


def _refused_type(name: str, kind: pa.DataType, options: FormatOptions) -> str:
    if name == options.time_column:
        return _NO_TIME.format(kind)
    return f"{'tag' if name in options.tags else 'field'} {name!r} has type {kind}"


def _with_text(rows: TypedRows, rejections: Rejections) -> TypedRows:
    """The rows whose text is UTF-8."""
    columns, good, reason = rows_with_text(rows.columns)
    rejections.add(rows.lines[~good], reason)
    return TypedRows(columns, rows.lines).select(good)


def _timed(
    rows: TypedRows, options: FormatOptions, default_times: DefaultTimes, rejections: Rejections
) -> tuple[Integers, TypedRows]:
    """(times, the rows that have one)."""
    times = default_times_of(default_times, rows.lines)
    good = np.ones(len(times), np.bool_)
    if options.time_column in rows.columns.column_names:
        values = plain_array(options.time_column, rows.columns.column(options.time_column))
        present = np.asarray(pc.is_valid(values))
        read, reasons = _times_of(values, options)
        known = np.asarray(pc.is_valid(read))
        rejections.add(rows.lines[present & ~known], reasons)
        times = np.where(present, np.asarray(pc.fill_null(read, 0)), times)
        good = known | ~present
    absent = good & (times == TIME_ABSENT)
    rejections.add(rows.lines[absent], "the row has no time")
    good &= ~absent
    return times[good], rows.select(good)


def _times_of(values: pa.Array, options: FormatOptions) -> tuple[pa.Array, Sequence[str] | str]:
    """(times in ns, null for those that cannot be read; the reason of each of these, or of all)."""
    kind = values.type
    if is_text(kind):
        texts = pl.Series(values=pl.from_arrow(values.cast(pa.large_string())))
        times = times_of_text(texts, options)
        bad = times.is_null() & texts.is_not_null()
        return to_arrow(times), time_refusals(texts.filter(bad), options) if bad.any() else ""
    if pa.types.is_timestamp(kind):
        units, factor = values.cast(pa.int64()), NS_PER_UNIT[kind.unit]
    elif pa.types.is_date(kind):
        units, factor = values.cast(pa.timestamp("ms")).cast(pa.int64()), NS_PER_UNIT["ms"]
    elif pa.types.is_integer(kind):
        unfit = unfit_values(values, as_float=False)
        fitting = values if unfit is None else pc.if_else(unfit[0], pa.scalar(None, kind), values)
        units, factor = fitting.cast(pa.int64()), options.ns_per_unit
    elif pa.types.is_null(kind):
        return values.cast(pa.int64()), ""
    else:
        return pa.nulls(len(values), pa.int64()), _NO_TIME.format(kind)
    times = to_arrow(scaled(pl.Series(values=pl.from_arrow(units)), factor))
    return times, "the time does not fit int64 nanoseconds"


def _table_names(rows: TypedRows, options: FormatOptions, rejections: Rejections) -> pa.Array:
    """The table of each row; rejected where it is null."""
    name = options.table_column
    assert name is not None
    names = pa.nulls(len(rows.lines), pa.string())
    if name in rows.columns.column_names:
        column = plain_array(name, rows.columns.column(name))
        if is_text(column.type):
            names = column.cast(pa.string())
    if options.table is not None:
        return pc.fill_null(names, options.table)
    rejections.add(
        rows.lines[np.asarray(pc.is_null(names))], f"column {options.source_name(name)!r} does not name a table"
    )
    return names


def _chunk(
    table: str, rows: TypedRows, times: Integers, options: FormatOptions, rejections: Rejections
) -> Iterator[TableChunk]:
    declared = options.declared_types(table)
    tags: Columns = {}
    fields: Columns = {}
    good = np.ones(len(rows.lines), np.bool_)
    for name, column in zip(rows.columns.column_names, rows.columns.columns, strict=True):
        if name in (options.time_column, options.table_column):
            continue
        try:
            column, unfit = _fitting(name, column, rows, options, declared, rejections)
            good &= ~unfit
            if name in options.tags:
                tags[name] = tag_values(name, column)
                continue
            check_column("field", name)
            values = field_values(name, column, declared.get(name))
            if values is not None:
                fields[name] = values
        except (ColumnTypeError, InvalidLine) as error:
            # Rows without a value have nothing against them.
            bad = np.asarray(pc.is_valid(column))
            reason = error.message if isinstance(error, ColumnTypeError) else str(error)
            rejections.add(rows.lines[bad], reason)
            good &= ~bad
    valued = np.zeros(len(rows.lines), np.bool_)
    for values in fields.values():
        valued |= np.asarray(pc.is_valid(values))
    rejections.add(rows.lines[good & ~valued], "no field has a value")
    good &= valued
    chunk = TableChunk(table, rows.lines, times, tags, fields)
    yield chunk if good.all() else _filtered(chunk, good)


def _fitting(
    name: str,
    column: pa.ChunkedArray,
    rows: TypedRows,
    options: FormatOptions,
    declared: Mapping[str, FieldType],
    rejections: Rejections,
) -> tuple[pa.ChunkedArray, Mask]:
    """(a column without the values that no field can hold, whose rows are rejected; these rows). Raises ColumnTypeError."""
    if column.type == TAG_TYPE:
        # No text is unfit, and decoding it would cost more than all else about a tag.
        return column, np.zeros(len(column), np.bool_)
    values, is_tag = plain_array(name, column), name in options.tags
    unfit = unfit_values(values, as_float=declared.get(name) is FieldType.FLOAT64, as_text=is_tag)
    if unfit is None:
        return column, np.zeros(len(values), np.bool_)
    mask = unfit[0].to_numpy(zero_copy_only=False)
    rejections.add(rows.lines[mask], f"{'tag' if is_tag else 'field'} {name!r} has {unfit[1]}")
    # Arrow has no choice between decimals of a negative scale, and takes any array at places, null for no place.
    return pa.chunked_array([values.take(pa.array(np.arange(len(values)), mask=mask))]), mask


def _filtered(chunk: TableChunk, good: Mask) -> TableChunk:
    kept = pa.array(good)
    return replace(
        chunk,
        lines=chunk.lines[good],
        times=chunk.times[good],
        keys={name: column.filter(kept) for name, column in chunk.keys.items()},
        fields={name: column.filter(kept) for name, column in chunk.fields.items()},
    )
