"""The functions of `kernel` in NumPy and Arrow: several times slower, without the 100 MB that a compiler costs.

For nodes on small machines. A value never depends on which of the two read it: a test compares them. Lines are
parsed a few thousand at a time, all of them in each step, so that the arrays of a step stay small.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.kernel_types import Literals, NumberState, ValueGrammar, ValueKind, Values
from headrace.connectors.formats.lines import (
    BACKSLASH,
    NEWLINE,
    QUOTE,
    Booleans,
    Bytes,
    Integers,
    Words,
)
from headrace.connectors.formats.numpy_numbers import Numbers, digit_ends, read_decimals, read_integers

LINES_AT_ONCE = 4_096
BYTES_AT_ONCE = 1 << 20
SPACE = 32
NULL_WORD, NULL_MASK = np.uint64(int.from_bytes(b"null", "little")), np.uint64(2**32 - 1)
ASCII_MAX = 127
HIGH_BITS = np.uint64(0x8080808080808080)


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
    """Parse the lines of `rows` that have the shape; returns their number, and high bits unless all is ASCII.

    The arguments are those of `kernel.parse_lines`, and so are the results.
    """
    count, bits = 0, np.uint64(0)
    for part in _parts(starts, ends, rows):
        region = _Region(data, words, int(starts[part[0]]), int(ends[part[-1]]))
        parsed = _Part(region, starts[part], ends[part], literals, grammar, separator, strict)
        lines = parsed.match()
        stop = count + len(lines)
        matched_rows[count:stop] = part[lines]
        parsed.store(lines, values, slice(count, stop))
        bits |= np.uint64(0) if region.is_ascii() else HIGH_BITS
        count = stop
    return count, bits


def _parts(starts: Integers, ends: Integers, rows: Integers) -> list[Integers]:
    """The rows in parts of few lines and few bytes. One long line may have more."""
    parts, first = [], 0
    while first < len(rows):
        # Parts that fit the processor's cache: each step goes over all lines of a part, and so over its bytes again.
        reach = int(np.searchsorted(ends[rows[first : first + LINES_AT_ONCE]], starts[rows[first]] + BYTES_AT_ONCE))
        last = first + max(1, reach)
        parts.append(rows[first:last])
        first = last
    return parts


class _Region:
    """The bytes of some lines that follow each other, and where its marks are."""

    def __init__(self, data: Bytes, words: Words, first: int, last: int) -> None:
        self.data = data
        self.words = words
        self.first = first
        # With the byte that ends the last line: a search always finds it.
        self.bytes = data[first : last + 1]
        self._marks: dict[bytes, Integers] = {}
        self._ends: Integers | None = None

    def is_ascii(self) -> bool:
        """Whether no byte is above 127."""
        return int(self.bytes.max()) <= ASCII_MAX

    def next_of(self, table: bytes, positions: Integers, skip: int = 0) -> Integers:
        """From each position on the first byte that `table` marks, or that many marks further."""
        marks = self._marks.get(table)
        if marks is None:
            marks = np.flatnonzero(np.frombuffer(table, np.bool_)[self.bytes]) + self.first
            self._marks[table] = marks
        found = np.searchsorted(marks, positions) + skip
        # Behind the last mark the search gives that one again: its byte is not the one that the caller compares
        # with.
        return marks[np.minimum(found, len(marks) - 1)]

    def series_ends(self, positions: Integers) -> Integers:
        """From each position on the first space that no backslash escapes, or a control character."""
        if self._ends is None:
            stops = np.flatnonzero(np.frombuffer(stops_at(SPACE), np.bool_)[self.bytes])
            slashes = np.flatnonzero(self.bytes == BACKSLASH)
            if len(slashes):
                is_first = np.diff(slashes, prepend=-2) > 1
                run = np.maximum.accumulate(np.where(is_first, slashes, 0))
                escaped = slashes[(slashes - run) % 2 == 0] + 1
                # A control character ends the line, escaped or not.
                stops = stops[~np.isin(stops, escaped) | (self.bytes[stops] < SPACE)]
            self._ends = stops + self.first
        return self._ends[np.searchsorted(self._ends, positions)]


@cache
def stops_at(*marks: int) -> bytes:
    """A table of the bytes at which a search ends: these, and control characters."""
    return bytes(byte < SPACE or byte in marks for byte in range(256))


class _Part:
    """Some lines on their way through a shape, value by value. `lines`: those that match so far."""

    def __init__(
        self,
        region: _Region,
        starts: Integers,
        ends: Integers,
        literals: Literals,
        grammar: ValueGrammar,
        separator: int,
        strict: bool,
    ) -> None:
        self._region, self._literals, self._grammar = region, literals, grammar
        self._ends, self._separator, self._strict = ends, separator, strict
        self._lines = np.arange(len(starts))
        self._positions = starts
        self._bounds: list[tuple[Integers, Integers]] = []
        self._numbers: list[Numbers | None] = []

    def match(self) -> Integers:
        """The lines that have the shape."""
        for column, kind in enumerate(self._grammar.kinds.tolist()):
            self._skip_literal(column)
            begin = self._positions.copy()
            numbers = self._number(kind) if kind in (ValueKind.INTEGER, ValueKind.FLOAT) else None
            good = self._token(kind, column) if numbers is None else numbers.good
            # What has been read of lines that end here is dropped with them.
            self._bounds.append((begin, self._positions))
            self._numbers.append(numbers)
            self._keep(good)
        self._skip_literal(len(self._grammar.kinds))
        self._keep(self._positions == self._ends[self._lines])
        return self._lines

    def store(self, lines: Integers, values: Values, to: slice) -> None:
        """Put the values of the matched lines into columns `to` of `values`."""
        if not len(lines):
            return
        for column, ((begin, end), numbers) in enumerate(zip(self._bounds, self._numbers, strict=True)):
            values.starts[column, to], values.ends[column, to] = begin, end
            if numbers is not None:
                values.states[column, to] = numbers.states
                target = values.integers if numbers.values.dtype == np.int64 else values.floats
                target[column, to] = numbers.values

    def _keep(self, good: Booleans) -> None:
        # Lines of a file mostly have one shape: then nothing is copied.
        if good.all():
            return
        self._lines, self._positions = self._lines[good], self._positions[good]
        self._bounds = [(begin[good], end[good]) for begin, end in self._bounds]
        self._numbers = [None if each is None else each.select(good) for each in self._numbers]

    def _skip_literal(self, value: int) -> None:
        literals = self._literals
        for number in range(int(literals.bounds[value]), int(literals.bounds[value + 1])):
            found = self._region.words[self._positions] & literals.masks[number]
            self._keep(found == literals.words[number])
            self._positions = self._positions + literals.lengths[number]

    def _token(self, kind: int, column: int) -> Booleans:
        """Go behind a series or a text; which lines have one."""
        region, begin = self._region, self._positions
        if kind == ValueKind.SERIES:
            self._positions = region.series_ends(begin)
            # A line that a backslash precedes cannot be distinguished from an escape: the scanner reads it.
            free = (begin == 0) | (region.data[begin - 1] != BACKSLASH)
            return cast(Booleans, (region.data[self._positions] == SPACE) & (self._positions > begin) & free)
        delimiter, quotes = int(self._grammar.delimiters[column]), int(self._grammar.quotes[column])
        good = np.ones(len(begin), np.bool_)
        if quotes:
            quoted = region.next_of(stops_at(QUOTE), begin, quotes - 1)
            good = (region.data[quoted] == QUOTE) & (quoted < region.next_of(stops_at(BACKSLASH), begin))
            # Counted among quotes and control characters: none of these is before the backslash or the last quote.
            begin = np.where(good, quoted + 1, begin)
        marks = [delimiter]
        if delimiter == QUOTE or quotes:
            marks.append(BACKSLASH)
        if delimiter == NEWLINE:
            marks.append(self._separator)
        self._positions = end = region.next_of(stops_at(*marks), begin)
        at_delimiter = end == self._ends[self._lines] if delimiter == NEWLINE else region.data[end] == delimiter
        return cast(Booleans, good & at_delimiter)

    def _number(self, kind: int) -> Numbers:
        """Read a number and go behind it."""
        region, begin = self._region, self._positions
        ends = digit_ends(region.bytes, region.first)
        read = read_integers if kind == ValueKind.INTEGER else read_decimals
        numbers = read(region.data, begin, self._strict, ends)
        if self._strict:
            nulls = (region.words[begin] & NULL_MASK) == NULL_WORD
            numbers.states[nulls], numbers.good[nulls] = NumberState.NULL, True
            numbers.ends[nulls] = begin[nulls] + len(b"null")
        self._positions = numbers.ends
        return numbers


def dictionary_encode(
    words: Words, starts: Integers, ends: Integers, _slots: Integers, codes: Integers, firsts: Integers
) -> int:
    """Number the distinct texts from `starts[i]` to `ends[i]` in order of appearance; returns their number.

    The texts must not overlap and must ascend. Filled: `codes` and `firsts`, as by `kernel.dictionary_encode`.
    """
    if not len(starts):
        return 0
    encoded = _texts(words, starts, ends).dictionary_encode()
    codes[:] = encoded.indices.to_numpy()
    count = len(encoded.dictionary)
    # Arrow numbers texts as they appear, so a code that is above all before it is a new one.
    firsts[:count] = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
    return count


def gather_texts(words: Words, starts: Integers, ends: Integers, offsets: Integers, target: Words) -> None:
    """Copy the texts from `starts[i]` to `ends[i]` to bytes `offsets[i]` to `offsets[i + 1]` of one buffer.

    The texts must not overlap and must ascend. Of `target` the lowest byte of each word is written.
    """
    if not len(starts):
        offsets[0] = 0
        return
    _, begins, joined = _texts(words, starts, ends).buffers()
    offsets[:] = np.frombuffer(begins, np.int32)[: len(starts) + 1]
    copied = target.getfield(np.uint8, 0)
    # An empty array may have no buffer at all.
    copied[: offsets[-1]] = np.frombuffer(joined or b"", np.uint8)[: offsets[-1]]


def _texts(words: Words, starts: Integers, ends: Integers) -> pa.Array:
    """The texts at ascending positions, copied into an array of their own."""
    data = words.getfield(np.uint8, 0)
    base = int(starts[0])
    bounds = np.empty(2 * len(starts), np.int32)
    # From the first text on, so that 32 bits suffice wherever in a large file the texts are.
    bounds[0::2], bounds[1::2] = starts - base, ends - base
    # Every second one is what is between two texts.
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data[base : int(ends[-1])])]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers).take(pa.array(np.arange(0, len(bounds), 2)))
