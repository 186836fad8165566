"""Columns of text converted to numbers, booleans, tags and times, exactly; null for any other text.

A time is int64 nanoseconds since 1970 UTC, between the years 1677 and 2262. Integers and decimals are in the
unit of the options; one with digits finer than a nanosecond is no time. Other text is ISO 8601: a date, or a date and
a time of day with up to nine decimals, `T` or a space between them, and a zone (`Z`, `+hh`, `+hhmm`,
`+hh:mm`) or none, which means UTC. With `time_format` every text must have that form, integers too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import TAG_TYPE, TIME_MAX_NS, TIME_MIN_NS, FormatOptions, OptionsError
from headrace.connectors.formats.lines import Booleans
from headrace.schemas.tables import FieldType

INTEGER_TEXT = re.compile(r"[+-]?[0-9]+", re.ASCII)
FLOAT_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
NOT_FINITE_TEXT = re.compile(r"[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TRUE_WORDS = frozenset(("t", "T", "true", "True", "TRUE"))
FALSE_WORDS = frozenset(("f", "F", "false", "False", "FALSE"))
TRUE_TEXTS = frozenset(("true", "True", "TRUE"))
FALSE_TEXTS = frozenset(("false", "False", "FALSE"))
# From here on float64 skips integers, so a whole number may not be the one that was written.
EXACT_FLOAT_MAX = 2.0**53
# Python refuses to convert integers of more than 4,300 digits (sys.set_int_max_str_digits).
INTEGER_TEXT_MAX = 4_000
_NOT_FINITE = r"^(?i)[+-]?(?:nan|inf|infinity)$"
_INTEGER = r"^[+-]?[0-9]+$"

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_ISO = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}{_ZONE}?)?$"
_ZONED = rf":.*{_ZONE}$"
_DECIMALS_MAX = 9
_FINER_DECIMALS = r"\.[0-9]{9}[0-9]*[1-9]"
_DECIMAL = r"^[+-]?[0-9]+\.[0-9]*$"
_SCIENTIFIC = r"^[+-]?[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3}$"
# Whole years that fit int64 nanoseconds; times in the two years at the edges are converted one by one.
_YEAR_MIN, _YEAR_MAX = 1678, 2261

Columns = dict[str, pa.Array]


def finite_floats(texts: pl.Series) -> pl.Series:
    """Finite float64 of decimal texts, correctly rounded; null for anything else."""
    # Polars reads "inf" and "1e400" as infinity; which words are numbers is decided by the formats.
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


def to_arrow(values: pl.Series) -> pa.Array:
    """The Arrow array of a Series; text as plain `string`."""
    array = values.to_arrow()
    return pc.cast(array, pa.string()) if array.type == pa.large_string() else array


def valid_mask(values: pl.Series) -> Booleans | None:
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
    if INTEGER_TEXT.fullmatch(text) is None or len(text) > INTEGER_TEXT_MAX:
        return None
    value = int(text)
    return value if INT64_MIN <= value <= INT64_MAX else None


def and_masks(first: Booleans | None, second: Booleans | None) -> Booleans | None:
    """The conjunction of two masks, where None means all true."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """A column of values of one type; `invalid` marks the texts of another type, whose value is null."""

    kind: FieldType
    values: pl.Series
    invalid: pl.Series


def convert_column(texts: pl.Series, declared: FieldType | None) -> ConvertedColumn | None:
    """The values of a column of texts, of the declared type or else of the type of the first text.

    Numbers are float64 unless int64 is declared; a column declared int64 that has fractions becomes float64.
    NaN and infinities are numbers. A column without any text is None.
    """
    present = texts.drop_nulls()
    if not len(present):
        return None
    kind = declared or _kind_of(present[0])
    if kind is FieldType.STRING:
        return ConvertedColumn(kind, texts, pl.repeat(value=False, n=len(texts), eager=True))
    if kind is FieldType.INT64:
        return _integral(texts)
    values = _floats(texts) if kind is FieldType.FLOAT64 else _booleans(texts)
    return ConvertedColumn(kind, values, values.is_null() & texts.is_not_null())


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


def _integral(texts: pl.Series) -> ConvertedColumn:
    """Integers, also those written as `3.0` or `1e3`; a column with a real fraction becomes float64."""
    whole = _retried(texts, integers)
    rest = whole.is_null() & texts.is_not_null()
    if not rest.any():
        return ConvertedColumn(FieldType.INT64, whole, rest)
    stripped = texts.str.strip_chars()
    too_large = rest & stripped.str.contains(_INTEGER).fill_null(value=False)
    numbers = _floats(texts)
    integral = (
        rest & ~too_large & ((numbers == numbers.round()) & (numbers.abs() < EXACT_FLOAT_MAX)).fill_null(value=False)
    )
    fractions = rest & ~too_large & ~integral & numbers.is_not_null()
    if fractions.any():
        return ConvertedColumn(FieldType.FLOAT64, numbers, rest & (too_large | numbers.is_null()))
    whole = whole.zip_with(~integral, numbers.cast(pl.Int64, strict=False))
    return ConvertedColumn(FieldType.INT64, whole, whole.is_null() & texts.is_not_null())


def _retried(texts: pl.Series, *readers: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """The value of each text by the first of `readers` that accepts it; surrounding spaces are ignored."""
    # Most columns are all of one form: the first reader then converts them without a copy that strips spaces.
    values = readers[0](texts)
    for reader in (*readers[1:], *readers):
        left = values.is_null() & texts.is_not_null()
        if not left.any():
            break
        values = values.scatter(left.arg_true(), reader(texts.filter(left).str.strip_chars()))
    return values


def encode_tags(texts: pa.Array, absent: str = "") -> pa.Array:
    """Text (plain or as a dictionary) as dictionary<int32, string>; the text `absent` becomes null."""
    found = texts if pa.types.is_dictionary(texts.type) else pc.dictionary_encode(texts)
    dictionary = found.dictionary.cast(pa.string())
    # Whoever sends a dictionary may have a text in it twice.
    is_absent = pc.fill_null(pc.equal(dictionary, absent), fill_value=False)
    indices = found.indices
    if pc.any(is_absent).as_py():
        indices = pc.if_else(is_absent.take(indices), pa.scalar(None, pa.int32()), indices)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def with_static_tags(tags: Columns, rows: int, options: FormatOptions) -> Columns:
    """The tag columns by name, with the static tags of the options where a row lacks that tag."""
    complete = dict(tags)
    for name, value in options.static_tags:
        if not value:
            continue
        own = complete.get(name)
        if own is None:
            complete[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
        elif own.null_count:
            complete[name] = encode_tags(pc.fill_null(own.cast(pa.string()), value))
    return {name: complete[name].cast(TAG_TYPE) for name in sorted(complete)}


def present_tags(tags: Columns, rows: int, options: FormatOptions) -> Columns:
    """The tag columns that at least one row has, and the static tags."""
    return with_static_tags(
        {name: column for name, column in tags.items() if column.null_count < len(column)}, rows, options
    )


def times_of_text(texts: pl.Series, options: FormatOptions) -> pl.Series:
    """The time of each text in nanoseconds; null for a null."""
    if options.time_format is not None:
        return _formatted(texts, options.time_format)
    times = scaled(texts.cast(pl.Int64, strict=False), options.ns_per_unit)
    for read in (_decimal, _iso):
        missing = times.is_null() & texts.is_not_null()
        if not missing.any():
            break
        times = times.scatter(missing.arg_true(), read(texts.filter(missing), options.ns_per_unit))
    return times


def time_refusals(texts: pl.Series, options: FormatOptions) -> list[str]:
    """Why `times_of_text` has no time for these texts, none of which is null."""
    # A text that is a time without its last digits has too many of them, and nothing else against it.
    decimals = _DECIMALS_MAX if options.time_format is not None else _decimals(options.ns_per_unit)[0]
    finer = pl.repeat(value=False, n=len(texts), eager=True)
    for kept in {decimals, _DECIMALS_MAX}:
        shorter = texts.str.replace(rf"(\.[0-9]{{{kept}}})[0-9]+", "${1}")
        finer |= (shorter != texts) & times_of_text(shorter, options).is_not_null()
    if options.time_format is None:
        scientific = texts.str.contains(_SCIENTIFIC) & ~finer
        cut = [_exact(text, options.ns_per_unit, cut=True) is not None for text in texts.filter(scientific)]
        finer = finer.scatter(scientific.arg_true(), pl.Series(cut, dtype=pl.Boolean))
    return [
        f"the time {text[:60]!r} has digits finer than a nanosecond"
        if fine
        else f"the time {text[:60]!r} cannot be read"
        for text, fine in zip(texts, finer, strict=True)
    ]


def _limits(ns_per_unit: int) -> tuple[int, int]:
    """The least and the greatest time, in units, that fit int64 nanoseconds."""
    return -(-TIME_MIN_NS // ns_per_unit), TIME_MAX_NS // ns_per_unit


def scaled(values: pl.Series, ns_per_unit: int) -> pl.Series:
    """Integer times in nanoseconds; null where they do not fit int64."""
    # Polars multiplies modulo 2^64, so the limits are checked before.
    if ns_per_unit == 1:
        return values
    low, high = _limits(ns_per_unit)
    return values.set((values < low) | (values > high), None) * ns_per_unit


def _decimal(texts: pl.Series, ns_per_unit: int) -> pl.Series:
    """Decimal numbers of units, digit for digit: float64 would lose the last digits of a time in seconds."""
    plain = texts.str.contains(_DECIMAL)
    parts = texts.str.strip_prefix("-").str.strip_prefix("+").str.splitn(".", 2).struct.unnest()
    units = scaled(parts["field_0"].cast(pl.Int64, strict=False), ns_per_unit)
    # In the last unit before the end of int64 a fraction could overflow; no time of this century is near it.
    total = units.set(units > TIME_MAX_NS - ns_per_unit, None) + _fractions(parts["field_1"], ns_per_unit)
    negative = texts.str.starts_with("-")
    times = total.zip_with(~negative, -total).set(~plain, None)
    scientific = texts.str.contains(_SCIENTIFIC)
    if not scientific.any():
        return times
    return times.scatter(
        scientific.arg_true(),
        pl.Series([_exact(text, ns_per_unit) for text in texts.filter(scientific)], dtype=pl.Int64),
    )


def _fractions(decimals: pl.Series, ns_per_unit: int) -> pl.Series:
    """The nanoseconds of the decimals of a unit; null where they are no whole ones."""
    digits, factor = _decimals(ns_per_unit)
    # The last such decimal of a minute has 6 nanoseconds and that of an hour 36: two decimals more may be whole ones,
    # and three never, since both have the factor 2 at most twice, and 5 not at all.
    more = 0 if factor == 1 else 2
    kept = digits + more
    fractions = decimals.str.slice(0, kept).str.pad_end(max(kept, 1), "0").cast(pl.Int64, strict=False) * factor
    if more:
        fractions = fractions.set(fractions % 10**more != 0, None) // 10**more
    if (decimals.str.len_bytes() > kept).any():
        fractions = fractions.set(decimals.str.slice(kept).str.contains("[1-9]").fill_null(value=False), None)
    return fractions


def _decimals(ns_per_unit: int) -> tuple[int, int]:
    """How many decimals of a unit are whole nanoseconds, and how many the last of these has; (9, 1) for a second."""
    text = str(ns_per_unit)
    digits = len(text) - len(text.rstrip("0"))
    return digits, ns_per_unit // 10**digits


def _exact(text: str, ns_per_unit: int, *, cut: bool = False) -> int | None:
    """Whole nanoseconds of a decimal number, without its finer digits if `cut`; None for any other."""
    try:
        # As many digits as the text can have, and those of the unit: the product is not rounded.
        exact = Context(prec=len(text) + 20).multiply(Decimal(text), ns_per_unit)
        if not -(2**64) < exact < 2**64:
            return None
        nanoseconds = int(exact)
    except (InvalidOperation, OverflowError):
        return None
    whole = cut or nanoseconds == exact
    return nanoseconds if whole and TIME_MIN_NS <= nanoseconds <= TIME_MAX_NS else None


def _iso(texts: pl.Series, _: int) -> pl.Series:
    # Arrow parses ISO 8601 to the nanosecond, but accepts more than the documented forms and only texts that
    # are all zoned or all without a zone.
    iso = texts.str.contains(_ISO)
    zoned = iso & texts.str.contains(_ZONED)
    times = pl.repeat(None, len(texts), dtype=pl.Int64, eager=True)
    for mask, kind in ((iso & ~zoned, pa.timestamp("ns")), (zoned, pa.timestamp("ns", "UTC"))):
        if mask.any():
            times = times.scatter(mask.arg_true(), _cast(texts.filter(mask), kind))
    return times


def _cast(texts: pl.Series, kind: pa.DataType) -> pl.Series:
    """Times of ISO texts; null for a day that does not exist or is out of range."""
    # Arrow fails for the whole column at the first bad day: the days are checked only then.
    try:
        return _nanoseconds(texts, kind)
    except pa.ArrowInvalid:
        pass
    days = texts.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    years = days.dt.year()
    safe = ((years >= _YEAR_MIN) & (years <= _YEAR_MAX)).fill_null(value=False)
    edge = ((years == _YEAR_MIN - 1) | (years == _YEAR_MAX + 1)).fill_null(value=False)
    times = pl.repeat(None, len(texts), dtype=pl.Int64, eager=True)
    times = times.scatter(safe.arg_true(), _nanoseconds(texts.filter(safe), kind))
    return times.scatter(
        edge.arg_true(), pl.Series([_cast_one(text, kind) for text in texts.filter(edge)], dtype=pl.Int64)
    )


def _nanoseconds(texts: pl.Series, kind: pa.DataType) -> pl.Series:
    return pl.Series(values=pl.from_arrow(pc.cast(pc.cast(texts.to_arrow(), kind), pa.int64())))


def _cast_one(text: str, kind: pa.DataType) -> int | None:
    try:
        return int(pc.cast(pc.cast(pa.array([text]), kind), pa.int64())[0].as_py())
    except pa.ArrowInvalid:
        return None


def _formatted(texts: pl.Series, time_format: str) -> pl.Series:
    """Times of one strptime form; as in most tools `.%f` accepts any number of decimals, here with zeros behind nine.

    Raises OptionsError.
    """
    pattern = time_format.replace(".%f", "%.f")
    # Polars wraps around outside int64 nanoseconds, so microseconds decide what is in range.
    try:
        micros = texts.str.to_datetime(pattern, time_unit="us", strict=False).to_physical()
        times = texts.str.to_datetime(pattern, time_unit="ns", strict=False).to_physical()
    except pl.exceptions.ComputeError as error:
        reason = str(error).splitlines()[0]
        raise OptionsError(f"the time format {time_format!r} cannot be used: {reason}") from None
    times = times.set((micros <= TIME_MIN_NS // 1_000 + 1) | (micros >= TIME_MAX_NS // 1_000), None)
    # Polars cuts finer digits off.
    if "%.f" in pattern and (texts.str.len_bytes() > _DECIMALS_MAX).any():
        times = times.set(texts.str.contains(_FINER_DECIMALS).fill_null(value=False), None)
    return times
