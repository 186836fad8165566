"""A column of text whose type nobody wrote down: the declared type decides, else its first value does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from connectors.formats.values import booleans, finite_floats, integers
from schemas.tables import FieldType

EXACT_FLOAT_MAX = 2.0**53
TRUE_TEXTS = frozenset(("true", "True", "TRUE"))
FALSE_TEXTS = frozenset(("false", "False", "FALSE"))
_NOT_FINITE = r"^(?i)[+-]?(?:nan|inf|infinity)$"
_INTEGER = r"^[+-]?[0-9]+$"


@dataclass(frozen=True, slots=True)
class Converted:
    """A column of values of one type; `bad` tells which texts are none of that type (their value is null)."""

    kind: FieldType
    values: pl.Series
    bad: pl.Series


def convert(texts: pl.Series, declared: FieldType | None) -> Converted | None:
    """Values of a column of texts (null where there is none). None for a column without any value.

    Numbers are float64 unless int64 is declared; a column declared int64 that holds fractions becomes float64. NaN and infinities are numbers.
    """
    present = texts.drop_nulls()
    if not len(present):
        return None
    kind = declared or _kind_of(present[0])
    if kind is FieldType.STRING:
        return Converted(kind, texts, pl.repeat(value=False, n=len(texts), eager=True))
    if kind is FieldType.INT64:
        return _integral(texts)
    values = _floats(texts) if kind is FieldType.FLOAT64 else _booleans(texts)
    return Converted(kind, values, values.is_null() & texts.is_not_null())


def _kind_of(text: str) -> FieldType:
    stripped = text.strip()
    if stripped in TRUE_TEXTS or stripped in FALSE_TEXTS:
        return FieldType.BOOL
    single = pl.Series([stripped])
    return FieldType.STRING if _floats(single).null_count() else FieldType.FLOAT64


def _booleans(texts: pl.Series) -> pl.Series:
    return _retried(texts, lambda some: booleans(some, TRUE_TEXTS, FALSE_TEXTS))


def _floats(texts: pl.Series) -> pl.Series:
    return _retried(texts, finite_floats, _not_finite)


def _not_finite(texts: pl.Series) -> pl.Series:
    """NaN and infinities written as words; null for anything else."""
    return texts.cast(pl.Float64, strict=False).set(~texts.str.contains(_NOT_FINITE).fill_null(value=True), None)


def _integral(texts: pl.Series) -> Converted:
    whole = _retried(texts, integers)
    rest = whole.is_null() & texts.is_not_null()
    if not rest.any():
        return Converted(FieldType.INT64, whole, rest)
    stripped = texts.str.strip_chars()
    too_large = rest & stripped.str.contains(_INTEGER).fill_null(value=False)
    numbers = _floats(texts)
    integral = (
        rest & ~too_large & ((numbers == numbers.round()) & (numbers.abs() < EXACT_FLOAT_MAX)).fill_null(value=False)
    )
    fractions = rest & ~too_large & ~integral & numbers.is_not_null()
    if fractions.any():
        return Converted(FieldType.FLOAT64, numbers, rest & (too_large | numbers.is_null()))
    whole = whole.zip_with(~integral, numbers.cast(pl.Int64, strict=False))
    return Converted(FieldType.INT64, whole, whole.is_null() & texts.is_not_null())


def _retried(texts: pl.Series, *readers: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """What the first of `readers` that can reads in each text; spaces around a text do not count."""
    values = readers[0](texts)
    for reader in (*readers[1:], *readers):
        left = values.is_null() & texts.is_not_null()
        if not left.any():
            break
        values = values.scatter(left.arg_true(), reader(texts.filter(left).str.strip_chars()))
    return values
