"""Parameters of a query, from Python values and from a command line to what a node reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from headrace.schemas.errors import HeadraceError

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
DIGITS_MAX = 1_000
"""Far beyond the 39 of SQL's largest type, and below what Python reads."""
_QUOTES = "'\""


class ParameterInvalid(HeadraceError):
    """A parameter of a query that has no name, or a value that no query can have."""

    exit_code = 2


def query_parameters(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Python values as JSON values of the HTTP interface. Raises ParameterInvalid, which names the parameter."""
    return {name: _sent(name, value) for name, value in (values or {}).items()}


def typed_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """`name=value` texts as typed values. Raises ParameterInvalid.

    `true` and `false` are booleans, whole numbers integers, other numbers floats, everything else is text. A value
    in quotes is the text between them.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.removeprefix("$"):
            raise ParameterInvalid(f"--param {text} is not NAME=VALUE", action="for example --param site=north")
        # The name as the SQL writes it is accepted as well.
        name = name.removeprefix("$")
        if name in values:
            raise ParameterInvalid(f"parameter {name} is given twice", action="give each --param once")
        values[name] = typed_value(value)
    return values


def typed_value(text: str) -> str | int | float | bool:
    """The value of a text: `true` and `false`, whole numbers, other numbers, else text, without quotes around it.

    Raises ParameterInvalid for a number of very many digits.
    """
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        if len(text) > DIGITS_MAX:
            raise ParameterInvalid(f"a number of {len(text):,} digits is none that SQL has", action="quote it as text")
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES
    return text[1:-1] if quoted else text


def _sent(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_sent(name, item) for item in value]
    # numpy's scalars and others that only wrap a Python value; an array of one value is an array.
    if not isinstance(value, str | int | float | date) and hasattr(value, "item") and not getattr(value, "ndim", 0):
        kind, given = getattr(getattr(value, "dtype", None), "kind", ""), value
        value = value.item()
        # Python has no nanoseconds: numpy gives a number for a time or a span of them.
        if kind == "M" and isinstance(value, int):
            return {"timestamp": str(given)}
        value = given if kind == "m" else value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime):
        try:
            plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        except OverflowError:
            raise ParameterInvalid(
                f"parameter {name!r} is {value}, a time that UTC does not have", action="give another time"
            ) from None
        return {"timestamp": plain.isoformat()}
    if isinstance(value, date):
        return {"timestamp": value.isoformat()}
    raise ParameterInvalid(
        f"parameter {name!r} is a {type(value).__name__}",
        action="give numbers, texts, booleans, dates, datetimes, None, or lists of them",
    )
