"""Columns of text to columns of values, exactly. Every function answers null where the text is not such a value."""

from __future__ import annotations

import math
import re

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.lines import Booleans

INTEGER_TEXT = re.compile(r"[+-]?[0-9]+", re.ASCII)
FLOAT_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
NOT_FINITE_TEXT = re.compile(r"[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TRUE_WORDS = frozenset(("t", "T", "true", "True", "TRUE"))
FALSE_WORDS = frozenset(("f", "F", "false", "False", "FALSE"))


def finite_floats(texts: pl.Series) -> pl.Series:
    """Finite float64 of decimal texts, correctly rounded; null for anything else, infinities and overflow too."""
    values = texts.cast(pl.Float64, strict=False)
    finite = values.is_finite()
    return values if finite.all(ignore_nulls=False) else values.set(~finite.fill_null(value=True), None)


def integers(texts: pl.Series) -> pl.Series:
    """Int64 of decimal integers; null for anything else and for what does not fit."""
    return texts.cast(pl.Int64, strict=False)


def booleans(texts: pl.Series, true: frozenset[str] = TRUE_WORDS, false: frozenset[str] = FALSE_WORDS) -> pl.Series:
    """Booleans of the given words; null for anything else."""
    is_true = texts.is_in(list(true))
    return is_true.set(~(is_true | texts.is_in(list(false))), None)


def arrow_of(values: pl.Series) -> pa.Array:
    """The Arrow array of a Series; text as plain `string`."""
    array = values.to_arrow()
    return pc.cast(array, pa.string()) if array.type == pa.large_string() else array


def usable(values: pl.Series) -> Booleans | None:
    """Which values are not null; None when all of them are."""
    return None if values.null_count() == 0 else values.is_not_null().to_numpy()


def float_of(text: str) -> float | None:
    """One finite float64, by the same grammar as `finite_floats`."""
    if FLOAT_TEXT.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def integer_of(text: str) -> int | None:
    """One int64, by the same grammar as `integers`."""
    if INTEGER_TEXT.fullmatch(text) is None or len(text) > 4_000:
        return None
    value = int(text)
    return value if INT64_MIN <= value <= INT64_MAX else None


def both(first: Booleans | None, second: Booleans | None) -> Booleans | None:
    """The conjunction of two masks, where None means all true."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
