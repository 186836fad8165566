"""The lines of a buffer or of messages, and the quoted records that span several of them.

A line that ends inside a quoted string is joined with the next ones only if together they are a valid record.
Otherwise it stays alone and is rejected, so that a missing quote costs one line and not the rest of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import ScansRefused

Integers = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

NEWLINE, RETURN, QUOTE, EQUALS, BACKSLASH = 10, 13, 34, 61, 92
WORD_BYTES = 8
# Bytes are searched in parts whose masks and positions stay in the processor's cache.
SCAN_BYTES = 1 << 17
# Every call into numpy, Arrow or polars has a fixed cost, so lines are parsed in batches this large.
BATCH_LINES = 65_536
BATCH_BYTES = 32 << 20
# A quoted record spans at most this much: each missing quote costs a search of that length.
RECORD_LINES_MAX = 256
RECORD_BYTES_MAX = 1 << 20

RecordCheck = Callable[[bytes], bool | None]
"""Whether a text is a valid record; None when it ends inside a quoted string."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Physical lines: line i is `data[starts[i]:ends[i]]` without its terminator, which is at `newlines[i]`.

    `data` always ends with a newline; `words[i]` is its eight bytes from i on, little-endian. `messages[i]`
    is the message of the line and `numbers[i]` its number in that message; both are None for a plain buffer.
    """

    data: Bytes
    words: Words
    newlines: Integers
    starts: Integers
    ends: Integers
    messages: Integers | None = None
    numbers: Integers | None = None

    @property
    def count(self) -> int:
        """Physical lines, blank ones too."""
        return len(self.newlines)

    def text(self, first: int, last: int | None = None) -> bytes:
        """The bytes of line `first`, or of lines `first` to `last` inclusive."""
        return self.data[self.starts[first] : self.ends[first if last is None else last]].tobytes()

    def same_message(self, first: int, second: int) -> bool:
        """Whether both lines belong to one message (or there are no messages)."""
        return self.messages is None or bool(self.messages[first] == self.messages[second])

    def batches(self) -> Iterator[tuple[int, int]]:
        """Ranges of lines that are parsed together. A single long line may exceed the byte limit."""
        first = 0
        while first < self.count:
            limit = np.searchsorted(self.newlines, self.starts[first] + BATCH_BYTES)
            last = max(first + 1, min(first + BATCH_LINES, int(limit), self.count))
            yield first, last
            first = last


def positions_of(data: Bytes, mark: int) -> Integers:
    """The positions of the byte `mark` in `data`, ascending."""
    found = []
    for begin in range(0, len(data), SCAN_BYTES):
        positions = np.flatnonzero(data[begin : begin + SCAN_BYTES] == mark)
        positions += begin
        found.append(positions)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def words_of(padded: Bytes) -> Words:
    """The eight bytes from each position of `padded` on; the last eight bytes are padding."""
    # Overlapping words: the kernel loads eight bytes at any position without a copy.
    return np.ndarray(len(padded) - WORD_BYTES, "<u8", padded, strides=(1,))


def count_of(data: Bytes, mark: int) -> int:
    """How often the byte `mark` occurs in `data`."""
    return sum(
        int(np.count_nonzero(data[begin : begin + SCAN_BYTES] == mark)) for begin in range(0, len(data), SCAN_BYTES)
    )


def lines_of_buffer(data: bytes | bytearray | memoryview | pa.Buffer) -> Lines:
    """The lines of one buffer, copied. The last line may lack its newline; a terminator is \\n or \\r\\n."""
    source = np.frombuffer(data, np.uint8)
    unterminated = len(source) > 0 and source[-1] != NEWLINE
    padded = np.zeros(len(source) + unterminated + WORD_BYTES, np.uint8)
    padded[: len(source)] = source
    if unterminated:
        padded[len(source)] = NEWLINE
    return _lines(padded, positions_of(padded[:-WORD_BYTES], NEWLINE))


def lines_of_messages(values: pa.Array) -> Lines:
    """The lines of every message of a binary array; null and empty messages have none."""
    texts = pc.fill_null(values.cast(pa.large_binary()), b"")
    if not len(texts):
        return _lines(np.zeros(WORD_BYTES, np.uint8), *(np.empty(0, np.int64) for _ in range(3)))
    ended = pc.binary_join_element_wise(texts, _terminators(len(texts)), pa.scalar(b"", pa.large_binary()))
    _, offsets, joined = ended.buffers()
    bounds = np.frombuffer(offsets, np.int64)[: len(texts) + 1].copy()
    padded = np.frombuffer(joined, np.uint8)[: bounds[-1]]
    bounds[-1] -= WORD_BYTES
    array = padded[:-WORD_BYTES]
    message_ends = bounds[1:] - 1
    # One line a message is the common case of a topic, and counting newlines is cheaper than listing them.
    if count_of(array, NEWLINE) == len(texts):
        messages = np.arange(len(texts), dtype=np.int64)
        numbers = np.zeros(len(texts), np.int64)
        return _lines(padded, message_ends, messages, numbers)
    newlines = positions_of(array, NEWLINE)
    last_lines = np.searchsorted(newlines, message_ends)
    per_message = np.diff(last_lines, prepend=-1)
    messages = np.repeat(np.arange(len(texts), dtype=np.int64), per_message)
    first_lines = last_lines - per_message + 1
    numbers = np.arange(len(newlines), dtype=np.int64) - np.repeat(first_lines, per_message)
    return _lines(padded, newlines, messages, numbers)


def _terminators(count: int) -> pa.Array:
    """A newline for each message, after the last one also the padding: Arrow then joins all in one copy."""
    offsets = np.arange(count + 1, dtype=np.int64)
    offsets[-1] += WORD_BYTES
    data = np.full(offsets[-1], NEWLINE, np.uint8)
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _lines(
    padded: Bytes, newlines: Integers, messages: Integers | None = None, numbers: Integers | None = None
) -> Lines:
    """Lines that end at `newlines`, of data that a word of padding follows."""
    data = padded[:-WORD_BYTES]
    starts = np.empty_like(newlines)
    if len(newlines):
        starts[0] = 0
        starts[1:] = newlines[:-1] + 1
    ends = newlines.copy()
    filled = np.flatnonzero(ends > starts)
    returns = filled[data[ends[filled] - 1] == RETURN]
    ends[returns] -= 1
    return Lines(data, words_of(padded), newlines, starts, ends, messages, numbers)


LineCheck = Callable[[Lines, Integers], Booleans]
"""Which of some lines may end inside a quoted string."""


@dataclass(frozen=True, slots=True)
class QuotedRecords:
    """The records of several lines of an input: `spans` maps their first line to their last one.

    `incomplete_from` is the line whose quoted string the input does not close, or the number of lines.
    """

    spans: dict[int, int]
    incomplete_from: int


def find_quoted_records(
    lines: Lines,
    wanted: Booleans,
    is_record: RecordCheck,
    *,
    escapes: bool,
    may_continue: LineCheck | None = None,
    failures_max: int | None = None,
    looks_max: int | None = None,
) -> QuotedRecords:
    """Find the records of several lines. With `escapes` a backslash may escape a quote.

    `may_continue`: quotes outside of strings are literal, and strings follow an equals sign; it is asked about lines
    whose quotes do not tell whether they end inside a string.
    `failures_max`: behind so many lines of a message that begin none, no more are looked at there. `looks_max`: a
    message with more lines to look at raises ScansRefused.
    """
    quotes = positions_of(lines.data, QUOTE)
    if not len(quotes):
        return QuotedRecords({}, lines.count)
    per_line = np.bincount(np.searchsorted(lines.newlines, quotes), minlength=lines.count)
    suspicious = _may_end_in_string(lines, wanted, quotes, per_line, may_continue, escapes=escapes)
    spans: dict[int, int] = {}
    done, incomplete_from, failures, looks, end = -1, lines.count, 0, 0, -1
    for first in np.flatnonzero(suspicious & wanted).tolist():
        if first <= done:
            continue
        if first > end:
            end, failures, looks = _last_of_message(lines, first), 0, 0
        looks += 1
        if looks_max is not None and looks > looks_max:
            raise ScansRefused([0 if lines.messages is None else int(lines.messages[first])])
        outcome = is_record(lines.text(first))
        last, reaches_end = (
            (None, False) if outcome is not None else _closing_line(lines, first, per_line > 0, is_record)
        )
        if last is not None:
            spans[first] = done = last
        elif reaches_end:
            incomplete_from = min(incomplete_from, first)
        # A line that is a record by itself is none that fails.
        failures += last is None and not outcome
        if failures_max is not None and failures >= failures_max:
            done = end
    return QuotedRecords(spans, incomplete_from)


def _may_end_in_string(
    lines: Lines,
    wanted: Booleans,
    quotes: Integers,
    per_line: Integers,
    may_continue: LineCheck | None,
    *,
    escapes: bool,
) -> Booleans:
    """Which lines to look at, by their quotes."""
    # Only a line with an odd number of quotes can end inside a string, unless some of its quotes are escaped.
    suspicious: Booleans = per_line % 2 == 1
    if escapes:
        escaped = np.searchsorted(lines.newlines, positions_of(lines.data, BACKSLASH))
        suspicious[escaped[per_line[escaped] > 0]] = True
    if may_continue is not None:
        rows = np.flatnonzero((per_line > 0) & ~suspicious & wanted)
        # The last quote of a line opens a string or closes one: only one that opens it may leave it open.
        opening = lines.data[quotes[np.cumsum(per_line)[rows] - 1] - 1] == EQUALS
        if opening.any():
            suspicious[rows[opening]] = may_continue(lines, rows[opening])
    return suspicious


def _last_of_message(lines: Lines, line: int) -> int:
    """The last line of the message of a line."""
    if lines.messages is None:
        return lines.count - 1
    return int(np.searchsorted(lines.messages, lines.messages[line], side="right")) - 1


def _closing_line(lines: Lines, first: int, with_quote: Booleans, is_record: RecordCheck) -> tuple[int | None, bool]:
    """The line that closes the string left open by `first`, and whether the input ended before it."""
    for last in range(first + 1, min(first + RECORD_LINES_MAX, lines.count)):
        if not lines.same_message(first, last) or lines.ends[last] - lines.starts[first] > RECORD_BYTES_MAX:
            return None, False
        if with_quote[last]:
            outcome = is_record(lines.text(first, last))
            if outcome is not None:
                return (last, False) if outcome else (None, False)
    return None, first + RECORD_LINES_MAX >= lines.count
