"""Chunks of rows of one table, and the rejected lines of an input.

A chunk comes from many lines of one shape, or from lines that the scanner read one by one. `table_builder` makes tables of
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import (
    REJECTED_LINES,
    REJECTED_MESSAGES,
    FieldValue,
)
from headrace.connectors.formats.lines import Integers, Lines
from headrace.connectors.formats.text_columns import Columns
from headrace.schemas.tables import FieldType

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

    def where(self, mask: pa.Array, without: str | None = None) -> TableChunk:
        """The rows that `mask` has, without one of the fields."""
        keep = mask.to_numpy(zero_copy_only=False)
        keys = {name: column.filter(mask) for name, column in self.keys.items()}
        fields = {name: column.filter(mask) for name, column in self.fields.items() if name != without}
        return TableChunk(self.table, self.lines[keep], self.times[keep], keys, fields).without_empty_fields()

    def without_empty_fields(self) -> TableChunk:
        """The chunk without the fields that none of its rows has."""
        fields = {name: column for name, column in self.fields.items() if column.null_count < len(column)}
        return self if len(fields) == len(self.fields) else replace(self, fields=fields)

    def first_line(self, name: str) -> int:
        """The first line that has a value of the field `name`."""
        values = self.fields[name]
        first = 0 if values.null_count == 0 else pc.index(values.is_valid(), value=True).as_py()
        return int(self.lines[first])

    def kinds(self) -> dict[str, FieldType]:
        """The type of each field."""
        return {name: _kind_of(values) for name, values in self.fields.items()}


def _kind_of(values: pa.Array) -> FieldType:
    kind = FieldType.of_arrow(values.type)
    assert kind is not None, values.type
    return kind


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
