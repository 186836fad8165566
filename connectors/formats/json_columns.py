"""Columns of JSON members: what each is for, and the values of many lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.json_readings import Role
from connectors.formats.lines import Booleans
from connectors.formats.parsed import FormatOptions
from connectors.formats.tags import encoded
from connectors.formats.templates import Matched
from connectors.formats.times import times_of_text
from connectors.formats.values import booleans, both, finite_floats, integers, plain_strings, usable
from schemas.tables import FieldType

JSON_TRUE, JSON_FALSE = frozenset(("true",)), frozenset(("false",))


@dataclass(frozen=True, slots=True)
class Column:
    """One member of a shape: what it is for, and how its value is written. `kind` is that of a field, None for one that is always null."""

    name: str
    role: Role
    kind: FieldType | None
    quoted: bool
    number: bool


def column_values(
    table: str, column: Column, texts: pl.Series, options: FormatOptions
) -> tuple[pl.Series, Booleans | None]:
    """The values of a column that is no tag, and which of them are beyond doubt what the scanner would read."""
    plain = plain_strings(texts) if column.quoted else None
    if column.role == "table":
        return texts, both(plain, (texts == table).fill_null(value=False).to_numpy())
    if column.role == "time":
        times = times_of_text(texts, options)
        return times, both(plain, usable(times))
    if column.quoted:
        return texts, plain
    if column.kind is None:
        return texts, _null(texts).to_numpy()
    values = _typed(column.kind, texts)
    valid = usable(values)
    return values, None if valid is None else valid | _null(texts).to_numpy()


def json_numbers(matched: Matched, texts: pl.Series) -> Booleans | None:
    """Which texts are written as JSON writes numbers (or null), given that they are numbers: no plus, no leading zero, digits around the point.

    Comparing text is the cheapest test there is: of all numbers only those that start with a sign or a point come before "0", and only those
    with a zero and another digit at the start lie between "00" and "0:".
    """
    wrong = (texts >= "00") & (texts < "0:")
    low = texts < "0"
    if low.any():
        negative = (texts >= "-0") & (texts < "-:") & ~((texts >= "-00") & (texts < "-0:"))
        wrong |= low & ~negative
    if matched.chunk.has_bare_point:
        wrong |= texts.str.contains(r"\.(?:[eE]|$)")
    return None if not wrong.any() else ~wrong.to_numpy()


def _typed(kind: FieldType, texts: pl.Series) -> pl.Series:
    if kind is FieldType.BOOL:
        return booleans(texts, JSON_TRUE, JSON_FALSE)
    return finite_floats(texts) if kind is FieldType.FLOAT64 else integers(texts)


def tag_codes(column: Column, texts: pl.Series) -> tuple[pa.Array, Booleans | None]:
    """A column of tags, and which of them are written plainly; every distinct text is looked at once."""
    found = pc.dictionary_encode(texts.to_arrow())
    distinct = pl.Series(values=pl.from_arrow(found.dictionary))
    if column.quoted:
        plain = plain_strings(distinct)
    else:
        known = finite_floats(distinct).is_not_null() | distinct.is_in(["true", "false", "null"])
        plain = None if known.all() else known.to_numpy()
    codes = encoded(found, absent="" if column.quoted else "null")
    return codes, None if plain is None else plain[np.asarray(found.indices)]


def some_value(fields: list[pl.Series]) -> Booleans | None:
    """Which rows have a value in any of the columns."""
    valid = [usable(values) for values in fields]
    if any(mask is None for mask in valid):
        return None
    some: Booleans = np.logical_or.reduce([mask for mask in valid if mask is not None])
    return some


def _null(texts: pl.Series) -> pl.Series:
    return (texts == "null").fill_null(value=False)
