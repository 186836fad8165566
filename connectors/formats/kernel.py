"""Parses lines of one shape byte by byte, in loops that Numba compiles to machine code.

The compiled code knows nothing of tables and types: a
shape is the constant bytes between the values (the literals) and how each value ends. A line matches when
literals and values tile it exactly. Lines with control characters do not match; the scanner decides what they
mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from headrace.connectors.formats.kernel_compiler import entry_point, inlined
from headrace.connectors.formats.kernel_numbers import DEFERRED, NO_MATCH, ONE, parse_decimal, parse_integer
from headrace.connectors.formats.kernel_types import Literals, NumberState, ValueGrammar, ValueKind, Values
from headrace.connectors.formats.lines import BACKSLASH, NEWLINE, QUOTE, WORD_BYTES, Bytes, Integers, Words

Codes = npt.NDArray[np.int32]

STAMP = "4da47168f3f63bb4"
"""Digest of the code compiled in from other modules: Numba checks only this file for changes."""

SERIES, TEXT, INTEGER = int(ValueKind.SERIES), int(ValueKind.TEXT), int(ValueKind.INTEGER)
NULL = int(NumberState.NULL)
SPACE = 32

EACH_BYTE = np.uint64(0x0101010101010101)
HIGH_BITS = np.uint64(0x8080808080808080)
LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
CONTROL_LIMIT = np.uint64(0x2020202020202020)
BYTE_INDEXES = np.uint64(0x0001020304050607)
NULL_WORD, NULL_BYTES = np.uint64(int.from_bytes(b"null", "little")), 4
NULL_MASK = np.uint64(2**32 - 1)
# 2^64 divided by the golden ratio: the multiplier of Fibonacci hashing (Knuth, TAOCP 6.4).
GOLDEN, HALF_BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
BYTE_BITS, SEVEN, TOP_BYTE = 8, np.uint64(7), np.uint64(56)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
# Words start at every byte, so most of them are unaligned.
_WORDS = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_LITERALS = types.NamedTuple((types.uint64[::1], types.uint64[::1], types.int64[::1], types.int64[::1]), Literals)
_GRAMMAR = types.NamedUniTuple(types.int64[::1], 3, ValueGrammar)
_COLUMNS = types.int64[:, ::1]
_VALUES = types.NamedTuple((_COLUMNS, _COLUMNS, _COLUMNS, types.float64[:, ::1], types.uint8[:, ::1]), Values)


# Eight bytes are examined at a time (SWAR: Mycroft's test for a zero byte, Warren, Hacker's Delight 6-1). Its
# subtraction borrows from higher bytes, so marks above the lowest one may be false.
@inlined
def _match_byte(word: np.uint64, byte: int) -> np.uint64:
    """High bits where `word` has the byte; only the lowest of them is reliable."""
    rest = word ^ (EACH_BYTE * np.uint64(byte))
    return (rest - EACH_BYTE) & ~rest & HIGH_BITS


@inlined
def _match_control(word: np.uint64) -> np.uint64:
    """High bits where `word` has a control character; only the lowest of them is reliable."""
    return (word - CONTROL_LIMIT) & ~word & HIGH_BITS


@inlined
def _lowest_byte(marks: np.uint64) -> int:
    """Index of the byte whose high bit is the lowest one of `marks`."""
    lowest = (marks & (~marks + ONE)) >> SEVEN
    # Multiplying by the power of two shifts the table until the index of that byte is on top.
    return int((BYTE_INDEXES * lowest) >> TOP_BYTE)


@inlined
def _skip_literal(words: Words, position: int, literals: Literals, value: int) -> int:
    """The position after the literal before a value, if `position` is where it begins."""
    for number in range(literals.bounds[value], literals.bounds[value + 1]):
        if (words[position] & literals.masks[number]) != literals.words[number]:
            return NO_MATCH
        position += literals.lengths[number]
    return position


# The loops over texts check no bounds: the data ends with a newline, which is a control character, so the
# last word they read has a mark.
@inlined
def _skip_series(data: Bytes, words: Words, position: int) -> tuple[int, np.uint64]:
    """The position after a series, and the bitwise or of its words."""
    start, union = position, np.uint64(0)
    while True:
        word = words[position]
        marks = _match_byte(word, SPACE) | _match_byte(word, BACKSLASH) | _match_control(word)
        union |= word
        if not marks:
            position += WORD_BYTES
            continue
        position += _lowest_byte(marks)
        if data[position] == SPACE:
            return (position if position > start else NO_MATCH), union
        if data[position] != BACKSLASH or data[position + 1] < SPACE:
            return NO_MATCH, union
        # The escaped byte is passed without a look at its word, so its bits are added here.
        union |= np.uint64(data[position + 1])
        position += 2


@inlined
def _skip_quotes(words: Words, position: int, quotes: int) -> tuple[int, np.uint64]:
    """The position after that many double quotes, and the bitwise or of the words up to there.

    No backslash and no control character may come before the last of them.
    """
    union = np.uint64(0)
    while True:
        word = words[position]
        rest = word ^ (EACH_BYTE * np.uint64(QUOTE))
        # Marks are counted here, so none may be false: this slower test for a zero byte never borrows.
        marks = ~(((rest & LOW_BITS) + LOW_BITS) | rest | LOW_BITS)
        bad = _match_byte(word, BACKSLASH) | _match_control(word)
        union |= word
        found = int(((marks >> SEVEN) * EACH_BYTE) >> TOP_BYTE)
        if found < quotes:
            if bad:
                return NO_MATCH, union
            quotes -= found
            position += WORD_BYTES
            continue
        for _ in range(quotes - 1):
            marks &= marks - ONE
        lowest = marks & (~marks + ONE)
        if bad & (lowest - ONE):
            return NO_MATCH, union
        return position + _lowest_byte(lowest) + 1, union


@inlined
def _skip_text(
    data: Bytes, words: Words, position: int, end: int, delimiter: int, quotes: int, separator: int
) -> tuple[int, np.uint64]:
    """The position after a text with that many double quotes, and the bitwise or of its words."""
    union = np.uint64(0)
    # A backslash could escape a quote, which only the scanner resolves.
    plain = delimiter == QUOTE or quotes > 0
    if quotes > 0:
        position, union = _skip_quotes(words, position, quotes)
        if position < 0:
            return position, union
    while True:
        word = words[position]
        marks = _match_byte(word, delimiter) | _match_control(word)
        if plain:
            marks |= _match_byte(word, BACKSLASH)
        # The last text of a line has no literal behind it, so nothing but a separator would show that it is two
        # values.
        if delimiter == NEWLINE:
            marks |= _match_byte(word, separator)
        union |= word
        if marks:
            position += _lowest_byte(marks)
            at_delimiter = position == end if delimiter == NEWLINE else data[position] == delimiter
            return (position if at_delimiter else NO_MATCH), union
        position += WORD_BYTES


@inlined
def _skip_token(
    data: Bytes, words: Words, position: int, end: int, kind: int, delimiter: int, quotes: int, separator: int
) -> tuple[int, np.uint64]:
    """The position after a series or a text, and the bitwise or of its words."""
    if kind == SERIES:
        return _skip_series(data, words, position)
    return _skip_text(data, words, position, end, delimiter, quotes, separator)


@entry_point(
    types.Tuple((types.int64, types.uint64)),
    *(
        _BYTES,
        _WORDS,
        _NUMBERS,
        _NUMBERS,
        _NUMBERS,
        _LITERALS,
        _GRAMMAR,
        types.int64,
        types.boolean,
        types.int64[::1],
        _VALUES,
    ),
)
def parse_lines(
    data: Bytes,
    words: Words,
    starts: Integers,
    ends: Integers,
    rows: Integers,
    literals: Literals,
    grammar: ValueGrammar,
    separator: int,
    strict: bool,
    matched_rows: Integers,
    values: Values,
) -> tuple[int, np.uint64]:
    """Parse the lines of `rows` that have the shape; returns their number, and the bitwise or of their texts.

    `data` ends with a newline; `words[i]` is its eight bytes from i on. `strict` numbers are JSON's, or null.
    Filled: `matched_rows[n]`, the row of the n-th matching line, and column n of `values`.
    """
    # A line that fails half-way leaves values in column `count`; the next line overwrites them.
    count, union, columns = 0, np.uint64(0), len(grammar.kinds)
    for row in rows:
        position = starts[row]
        for column in range(columns):
            position = _skip_literal(words, position, literals, column)
            if position < 0:
                break
            start, kind = position, grammar.kinds[column]
            if kind in (SERIES, TEXT):
                delimiter, quotes = grammar.delimiters[column], grammar.quotes[column]
                position, bits = _skip_token(data, words, start, ends[row], kind, delimiter, quotes, separator)
                union |= bits
                values.starts[column, count], values.ends[column, count] = start, position
            else:
                # Inline: a function given the arrays of `values` makes the parse take 2.5 times as long.
                if strict and (words[position] & NULL_MASK) == NULL_WORD:
                    position, state = position + NULL_BYTES, NULL
                elif kind == INTEGER:
                    position, state, values.integers[column, count] = parse_integer(data, position, strict)
                else:
                    position, state, values.floats[column, count] = parse_decimal(data, position, strict)
                values.states[column, count] = state
                if state == DEFERRED:
                    values.starts[column, count], values.ends[column, count] = start, position
            if position < 0:
                break
        else:
            if _skip_literal(words, position, literals, columns) == ends[row]:
                matched_rows[count] = row
                count += 1
    return count, union


@inlined
def _equal_texts(words: Words, first: int, second: int, length: int) -> bool:
    """Whether the texts of that length at two positions are equal."""
    offset = 0
    while offset + WORD_BYTES <= length:
        if words[first + offset] != words[second + offset]:
            return False
        offset += WORD_BYTES
    return not ((words[first + offset] ^ words[second + offset]) & _low_bytes(length - offset))


@inlined
def _low_bytes(count: int) -> np.uint64:
    """A mask of the lowest `count` bytes of a word, fewer than eight."""
    return (ONE << np.uint64(BYTE_BITS * count)) - ONE


@inlined
def _hash(words: Words, position: int, length: int) -> np.uint64:
    """A hash of the text of that length at `position`."""
    mixed, offset = np.uint64(length), 0
    while offset + WORD_BYTES <= length:
        # Carries only run upwards and the slot is taken from the low bits, so the high half is folded in.
        mixed = (mixed ^ words[position + offset]) * GOLDEN
        mixed ^= mixed >> HALF_BITS
        offset += WORD_BYTES
    mixed = (mixed ^ (words[position + offset] & _low_bytes(length - offset))) * GOLDEN
    return np.uint64(mixed ^ (mixed >> HALF_BITS))


@entry_point(types.int64, _WORDS, _NUMBERS, _NUMBERS, types.int32[::1], types.int32[::1], types.int64[::1])
def dictionary_encode(
    words: Words, starts: Integers, ends: Integers, slots: Codes, codes: Codes, firsts: Integers
) -> int:
    """Number the distinct texts from `starts[i]` to `ends[i]` in order of appearance; returns their number.

    `slots` is a hash table full of -1, a power of two long and longer than there are texts. Filled:
    `codes[i]`, the code of text i, and `firsts[c]`, the first text with code c.
    """
    count, mask = 0, np.uint64(len(slots) - 1)
    for text in range(len(starts)):
        position, length = starts[text], ends[text] - starts[text]
        # A table of our own: compiled code has no dictionary of texts that needs no object for each of them.
        slot = _hash(words, position, length) & mask
        # Linear probing ends: the table has more slots than texts, so one of them is free.
        while True:
            code = slots[slot]
            if code < 0:
                code = count
                slots[slot], firsts[code] = code, text
                count += 1
                break
            known = firsts[code]
            if ends[known] - starts[known] == length and _equal_texts(words, starts[known], position, length):
                break
            slot = (slot + ONE) & mask
        codes[text] = code
    return count


@entry_point(types.void, _WORDS, _NUMBERS, _NUMBERS, types.int32[::1], types.Array(types.uint64, 1, "A", aligned=False))
def gather_texts(words: Words, starts: Integers, ends: Integers, offsets: Codes, target: Words) -> None:
    """Copy the texts from `starts[i]` to `ends[i]` to bytes `offsets[i]` to `offsets[i + 1]` of one buffer.

    `target[i]` is the eight bytes of that buffer from byte i on, and it has up to seven bytes more than the
    texts.
    """
    begin = 0
    for text in range(len(starts)):
        offsets[text] = begin
        source, length = starts[text], ends[text] - starts[text]
        # Whole words are copied: what runs over the end of a text is overwritten by the text after it.
        for offset in range(0, length, WORD_BYTES):
            target[begin + offset] = words[source + offset]
        begin += length
    offsets[len(starts)] = begin
