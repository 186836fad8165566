"""Rows that no log takes, whatever their format: text that is not UTF-8, and times that SQL does not have."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import FormatError, TimeRangeError
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, TIME_COLUMN

Mask = npt.NDArray[np.bool_]
NO_SUCH_TIME = "the time is at the end of int64 nanoseconds, which SQL does not have"
# Over bytes, as RE2 reads them in Latin-1: Arrow's own check of UTF-8 gives no mask.
UTF_8 = (
    r"^(?:[\x00-\x7F]|[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}"
    r"|\xED[\x80-\x9F][\x80-\xBF]|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2})*\z"
)


class ArrayInvalid(FormatError):
    """A column that breaks the rules of Arrow: text that is not UTF-8, an offset or an index out of range."""


def check_arrays(table: pa.Table) -> None:
    """Raises ArrayInvalid, which names the column: any function may fail on such an array, or end the process."""
    for name, column in zip(column_names(table), table.columns, strict=True):
        _check_column(name, column)


def encode_texts(table: pa.Table, names: Collection[str]) -> pa.Table:
    """The table, of the columns `names` those of plain text as dictionaries: what follows has to look at each text once.

    The texts may still be invalid, which `check_arrays` finds. Raises ArrayInvalid.
    """
    for index, (name, column) in enumerate(zip(column_names(table), table.columns, strict=True)):
        if name in names and pa.types.is_string(column.type) and table.num_rows:
            table = table.set_column(index, name, _encoded(name, column))
    return table


def _encoded(name: str, texts: pa.ChunkedArray) -> pa.DictionaryArray:
    # No copy. Of bytes only the offsets are checked, without which they cannot be read.
    raw = texts.cast(pa.binary())
    _check_column(name, raw)
    # All chunks have the dictionary of the last one.
    chunks = pc.dictionary_encode(raw).chunks
    indices = pa.chunked_array([chunk.indices for chunk in chunks]).combine_chunks()
    return pa.DictionaryArray.from_arrays(indices, chunks[0].dictionary.view(pa.string()))


def _check_column(name: str, column: pa.ChunkedArray) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        text, other = "decode its text as UTF-8", f"send values that {kind} has, or convert the column"
        raise ArrayInvalid(f"column {name!r} is not valid: {error}", action=text if _is_text(kind) else other) from None


def column_names(table: pa.Table) -> list[str]:
    """The names of the columns. Raises ArrayInvalid for one that is not UTF-8."""
    try:
        return list(table.column_names)
    except UnicodeDecodeError as error:
        raise ArrayInvalid(f"the name of a column is not UTF-8: {error}", action="rename the column") from None


def check_times(table: pa.Table) -> None:
    """Raises TimeRangeError for a normalised table with a time that SQL does not have."""
    accepted = accepted_times(table.column(TIME_COLUMN))
    if accepted is not None:
        count = table.num_rows - int(accepted.sum())
        raise TimeRangeError(f"{count} rows have no usable time: {NO_SUCH_TIME}", action="drop or mend these rows")


def accepted_times(times: pa.ChunkedArray | pa.Array) -> Mask | None:
    """Which times SQL has; None for all of them."""
    bounds = pc.min_max(times)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= ROW_TIME_MIN_NS and high <= ROW_TIME_MAX_NS):
        return None
    values = np.asarray(times)
    accepted: Mask = (values >= ROW_TIME_MIN_NS) & (values <= ROW_TIME_MAX_NS)
    return accepted


def rows_with_text(table: pa.Table) -> tuple[pa.Table, Mask, str]:
    """(the table, which of its rows have valid text in every column, why the others have not).

    For tables whose offsets are known to be right, as those read from a Parquet file. Rows of the table can be
    selected. Columns with bad text come back as plain text: a dictionary would keep what no row uses. Times of day
    outside of their day are left, for `unfit_values`. Raises ArrayInvalid for a column with another fault.
    """
    good, names = np.ones(table.num_rows, np.bool_), []
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        # Arrow selects no rows of a view.
        if pa.types.is_string_view(column.type):
            column = column.cast(pa.large_string())
            table = table.set_column(index, name, column)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if pa.types.is_time(kind):
                _check_but_for_times(name, column)
                continue
            if not _is_text(kind):
                raise ArrayInvalid(f"column {name!r} is not valid") from None
            try:
                texts = column.cast(pa.large_string())
            except pa.ArrowIndexError:
                reason = "its values are not all in its dictionary"
                raise ArrayInvalid(f"column {name!r} is not valid: {reason}", action="write the file again") from None
            matching = pc.match_substring_regex(texts.cast(pa.large_binary()), UTF_8)
            good &= np.asarray(pc.fill_null(matching, fill_value=True))
            table = table.set_column(index, name, texts)
            names.append(repr(name))
    return table, good, f"the text of {', '.join(names)} is not UTF-8"


def validate_but_for_times(array: pa.Array) -> None:
    """As `validate(full=True)`, and takes times of day outside of their day: what they are is judged row by row.

    Raises pa.ArrowInvalid.
    """
    kind = array.type
    if pa.types.is_time(kind):
        array.validate()
    elif pa.types.is_dictionary(kind):
        # Arrow validates indices and values together.
        nothing = pa.nulls(len(array.dictionary))
        pa.DictionaryArray.from_arrays(array.indices, nothing, safe=False).validate(full=True)
        validate_but_for_times(array.dictionary)
    elif pa.types.is_struct(kind):
        array.validate()
        for index in range(kind.num_fields):
            validate_but_for_times(array.field(index))
    else:
        array.validate(full=True)


def _check_but_for_times(name: str, column: pa.ChunkedArray) -> None:
    try:
        for chunk in column.chunks:
            validate_but_for_times(chunk)
    except pa.ArrowInvalid:
        raise ArrayInvalid(f"column {name!r} is not valid") from None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
