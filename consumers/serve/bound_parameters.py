"""Parameters that a driver binds to a prepared statement of Flight SQL, as the parameters of a query."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.consumers.query.parameters import TIMESTAMP_MEMBER
from headrace.consumers.serve.query_service import BODY_BYTES_MAX
from headrace.consumers.serve.request_bodies import RequestInvalid, RequestTooLarge

BATCHES_MAX = 100
"""Batches of one binding, of which one has a row: a client may send empty ones for ever."""


def bound_parameters(batches: Iterable[pa.RecordBatch | None]) -> bytes:
    """The JSON of the parameters in the only row of some batches. Raises RequestInvalid, RequestTooLarge.

    Columns that have numbers or nothing as names are the values of each `?` in their order. Other names are those that
    the SQL writes as `$name`.
    """
    row: pa.RecordBatch | None = None
    for number, batch in enumerate(batches):
        if number >= BATCHES_MAX:
            raise RequestInvalid(f"more than {BATCHES_MAX} batches of parameters", action="send one row in one batch")
        # A message may have metadata alone.
        if batch is None:
            continue
        if batch.nbytes > BODY_BYTES_MAX:
            raise _too_large()
        if batch.num_rows > 1 or (row is not None and batch.num_rows):
            raise RequestInvalid("more than one row of parameters", action="run the query once for each row")
        row = batch if batch.num_rows else row
    if row is None:
        return b""
    names = row.schema.names
    if all(not name or name.isdigit() for name in names):
        names = [str(place) for place in range(1, len(names) + 1)]
    try:
        values = {name: _value(name, column) for name, column in zip(names, row.columns, strict=True)}
    except UnicodeDecodeError as error:
        raise RequestInvalid("a parameter is not UTF-8", action="send a text, or none") from error
    text = json.dumps(values).encode()
    if len(text) > BODY_BYTES_MAX:
        raise _too_large()
    return text


def _too_large() -> RequestTooLarge:
    return RequestTooLarge(f"the parameters are larger than {BODY_BYTES_MAX} bytes", action="send a smaller query")


def _value(name: str, column: pa.Array) -> Any:
    """The one value of a column as JSON has it."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Without its zone it is UTC, as every time of a query. Python's own times have no nanoseconds.
        column = column.cast(pa.timestamp(kind.unit))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        text = column.cast(pa.string())[0].as_py()
        return None if text is None else {TIMESTAMP_MEMBER: text}
    value = column[0].as_py()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list) and all(each is None or isinstance(each, str | bool | int | float) for each in value):
        return value
    raise RequestInvalid(
        f"parameter {name!r} is of type {kind}", action="give numbers, texts, booleans, times, nulls, or lists of them"
    )
