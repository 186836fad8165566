"""Many lines of one shape, taken apart as whole columns.

A **template** says how the lines of one producer look: which bytes stand before and after each value, and how many separators there are.
Matching takes the positions of all separators of a chunk, lays an offset table over the chunk so that every line becomes
`prefix value glue value … suffix rest`, and hands that to Arrow without copying a byte. A line matches when every piece between its values is
byte for byte that of the template. The pieces tile the line, so what a matched line says is decided by the template and by the values alone:
where the separators were found matters for speed, never for the result. The caller checks every value against the grammar of its format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from connectors.formats.lines import (
    BACKSLASH,
    NEWLINE,
    QUOTE,
    RETURN,
    SCAN_BYTES,
    Booleans,
    Bytes,
    Integers,
    Lines,
    positions_of,
)

Offsets = npt.NDArray[np.int32]
CHUNK_OFFSET_MAX = 2**31 - 1
SPACE, POINT, ZERO, NINE = 32, 46, 48, 57
WORD = 8


@dataclass(frozen=True)
class Template:
    """Shape of a line: `before[c]` and `after[c]` are the bytes left and right of value c, within its separators.

    The first value's `before` starts at the start of the line, every other one with the separator itself; the last `after` ends the line.
    `inner` says how many separators each value holds, none if it is empty. With `open_start` the first value may hold more (a series), otherwise
    a line must have exactly these and one less than it has values.
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    open_start: bool = False
    inner: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Values in a line."""
        return len(self.before)

    @cached_property
    def glue(self) -> tuple[bytes, ...]:
        """What stands before, between and after the values: one more than there are values."""
        inner = (after + before for after, before in zip(self.after[:-1], self.before[1:], strict=True))
        return (self.before[0], *inner, self.after[-1])

    @cached_property
    def separators(self) -> int:
        """Separators in a line, those of an open start left out."""
        return self.columns - 1 + sum(self.inner)

    @cached_property
    def _borders(self) -> Integers:
        """Which separators stand between values, counted back from the end of the line."""
        held = np.array(self.inner or (0,) * self.columns, np.int64)
        return np.cumsum(held[:-1] + 1) - 1 - self.separators

    @cached_property
    def _lengths(self) -> tuple[Offsets, Offsets]:
        before = np.array([len(part) for part in self.before], np.int32)
        after = np.array([len(part) for part in self.after], np.int32)
        return before, after


@dataclass(frozen=True)
class Chunk:
    """A range of lines with the places of its separators; positions count from the first byte of the chunk.

    `marks` are the separators and the newlines, `line_marks[i]` the index in `marks` of the newline that ends line i, `counts[i]` its
    separators. `regular[i]` is False for lines that must be scanned one by one whatever they look like.
    """

    data: Bytes
    starts: Integers
    ends: Integers
    marks: Integers
    line_marks: Integers
    counts: Integers
    regular: Booleans
    ascii: bool

    @cached_property
    def has_bare_point(self) -> bool:
        """Whether a full stop stands anywhere without a digit behind it."""
        following = self.data[positions_of(self.data[:-1], POINT) + 1]
        return bool(np.any((following < ZERO) | (following > NINE)))


@dataclass(frozen=True)
class Matched:
    """Lines of a chunk that have the shape of a template, ascending, and their values.

    `texts` holds a Series of text a value; value c of line i stands at `chunk.data[offsets[i, 2c + 1]:offsets[i, 2c + 2]]`.
    """

    chunk: Chunk
    rows: Integers
    texts: list[pl.Series]
    offsets: Offsets


def chunk_of(lines: Lines, first: int, last: int, separators: Sequence[int], *, quoted: bool = False) -> Chunk:
    """Lines `first` to `last` (exclusive) with the places of `separators`; with `quoted`, those between double quotes do not count.

    Not regular: lines with control characters or bytes that are not UTF-8, and with `quoted` those with a backslash or an odd quote.
    """
    base = int(lines.starts[first])
    data = lines.data[base : int(lines.newlines[last - 1]) + 1]
    starts, ends = lines.starts[first:last] - base, lines.ends[first:last] - base
    ascii_only, controls = _survey(data)
    regular = _regular(data, starts, ends, [mark for mark in separators if mark < SPACE], ascii_only, controls)
    if len(data) > CHUNK_OFFSET_MAX:
        regular[:] = False
    marks = positions_of(data, *separators, NEWLINE, QUOTE) if quoted else positions_of(data, *separators, NEWLINE)
    if quoted:
        marks, balanced = _outside_quotes(data, marks)
        regular &= balanced
        regular[_line_of(positions_of(data, BACKSLASH), starts)] = False
    line_marks = np.flatnonzero(data[marks] == NEWLINE)
    counts = np.diff(line_marks, prepend=-1) - 1
    return Chunk(data, starts, ends, marks, line_marks, counts, regular, ascii_only)


def match(chunk: Chunk, template: Template, rows: Integers) -> Matched:
    """Those of the lines `rows` (ascending, of this chunk) that have the shape of `template`."""
    counts, wanted = chunk.counts[rows], template.separators
    rows = rows[counts >= wanted if template.open_start else counts == wanted]
    if not len(rows):
        return _nothing(chunk, template)
    rows, offsets = _likely(chunk, template, rows, _offsets(chunk, template, rows))
    if not len(rows):
        return _nothing(chunk, template)
    flat = offsets.ravel()
    if not np.all(flat[1:] >= flat[:-1]):
        ordered = np.all(offsets[:, 1:] >= offsets[:, :-1], axis=1)
        rows, offsets = rows[ordered], offsets[ordered]
        if not len(rows):
            return _nothing(chunk, template)
    return _columns(chunk, template, rows, offsets)


def _nothing(chunk: Chunk, template: Template) -> Matched:
    return Matched(chunk, np.empty(0, np.int64), [], np.empty((0, 2 * template.columns + 2), np.int32))


def _offsets(chunk: Chunk, template: Template, rows: Integers) -> Offsets:
    """The table of piece starts, a row a line: prefix, value, glue, value, …, suffix, rest up to the next of these lines."""
    before, after = template._lengths
    columns = template.columns
    offsets = np.empty((len(rows), 2 * columns + 2), np.int32)
    offsets[:, 0] = chunk.starts[rows]
    offsets[:, 1] = chunk.starts[rows] + before[0]
    if columns > 1:
        separators = chunk.marks[chunk.line_marks[rows][:, None] + template._borders]
        offsets[:, 2 : 2 * columns : 2] = separators - after[:-1]
        offsets[:, 3 : 2 * columns : 2] = separators + before[1:]
    offsets[:, 2 * columns] = chunk.ends[rows] - after[-1]
    offsets[:, 2 * columns + 1] = chunk.ends[rows]
    return offsets


def _likely(chunk: Chunk, template: Template, rows: Integers, offsets: Offsets) -> tuple[Integers, Offsets]:
    """The lines that have the first bytes of a glue where they should, glue by glue as long as that sorts lines out: cheap, and no proof."""
    last = len(chunk.data) - WORD
    if last < 0:
        return rows, offsets
    words = np.ndarray(last + 1, "<u8", chunk.data, strides=(1,))
    for place, glue in enumerate(template.glue[1:-1], 1):
        known = glue[:WORD]
        mask = np.uint64((1 << (8 * len(known))) - 1)
        found = words[np.clip(offsets[:, 2 * place], 0, last)] & mask
        near_end = offsets[:, 2 * place] > last
        likely = (found == np.uint64(int.from_bytes(known, "little"))) | near_end
        if likely.all():
            break
        rows, offsets = rows[likely], offsets[likely]
    return rows, offsets


def _columns(chunk: Chunk, template: Template, rows: Integers, offsets: Offsets) -> Matched:
    width = offsets.shape[1]
    flat = np.append(offsets.ravel(), np.int32(len(chunk.data)))
    kind = pa.string() if chunk.ascii else pa.binary()
    buffers = [None, pa.py_buffer(flat), pa.py_buffer(chunk.data)]
    pieces = pl.Series(values=pl.from_arrow(pa.Array.from_buffers(kind, len(flat) - 1, buffers)))
    good: Booleans | None = None
    for place, glue in enumerate(template.glue):
        same = pieces.gather_every(width, 2 * place) == (
            glue.decode() if chunk.ascii else pl.Series([glue], dtype=pl.Binary)
        )
        if not same.all():
            good = same.to_numpy() if good is None else good & same.to_numpy()
    if good is not None and not good.any():
        return _nothing(chunk, template)
    values = [pieces.gather_every(width, 2 * column + 1) for column in range(template.columns)]
    if good is not None:
        rows, offsets, values = rows[good], offsets[good], [value.filter(pl.Series(good)) for value in values]
    return Matched(chunk, rows, values if chunk.ascii else [value.cast(pl.String) for value in values], offsets)


def _survey(data: Bytes) -> tuple[bool, int]:
    """(whether all is ASCII, how many control characters there are), in pieces that stay in the cache."""
    ascii_only, controls = True, 0
    for begin in range(0, len(data), SCAN_BYTES):
        piece = data[begin : begin + SCAN_BYTES]
        ascii_only = ascii_only and bool(piece.max() < 128)
        controls += int(np.count_nonzero(piece < SPACE))
    return ascii_only, controls


def _regular(
    data: Bytes, starts: Integers, ends: Integers, allowed: Sequence[int], ascii_only: bool, controls_found: int
) -> Booleans:
    regular = np.ones(len(starts), np.bool_)
    if controls_found != len(starts):
        controls = np.flatnonzero(data < SPACE)
        controls = controls[~np.isin(data[controls], [NEWLINE, *allowed])]
        owners = _line_of(controls, starts)
        inside = ~((data[controls] == RETURN) & (controls >= ends[owners]))
        regular[owners[inside]] = False
    if not ascii_only:
        regular &= valid_utf8(data, starts, ends)
    return regular


def valid_utf8(data: Bytes, starts: Integers, ends: Integers) -> Booleans:
    """Which of the lines of `data` are UTF-8; they are decoded one by one only where the whole is not."""
    valid = np.ones(len(starts), np.bool_)
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        for line in np.unique(_line_of(np.flatnonzero(data >= 128), starts)).tolist():
            valid[line] = _is_utf8(data[starts[line] : ends[line]].tobytes())
    return valid


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line_of(positions: Integers, starts: Integers) -> Integers:
    return np.searchsorted(starts, positions, side="right") - 1


def _outside_quotes(data: Bytes, marks: Integers) -> tuple[Integers, Booleans]:
    """The marks that are not quotes and not between two quotes of their line, and which lines have quotes in pairs."""
    kinds = data[marks]
    quotes = kinds == QUOTE
    seen = np.cumsum(quotes)
    line_marks = np.flatnonzero(kinds == NEWLINE)
    per_line = np.diff(seen[line_marks], prepend=0)
    before_line = np.repeat(seen[line_marks] - per_line, np.diff(line_marks, prepend=-1))
    keep = ~quotes & ((seen - before_line) % 2 == 0)
    keep[line_marks] = True
    return marks[keep], per_line % 2 == 0
