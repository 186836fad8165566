"""The registry of the distinct series of one input: each is parsed once, however many rows it has.

Many new series of one shape are parsed together, as the first batch of a fleet of devices has one for each
row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.connectors.formats.chunks import concat_arrays
from headrace.connectors.formats.interface import FormatOptions, InvalidLine, check_column
from headrace.connectors.formats.kernel_types import ValueKind
from headrace.connectors.formats.line_scanner import Series, parse_series
from headrace.connectors.formats.lines import Booleans, Integers, lines_of_messages
from headrace.connectors.formats.templates import MatchedLines, Matcher, Template
from headrace.connectors.formats.text_columns import Columns, encode_tags, to_arrow, with_static_tags

Codes = npt.NDArray[np.int32]
INVALID = -1
# Fewer new series than this are parsed one by one: a template costs more than they do.
BATCH_SERIES_MIN = 32


@dataclass(frozen=True, slots=True)
class _SeriesBatch:
    """Series with consecutive ids: the values of each of their tags, null where a series lacks the tag."""

    count: int
    tags: Columns


@dataclass(frozen=True)
class _SeriesShape:
    """Series with the same tags in the same order."""

    tag_names: tuple[str, ...]

    @cached_property
    def template(self) -> Template:
        """The template of their text: the measurement, then the value of each tag."""
        values = len(self.tag_names) + 1
        return Template(
            (b"", *(f",{name}=".encode() for name in self.tag_names)), (b"",) * values, (ValueKind.TEXT,) * values
        )


class SeriesRegistry:
    """The ids of the series of one parse, with the table and the tags of each. Not thread-safe.

    The fixed table and the static tags of the options are applied here. A series whose tags are written in
    several orders has several ids; an id has one series.
    """

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._static = tuple(name for name, _ in options.static_tags)
        self._known: dict[str, int] = {}
        self._scanned: dict[Series, int] = {}
        self._table_codes: dict[str, int] = {}
        self._tag_set_codes: dict[frozenset[str], int] = {}
        self._tables: list[Codes] = []
        self._tag_sets: list[Codes] = []
        self._batches: list[_SeriesBatch] = []
        self._singles: list[Mapping[str, str]] = []
        self._count = 0

    def register(self, series: Series) -> int:
        """The id of a scanned series. Raises InvalidLine if one of its tags is a declared field."""
        known = self._scanned.get(series)
        if known is not None:
            return known
        table = self._options.table or series.table
        tag_set = self._tag_set_code(table, (name for name, _ in series.tags))
        self._singles.append(dict(series.tags))
        return self._scanned.setdefault(series, self._add(np.full(1, self._table_code(table), np.int32), tag_set))

    def register_texts(self, texts: pa.DictionaryArray) -> Codes:
        """The ids of series in line protocol; `INVALID` where a text is not exactly one series."""
        distinct = texts.dictionary.to_pylist()
        fresh = [text for text in distinct if text not in self._known]
        if len(fresh) > BATCH_SERIES_MIN:
            fresh = self._register_batch(fresh)
        for text in fresh:
            self._known[text] = self._read(text)
        lookup = np.array([self._known[text] for text in distinct], np.int32)
        ids: Codes = lookup[np.asarray(texts.indices)]
        return ids

    def disjoint_from(self, fields: Iterable[str], ids: Codes) -> Booleans:
        """Which of `ids` are series without a tag that is one of `fields`."""
        # Tag sets are few and series many, so each set is compared once. The last code is `INVALID`'s.
        names = frozenset(fields)
        allowed = np.array([*(names.isdisjoint(tags) for tags in self._tag_set_codes), False])
        codes = np.append(_concat_codes(self._tag_sets), np.int32(len(allowed) - 1))
        disjoint: Booleans = allowed[codes[ids]]
        return disjoint

    def rows_by_table(self, ids: Codes) -> dict[str, Integers | None]:
        """The rows of `ids` that belong to each table, ascending; None if all belong to one table."""
        owners = _concat_codes(self._tables)[ids]
        tables = list(self._table_codes)
        present = np.flatnonzero(np.bincount(owners, minlength=len(tables)))
        if len(present) == 1:
            return {tables[present[0]]: None}
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(tables) + 1))
        return {tables[code]: order[bounds[code] : bounds[code + 1]] for code in present}

    def tag_columns(self, ids: Codes) -> Columns:
        """The tag columns, by name, of rows given by the ids of their series."""
        # Tags are encoded over the distinct series that occur; only their codes are spread over the rows.
        seen = np.zeros(self._count, np.bool_)
        seen[ids] = True
        used = np.flatnonzero(seen)
        positions = np.zeros(self._count, np.int32)
        positions[used] = np.arange(len(used))
        rows = pa.array(positions[ids])
        columns: Columns = {}
        for name, values in self._all_columns().items():
            own = values.take(pa.array(used))
            if own.null_count < len(own):
                codes = encode_tags(own)
                columns[name] = pa.DictionaryArray.from_arrays(codes.indices.take(rows), codes.dictionary)
        return with_static_tags(columns, len(ids), self._options)

    def _all_columns(self) -> Columns:
        """Every tag as a column over all series; the batches are merged, so that the next call is free."""
        self._flush_singles()
        if len(self._batches) > 1:
            tag_names = sorted({name for batch in self._batches for name in batch.tags})
            parts = {
                name: [batch.tags.get(name, pa.nulls(batch.count, pa.string())) for batch in self._batches]
                for name in tag_names
            }
            self._batches = [
                _SeriesBatch(self._count, {name: concat_arrays(columns) for name, columns in parts.items()})
            ]
        return self._batches[0].tags if self._batches else {}

    def _read(self, text: str) -> int:
        series = parse_series(text)
        try:
            return INVALID if series is None else self.register(series)
        except InvalidLine:
            return INVALID

    def _register_batch(self, texts: Sequence[str]) -> list[str]:
        """Register the texts that share their shape with many others; returns the rest."""
        lines = lines_of_messages(pa.array(texts, pa.string()))
        whole = pl.Series(texts)
        # Escapes, spaces and comments are left to the scanner.
        irregular = (
            whole.str.contains("\\", literal=True) | whole.str.contains(" ", literal=True) | whole.str.starts_with("#")
        )
        equals = whole.str.count_matches("=", literal=True).to_numpy()

        def infer_shape(line: int) -> _SeriesShape | None:
            series = parse_series(texts[line])
            return None if series is None else _SeriesShape(tuple(name for name, _ in series.tags))

        def accept(shape: _SeriesShape, matched: MatchedLines) -> Integers:
            # A template only finds commas: a value with an equals sign, or an empty one, is not plain either.
            columns = [matched.texts(index) for index in range(shape.template.columns)]
            good = equals[matched.rows] == len(shape.tag_names)
            for values in columns:
                good &= (values.str.len_bytes() > 0).to_numpy()
            return self._register_matched(shape, matched, columns[1:], good, texts)

        matcher = Matcher(lines, infer_shape, accept)
        regular = (~irregular).to_numpy()
        rest = [np.flatnonzero(~regular)]
        for first, last in lines.batches():
            rest.append(matcher.consume(first + np.flatnonzero(regular[first:last])))
        return [texts[line] for line in np.concatenate(rest).tolist()]

    def _register_matched(
        self,
        shape: _SeriesShape,
        matched: MatchedLines,
        tags: Sequence[pl.Series],
        good: Booleans,
        texts: Sequence[str],
    ) -> Integers:
        """Register the good rows of a match whose tables may have these tags; returns those rows."""
        tables = matched.dictionary(0)
        codes, tag_set = self._table_lookup(tables.dictionary.to_pylist(), shape.tag_names)
        owners = codes[np.asarray(tables.indices)]
        good &= owners != INVALID
        if tag_set is None or not good.any():
            return matched.rows[:0]
        kept = matched.rows[good]
        keep = pl.Series(good)
        values = [to_arrow(tag.filter(keep)) for tag in tags]
        # Batches are in order of their ids, so series registered one by one come before this one.
        self._flush_singles()
        start = self._add(owners[good], tag_set)
        self._batches.append(_SeriesBatch(len(kept), dict(zip(shape.tag_names, values, strict=True))))
        self._known.update((texts[row], start + index) for index, row in enumerate(kept.tolist()))
        return kept

    def _table_lookup(self, tables: Sequence[str], tags: Sequence[str]) -> tuple[Codes, int | None]:
        """The code of each table (`INVALID` if it cannot have these tags), and the code of the tags."""
        codes, tag_set = np.full(len(tables), INVALID, np.int32), None
        for index, name in enumerate(tables):
            try:
                check_column("table", name)
                table = self._options.table or name
                tag_set = self._tag_set_code(table, tags)
                codes[index] = self._table_code(table)
            except InvalidLine:
                continue
        return codes, tag_set

    def _add(self, tables: Codes, tag_set: int) -> int:
        start = self._count
        self._tables.append(tables)
        self._tag_sets.append(np.full(len(tables), tag_set, np.int32))
        self._count += len(tables)
        return start

    def _table_code(self, table: str) -> int:
        return self._table_codes.setdefault(table, len(self._table_codes))

    def _tag_set_code(self, table: str, tags: Iterable[str]) -> int:
        tag_names = frozenset((*tags, *self._static))
        declared = self._options.declared_types(table)
        for name in tag_names:
            if name in declared:
                raise InvalidLine(f"tag {name!r} of table {table!r} is a field and the line has it as a tag")
        return self._tag_set_codes.setdefault(tag_names, len(self._tag_set_codes))

    def _flush_singles(self) -> None:
        if self._singles:
            tag_names = sorted({name for tags in self._singles for name in tags})
            columns = {name: pa.array([tags.get(name) for tags in self._singles], pa.string()) for name in tag_names}
            self._batches.append(_SeriesBatch(len(self._singles), columns))
            self._singles = []


def _concat_codes(parts: list[Codes]) -> Codes:
    """All parts as one array, which replaces them."""
    if not parts:
        return np.empty(0, np.int32)
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]
