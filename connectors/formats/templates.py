"""Many lines of one shape, taken apart as whole columns.

A **template** says how the lines of one producer look: which bytes stand before, between and after the values, and of which kind each value is.
A line matches when glue and values tile it exactly, so what a matched line says is decided by the template and its values alone. The work is done
by `kernel`, for all lines at once; here its columns become Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np
import polars as pl
import pyarrow as pa

from connectors.formats.kernel_types import Ends, Floats, Glue, Kind, State, Values
from connectors.formats.lines import NEWLINE, WORD_BYTES, Booleans, Integers, Lines, Words, words_of
from connectors.formats.values import finite_floats, integers

COMMA = 44
CACHE_WAY, CACHE_STEP = 512, 24
HIGH_BITS = 0x8080808080808080
TEXT_TYPE = pa.string()


@dataclass(frozen=True)
class Template:
    """Shape of a line: `before[c]` and `after[c]` are the bytes left and right of value c, a value of `kinds[c]`.

    A text holds as many double quotes as `quotes` says (none if that is empty); one that has some, or ends at one, holds no backslash, one that
    ends with the line no `separator`. `strict` numbers are those of JSON, or its null.
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    kinds: tuple[Kind, ...]
    quotes: tuple[int, ...] = ()
    separator: int = COMMA
    strict: bool = False

    @property
    def columns(self) -> int:
        """Values in a line."""
        return len(self.kinds)

    @cached_property
    def glue(self) -> tuple[bytes, ...]:
        """What stands before, between and after the values: one more than there are values."""
        inner = (after + before for after, before in zip(self.after[:-1], self.before[1:], strict=True))
        return (self.before[0], *inner, self.after[-1])

    @cached_property
    def glue_words(self) -> Glue:
        """The glue in words."""
        words = [[text[at : at + WORD_BYTES] for at in range(0, len(text), WORD_BYTES)] for text in self.glue]
        flat = [word for text in words for word in text]
        values = np.array([int.from_bytes(word, "little") for word in flat], np.uint64)
        masks = np.array([(1 << (8 * len(word))) - 1 for word in flat], np.uint64)
        lengths = np.array([len(word) for word in flat], np.int64)
        return Glue(values, masks, lengths, np.cumsum([0, *(len(text) for text in words)]))

    @cached_property
    def value_ends(self) -> Ends:
        """How each value ends."""
        stops = [text[0] if text else NEWLINE for text in self.glue[1:]]
        quotes = self.quotes or (0,) * self.columns
        return Ends(np.array(self.kinds, np.int64), np.array(stops, np.int64), np.array(quotes, np.int64))


@dataclass(frozen=True)
class Matched:
    """Lines that have the shape of a template, ascending, and what the kernel says of their values."""

    rows: Integers
    _words: Words
    _values: Values

    def only(self, kept: slice | Booleans) -> Matched:
        """Some of the lines."""
        starts, ends, integers, floats, states = self._values
        values = Values(starts[:, kept], ends[:, kept], integers[:, kept], floats[:, kept], states[:, kept])
        return Matched(self.rows[kept], self._words, values)

    def texts(self, column: int) -> pl.Series:
        """A column of text."""
        return _series(self._joined(*self._places(column)))

    def encoded(self, column: int) -> pa.DictionaryArray:
        """A column of text as dictionary<int32, string>, the distinct texts in order of appearance."""
        starts, ends = self._places(column)
        slots = np.full(2 << len(starts).bit_length(), -1, np.int32)
        codes, firsts = np.empty(len(starts), np.int32), np.empty(len(starts), np.int64)
        distinct = firsts[: _kernel().number_texts(self._words, starts, ends, slots, codes, firsts)]
        return pa.DictionaryArray.from_arrays(pa.array(codes), self._joined(starts[distinct], ends[distinct]))

    def integers(self, column: int) -> tuple[pl.Series, Booleans | None]:
        """A column of integers, null where null is written, and which of them are usable (None: all): those that fit int64."""
        return self._numbers(column, self._values.integers, integers)

    def floats(self, column: int) -> tuple[pl.Series, Booleans | None]:
        """A column of decimal numbers, correctly rounded, null where null is written, and which are usable (None: all): the finite ones."""
        return self._numbers(column, self._values.floats, finite_floats)

    def _numbers(
        self, column: int, computed: Integers | Floats, read: Callable[[pl.Series], pl.Series]
    ) -> tuple[pl.Series, Booleans | None]:
        """A column of numbers; those that are only known as text are read by `read`."""
        states = self._values.states[column]
        values = _series(pa.array(np.ascontiguousarray(computed[column])))
        if not states.any():
            return values, None
        values = values.set(pl.Series(states == State.NULL), None)
        textual = states == State.TEXTUAL
        if not textual.any():
            return values, None
        known = read(_series(self._joined(*self._places(column, textual))))
        usable = ~textual
        usable[textual] = known.is_not_null().to_numpy()
        return values.scatter(np.flatnonzero(textual), known), usable

    def _places(self, column: int, lines: slice | Booleans = slice(None)) -> tuple[Integers, Integers]:
        """Where the texts of a value begin and end."""
        starts, ends = (np.ascontiguousarray(part[column, lines]) for part in self._values[:2])
        return starts, ends

    def _joined(self, starts: Integers, ends: Integers, kind: pa.DataType = TEXT_TYPE) -> pa.Array:
        """The texts at these places."""
        count = int(ends.sum() - starts.sum())
        padded, offsets = np.empty(count + WORD_BYTES, np.uint8), np.empty(len(starts) + 1, np.int32)
        _kernel().join(self._words, starts, ends, offsets, words_of(padded))
        return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(padded[:count])])

    def valid_utf8(self, column: int) -> Booleans:
        """Which texts of a column are UTF-8; they are decoded one by one only where some are not."""
        texts = self._joined(*self._places(column), pa.binary())
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            return np.array([_is_utf8(text) for text in texts.to_pylist()], np.bool_)
        return np.ones(len(texts), np.bool_)


def match(lines: Lines, template: Template, rows: Integers) -> Matched:
    """Those of the lines `rows` (ascending) that have the shape of `template`."""
    # A row of columns that lie a power of two apart would share the same few places of the processor's cache.
    shape = (template.columns, len(rows) // CACHE_WAY * CACHE_WAY + CACHE_WAY + CACHE_STEP)
    taken = np.empty(len(rows), np.int64)
    starts, ends, whole = (np.empty(shape, np.int64) for _ in range(3))
    values = Values(starts, ends, whole, np.empty(shape, np.float64), np.empty(shape, np.uint8))
    count, seen = _kernel().take_apart(
        lines.data,
        lines.words,
        lines.starts,
        lines.ends,
        rows,
        template.glue_words,
        template.value_ends,
        template.separator,
        template.strict,
        taken,
        values,
    )
    matched = Matched(taken, lines.words, values).only(slice(count))
    if int(seen) & HIGH_BITS:
        for column, kind in enumerate(template.kinds):
            if kind in (Kind.SERIES, Kind.TEXT):
                valid = matched.valid_utf8(column)
                matched = matched if valid.all() else matched.only(valid)
    return matched


def _kernel() -> ModuleType:
    """Numba takes a third of a second to import: only who has lines to take apart waits for it."""
    from connectors.formats import kernel

    return kernel


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _series(texts: pa.Array) -> pl.Series:
    return pl.Series(values=pl.from_arrow(texts))
