"""The lines of a buffer or of messages, found without looking at them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

NEWLINE, RETURN, QUOTE, BACKSLASH = 10, 13, 34, 92
SCAN_BYTES = 1 << 17
WORD_BYTES = 8
CHUNK_LINES = 65_536
CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Lines:
    """Physical lines: `data[starts[i]:ends[i]]` is line i without its terminator, `newlines[i]` the position of that terminator.

    `data` always ends with a newline; `words[i]` is its eight bytes from i on, little end first. `messages[i]` and `numbers[i]` say which message
    the line came from and which line of it it is; both are None for a plain buffer, where the number is i.
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
        """The bytes of line `first`, or of lines `first` to `last` inclusive with what stands between them."""
        return self.data[self.starts[first] : self.ends[first if last is None else last]].tobytes()

    def same_message(self, first: int, second: int) -> bool:
        """Whether both lines belong to one message (or there are no messages)."""
        return self.messages is None or bool(self.messages[first] == self.messages[second])

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of lines that are taken apart together: many, for every call has its price. A single long line may exceed the byte limit."""
        first = 0
        while first < self.count:
            limit = np.searchsorted(self.newlines, self.starts[first] + CHUNK_BYTES)
            last = max(first + 1, min(first + CHUNK_LINES, int(limit), self.count))
            yield first, last
            first = last


def positions_of(data: Bytes, mark: int) -> Integers:
    """Where the byte `mark` stands in `data`, ascending. Works in pieces that stay in the cache."""
    found = []
    for begin in range(0, len(data), SCAN_BYTES):
        positions = np.flatnonzero(data[begin : begin + SCAN_BYTES] == mark)
        positions += begin
        found.append(positions)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def words_of(padded: Bytes) -> Words:
    """The eight bytes from each place of `padded` on, but for the last eight places, which are padding."""
    return np.ndarray(len(padded) - WORD_BYTES, "<u8", padded, strides=(1,))


def count_of(data: Bytes, mark: int) -> int:
    """How often the byte `mark` stands in `data`."""
    return sum(
        int(np.count_nonzero(data[begin : begin + SCAN_BYTES] == mark)) for begin in range(0, len(data), SCAN_BYTES)
    )


def lines_of_buffer(data: bytes | bytearray | memoryview | pa.Buffer) -> Lines:
    """The lines of one buffer, copied. A last line without a newline counts; a carriage return before the newline belongs to it."""
    given = np.frombuffer(data, np.uint8)
    unended = len(given) > 0 and given[-1] != NEWLINE
    padded = np.zeros(len(given) + unended + WORD_BYTES, np.uint8)
    padded[: len(given)] = given
    if unended:
        padded[len(given)] = NEWLINE
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
    """A newline for each message, behind the last one also the padding."""
    offsets = np.arange(count + 1, dtype=np.int64)
    offsets[-1] += WORD_BYTES
    data = np.full(offsets[-1], NEWLINE, np.uint8)
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _lines(
    padded: Bytes, newlines: Integers, messages: Integers | None = None, numbers: Integers | None = None
) -> Lines:
    """Lines that end at `newlines`, of data behind which a word of padding stands."""
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
