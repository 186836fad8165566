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

NEWLINE, RETURN, QUOTE, BACKSLASH = 10, 13, 34, 92
SCAN_BYTES = 1 << 17
CHUNK_LINES = 65_536
CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Lines:
    """Physical lines: `data[starts[i]:ends[i]]` is line i without its terminator, `newlines[i]` the position of that terminator.

    `data` always ends with a newline. `messages[i]` and `numbers[i]` say which message the line came from and which line of it it is;
    both are None for a plain buffer, where the number is i.
    """

    data: Bytes
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


def positions_of(data: Bytes, *marks: int) -> Integers:
    """Where any of the bytes `marks` stands in `data`, ascending. Works in pieces that stay in the cache."""
    found = []
    for begin in range(0, len(data), SCAN_BYTES):
        piece = data[begin : begin + SCAN_BYTES]
        hits = piece == marks[0]
        for mark in marks[1:]:
            hits |= piece == mark
        positions = np.flatnonzero(hits)
        positions += begin
        found.append(positions)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def count_of(data: Bytes, mark: int) -> int:
    """How often the byte `mark` stands in `data`."""
    return sum(
        int(np.count_nonzero(data[begin : begin + SCAN_BYTES] == mark)) for begin in range(0, len(data), SCAN_BYTES)
    )


def lines_of_buffer(data: bytes | bytearray | memoryview | pa.Buffer) -> Lines:
    """The lines of one buffer. A last line without a newline counts; a carriage return before the newline belongs to it."""
    array = np.frombuffer(data, np.uint8)
    if len(array) and array[-1] != NEWLINE:
        array = np.append(array, np.uint8(NEWLINE))
    return _lines(array, positions_of(array, NEWLINE))


def lines_of_messages(values: pa.Array) -> Lines:
    """The lines of every message of a binary array; null and empty messages have none."""
    texts = pc.fill_null(values.cast(pa.large_binary()), b"")
    ended = pc.binary_join_element_wise(texts, pa.scalar(b"", pa.large_binary()), pa.scalar(b"\n", pa.large_binary()))
    _, offsets, joined = ended.buffers()
    array = np.frombuffer(joined, np.uint8) if joined is not None else np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
    array = array[: bounds[-1]]
    message_ends = bounds[1:] - 1
    if count_of(array, NEWLINE) == len(texts):
        messages = np.arange(len(texts), dtype=np.int64)
        numbers = np.zeros(len(texts), np.int64)
        return _lines(array, message_ends, messages, numbers)
    newlines = positions_of(array, NEWLINE)
    last_lines = np.searchsorted(newlines, message_ends)
    per_message = np.diff(last_lines, prepend=-1)
    messages = np.repeat(np.arange(len(texts), dtype=np.int64), per_message)
    first_lines = last_lines - per_message + 1
    numbers = np.arange(len(newlines), dtype=np.int64) - np.repeat(first_lines, per_message)
    return _lines(array, newlines, messages, numbers)


def _lines(data: Bytes, newlines: Integers, messages: Integers | None = None, numbers: Integers | None = None) -> Lines:
    starts = np.empty_like(newlines)
    if len(newlines):
        starts[0] = 0
        starts[1:] = newlines[:-1] + 1
    ends = newlines.copy()
    filled = np.flatnonzero(ends > starts)
    returns = filled[data[ends[filled] - 1] == RETURN]
    ends[returns] -= 1
    return Lines(data, newlines, starts, ends, messages, numbers)
