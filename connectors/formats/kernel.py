"""Lines of one shape taken apart byte by byte, compiled to machine code by Numba.

What is compiled runs without the interpreter and without its lock. It knows nothing of tables and types: a shape is the bytes that stand between
the values (the glue) and how each value ends. A line is taken when glue and values tile it exactly. A number is computed where a single
multiplication or division by an exact power of ten rounds correctly (Clinger 1990); any other number is handed on as text, so that what a line
says never depends on how it was read. Lines with control characters are not taken.

The machine code is kept beside the source, or in the user's cache directory: only the first process of an installation compiles, for some seconds.
Out of an archive, as on Spark's executors, each process does: an archive lies elsewhere for every application, so what it left would never be found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from connectors.formats.kernel_types import Ends, Glue, Kind, State, Values
from connectors.formats.lines import BACKSLASH, NEWLINE, QUOTE, WORD_BYTES, Bytes, Integers, Words

Codes = npt.NDArray[np.int32]
Function = TypeVar("Function", bound=Callable[..., object])

SERIES, TEXT, INTEGER = int(Kind.SERIES), int(Kind.TEXT), int(Kind.INTEGER)
COMPUTED, TEXTUAL, NULL = int(State.COMPUTED), int(State.TEXTUAL), int(State.NULL)
STAMP = "b80a2b2c5a733301"
"""A digest of what is compiled in from elsewhere: Numba looks at this file alone to tell whether kept code is stale."""
NOT_TAKEN = -1
SPACE, PLUS, MINUS, POINT, ZERO, UPPER_E, LOWER_E = 32, 43, 45, 46, 48, 69, 101
DIGITS_MAX = 19
EXPONENT_MAX = 10_000
EXACT_POWER_MAX = 22
EXACT_MANTISSA_MAX = np.uint64(2**53)
INT64_MAX = np.uint64(2**63 - 1)
POWERS_OF_TEN = np.array([10.0**power for power in range(EXACT_POWER_MAX + 1)])

EACH_BYTE = np.uint64(0x0101010101010101)
HIGH_BITS = np.uint64(0x8080808080808080)
LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
CONTROL_LIMIT = np.uint64(0x2020202020202020)
PLACES = np.uint64(0x0001020304050607)
NULL_WORD, NULL_BYTES = np.uint64(int.from_bytes(b"null", "little")), 4
NULL_MASK = np.uint64(2**32 - 1)
GOLDEN, HALF, BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(32), 8
ONE, SEVEN, TEN, TOP_BYTE = np.uint64(1), np.uint64(7), np.uint64(10), np.uint64(56)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_GLUE = types.NamedTuple((types.uint64[::1], types.uint64[::1], types.int64[::1], types.int64[::1]), Glue)
_ENDS = types.NamedUniTuple(types.int64[::1], 3, Ends)
_COLUMNS = types.int64[:, ::1]
_VALUES = types.NamedTuple((_COLUMNS, _COLUMNS, _COLUMNS, types.float64[:, ::1], types.uint8[:, ::1]), Values)


def _part(function: Function) -> Function:
    """Compile a function into those that call it."""
    return cast(Function, numba.njit(function))


def _whole(answer: types.Type, *arguments: types.Type) -> Callable[[Function], Function]:
    """Compile a function for arguments of these types, or load what an earlier process compiled."""
    signature = answer(*arguments)

    def compiled(function: Function) -> Function:
        try:
            return cast(Function, numba.njit(signature, nogil=True, cache=Path(__file__).is_file())(function))
        except Exception:
            # No directory takes what was compiled, or a power cut left a torn file there: then each process compiles for itself.
            return cast(Function, numba.njit(signature, nogil=True)(function))

    return compiled


@_part
def _equal(word: np.uint64, byte: int) -> np.uint64:
    """High bits where `word` has the byte; those above the lowest of them may be wrong."""
    rest = word ^ (EACH_BYTE * np.uint64(byte))
    return (rest - EACH_BYTE) & ~rest & HIGH_BITS


@_part
def _control(word: np.uint64) -> np.uint64:
    """High bits where `word` has a control character; those above the lowest of them may be wrong."""
    return (word - CONTROL_LIMIT) & ~word & HIGH_BITS


@_part
def _lowest(marks: np.uint64) -> int:
    """Number of the byte whose high bit is the lowest one of `marks`."""
    lowest = (marks & (~marks + ONE)) >> SEVEN
    return int((PLACES * lowest) >> TOP_BYTE)


@_part
def _behind_glue(words: Words, place: int, glue: Glue, value: int) -> int:
    """The place behind the glue before a value, if it stands at `place`."""
    for number in range(glue.bounds[value], glue.bounds[value + 1]):
        if (words[place] & glue.masks[number]) != glue.words[number]:
            return NOT_TAKEN
        place += glue.lengths[number]
    return place


@_part
def _series_end(data: Bytes, words: Words, place: int) -> tuple[int, np.uint64]:
    """Where a series ends, and all its bytes in one."""
    start, seen = place, np.uint64(0)
    while True:
        word = words[place]
        marks = _equal(word, SPACE) | _equal(word, BACKSLASH) | _control(word)
        seen |= word
        if not marks:
            place += WORD_BYTES
            continue
        place += _lowest(marks)
        if data[place] == SPACE:
            return (place if place > start else NOT_TAKEN), seen
        if data[place] != BACKSLASH or data[place + 1] < SPACE:
            return NOT_TAKEN, seen
        seen |= np.uint64(data[place + 1])
        place += 2


@_part
def _behind_quotes(words: Words, place: int, quotes: int) -> tuple[int, np.uint64]:
    """The place behind so many double quotes with no backslash and no control character before the last, and all bytes in one."""
    seen = np.uint64(0)
    while True:
        word = words[place]
        rest = word ^ (EACH_BYTE * np.uint64(QUOTE))
        marks = ~(((rest & LOW_BITS) + LOW_BITS) | rest | LOW_BITS)
        bad = _equal(word, BACKSLASH) | _control(word)
        seen |= word
        found = int(((marks >> SEVEN) * EACH_BYTE) >> TOP_BYTE)
        if found < quotes:
            if bad:
                return NOT_TAKEN, seen
            quotes -= found
            place += WORD_BYTES
            continue
        for _ in range(quotes - 1):
            marks &= marks - ONE
        lowest = marks & (~marks + ONE)
        if bad & (lowest - ONE):
            return NOT_TAKEN, seen
        return place + _lowest(lowest) + 1, seen


@_part
def _text_end(
    data: Bytes, words: Words, place: int, end: int, stop: int, quotes: int, separator: int
) -> tuple[int, np.uint64]:
    """Where a text ends that holds so many double quotes, and all its bytes in one."""
    seen = np.uint64(0)
    plain = stop == QUOTE or quotes > 0
    if quotes > 0:
        place, seen = _behind_quotes(words, place, quotes)
        if place < 0:
            return place, seen
    while True:
        word = words[place]
        marks = _equal(word, stop) | _control(word)
        if plain:
            marks |= _equal(word, BACKSLASH)
        if stop == NEWLINE:
            marks |= _equal(word, separator)
        seen |= word
        if marks:
            place += _lowest(marks)
            at_stop = place == end if stop == NEWLINE else data[place] == stop
            return (place if at_stop else NOT_TAKEN), seen
        place += WORD_BYTES


@_part
def _digits(data: Bytes, place: int, value: np.uint64) -> tuple[int, np.uint64]:
    """The place behind the digits from `place` on, and `value` with them appended (it wraps around behind 19 of them)."""
    while True:
        digit = int(data[place]) - ZERO
        if digit < 0 or digit > 9:
            return place, value
        value = value * TEN + np.uint64(digit)
        place += 1


@_part
def _behind_sign(data: Bytes, place: int, strict: bool) -> int:
    return place + 1 if data[place] == MINUS or (data[place] == PLUS and not strict) else place


@_part
def _integer(data: Bytes, place: int, strict: bool) -> tuple[int, int, int]:
    """(place behind the integer, what is known of it, its value)"""
    negative = data[place] == MINUS
    first = _behind_sign(data, place, strict)
    end, value = _digits(data, first, np.uint64(0))
    if end == first or (strict and end > first + 1 and data[first] == ZERO):
        return NOT_TAKEN, TEXTUAL, 0
    limit = INT64_MAX + ONE if negative else INT64_MAX
    if end - first > DIGITS_MAX or value > limit:
        return end, TEXTUAL, 0
    return end, COMPUTED, int(np.int64(~value + ONE if negative else value))


@_part
def _exponent(data: Bytes, place: int) -> tuple[int, int]:
    """(place behind the exponent whose letter stands before `place`, its value)"""
    first = _behind_sign(data, place, False)
    end, exponent = first, 0
    while ZERO <= data[end] < ZERO + 10:
        exponent = min(exponent * 10 + int(data[end]) - ZERO, EXPONENT_MAX)
        end += 1
    if end == first:
        return NOT_TAKEN, 0
    return end, (-exponent if data[place] == MINUS else exponent)


@_part
def _float(data: Bytes, place: int, strict: bool) -> tuple[int, int, float]:
    """(place behind the decimal number, what is known of it, its value)"""
    negative = data[place] == MINUS
    first = _behind_sign(data, place, strict)
    end, mantissa = _digits(data, first, np.uint64(0))
    digits, decimals = end - first, 0
    if strict and (digits == 0 or (digits > 1 and data[first] == ZERO)):
        return NOT_TAKEN, TEXTUAL, 0.0
    if data[end] == POINT:
        point = end
        end, mantissa = _digits(data, point + 1, mantissa)
        decimals = end - point - 1
        if strict and decimals == 0:
            return NOT_TAKEN, TEXTUAL, 0.0
    if digits + decimals == 0:
        return NOT_TAKEN, TEXTUAL, 0.0
    power = -decimals
    if data[end] == LOWER_E or data[end] == UPPER_E:
        end, exponent = _exponent(data, end + 1)
        if end < 0:
            return NOT_TAKEN, TEXTUAL, 0.0
        power += exponent
    if digits + decimals > DIGITS_MAX or mantissa > EXACT_MANTISSA_MAX or abs(power) > EXACT_POWER_MAX:
        return end, TEXTUAL, 0.0
    value = np.float64(mantissa)
    value = value * POWERS_OF_TEN[power] if power >= 0 else value / POWERS_OF_TEN[-power]
    return end, COMPUTED, (-value if negative else value)


@_whole(
    types.Tuple((types.int64, types.uint64)),
    *(
        _BYTES,
        _WORDS,
        _NUMBERS,
        _NUMBERS,
        _NUMBERS,
        _GLUE,
        _ENDS,
        types.int64,
        types.boolean,
        types.int64[::1],
        _VALUES,
    ),
)
def take_apart(
    data: Bytes,
    words: Words,
    starts: Integers,
    ends: Integers,
    rows: Integers,
    glue: Glue,
    value_ends: Ends,
    separator: int,
    strict: bool,
    taken: Integers,
    values: Values,
) -> tuple[int, np.uint64]:
    """Take those of the lines `rows` apart that have the shape; answers how many, and all bytes of their texts in one.

    `data` ends with a newline, and `words[i]` is its eight bytes from i on. `strict` numbers are those of JSON, or its null. Filled: `taken[n]`, the
    row of the n-th line taken, and column n of `values`.
    """
    count, seen, columns = 0, np.uint64(0), len(value_ends.kinds)
    for row in rows:
        place = starts[row]
        for column in range(columns):
            place = _behind_glue(words, place, glue, column)
            if place < 0:
                break
            start, kind = place, value_ends.kinds[column]
            if kind in (SERIES, TEXT):
                if kind == SERIES:
                    place, bytes_seen = _series_end(data, words, place)
                else:
                    stop, quotes = value_ends.stops[column], value_ends.quotes[column]
                    place, bytes_seen = _text_end(data, words, place, ends[row], stop, quotes, separator)
                seen |= bytes_seen
                values.starts[column, count], values.ends[column, count] = start, place
            elif strict and (words[place] & NULL_MASK) == NULL_WORD:
                place += NULL_BYTES
                values.states[column, count] = NULL
            else:
                if kind == INTEGER:
                    place, state, values.integers[column, count] = _integer(data, place, strict)
                else:
                    place, state, values.floats[column, count] = _float(data, place, strict)
                values.states[column, count] = state
                if state == TEXTUAL:
                    values.starts[column, count], values.ends[column, count] = start, place
            if place < 0:
                break
        else:
            if _behind_glue(words, place, glue, columns) == ends[row]:
                taken[count] = row
                count += 1
    return count, seen


@_part
def _same(words: Words, first: int, second: int, length: int) -> bool:
    """Whether the texts of that length at two places are the same."""
    offset = 0
    while offset + WORD_BYTES <= length:
        if words[first + offset] != words[second + offset]:
            return False
        offset += WORD_BYTES
    return not ((words[first + offset] ^ words[second + offset]) & _mask(length - offset))


@_part
def _mask(length: int) -> np.uint64:
    """The lowest `length` bytes of a word, less than all of them."""
    return (ONE << np.uint64(BITS * length)) - ONE


@_part
def _hash(words: Words, place: int, length: int) -> np.uint64:
    """A hash of the text of that length at `place`."""
    mixed, offset = np.uint64(length), 0
    while offset + WORD_BYTES <= length:
        mixed = (mixed ^ words[place + offset]) * GOLDEN
        mixed ^= mixed >> HALF
        offset += WORD_BYTES
    mixed = (mixed ^ (words[place + offset] & _mask(length - offset))) * GOLDEN
    return np.uint64(mixed ^ (mixed >> HALF))


@_whole(types.int64, _WORDS, _NUMBERS, _NUMBERS, types.int32[::1], types.int32[::1], types.int64[::1])
def number_texts(words: Words, starts: Integers, ends: Integers, slots: Codes, codes: Codes, firsts: Integers) -> int:
    """Number the distinct texts from `starts[i]` to `ends[i]` in order of appearance; answers how many there are.

    `slots` is a hash table, a power of two long and more than there are texts, full of -1. Filled: `codes[i]`, the number of text i, and `firsts[c]`,
    which text is the first one of number c.
    """
    count, mask = 0, np.uint64(len(slots) - 1)
    for text in range(len(starts)):
        place, length = starts[text], ends[text] - starts[text]
        slot = _hash(words, place, length) & mask
        while True:
            code = slots[slot]
            if code < 0:
                code = count
                slots[slot], firsts[code] = code, text
                count += 1
                break
            known = firsts[code]
            if ends[known] - starts[known] == length and _same(words, starts[known], place, length):
                break
            slot = (slot + ONE) & mask
        codes[text] = code
    return count


@_whole(types.void, _WORDS, _NUMBERS, _NUMBERS, types.int32[::1], types.Array(types.uint64, 1, "A", aligned=False))
def join(words: Words, starts: Integers, ends: Integers, offsets: Codes, joined: Words) -> None:
    """Copy the texts from `starts[i]` to `ends[i]` one behind the other; text i then stands at bytes `offsets[i]` to `offsets[i + 1]`.

    `joined[i]` is the eight bytes from byte i on, so it takes up to seven bytes more than there are.
    """
    target = 0
    for text in range(len(starts)):
        offsets[text] = target
        begin, length = starts[text], ends[text] - starts[text]
        for offset in range(0, length, WORD_BYTES):
            joined[target + offset] = words[begin + offset]
        target += length
    offsets[len(starts)] = target
