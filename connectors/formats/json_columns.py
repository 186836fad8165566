"""Columns of JSON members: what each is for, and the values of many lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from connectors.formats.json_readings import Role
from connectors.formats.kernel_types import Kind
from connectors.formats.lines import Booleans
from connectors.formats.parsed import FormatOptions
from connectors.formats.tags import encoded
from connectors.formats.templates import Matched
from connectors.formats.times import scaled, times_of_text
from connectors.formats.values import booleans, both, usable
from schemas.tables import FieldType

JSON_SCALAR = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)$"
JSON_TRUE, JSON_FALSE = frozenset(("true",)), frozenset(("false",))


@dataclass(frozen=True, slots=True)
class Column:
    """One member of a shape: what it is for, and how its value is written. `kind` is that of a field, None for one that is always null."""

    name: str
    role: Role
    kind: FieldType | None
    quoted: bool
    value_kind: Kind


def column_values(
    table: str, column: Column, matched: Matched, place: int, options: FormatOptions
) -> tuple[pl.Series, Booleans | None]:
    """The values of a column that is no tag, and which of them are beyond doubt what the scanner would read."""
    if column.value_kind is Kind.INTEGER:
        values, valid = matched.integers(place)
        if column.role == "time":
            values = scaled(values, options.ns_per_unit)
            valid = both(valid, usable(values))
        return values, valid
    if column.value_kind is Kind.FLOAT:
        return matched.floats(place)
    texts = matched.texts(place)
    if column.role == "table":
        return texts, (texts == table).to_numpy()
    if column.role == "time":
        times = times_of_text(texts, options)
        written = None if column.quoted else usable(_scalars(texts))
        return times, both(written, usable(times))
    if column.quoted:
        return texts, None
    if column.kind is None:
        return texts, (texts == "null").to_numpy()
    values = booleans(texts, JSON_TRUE, JSON_FALSE)
    valid = usable(values)
    return values, None if valid is None else valid | (texts == "null").to_numpy()


def tag_codes(column: Column, texts: pa.DictionaryArray) -> tuple[pa.Array, Booleans | None]:
    """A column of tags, and which of them are written plainly; every distinct text is looked at once."""
    if column.quoted:
        return encoded(texts), None
    plain = usable(_scalars(pl.Series(values=pl.from_arrow(texts.dictionary))))
    return encoded(texts, absent="null"), None if plain is None else plain[np.asarray(texts.indices)]


def _scalars(texts: pl.Series) -> pl.Series:
    """The texts that are numbers or words of JSON; null for the others."""
    return texts.set(~texts.str.contains(JSON_SCALAR), None)


def some_value(fields: list[pl.Series]) -> Booleans | None:
    """Which rows have a value in any of the columns."""
    valid = [usable(values) for values in fields]
    if any(mask is None for mask in valid):
        return None
    some: Booleans = np.logical_or.reduce([mask for mask in valid if mask is not None])
    return some
