"""Times as text to int64 nanoseconds since 1970 UTC, exactly; null where a text is no time or is outside 1677 to 2262.

Integers and decimals count in the unit of the options (digits finer than a nanosecond are cut off). Other text is ISO 8601: a date, or a date
and a time of day with up to nine decimals, with `T` or a space between, and a zone (`Z`, `+hh`, `+hhmm`, `+hh:mm`) or none, which means UTC.
With `time_format` every text must have that form, integers too.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.parsed import TIME_MAX_NS, TIME_MIN_NS, FormatOptions

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_ISO = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}{_ZONE}?)?$"
_ZONED = rf":.*{_ZONE}$"
_DECIMAL = r"^[+-]?[0-9]+\.[0-9]*$"
_SCIENTIFIC = r"^[+-]?[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3}$"
# Whole years that fit int64 nanoseconds; the two at the edges are tried one by one.
_YEAR_MIN, _YEAR_MAX = 1678, 2261


def times_of_text(texts: pl.Series, options: FormatOptions) -> pl.Series:
    """Nanoseconds of each text; null in, null out."""
    if options.time_format is not None:
        return _formatted(texts, options.time_format)
    times = scaled(texts.cast(pl.Int64, strict=False), options.ns_per_unit)
    for read in (_decimal, _iso):
        missing = times.is_null() & texts.is_not_null()
        if not missing.any():
            break
        times = times.scatter(missing.arg_true(), read(texts.filter(missing), options.ns_per_unit))
    return times


def _limits(ns_per_unit: int) -> tuple[int, int]:
    """The least and the greatest time in units that fits int64 nanoseconds."""
    return -(-TIME_MIN_NS // ns_per_unit), TIME_MAX_NS // ns_per_unit


def scaled(values: pl.Series, ns_per_unit: int) -> pl.Series:
    """Integer times in nanoseconds; null where they do not fit int64."""
    if ns_per_unit == 1:
        return values
    low, high = _limits(ns_per_unit)
    return values.set((values < low) | (values > high), None) * ns_per_unit


def _decimal(texts: pl.Series, ns_per_unit: int) -> pl.Series:
    plain = texts.str.contains(_DECIMAL)
    digits = len(str(ns_per_unit)) - 1
    parts = texts.str.strip_prefix("-").str.strip_prefix("+").str.splitn(".", 2).struct.unnest()
    units = scaled(parts["field_0"].cast(pl.Int64, strict=False), ns_per_unit)
    rest = parts["field_1"].str.slice(0, digits).str.pad_end(digits, "0").cast(pl.Int64, strict=False) if digits else 0
    # The last unit before the end of int64 cannot take any fraction safely: no time of this century is near it.
    total = units.set(units > TIME_MAX_NS - ns_per_unit, None) + rest
    negative = texts.str.starts_with("-")
    times = total.zip_with(~negative, -total).set(~plain, None)
    scientific = texts.str.contains(_SCIENTIFIC)
    if not scientific.any():
        return times
    return times.scatter(
        scientific.arg_true(),
        pl.Series([_exact(text, ns_per_unit) for text in texts.filter(scientific)], dtype=pl.Int64),
    )


def _exact(text: str, ns_per_unit: int) -> int | None:
    try:
        nanoseconds = int(Decimal(text) * ns_per_unit)
    except (InvalidOperation, OverflowError):
        return None
    return nanoseconds if TIME_MIN_NS <= nanoseconds <= TIME_MAX_NS else None


def _iso(texts: pl.Series, _: int) -> pl.Series:
    right = texts.str.contains(_ISO)
    zoned = right & texts.str.contains(_ZONED)
    times = pl.repeat(None, len(texts), dtype=pl.Int64, eager=True)
    for mask, kind in ((right & ~zoned, pa.timestamp("ns")), (zoned, pa.timestamp("ns", "UTC"))):
        if mask.any():
            times = times.scatter(mask.arg_true(), _cast(texts.filter(mask), kind))
    return times


def _cast(texts: pl.Series, kind: pa.DataType) -> pl.Series:
    """Times of texts of the right form; those that name no day, or one out of range, become null."""
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
    """Texts of one strptime form. Python's `.%f` takes any number of decimals, as in most tools."""
    pattern = time_format.replace(".%f", "%.f")
    # Polars wraps around outside int64 nanoseconds, so microseconds decide first what is in range.
    micros = texts.str.to_datetime(pattern, time_unit="us", strict=False).to_physical()
    times = texts.str.to_datetime(pattern, time_unit="ns", strict=False).to_physical()
    return times.set((micros <= TIME_MIN_NS // 1_000 + 1) | (micros >= TIME_MAX_NS // 1_000), None)
