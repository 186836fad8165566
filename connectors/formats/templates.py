"""Templates of lines: inferred from a sample line, matched against many lines, which become columns.

A template has the constant bytes before, between and after the values (the literals) and the kind of each
value. A line matches when literals and values tile it exactly, so the template and the values alone decide
what it means. `kernel` matches all lines of a batch in one call; here its results become columns of Arrow and
polars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.connectors.formats.gathered_texts import gathered, gathered_dictionary
from headrace.connectors.formats.kernel_choice import loops
from headrace.connectors.formats.kernel_types import Floats, Literals, NumberState, ValueGrammar, ValueKind, Values
from headrace.connectors.formats.lines import NEWLINE, WORD_BYTES, Booleans, Integers, Lines, Words
from headrace.connectors.formats.text_columns import finite_floats, integers
from headrace.schemas.tables import FieldType

COMMA = 44
CACHE_WAY, CACHE_STEP = 512, 24
NON_ASCII_BITS = 0x8080808080808080
TEXT_TYPE = pa.string()
NUMBER_KINDS = {FieldType.INT64: ValueKind.INTEGER, FieldType.FLOAT64: ValueKind.FLOAT}

TEMPLATES_MAX = 256
# The search for shapes ends after this many in a row that saved no time over the scanner.
UNPRODUCTIVE_MAX = 8
# A shape costs as much as scanning this many lines, so fewer lines are scanned at once.
SCAN_LINES_MAX = 24
# A shape is kept for the next batches if it matched more than one in this many of the lines it was tried on.
KEEP_SHARE = 1_024


class Shape(Protocol):
    """A template together with the meaning of its values."""

    @property
    def template(self) -> Template:
        """The literals and kinds of values of its lines."""


S = TypeVar("S", bound=Shape)


@dataclass(frozen=True)
class Template:
    """The shape of a line: value c is of `kinds[c]`, between the bytes `before[c]` and `after[c]`.

    Text c contains `quotes[c]` double quotes (none if `quotes` is empty). A text with quotes, or that ends at
    one, contains no backslash; a text that ends with the line contains no `separator`. `strict` numbers are
    those of JSON, or its null.
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    kinds: tuple[ValueKind, ...]
    quotes: tuple[int, ...] = ()
    separator: int = COMMA
    strict: bool = False

    @property
    def columns(self) -> int:
        """Values in a line."""
        return len(self.kinds)

    @cached_property
    def literals(self) -> tuple[bytes, ...]:
        """The constant bytes before, between and after the values: one more than there are values."""
        inner = (after + before for after, before in zip(self.after[:-1], self.before[1:], strict=True))
        return (self.before[0], *inner, self.after[-1])

    @cached_property
    def literal_words(self) -> Literals:
        """The literals in words of eight bytes, as the kernel compares them."""
        words = [[text[at : at + WORD_BYTES] for at in range(0, len(text), WORD_BYTES)] for text in self.literals]
        flat = [word for text in words for word in text]
        values = np.array([int.from_bytes(word, "little") for word in flat], np.uint64)
        masks = np.array([(1 << (8 * len(word))) - 1 for word in flat], np.uint64)
        lengths = np.array([len(word) for word in flat], np.int64)
        return Literals(values, masks, lengths, np.cumsum([0, *(len(text) for text in words)]))

    @cached_property
    def grammar(self) -> ValueGrammar:
        """How each value ends."""
        delimiters = [text[0] if text else NEWLINE for text in self.literals[1:]]
        quotes = self.quotes or (0,) * self.columns
        return ValueGrammar(np.array(self.kinds, np.int64), np.array(delimiters, np.int64), np.array(quotes, np.int64))


@dataclass(frozen=True)
class MatchedLines:
    """The lines (ascending) that match a template, and their values as the kernel left them."""

    rows: Integers
    _words: Words
    _values: Values

    def select(self, kept: slice | Booleans) -> MatchedLines:
        """Some of the lines."""
        starts, ends, integers, floats, states = self._values
        values = Values(starts[:, kept], ends[:, kept], integers[:, kept], floats[:, kept], states[:, kept])
        return MatchedLines(self.rows[kept], self._words, values)

    def texts(self, column: int) -> pl.Series:
        """A column of text."""
        return _series(self._gather(*self._bounds(column)))

    def dictionary(self, column: int) -> pa.DictionaryArray:
        """A column of text as dictionary<int32, string>, the distinct texts in order of appearance."""
        starts, ends = self._bounds(column)
        return gathered_dictionary(self._words, starts, ends, TEXT_TYPE)

    def integers(self, column: int) -> tuple[pl.Series, Booleans | None]:
        """A column of integers (null for the word null), and which of them fit int64; None means all."""
        return self._numbers(column, self._values.integers, integers)

    def floats(self, column: int) -> tuple[pl.Series, Booleans | None]:
        """A column of float64 (null for the word null), and which are finite; None means all."""
        return self._numbers(column, self._values.floats, finite_floats)

    def _numbers(
        self, column: int, computed: Integers | Floats, read: Callable[[pl.Series], pl.Series]
    ) -> tuple[pl.Series, Booleans | None]:
        """A column of numbers; `read` converts those that the kernel deferred as text."""
        states = self._values.states[column]
        values = _series(pa.array(np.ascontiguousarray(computed[column])))
        if not states.any():
            return values, None
        values = values.set(pl.Series(states == NumberState.NULL), None)
        deferred = states == NumberState.DEFERRED
        if not deferred.any():
            return values, None
        known = read(_series(self._gather(*self._bounds(column, deferred))))
        valid = ~deferred
        valid[deferred] = known.is_not_null().to_numpy()
        return values.scatter(np.flatnonzero(deferred), known), valid

    def _bounds(self, column: int, lines: slice | Booleans = slice(None)) -> tuple[Integers, Integers]:
        """The positions at which the texts of a value begin and end."""
        starts, ends = (np.ascontiguousarray(part[column, lines]) for part in self._values[:2])
        return starts, ends

    def _gather(self, starts: Integers, ends: Integers, kind: pa.DataType = TEXT_TYPE) -> pa.Array:
        """The texts between these positions as one array."""
        return gathered(self._words, starts, ends, kind)

    def valid_utf8(self, column: int) -> Booleans:
        """Which texts of a column are UTF-8."""
        texts = self._gather(*self._bounds(column), pa.binary())
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            # Arrow does not name the invalid texts, so each is decoded by itself.
            return np.array([_is_utf8(text) for text in texts.to_pylist()], np.bool_)
        return np.ones(len(texts), np.bool_)


def match(lines: Lines, template: Template, rows: Integers) -> MatchedLines:
    """Those of the lines `rows` (ascending) that match `template`."""
    # Rows of the result that begin a power of two apart would compete for the same few lines of the cache.
    shape = (template.columns, len(rows) // CACHE_WAY * CACHE_WAY + CACHE_WAY + CACHE_STEP)
    matched_rows = np.empty(len(rows), np.int64)
    starts, ends, whole = (np.empty(shape, np.int64) for _ in range(3))
    values = Values(starts, ends, whole, np.empty(shape, np.float64), np.empty(shape, np.uint8))
    count, text_bits = loops().parse_lines(
        lines.data,
        lines.words,
        lines.starts,
        lines.ends,
        rows,
        template.literal_words,
        template.grammar,
        template.separator,
        template.strict,
        matched_rows,
        values,
    )
    matched = MatchedLines(matched_rows, lines.words, values).select(slice(count))
    # Texts of ASCII need no check: the kernel returns the bitwise or of all their bytes.
    if int(text_bits) & NON_ASCII_BITS:
        for column, kind in enumerate(template.kinds):
            if kind in (ValueKind.SERIES, ValueKind.TEXT):
                valid = matched.valid_utf8(column)
                matched = matched if valid.all() else matched.select(valid)
    return matched


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _series(texts: pa.Array) -> pl.Series:
    return pl.Series(values=pl.from_arrow(texts))


@dataclass(slots=True)
class Matcher(Generic[S]):
    """Matches the lines of an input shape by shape, and returns the lines that only the scanner can read.

    `infer_shape` returns the shape of one line (None if it has none); `accept` stores the rows of a match and
    returns the lines that it stored. Each shape is inferred from the first line that matches none so far, up
    to `TEMPLATES_MAX` a batch, as long as shapes match many lines.
    """

    lines: Lines
    infer_shape: Callable[[int], S | None]
    accept: Callable[[S, MatchedLines], Integers]
    shapes: list[S] = field(default_factory=list)

    def consume(self, rows: Integers) -> Integers:
        """Accept those of the lines `rows` (ascending) that have a shape; returns the others."""
        for shape in self.shapes:
            rows = self._apply(shape, rows)
        outliers: list[int] = []
        inferred = unproductive = 0
        while len(rows) > SCAN_LINES_MAX and inferred < TEMPLATES_MAX and unproductive < UNPRODUCTIVE_MAX:
            left = self._infer(rows, outliers)
            # Producers with a few optional fields have many shapes that pay, a few rare ones between them:
            # one unproductive shape does not end the search, several in a row do.
            unproductive = unproductive + 1 if len(rows) - len(left) <= SCAN_LINES_MAX else 0
            inferred, rows = inferred + 1, left
        return np.concatenate((np.array(outliers, np.int64), rows))

    def _infer(self, rows: Integers, outliers: list[int]) -> Integers:
        """Accept all lines like the first of `rows`; returns the others."""
        sample = int(rows[0])
        shape = self.infer_shape(sample)
        left = rows if shape is None else self._apply(shape, rows)
        # A line that its own shape does not match goes to the scanner, else it would be the sample forever.
        if len(left) and left[0] == sample:
            outliers.append(sample)
            left = left[1:]
        if shape is not None and len(self.shapes) < TEMPLATES_MAX and (len(rows) - len(left)) * KEEP_SHARE > len(rows):
            self.shapes.append(shape)
        return left

    def _apply(self, shape: S, rows: Integers) -> Integers:
        if not len(rows):
            return rows
        matched = match(self.lines, shape.template, rows)
        if not len(matched.rows):
            return rows
        accepted = self.accept(shape, matched)
        if len(accepted) == len(rows):
            return rows[:0]
        return rows[~np.isin(rows, accepted, assume_unique=True)]
