"""Typed tables (Arrow, Parquet and what converts to Arrow) in the form of readings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.formats.int96_times import check_int96, wrapped_columns
from headrace.connectors.formats.interface import (
    LINE_COLUMN,
    NS_PER_UNIT,
    REJECTED_LINES,
    TABLE_ACTION,
    TAG_TYPE,
    ColumnMissing,
    ColumnTypeError,
    FormatError,
    FormatOptions,
    InvalidLine,
    OptionsError,
    ParseResult,
    TimeRangeError,
    check_column,
)
from headrace.connectors.formats.row_rules import NO_SUCH_TIME, accepted_times, column_names, rows_with_text
from headrace.connectors.formats.text_columns import (
    encode_tags,
    time_refusals,
    times_of_text,
    to_arrow,
    with_static_tags,
)
from headrace.connectors.formats.unfit_values import DECIMAL_REASON, INTEGER_REASON, WHOLE_REASON, unfit_values
from headrace.schemas.tables import TIME_COLUMN, FieldType

DECODED_TEXT_BYTES_MAX = 1 << 30
"""Text of a column whose rows share it, once each row has its own: Arrow adds up offsets of 32 bits."""
_IN_RANGE = "write times between the years 1677 and 2262"


def normalise(table: pa.Table, options: FormatOptions) -> pa.Table:
    """`table` as readings: tags dictionary<int32, string>, then `time` int64 ns, then the fields.

    Fields are float64, int64, bool or string: integers of any width become int64 (float64 if that is
    declared), floats and exact decimals float64, whole decimals int64, text of any kind string. Dates, times of
    day and timestamps in fields become text in ISO 8601. Times of any unit and zone become
    nanoseconds UTC; integers are times in `time_unit`, text is parsed as by the text formats. Columns of
    nulls are dropped. The arrays of `table` are valid, as `check_arrays` finds. Raises ColumnMissing,
    ColumnTypeError or TimeRangeError, which name the column.
    """
    _check_names(table, options)
    rows = table.num_rows
    tags = {name: tag_values(name, table.column(name)) for name in options.tags}
    columns = with_static_tags(tags, rows, options)
    columns[TIME_COLUMN] = _time(options.time_column, table.column(options.time_column), options)
    declared = options.declared_types(options.table or "")
    for name in sorted(_field_names(table, options)):
        values = field_values(name, table.column(name), declared.get(name))
        if values is not None:
            columns[name] = values
    return pa.table(columns)


def parse_parquet(data: pa.Buffer | bytes, options: FormatOptions, *, keep_lines: bool = False) -> ParseResult:
    """The readings of a whole Parquet file. A row without a time is rejected by its number."""
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            check_int96(wrapped_columns(pa.BufferReader(data), file.metadata))
            # Without threads, and not by `read_table`: threads of Arrow that still hold the bytes of a broken file
            # when the process ends abort it.
            table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"not a Parquet file: {error}") from None
    return parse_table(table, options, keep_lines=keep_lines)


def parse_table(table: pa.Table, options: FormatOptions, *, keep_lines: bool = False) -> ParseResult:
    """The readings of a typed table.

    A row without a time that SQL has, or with text that is not UTF-8, is rejected by its number.
    """
    if options.table is None:
        raise OptionsError("typed readings need a table", action=TABLE_ACTION)
    _check_names(table, options)
    table, texts, text_reason = rows_with_text(table)
    timed = np.asarray(pc.is_valid(table.column(options.time_column)))
    kept = np.flatnonzero(timed & texts)
    rejected = [
        _rejected(np.flatnonzero(~timed), "the row has no time"),
        _rejected(np.flatnonzero(timed & ~texts), text_reason),
    ]
    rows = normalise(table if len(kept) == table.num_rows else table.filter(pa.array(timed & texts)), options)
    accepted = accepted_times(rows.column(TIME_COLUMN)) if rows.num_rows else None
    if accepted is not None:
        rejected.append(_rejected(kept[~accepted], NO_SUCH_TIME))
        rows, kept = rows.filter(pa.array(accepted)), kept[accepted]
    if keep_lines:
        rows = rows.append_column(LINE_COLUMN, pa.array(kept))
    return ParseResult({options.table: rows}, pa.concat_tables(rejected).sort_by("line"), table.num_rows)


def _rejected(numbers: npt.NDArray[np.int64], reason: str) -> pa.Table:
    return pa.table([pa.array(numbers), pa.repeat(pa.scalar(reason), len(numbers))], schema=REJECTED_LINES)


def _check_names(table: pa.Table, options: FormatOptions) -> None:
    names = column_names(table)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ColumnTypeError(f"column {twice[0]!r} is there twice", action="rename one of them")
    for name in (options.time_column, *options.tags):
        if name not in names:
            raise ColumnMissing(f"there is no column {name!r}", action=f"the columns are {', '.join(names)}")
    for kind, some in (("tag", options.tags), ("field", _field_names(table, options))):
        for name in some:
            try:
                check_column(kind, name)
            except InvalidLine as error:
                raise ColumnTypeError(str(error), action="rename the column") from None
    for name in dict(options.static_tags):
        if name in _field_names(table, options):
            raise ColumnTypeError(f"column {name!r} is both a field and a static tag", action="rename one of them")


def _field_names(table: pa.Table, options: FormatOptions) -> list[str]:
    return [name for name in table.column_names if name != options.time_column and name not in options.tags]


def plain_array(name: str, column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, dictionaries and run lengths decoded. Raises ColumnTypeError."""
    if (size_bytes := _decoded_text_bytes(column)) > DECODED_TEXT_BYTES_MAX:
        raise ColumnTypeError(
            f"column {name!r} takes {size_bytes} bytes once it is decoded, {DECODED_TEXT_BYTES_MAX} is the most",
            action="send it in parts",
        )
    if pa.types.is_dictionary(column.type):
        try:
            column = column.cast(column.type.value_type)
        except pa.ArrowNotImplementedError:
            # Arrow decodes no dictionary of nested values, which no column could take either.
            raise ColumnTypeError(
                f"column {name!r} has type {column.type}", action="convert it to numbers, booleans or text"
            ) from None
    elif pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    # Arrow copies a single chunk too.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _decoded_text_bytes(column: pa.ChunkedArray) -> int:
    """At most so many bytes has the text of all rows, where a text is there once for many rows; else 0.

    Exact where that is above the limit: a kilobyte may be the text of a million rows.
    """
    is_dictionary = pa.types.is_dictionary(column.type)
    if not is_dictionary and not pa.types.is_run_end_encoded(column.type):
        return 0
    total = 0
    for chunk in column.chunks:
        texts = chunk.dictionary if is_dictionary else chunk.values
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            total += (pc.max(pc.binary_length(texts)).as_py() or 0) * len(chunk)
    if total <= DECODED_TEXT_BYTES_MAX:
        return total
    lengths = (
        pc.binary_length(chunk.dictionary).take(chunk.indices)
        if is_dictionary
        else pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(chunk.run_ends, pc.binary_length(chunk.values)))
        for chunk in column.chunks
    )
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def tag_values(name: str, column: pa.ChunkedArray) -> pa.Array:
    """A column as a tag, empty text as null. Raises ColumnTypeError."""
    # A null in the dictionary is a null of its rows, which only decoding shows.
    if column.type == TAG_TYPE and column.num_chunks == 1 and not column.chunk(0).dictionary.null_count:
        encoded = column.chunk(0)
        # An encoded column is passed on as it is, unless an empty text in its dictionary must become null.
        return encode_tags(encoded) if pc.any(pc.equal(encoded.dictionary, "")).as_py() else encoded
    values = plain_array(name, column)
    kind = values.type
    if is_text(kind):
        return encode_tags(values.cast(pa.string()))
    if _is_moment(kind):
        return encode_tags(_moment_text(f"tag {name!r}", values))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return encode_tags(values.cast(pa.string()))
    raise ColumnTypeError(f"tag {name!r} has type {kind}", action="tags are text: convert the column to strings")


def _time(name: str, column: pa.ChunkedArray, options: FormatOptions) -> pa.Array:
    values = plain_array(name, column)
    if values.null_count:
        raise TimeRangeError(
            f"column {name!r} has {values.null_count} rows without a time", action="drop these rows or fill in the time"
        )
    kind = values.type
    if is_text(kind):
        times = to_arrow(times_of_text(pl.Series(values=pl.from_arrow(values)), options))
        if times.null_count:
            first = pl.Series(values=pl.from_arrow(values.filter(pc.is_null(times)).slice(0, 1)))
            raise TimeRangeError(f"column {name!r}: {time_refusals(first, options)[0]}", action=_IN_RANGE)
        return times
    if pa.types.is_timestamp(kind):
        return _scaled(name, values.cast(pa.int64()), NS_PER_UNIT[kind.unit])
    if pa.types.is_date(kind):
        return _scaled(name, values.cast(pa.timestamp("ms")).cast(pa.int64()), NS_PER_UNIT["ms"])
    if pa.types.is_integer(kind):
        return _scaled(name, _integers(name, values), options.ns_per_unit)
    raise ColumnTypeError(
        f"time column {name!r} has type {kind}", action="times are timestamps, dates, integers or text"
    )


def _scaled(name: str, values: pa.Array, ns_per_unit: int) -> pa.Array:
    try:
        return pc.multiply_checked(values, pa.scalar(ns_per_unit, pa.int64()))
    except pa.ArrowInvalid:
        raise TimeRangeError(f"column {name!r} has times outside int64 nanoseconds", action=_IN_RANGE) from None


def field_values(name: str, column: pa.ChunkedArray, declared: FieldType | None) -> pa.Array | None:
    """A column as one of the types of fields; None for one of nulls that is not declared. Raises ColumnTypeError."""
    values = plain_array(name, column)
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), declared.arrow) if declared is not None else None
    if is_text(kind):
        return values.cast(pa.string())
    if pa.types.is_boolean(kind):
        return values
    if pa.types.is_integer(kind):
        # The cast from int64 may round: a declared float64 says that floats are wanted.
        whole = _integers(name, values)
        return pc.cast(whole, pa.float64(), safe=False) if declared is FieldType.FLOAT64 else whole
    if pa.types.is_floating(kind):
        return values.cast(pa.float64())
    if pa.types.is_decimal(kind):
        whole = kind.scale <= 0 and declared is not FieldType.FLOAT64
        return _from_whole_decimal(name, values) if whole else _from_decimal(name, values)
    if _is_moment(kind):
        return _moment_text(f"field {name!r}", values)
    raise ColumnTypeError(
        f"field {name!r} has type {kind}", action="fields are numbers, booleans or text: convert the column"
    )


def is_field_type(kind: pa.DataType) -> bool:
    """Whether a field can have values of an Arrow type, all of them or those that fit."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    checks = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return is_text(kind) or _is_moment(kind) or any(check(kind) for check in checks)


def readable_column(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column in a form that Arrow can select from.

    None for a type that no field, tag or time can have, and for runs of a text that is too long for all of their rows.
    """
    if pa.types.is_run_end_encoded(column.type):
        if _decoded_text_bytes(column) > DECODED_TEXT_BYTES_MAX:
            return None
        try:
            column = pc.run_end_decode(column)
        except pa.ArrowNotImplementedError:
            return None
    kind = column.type
    if not is_field_type(kind):
        return None
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        # As polars writes categories. Arrow decodes no dictionary of views.
        chunks = [_with_plain_texts(chunk) for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.dictionary(kind.index_type, pa.large_string()))
    return column


def _with_plain_texts(array: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_string()))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def _moment_text(what: str, values: pa.Array) -> pa.Array:
    """Dates, times of day and timestamps as ISO 8601 with all their digits; those with a zone in UTC, with Z.

    Raises ColumnTypeError.
    """
    if (unfit := unfit_values(values, as_float=False)) is not None:
        raise ColumnTypeError(f"{what} has {unfit[1]}", action="correct them, or convert the column to integers")
    # Text and not integers: it keeps its unit, sorts by time, and SQL casts it back.
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit, "UTC"))
    return values.cast(pa.string())


def _from_whole_decimal(name: str, values: pa.Array) -> pa.Array:
    # Arrow has no cast from decimals of 32 bits to int64: it refuses each of them.
    if pa.types.is_decimal32(values.type):
        values = values.cast(pa.decimal64(values.type.precision, values.type.scale))
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ColumnTypeError(f"field {name!r} has {WHOLE_REASON}", action="convert the column to text") from None


def _integers(name: str, values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ColumnTypeError(f"column {name!r} has {INTEGER_REASON}", action="convert it to float64") from None


def _from_decimal(name: str, values: pa.Array) -> pa.Array:
    """Decimals as the nearest float64. Raises ColumnTypeError if float64 cannot represent them."""
    if unfit_values(values, as_float=True) is not None:
        raise ColumnTypeError(f"field {name!r} has {DECIMAL_REASON}", action="convert the column to float64 or to text")
    # By way of text, which Arrow rounds correctly.
    return pc.cast(pc.cast(values, pa.string()), pa.float64())
