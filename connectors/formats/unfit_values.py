"""Values that no field or tag can hold, though others of their Arrow type can.

These are integers above int64, decimals with more digits than int64 or float64 keep, and moments whose text would be no
date or no time of day: Arrow writes `<value out of range>` or noise for them, without an error.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

INTEGER_REASON = "integers that do not fit int64"
WHOLE_REASON = "whole decimals that int64 cannot hold"
DECIMAL_REASON = "decimals that float64 cannot hold"
MOMENT_REASON = "dates or times outside the years -32767 to 32767"
CLOCK_REASON = "times of day outside 00:00 to 24:00"

_INT64_MAX = 2**63 - 1
# Of every decimal that has an int64, and of its neighbours.
_WIDE_DIGITS = 76
_FIRST_DAY = int(np.datetime64("-32767-01-01", "D").astype(np.int64))
_END_DAY = int(np.datetime64("32767-12-31", "D").astype(np.int64)) + 1
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def unfit_values(values: pa.Array, *, as_float: bool, as_text: bool = False) -> tuple[pa.Array, str] | None:
    """(which values do not fit, never null; what they are), None when all fit.

    `as_float`: the field is float64, also for whole decimals. `as_text`: for a tag, only moments may have no text.
    """
    kind = values.type
    if pa.types.is_decimal(kind) and not as_text:
        whole = kind.scale <= 0 and not as_float
        found = (_beyond_int64(values), WHOLE_REASON) if whole else (_not_exact(values), DECIMAL_REASON)
    elif pa.types.is_uint64(kind) and not as_text:
        found = pc.greater(values, pa.scalar(_INT64_MAX, pa.uint64())), INTEGER_REASON
    elif has_moments_without_text(kind):
        found = _outside(values), CLOCK_REASON if pa.types.is_time(kind) else MOMENT_REASON
    else:
        return None
    unfit = pc.fill_null(found[0], fill_value=False)
    return (unfit, found[1]) if pc.any(unfit).as_py() else None


def depends_on_values(kind: pa.DataType) -> bool:
    """Whether some values of a type fit a field and others may not."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_uint64(kind)) or has_moments_without_text(kind)


def has_moments_without_text(kind: pa.DataType) -> bool:
    """Whether a type has moments that Arrow cannot write as text."""
    # Nanoseconds end in the year 2262.
    coarse = pa.types.is_timestamp(kind) and kind.unit != "ns"
    return bool(coarse or pa.types.is_date(kind) or pa.types.is_time(kind))


def _beyond_int64(values: pa.Array) -> pa.Array:
    """Which whole decimals no int64 is; null counts as no."""
    if values.type.precision - values.type.scale < len(str(_INT64_MAX)):
        return pa.nulls(len(values), pa.bool_())
    wide = pa.decimal256(_WIDE_DIGITS, 0)
    try:
        whole = values.cast(wide)
    except pa.ArrowInvalid:
        # A negative scale beyond all digits: nothing but zero fits.
        return pc.invert(pc.equal(pc.cast(values, pa.float64()), 0.0))
    low, high = (pa.scalar(Decimal(bound), wide) for bound in (-_INT64_MAX - 1, _INT64_MAX))
    return pc.or_(pc.less(whole, low), pc.greater(whole, high))


def _not_exact(values: pa.Array) -> pa.Array:
    """Which decimals are another number as float64."""
    # Cast by way of text, which Arrow rounds correctly; casting back shows whether the digits survived.
    floats = pc.cast(pc.cast(values, pa.string()), pa.float64())
    # Arrow compares no decimals of a negative scale.
    wide = pa.decimal256(_WIDE_DIGITS, max(values.type.scale, 0))
    try:
        return pc.not_equal(pc.cast(floats, wide, safe=False), pc.cast(values, wide))
    except pa.ArrowInvalid:
        exact = [each is None or Decimal(number) == each for number, each in _pairs(floats, values)]
        return pc.invert(pa.array(exact, pa.bool_()))


def _pairs(floats: pa.Array, values: pa.Array) -> zip[tuple[float, Decimal | None]]:
    return zip(floats.to_pylist(), values.to_pylist(), strict=True)


def _outside(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_date32(kind):
        numbers, low, end = values.cast(pa.int32()).cast(pa.int64()), _FIRST_DAY, _END_DAY
    else:
        per_day = _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
        first, last = (0, 1) if pa.types.is_time(kind) else (_FIRST_DAY, _END_DAY)
        numbers = values.cast(pa.int32()).cast(pa.int64()) if pa.types.is_time32(kind) else values.cast(pa.int64())
        low, end = first * per_day, last * per_day
    return pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, end))
