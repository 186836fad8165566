"""Chunks of rows, and the builder that unifies their types and concatenates them into one table per name.

A chunk comes from many lines of one shape, or from lines that the scanner read one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.column_names import known_names, name_clashes
from headrace.connectors.formats.interface import (
    LINE_COLUMN,
    MESSAGE_COLUMN,
    REJECTED_LINES,
    REJECTED_MESSAGES,
    FieldValue,
    FormatOptions,
    ParseResult,
)
from headrace.connectors.formats.lines import Booleans, Integers, Lines
from headrace.connectors.formats.text_columns import Columns
from headrace.schemas.tables import TIME_COLUMN, FieldType, widened

Fields = Mapping[str, tuple[FieldType, FieldValue]]
K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Rows of one table in which every field has one type.

    `lines` are the numbers of the input lines (ascending), `times` are int64 ns, `keys` are the columns that
    identify the series of each row: tags, or the number of the series.
    """

    table: str
    lines: Integers
    times: Integers
    keys: Columns
    fields: Columns


@dataclass(slots=True)
class Rejections:
    """The rejected lines of one input, with the reason of each."""

    _lines: list[int] = field(default_factory=list)
    _reasons: list[str] = field(default_factory=list)
    _alike: list[tuple[Integers, str]] = field(default_factory=list)

    def add(self, lines: Sequence[int] | Integers, reasons: str | Sequence[str]) -> None:
        """Reject `lines`, all for one reason or each for its own."""
        if isinstance(lines, np.ndarray) and isinstance(reasons, str):
            self._alike.append((lines, reasons))
            return
        numbers = lines.tolist() if isinstance(lines, np.ndarray) else lines
        self._lines.extend(numbers)
        self._reasons.extend([reasons] * len(numbers) if isinstance(reasons, str) else reasons)

    def table(self, lines: Lines | None) -> pa.Table:
        """The rejected lines in order of the input, each with its first reason (and its message)."""
        parts = [np.array(self._lines, np.int64), *(numbers for numbers, _ in self._alike)]
        texts = [pa.array(self._reasons, pa.string()), *(pa.repeat(text, len(each)) for each, text in self._alike)]
        # A line may be rejected twice, by its time and by a field: return_index yields the first of them.
        numbers, first = np.unique(np.concatenate(parts), return_index=True)
        reasons = pa.chunked_array(texts, pa.string()).take(pa.array(first)).combine_chunks()
        if lines is None or lines.messages is None or lines.numbers is None:
            return pa.table([pa.array(numbers), reasons], schema=REJECTED_LINES)
        return pa.table(
            [pa.array(lines.messages[numbers]), pa.array(lines.numbers[numbers]), reasons], schema=REJECTED_MESSAGES
        )


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """Builds the tables of one parse from chunks; `tag_columns` derives tag columns from key columns."""

    options: FormatOptions
    lines: Lines
    rejections: Rejections
    tag_columns: Callable[[Columns, int], Columns]
    keep_lines: bool

    def build(self, chunks: Iterable[TableChunk]) -> ParseResult:
        """The tables of `chunks`, and all rejections so far."""
        by_table: dict[str, list[TableChunk]] = defaultdict(list)
        for chunk in chunks:
            if len(chunk.lines):
                by_table[chunk.table].append(chunk)
        tables = {name: self._table(name, by_table[name]) for name in sorted(by_table)}
        kept = {name: table for name, table in tables.items() if table is not None}
        return ParseResult(kept, self.rejections.table(self.lines), self.lines.count)

    def _table(self, name: str, chunks: list[TableChunk]) -> pa.Table | None:
        chunks, types = self._unify_types(name, chunks)
        if not chunks:
            return None
        # Chunks are grouped by shape, so lines of different shapes may have to be sorted again.
        numbers = np.concatenate([chunk.lines for chunk in chunks])
        order = None if len(chunks) == 1 or is_sorted(numbers) else pa.array(np.argsort(numbers, kind="stable"))
        lengths = [len(chunk.lines) for chunk in chunks]
        key_names = sorted({key for chunk in chunks for key in chunk.keys})
        keys = {
            key: _concat_column([chunk.keys.get(key) for chunk in chunks], lengths, None, order) for key in key_names
        }
        tags = self.tag_columns(keys, len(numbers))
        times = _concat_column([pa.array(chunk.times) for chunk in chunks], lengths, pa.int64(), order)
        fields = {
            field_name: _concat_column([chunk.fields.get(field_name) for chunk in chunks], lengths, kind.arrow, order)
            for field_name, kind in sorted(types.items())
        }
        numbers = numbers if order is None else numbers[order.to_numpy()]
        refused = self._clashing(name, tags, fields, numbers)
        if refused is not None:
            numbers, times = numbers[~refused], times.filter(pa.array(~refused))
            tags, fields = _present(tags, ~refused), _present(fields, ~refused)
        columns = {**tags, TIME_COLUMN: times, **fields}
        if self.keep_lines:
            self._add_lines(columns, numbers)
        return pa.table(columns) if len(numbers) else None

    def _clashing(self, table: str, tags: Columns, fields: Columns, numbers: Integers) -> Booleans | None:
        """The rows whose names are those of other columns, which are rejected; None for none."""
        known = known_names(self.options.declared_tags.get(table, ()), self.options.declared_types(table))
        refused: Booleans | None = None
        for name, rows, why in name_clashes(tags, fields, known):
            self.rejections.add(numbers[rows], f"{name.role} {name.name!r} of table {table!r} {why}")
            refused = rows if refused is None else refused | rows
        return refused

    def _add_lines(self, columns: Columns, numbers: Integers) -> None:
        if self.lines.messages is not None and self.lines.numbers is not None:
            columns[MESSAGE_COLUMN] = pa.array(self.lines.messages[numbers])
            numbers = self.lines.numbers[numbers]
        columns[LINE_COLUMN] = pa.array(numbers)

    def _unify_types(self, table: str, chunks: list[TableChunk]) -> tuple[list[TableChunk], dict[str, FieldType]]:
        """The rows whose field types agree, and the type of each column they have.

        A declared type decides, otherwise the first line that has the field, among the lines that agree with
        the declared types. int64 and float64 in one field become float64; a line with any other difference is
        rejected.
        """
        declared = self.options.declared_types(table)
        chunks = self._matching((self._without_twins(_without_empty(chunk)) for chunk in chunks), declared)
        chunks = self._matching(chunks, _first_types(chunks))
        return chunks, _seen_types(chunks, declared)

    def _without_twins(self, chunk: TableChunk) -> TableChunk:
        """The rows that have no two fields whose names differ only in case; others are rejected, whichever is known."""
        spellings = defaultdict[str, list[str]](list)
        for name in sorted(chunk.fields):
            spellings[name.lower()].append(name)
        refused = np.zeros(len(chunk.lines), np.bool_)
        for first, *others in [each for each in spellings.values() if len(each) > 1]:
            present = [chunk.fields[name].is_valid().to_numpy(zero_copy_only=False) for name in (first, *others)]
            twins = np.sum(present, axis=0) > 1
            if twins.any():
                problem = f"fields {first!r} and {others[-1]!r} of table {chunk.table!r} differ only in case"
                self.rejections.add(chunk.lines[twins], problem)
                refused |= twins
        return _filtered(chunk, pa.array(~refused)) if refused.any() else chunk

    def _matching(self, chunks: Iterable[TableChunk], types: Mapping[str, FieldType]) -> list[TableChunk]:
        matching = (self._matching_rows(chunk, types) for chunk in chunks)
        return [chunk for chunk in matching if len(chunk.lines)]

    def _matching_rows(self, chunk: TableChunk, types: Mapping[str, FieldType]) -> TableChunk:
        """The rows of a chunk whose fields agree with `types`; rows with a conflict are rejected."""
        # SQL does not distinguish names by case, so two fields that differ only in case would be one column.
        folded = {name.lower(): name for name in types}
        tags = {*self.options.declared_tags.get(chunk.table, ()), *dict(self.options.static_tags)}
        for name in list(chunk.fields):
            values = chunk.fields.get(name)
            if values is None:
                continue
            problem = _problem(name, kind_of(values), types.get(name), folded.get(name.lower(), name), name in tags)
            if problem is not None:
                present = values.is_valid()
                rejected = chunk.lines[present.to_numpy(zero_copy_only=False)]
                self.rejections.add(rejected, f"field {name!r} of table {chunk.table!r} {problem}")
                chunk = _filtered(chunk, pc.invert(present), without=name)
        return chunk


def _problem(name: str, seen: FieldType, known: FieldType | None, same_folded: str, is_tag: bool) -> str | None:
    if is_tag:
        return "is a tag and the line has it as a field"
    if known is None:
        return f"differs from {same_folded!r} only in case" if same_folded != name else None
    return f"is {known} and the line has {seen}" if widened(known, seen) is None else None


def _present(columns: Columns, rows: Booleans) -> Columns:
    """Some rows of the columns that these rows have."""
    found = {name: values.filter(pa.array(rows)) for name, values in columns.items()}
    return {name: values for name, values in found.items() if values.null_count < len(values)}


def _filtered(chunk: TableChunk, mask: pa.Array, without: str | None = None) -> TableChunk:
    keep = mask.to_numpy(zero_copy_only=False)
    keys = {name: column.filter(mask) for name, column in chunk.keys.items()}
    fields = {name: column.filter(mask) for name, column in chunk.fields.items() if name != without}
    return _without_empty(TableChunk(chunk.table, chunk.lines[keep], chunk.times[keep], keys, fields))


def _without_empty(chunk: TableChunk) -> TableChunk:
    """The chunk without the fields that none of its rows has."""
    fields = {name: column for name, column in chunk.fields.items() if column.null_count < len(column)}
    return chunk if len(fields) == len(chunk.fields) else replace(chunk, fields=fields)


def kind_of(values: pa.Array) -> FieldType:
    """The field type of a column of values."""
    kind = FieldType.of_arrow(values.type)
    assert kind is not None
    return kind


def _first_types(chunks: list[TableChunk]) -> dict[str, FieldType]:
    """The type of each field in the first line that has it; names that differ only in case count as one."""
    firsts: dict[str, tuple[int, str, FieldType]] = {}
    for chunk in chunks:
        for name, values in chunk.fields.items():
            first = 0 if values.null_count == 0 else pc.index(values.is_valid(), value=True).as_py()
            candidate = (int(chunk.lines[first]), name, kind_of(values))
            firsts[name.lower()] = min(candidate, firsts.get(name.lower(), candidate))
    return {name: kind for _, name, kind in firsts.values()}


def _seen_types(chunks: list[TableChunk], declared: Mapping[str, FieldType]) -> dict[str, FieldType]:
    types: dict[str, FieldType] = {}
    for chunk in chunks:
        for name, values in chunk.fields.items():
            seen = kind_of(values)
            wide = widened(types.get(name, seen), seen)
            assert wide is not None
            types[name] = wide
    # A table has the types that were seen; the writer widens the schema. Only float64 is applied here.
    for name, kind in types.items():
        if declared.get(name) is FieldType.FLOAT64:
            types[name] = widened(kind, FieldType.FLOAT64) or kind
    return types


def _concat_column(
    columns: list[pa.Array | None], lengths: list[int], kind: pa.DataType | None, order: pa.Array | None
) -> pa.Array:
    """Columns concatenated to one array, missing ones as nulls, in the given order."""
    wanted = kind or next(column.type for column in columns if column is not None)
    parts = [
        pa.nulls(length, wanted)
        if column is None
        else column
        if column.type == wanted
        else pc.cast(column, wanted, safe=False)
        for column, length in zip(columns, lengths, strict=True)
    ]
    whole = parts[0] if len(parts) == 1 else concat_arrays(parts)
    return reorder(whole, order)


def is_sorted(numbers: Integers) -> bool:
    """Whether `numbers` are ascending."""
    return bool(np.all(numbers[1:] >= numbers[:-1]))


def reorder(column: pa.Array, order: pa.Array | None) -> pa.Array:
    """A column in `order`; None leaves it as it is."""
    return column if order is None else column.take(order)


def concat_arrays(parts: Sequence[pa.Array]) -> pa.Array:
    """Arrays of one type concatenated, dictionaries unified."""
    if len(parts) == 1:
        return parts[0]
    chunked = pa.chunked_array(parts)
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.unify_dictionaries()
    return chunked.combine_chunks()


@dataclass(slots=True)
class ScannedChunk(Generic[K, T]):
    """Scanned rows of one table in which every field has one type, with the keys and times of the parser."""

    kinds: dict[str, FieldType] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    keys: list[K] = field(default_factory=list)
    times: list[T] = field(default_factory=list)
    rows: list[Mapping[str, FieldValue]] = field(default_factory=list)

    def accepts(self, fields: Fields) -> bool:
        """Whether a row with these fields has the same types."""
        return all(self.kinds.get(name, kind) is kind for name, (kind, _) in fields.items())

    def add(self, line: int, key: K, time: T, fields: Fields) -> None:
        """Append a row that is accepted."""
        self.kinds.update((name, kind) for name, (kind, _) in fields.items())
        self.numbers.append(line)
        self.keys.append(key)
        self.times.append(time)
        self.rows.append({name: value for name, (_, value) in fields.items()})

    @property
    def lines(self) -> Integers:
        """The line numbers of the rows."""
        return np.array(self.numbers, np.int64)

    def columns(self) -> Columns:
        """The fields as columns, null where a row lacks one."""
        return {name: pa.array([row.get(name) for row in self.rows], kind.arrow) for name, kind in self.kinds.items()}


@dataclass(slots=True)
class ScannedRows(Generic[K, T]):
    """Scanned rows by table, in as few chunks as the types of their fields allow."""

    # Rows with different fields share a chunk: otherwise random optional fields give a chunk for each row.
    _chunks: dict[str, list[ScannedChunk[K, T]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: str, line: int, key: K, time: T, fields: Fields) -> None:
        """Append one row."""
        chunks = self._chunks[table]
        chunk = next((chunk for chunk in chunks if chunk.accepts(fields)), None)
        if chunk is None:
            chunk = ScannedChunk()
            chunks.append(chunk)
        chunk.add(line, key, time, fields)

    def chunks(self) -> Iterator[tuple[str, ScannedChunk[K, T]]]:
        """All chunks with their tables."""
        for table, chunks in self._chunks.items():
            for chunk in chunks:
                yield table, chunk
