"""Rows in any of Python's forms as one Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.interface import ColumnTypeError
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN

_TIMES = "times"
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class RowsInvalid(HeadraceError):
    """An object that no rows can be read from."""


def arrow_table(data: Any) -> pa.Table:
    """Rows as an Arrow table: from pyarrow, polars, pandas, dicts, or anything that exports Arrow streams.

    In pandas NaN means "no value"; everywhere else it is a number. A DatetimeIndex is the time when there is
    no such column. Raises RowsInvalid and ColumnTypeError, which names the column.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    # By name: pandas and polars take long to import, and whoever passes their objects has imported them.
    origin = type(data).__module__.partition(".")[0]
    if origin == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data)
    if origin == "polars":
        return _from_polars(data)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except Exception as error:
            # Code of another library, which has errors of its own.
            raise RowsInvalid(f"no rows can be read from {type(data).__name__}: {error}") from error
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _from_rows(data)
    raise RowsInvalid(
        f"no rows can be read from {type(data).__name__}",
        action="give an Arrow table, a data frame, a list of dicts or a dict of lists",
    )


def _from_pandas(frame: Any) -> pa.Table:
    index = frame.index
    if type(index).__name__ == "DatetimeIndex" and TIME_COLUMN not in frame.columns:
        frame = frame.rename_axis(TIME_COLUMN).reset_index()
    elif any(name is not None for name in index.names):
        if twice := [name for name in index.names if name is not None and name in frame.columns]:
            action = "keep one of them: reset_index(drop=True) keeps the column"
            raise ColumnTypeError(f"{twice[0]!r} is the index of the data frame, and a column as well", action=action)
        frame = frame.reset_index()
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except _REFUSALS as error:
        raise ColumnTypeError(f"the data frame has a column of mixed or unknown type: {error}") from error
    for place, field in enumerate(table.schema):
        if str(frame.dtypes.iloc[place]) != "object":
            continue
        if pa.types.is_temporal(field.type):
            table = table.set_column(place, field.name, _column(field.name, frame.iloc[:, place].tolist()))
        _refuse_booleans(field.name, table.column(place), frame.iloc[:, place])
    return table


def _from_polars(frame: Any) -> pa.Table:
    if not hasattr(frame, "to_arrow") or not hasattr(frame, "columns"):
        raise RowsInvalid(
            f"no rows can be read from a polars {type(frame).__name__}", action="collect it to a DataFrame"
        )
    if objects := [name for name, kind in zip(frame.columns, frame.dtypes, strict=True) if str(kind) == "Object"]:
        # Arrow would get the addresses of these objects.
        raise ColumnTypeError(f"column {objects[0]!r} has Python objects", action="give it values of one type")
    try:
        return frame.to_arrow()
    except _REFUSALS:
        # A whole frame does not name the column whose type Arrow lacks.
        return pa.table({name: _column(name, frame[name]) for name in frame.columns})


def _from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    if columns and all(_is_single(value) for value in columns.values()):
        return _from_rows([columns])
    for name, values in columns.items():
        # Arrow takes the letters of a text and the keys of a dict for values, and a set has no order.
        if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
            raise ColumnTypeError(
                f"column {str(name)!r} is a {type(values).__name__}", action="give it a list with a value for each row"
            )
    arrays = {name: _column(name, columns[key]) for key, name in _names(columns).items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise RowsInvalid(
            f"columns differ in length: {', '.join(f'{name} {length}' for name, length in lengths.items())}"
        )
    return pa.table(arrays)


def _is_single(value: Any) -> bool:
    return isinstance(value, str | bytes) or not hasattr(value, "__len__")


def _from_rows(rows: Sequence[Any]) -> pa.Table:
    if not all(isinstance(row, Mapping) for row in rows):
        odd = next(row for row in rows if not isinstance(row, Mapping))
        raise RowsInvalid(f"a row is a {type(odd).__name__}", action="give each row as a dict")
    names = _names(chain.from_iterable(rows))
    # Of keys that are bytes beside text Arrow takes no value.
    if not names or not all(isinstance(key, str) for key in names):
        return _by_column(rows, names)
    # Arrow refuses rows of mixed types as a whole. Column by column, the error names the wrong one.
    try:
        table = pa.Table.from_struct_array(pa.array(rows, from_pandas=False))
    except _REFUSALS:
        return _by_column(rows, names)
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            table = table.set_column(place, field.name, _column(field.name, [row.get(field.name) for row in rows]))
        _refuse_booleans(field.name, table.column(place), (row.get(field.name) for row in rows))
    return table


def _by_column(rows: Sequence[Any], names: Mapping[Any, str]) -> pa.Table:
    return pa.table({name: _column(name, [row.get(key) for row in rows]) for key, name in names.items()})


def _names(keys: Iterable[Any]) -> dict[Any, str]:
    """The names of columns by their keys. Raises ColumnTypeError where two keys have one name."""
    names = {key: key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in dict.fromkeys(keys)}
    known = set[str]()
    for name in names.values():
        # Of 1 and "1" one value would be the column, and the other lost without a word.
        if name in known:
            raise ColumnTypeError(
                f"column {name!r} is there twice, by different keys", action="give each row text keys"
            )
        if not _is_utf8(name):
            raise ColumnTypeError(f"the name of column {name!a} is not UTF-8", action="rename it")
        known.add(name)
    return names


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_booleans(name: str, column: pa.Array | pa.ChunkedArray, given: Iterable[Any]) -> None:
    """Raises ColumnTypeError for booleans that Arrow has made numbers, as it does beside decimals alone."""
    if not pa.types.is_floating(column.type):
        return
    # Only these may have been one: most columns have few, and no value of them is looked at here.
    places = np.flatnonzero(np.isin(column.to_numpy(zero_copy_only=False), (0, 1)))
    values = list(given) if len(places) else []
    if any(isinstance(values[place], bool) for place in places):
        raise ColumnTypeError(f"column {name!r} has booleans beside numbers", action="give it values of one type")


def _column(name: str, values: Any) -> pa.Array:
    try:
        if hasattr(values, "to_arrow"):
            return values.to_arrow()
        if isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object":
            return _of_objects(name, values)
        return pa.array(values)
    except _REFUSALS as error:
        raise ColumnTypeError(
            f"column {name!r} cannot be read: {error}", action="give it values of one type"
        ) from error


def _of_objects(name: str, values: Any) -> pa.Array:
    """Python objects as a column."""
    try:
        array = pa.array(values)
    except _REFUSALS:
        # NaT has the looks of a Timestamp, and Arrow cannot read it beside a datetime.
        if not any(isinstance(value, date) for value in values):
            raise
        return _moments(name, values)
    _refuse_booleans(name, array, values)
    return _moments(name, values) if pa.types.is_temporal(array.type) else array


def _moments(name: str, values: Iterable[Any]) -> pa.Array:
    """Times as a column, with all their digits; None, NaT and NaN are null. Raises ColumnTypeError."""
    # Nothing is equal to NaT and NaN, also not they themselves.
    given = [None if value is None or value != value else value for value in values]
    # Beside datetimes Arrow takes integers for microseconds; everywhere else they are nanoseconds. Of a time beside
    # a date it takes the date alone.
    kinds = {_kind(value) for value in given if value is not None}
    if len(kinds) > 1:
        odd = min(kinds - {_TIMES})
        raise ColumnTypeError(f"column {name!r} has {odd} beside other times", action="give all times in one form")
    stamp = next(filter(_finer_than_us, given), None)
    if stamp is None:
        return pa.array(given)
    exact = [None if value is None else _exact_ns(value, type(stamp)) for value in given]
    return pa.array(exact, pa.timestamp("ns", "UTC" if stamp.tzinfo else None))


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return _TIMES
    if isinstance(value, date):
        return "dates"
    if isinstance(value, Real):
        return "integers" if isinstance(value, Integral) else "numbers"
    return _TIMES


def _finer_than_us(value: Any) -> bool:
    """Whether a value is a pandas Timestamp, which Arrow truncates to microseconds outside of pandas columns."""
    return hasattr(value, "nanosecond") and hasattr(value, "asm8")


def _exact_ns(value: Any, stamp: type) -> int:
    """Nanoseconds since 1970 of a time, given the type of pandas Timestamps."""
    return int((value if _finer_than_us(value) else stamp(value)).value)
