"""Integers and decimal numbers for `numpy_kernel`: the rules of `kernel_numbers`, for many positions at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.connectors.formats.kernel_types import Floats, NumberState, NumberStates
from headrace.connectors.formats.lines import Booleans, Bytes, Integers, Words

PLUS, MINUS, POINT, ZERO, UPPER_E, LOWER_E = 43, 45, 46, 48, 69, 101
# Nineteen digits always fit uint64, twenty may wrap around.
DIGITS_MAX = 19
EXPONENT_MAX = 10_000
EXACT_POWER_MAX, EXACT_MANTISSA_MAX = 22, np.uint64(2**53)
POWERS_OF_TEN = np.array([10.0**power for power in range(EXACT_POWER_MAX + 1)])
INT64_MAX, ONE, TEN = np.uint64(2**63 - 1), np.uint64(1), np.uint64(10)

EndsOfDigits = Callable[[Integers], Integers]
"""The ends of the digits that begin at positions."""


@dataclass(slots=True)
class Numbers:
    """Numbers at some positions: where they end, whether there is one, its state and its value."""

    ends: Integers
    good: Booleans
    states: NumberStates
    values: npt.NDArray[np.int64] | Floats

    def select(self, kept: Booleans) -> Numbers:
        """Some of them."""
        return Numbers(self.ends[kept], self.good[kept], self.states[kept], self.values[kept])


def digit_ends(region: Bytes, first: int) -> EndsOfDigits:
    """Finds the ends of digits in bytes that begin at position `first`; the last byte is none."""

    def ends(positions: Integers) -> Integers:
        others = np.flatnonzero(region - np.uint8(ZERO) >= TEN) + first
        return others[np.searchsorted(others, positions)]

    return ends


def read_integers(data: Bytes, positions: Integers, strict: bool, ends_of: EndsOfDigits) -> Numbers:
    """The integers at these positions; those beyond int64 are deferred."""
    negative, first = _sign(data, positions, strict)
    end, value = _digits(data, first, np.zeros(len(first), np.uint64), ends_of)
    good = end > first
    if strict:
        good &= ~((end > first + 1) & (data[first] == ZERO))
    # The least int64 has no positive counterpart, so negative numbers may be larger by one.
    deferred = (end - first > DIGITS_MAX) | (value > INT64_MAX + negative.astype(np.uint64))
    number = np.where(negative, ~value + ONE, value).view(np.int64)
    number[deferred] = 0
    return Numbers(end, good, _states(deferred), number)


def read_decimals(data: Bytes, positions: Integers, strict: bool, ends_of: EndsOfDigits) -> Numbers:
    """The decimal numbers at these positions; those that one operation does not round exactly are deferred."""
    negative, first = _sign(data, positions, strict)
    end, mantissa = _digits(data, first, np.zeros(len(first), np.uint64), ends_of)
    digits, decimals = end - first, np.zeros(len(first), np.int64)
    good = np.ones(len(first), np.bool_)
    if strict:
        good &= (digits > 0) & ~((digits > 1) & (data[first] == ZERO))
    with_point = np.flatnonzero(data[end] == POINT)
    if len(with_point):
        fraction = end[with_point] + 1
        end[with_point], mantissa[with_point] = _digits(data, fraction, mantissa[with_point], ends_of)
        decimals[with_point] = end[with_point] - fraction
        if strict:
            good[with_point] &= decimals[with_point] > 0
    good &= digits + decimals > 0
    power = -decimals
    with_exponent = np.flatnonzero(good & ((data[end] == LOWER_E) | (data[end] == UPPER_E)))
    if len(with_exponent):
        end[with_exponent], exponent, fine = _exponents(data, end[with_exponent] + 1, ends_of)
        power[with_exponent] += exponent
        good[with_exponent] &= fine
    deferred = (digits + decimals > DIGITS_MAX) | (mantissa > EXACT_MANTISSA_MAX) | (np.abs(power) > EXACT_POWER_MAX)
    power[deferred] = 0
    # A power of ten with a negative exponent is not exact in float64, hence the division: both operands are
    # exact, so IEEE 754 rounds once.
    scale = POWERS_OF_TEN[np.abs(power)]
    value = mantissa.astype(np.float64)
    value = np.where(power >= 0, value * scale, value / scale)
    value = np.where(negative, -value, value)
    value[deferred] = 0.0
    return Numbers(end, good, _states(deferred), value)


def _states(deferred: Booleans) -> NumberStates:
    return np.where(deferred, np.uint8(NumberState.DEFERRED), np.uint8(NumberState.COMPUTED))


def _sign(data: Bytes, positions: Integers, strict: bool) -> tuple[Booleans, Integers]:
    """(which are negative, the positions behind the signs)"""
    signs = data[positions]
    negative = signs == MINUS
    return negative, positions + (negative if strict else negative | (signs == PLUS))


def _digits(data: Bytes, positions: Integers, values: Words, ends_of: EndsOfDigits) -> tuple[Integers, Words]:
    """(the positions behind the digits, the values with up to twenty of them appended, wrapped around)"""
    ends, values = positions.copy(), values.copy()
    lanes = np.arange(len(positions))
    last = len(data) - 1
    for place in range(DIGITS_MAX + 1):
        digits = data[np.minimum(positions[lanes] + place, last)] - np.uint8(ZERO)
        are_digits = digits < TEN
        if not are_digits.all():
            lanes, digits = lanes[are_digits], digits[are_digits]
            if not len(lanes):
                return ends, values
        values[lanes] = values[lanes] * TEN + digits
        ends[lanes] = positions[lanes] + place + 1
    ends[lanes] = ends_of(ends[lanes])
    return ends, values


def _exponents(data: Bytes, positions: Integers, ends_of: EndsOfDigits) -> tuple[Integers, Integers, Booleans]:
    """(the positions behind the exponents whose letters precede `positions`, their values, whether there are any)"""
    negative, first = _sign(data, positions, False)
    ends, values = _digits(data, first, np.zeros(len(first), np.uint64), ends_of)
    # Capped: an exponent of twenty digits must not wrap around to one that looks exact.
    capped = np.where(ends - first > DIGITS_MAX, EXPONENT_MAX, np.minimum(values, np.uint64(EXPONENT_MAX)))
    exponents = capped.astype(np.int64)
    return ends, np.where(negative, -exponents, exponents), ends > first
