"""Integers and decimal numbers for the kernel: computed where that is exact, else deferred as text.

A decimal number is computed where one multiplication or division by an exact power of ten rounds correctly
(Clinger, How to Read Floating Point Numbers Accurately, 1990). Any other number is left to polars, so that
the value of a text never depends on the path that read it. Numba compiles these functions into the kernel:
whoever edits this module updates `STAMP` there (tests/unit/formats/test_kernel.py prints the new one).
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.formats.kernel_compiler import inlined
from headrace.connectors.formats.kernel_types import NumberState
from headrace.connectors.formats.lines import Bytes

COMPUTED, DEFERRED = int(NumberState.COMPUTED), int(NumberState.DEFERRED)
NO_MATCH = -1
PLUS, MINUS, POINT, ZERO, UPPER_E, LOWER_E = 43, 45, 46, 48, 69, 101
# Nineteen digits always fit uint64, twenty may wrap around.
DIGITS_MAX = 19
EXPONENT_MAX = 10_000
# The largest power of ten, and the largest range of integers, that float64 represents exactly.
EXACT_POWER_MAX = 22
EXACT_MANTISSA_MAX = np.uint64(2**53)
INT64_MAX = np.uint64(2**63 - 1)
POWERS_OF_TEN = np.array([10.0**power for power in range(EXACT_POWER_MAX + 1)])
ONE, TEN = np.uint64(1), np.uint64(10)


@inlined
def parse_integer(data: Bytes, position: int, strict: bool) -> tuple[int, int, int]:
    """(position after the integer, its state, its value)"""
    negative = data[position] == MINUS
    first = _skip_sign(data, position, strict)
    end, value = _parse_digits(data, first, np.uint64(0))
    if end == first or (strict and end > first + 1 and data[first] == ZERO):
        return NO_MATCH, DEFERRED, 0
    # The least int64 has no positive counterpart, so negative numbers may be larger by one.
    limit = INT64_MAX + ONE if negative else INT64_MAX
    if end - first > DIGITS_MAX or value > limit:
        return end, DEFERRED, 0
    return end, COMPUTED, int(np.int64(~value + ONE if negative else value))


@inlined
def parse_decimal(data: Bytes, position: int, strict: bool) -> tuple[int, int, float]:
    """(position after the decimal number, its state, its value)"""
    negative = data[position] == MINUS
    first = _skip_sign(data, position, strict)
    end, mantissa = _parse_digits(data, first, np.uint64(0))
    digits, decimals = end - first, 0
    if strict and (digits == 0 or (digits > 1 and data[first] == ZERO)):
        return NO_MATCH, DEFERRED, 0.0
    if data[end] == POINT:
        point = end
        end, mantissa = _parse_digits(data, point + 1, mantissa)
        decimals = end - point - 1
        if strict and decimals == 0:
            return NO_MATCH, DEFERRED, 0.0
    if digits + decimals == 0:
        return NO_MATCH, DEFERRED, 0.0
    power = -decimals
    if data[end] == LOWER_E or data[end] == UPPER_E:
        end, exponent = _parse_exponent(data, end + 1)
        if end < 0:
            return NO_MATCH, DEFERRED, 0.0
        power += exponent
    if digits + decimals > DIGITS_MAX or mantissa > EXACT_MANTISSA_MAX or abs(power) > EXACT_POWER_MAX:
        return end, DEFERRED, 0.0
    # A power of ten with a negative exponent is not exact in float64, hence the division: both operands are
    # exact, so IEEE 754 rounds once.
    value = np.float64(mantissa)
    value = value * POWERS_OF_TEN[power] if power >= 0 else value / POWERS_OF_TEN[-power]
    return end, COMPUTED, (-value if negative else value)


@inlined
def _skip_sign(data: Bytes, position: int, strict: bool) -> int:
    return position + 1 if data[position] == MINUS or (data[position] == PLUS and not strict) else position


@inlined
def _parse_digits(data: Bytes, position: int, value: np.uint64) -> tuple[int, np.uint64]:
    """The position after the digits, and `value` with them appended; it wraps around after 19 digits."""
    while True:
        digit = int(data[position]) - ZERO
        if digit < 0 or digit > 9:
            return position, value
        value = value * TEN + np.uint64(digit)
        position += 1


@inlined
def _parse_exponent(data: Bytes, position: int) -> tuple[int, int]:
    """(position after the exponent whose letter precedes `position`, its value)"""
    first = _skip_sign(data, position, False)
    end, exponent = first, 0
    while ZERO <= data[end] < ZERO + 10:
        # Capped: an exponent of twenty digits must not wrap around to one that looks exact.
        exponent = min(exponent * 10 + int(data[end]) - ZERO, EXPONENT_MAX)
        end += 1
    if end == first:
        return NO_MATCH, 0
    return end, (-exponent if data[position] == MINUS else exponent)
