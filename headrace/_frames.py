"""Rows in any of Python's forms as one Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import pyarrow as pa

from headrace.connectors.formats.interface import ColumnTypeError
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN

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
        frame = frame.reset_index()
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except _REFUSALS as error:
        raise ColumnTypeError(f"the data frame has a column of mixed or unknown type: {error}") from error


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
    arrays = {str(name): _column(str(name), values) for name, values in columns.items()}
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
    _check_times([row.get(TIME_COLUMN) for row in rows])
    # Arrow refuses rows of mixed types as a whole. Column by column, the error names the wrong one.
    if not any(_finer_than_us(row.get(TIME_COLUMN)) for row in rows):
        try:
            return pa.Table.from_struct_array(pa.array(rows, from_pandas=False)) if any(rows) else pa.table({})
        except _REFUSALS:
            pass
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({str(name): _column(str(name), [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: Any) -> pa.Array:
    try:
        if hasattr(values, "to_arrow"):
            return values.to_arrow()
        if name == TIME_COLUMN and isinstance(values, list | tuple):
            _check_times(values)
            # NaT has the looks of a Timestamp, and Arrow cannot read it beside a datetime.
            values = [None if _finer_than_us(value) and value != value else value for value in values]
            stamp = next(filter(_finer_than_us, values), None)
            if stamp is not None:
                return pa.array([_exact_ns(value, type(stamp)) for value in values], pa.timestamp("ns"))
        return pa.array(values)
    except _REFUSALS as error:
        raise ColumnTypeError(
            f"column {name!r} cannot be read: {error}", action="give it values of one type"
        ) from error


def _finer_than_us(value: Any) -> bool:
    """Whether a value is a pandas Timestamp, which Arrow truncates to microseconds outside of pandas columns."""
    return hasattr(value, "nanosecond") and hasattr(value, "value")


def _exact_ns(value: Any, stamp: type) -> int | None:
    """Nanoseconds since 1970 of a time, given the type of pandas Timestamps; None for one that is not there."""
    # Nor is NaN, which is not equal to itself.
    if value is None or value != value:
        return None
    return int((value if _finer_than_us(value) else stamp(value)).value)


def _check_times(values: Sequence[Any]) -> None:
    # Beside datetimes Arrow takes integers for microseconds; everywhere else they are nanoseconds.
    if len({isinstance(value, Integral) for value in values if value is not None}) > 1:
        raise ColumnTypeError(
            f"column {TIME_COLUMN!r} has integers beside other times", action="give all times in one form"
        )
