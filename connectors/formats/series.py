"""The distinct series of one input: each is read once, however many rows it has, and many of one shape are read together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from connectors.formats.kernel_types import Kind
from connectors.formats.line_scanner import BadLine, Series, check_column, read_series
from connectors.formats.lines import Booleans, Integers, lines_of_messages
from connectors.formats.matcher import Matcher
from connectors.formats.parsed import FormatOptions
from connectors.formats.pieces import Columns, joined_array
from connectors.formats.tags import encoded, with_static_tags
from connectors.formats.templates import Matched, Template
from connectors.formats.values import arrow_of

Codes = npt.NDArray[np.int32]
UNREADABLE = -1
READ_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class _Block:
    """Series numbered one after the other: the values of each of their tags, null where a series does not have it."""

    count: int
    tags: Columns


@dataclass(frozen=True)
class _Shape:
    """Series with the same tags in the same order: the template of their text."""

    names: tuple[str, ...]

    @cached_property
    def template(self) -> Template:
        """The measurement, then the value of each tag."""
        values = len(self.names) + 1
        return Template((b"", *(f",{name}=".encode() for name in self.names)), (b"",) * values, (Kind.TEXT,) * values)


class SeriesRegistry:
    """Numbers for the series of an input, and what each of them is. Not thread-safe; one lives as long as one parse.

    The fixed table and the static tags of the options are applied here. One series may have several numbers when its tags are written in
    several orders; a number has one series.
    """

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._static = tuple(name for name, _ in options.static_tags)
        self._known: dict[str, int] = {}
        self._scanned: dict[Series, int] = {}
        self._table_codes: dict[str, int] = {}
        self._names_codes: dict[frozenset[str], int] = {}
        self._tables: list[Codes] = []
        self._names: list[Codes] = []
        self._blocks: list[_Block] = []
        self._singles: list[Mapping[str, str]] = []
        self._count = 0

    def number(self, series: Series) -> int:
        """The number of a series that the scanner read. Raises BadLine when the table has one of its tags as a field."""
        known = self._scanned.get(series)
        if known is not None:
            return known
        table = self._options.table or series.table
        names = self._names_code(table, (name for name, _ in series.tags))
        self._singles.append(dict(series.tags))
        return self._scanned.setdefault(series, self._add(np.full(1, self._table_code(table), np.int32), names))

    def numbers(self, texts: pa.DictionaryArray) -> Codes:
        """The numbers of series given as they stand in line protocol; `UNREADABLE` where the text is not one series and nothing else."""
        distinct = texts.dictionary.to_pylist()
        fresh = [text for text in distinct if text not in self._known]
        if len(fresh) > READ_TOGETHER:
            fresh = self._read_together(fresh)
        for text in fresh:
            self._known[text] = self._read(text)
        lookup = np.array([self._known[text] for text in distinct], np.int32)
        numbers: Codes = lookup[np.asarray(texts.indices)]
        return numbers

    def without_fields(self, fields: Iterable[str], numbers: Codes) -> Booleans:
        """Which of `numbers` are series none of whose tags is one of `fields`."""
        names = frozenset(fields)
        allowed = np.array([*(names.isdisjoint(tags) for tags in self._names_codes), False])
        codes = np.append(_joined(self._names), np.int32(len(allowed) - 1))
        answer: Booleans = allowed[codes[numbers]]
        return answer

    def tables_of(self, numbers: Codes) -> dict[str, Integers | None]:
        """Table name to the rows of `numbers` that are its own, ascending; None when all of them are."""
        owners = _joined(self._tables)[numbers]
        names = list(self._table_codes)
        present = np.flatnonzero(np.bincount(owners, minlength=len(names)))
        if len(present) == 1:
            return {names[present[0]]: None}
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(names) + 1))
        return {names[code]: order[bounds[code] : bounds[code + 1]] for code in present}

    def tag_columns(self, numbers: Codes) -> Columns:
        """The tag columns of rows given by their series numbers, in order of name."""
        seen = np.zeros(self._count, np.bool_)
        seen[numbers] = True
        used = np.flatnonzero(seen)
        places = np.zeros(self._count, np.int32)
        places[used] = np.arange(len(used))
        rows = pa.array(places[numbers])
        columns: Columns = {}
        for name, values in self._whole_columns().items():
            own = values.take(pa.array(used))
            if own.null_count < len(own):
                codes = encoded(own)
                columns[name] = pa.DictionaryArray.from_arrays(codes.indices.take(rows), codes.dictionary)
        return with_static_tags(columns, len(numbers), self._options)

    def _whole_columns(self) -> Columns:
        """Every tag as a column over all series; the blocks become one, so that asking again costs nothing."""
        self._close_singles()
        if len(self._blocks) > 1:
            names = sorted({name for block in self._blocks for name in block.tags})
            parts = {
                name: [block.tags.get(name, pa.nulls(block.count, pa.string())) for block in self._blocks]
                for name in names
            }
            self._blocks = [_Block(self._count, {name: joined_array(columns) for name, columns in parts.items()})]
        return self._blocks[0].tags if self._blocks else {}

    def _read(self, text: str) -> int:
        series = read_series(text)
        try:
            return UNREADABLE if series is None else self.number(series)
        except BadLine:
            return UNREADABLE

    def _read_together(self, texts: Sequence[str]) -> list[str]:
        """Number the texts that have the shape of many others; the rest comes back."""
        lines = lines_of_messages(pa.array(texts, pa.string()))
        whole = pl.Series(texts)
        odd = (
            whole.str.contains("\\", literal=True) | whole.str.contains(" ", literal=True) | whole.str.starts_with("#")
        )
        equals = whole.str.count_matches("=", literal=True).to_numpy()

        def shape_of(line: int) -> _Shape | None:
            series = read_series(texts[line])
            return None if series is None else _Shape(tuple(name for name, _ in series.tags))

        def take(shape: _Shape, matched: Matched) -> Integers:
            columns = [matched.texts(place) for place in range(shape.template.columns)]
            good = equals[matched.rows] == len(shape.names)
            for values in columns:
                good &= (values.str.len_bytes() > 0).to_numpy()
            return self._take_together(shape, matched, columns[1:], good, texts)

        matcher = Matcher(lines, shape_of, take)
        regular = (~odd).to_numpy()
        left = [np.flatnonzero(~regular)]
        for first, last in lines.chunks():
            left.append(matcher.leave(first + np.flatnonzero(regular[first:last])))
        return [texts[line] for line in np.concatenate(left).tolist()]

    def _take_together(
        self, shape: _Shape, matched: Matched, tags: Sequence[pl.Series], good: Booleans, texts: Sequence[str]
    ) -> Integers:
        """Number the good rows of a match, if their tables may have these tags; answers which rows those are."""
        tables = matched.encoded(0)
        codes, names = self._table_lookup(tables.dictionary.to_pylist(), shape.names)
        owners = codes[np.asarray(tables.indices)]
        good &= owners != UNREADABLE
        if names is None or not good.any():
            return matched.rows[:0]
        kept = matched.rows[good]
        keep = pl.Series(good)
        values = [arrow_of(tag.filter(keep)) for tag in tags]
        self._close_singles()
        start = self._add(owners[good], names)
        self._blocks.append(_Block(len(kept), dict(zip(shape.names, values, strict=True))))
        self._known.update((texts[row], start + place) for place, row in enumerate(kept.tolist()))
        return kept

    def _table_lookup(self, tables: Sequence[str], tags: Sequence[str]) -> tuple[Codes, int | None]:
        """The code of each table, `UNREADABLE` for those that cannot be or cannot have these tags, and the code of the tags."""
        codes, names = np.full(len(tables), UNREADABLE, np.int32), None
        for place, name in enumerate(tables):
            try:
                check_column("table", name)
                table = self._options.table or name
                names = self._names_code(table, tags)
                codes[place] = self._table_code(table)
            except BadLine:
                continue
        return codes, names

    def _add(self, tables: Codes, names: int) -> int:
        start = self._count
        self._tables.append(tables)
        self._names.append(np.full(len(tables), names, np.int32))
        self._count += len(tables)
        return start

    def _table_code(self, table: str) -> int:
        return self._table_codes.setdefault(table, len(self._table_codes))

    def _names_code(self, table: str, tags: Iterable[str]) -> int:
        names = frozenset((*tags, *self._static))
        declared = self._options.declared_types(table)
        for name in names:
            if name in declared:
                raise BadLine(f"column {name!r} of table {table!r} is a field and the line has it as a tag")
        return self._names_codes.setdefault(names, len(self._names_codes))

    def _close_singles(self) -> None:
        if self._singles:
            names = sorted({name for tags in self._singles for name in tags})
            columns = {name: pa.array([tags.get(name) for tags in self._singles], pa.string()) for name in names}
            self._blocks.append(_Block(len(self._singles), columns))
            self._singles = []


def _joined(parts: list[Codes]) -> Codes:
    """All parts as one array, kept as the only part."""
    if not parts:
        return np.empty(0, np.int32)
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]
