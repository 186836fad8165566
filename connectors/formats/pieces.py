"""From pieces of equal shape to one table each, with the types of the fields decided and the lines that clash refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.lines import Integers, Lines
from connectors.formats.parsed import (
    LINE_COLUMN,
    MESSAGE_COLUMN,
    REJECTED_LINES,
    REJECTED_MESSAGES,
    FormatOptions,
    Parsed,
)
from schemas.tables import TIME_COLUMN, FieldType, widened

Columns = dict[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one table that came from lines of one shape: every field has one type in all of them.

    `lines` are the numbers of the input lines (ascending), `times` int64 ns, `keys` whatever columns say which series each row belongs to.
    """

    table: str
    lines: Integers
    times: Integers
    keys: Columns
    fields: Columns


@dataclass(slots=True)
class Rejections:
    """The lines that are not taken, with the reason of each."""

    _lines: list[int] = field(default_factory=list)
    _reasons: list[str] = field(default_factory=list)

    def add(self, lines: Sequence[int] | Integers, reasons: str | Sequence[str]) -> None:
        """Refuse `lines`, all for one reason or each for its own."""
        numbers = lines.tolist() if isinstance(lines, np.ndarray) else lines
        self._lines.extend(numbers)
        self._reasons.extend([reasons] * len(numbers) if isinstance(reasons, str) else reasons)

    def table(self, lines: Lines | None) -> pa.Table:
        """All of them in order of the input, the first reason of each line; with message numbers when the input was messages."""
        numbers, first = np.unique(np.array(self._lines, np.int64), return_index=True)
        reasons = pa.array([self._reasons[place] for place in first], pa.string())
        if lines is None or lines.messages is None or lines.numbers is None:
            return pa.table([pa.array(numbers), reasons], schema=REJECTED_LINES)
        return pa.table(
            [pa.array(lines.messages[numbers]), pa.array(lines.numbers[numbers]), reasons], schema=REJECTED_MESSAGES
        )


@dataclass(frozen=True, slots=True)
class Assembly:
    """What turns pieces into tables. `tag_columns` makes the tag columns of a table from the key columns of its rows."""

    options: FormatOptions
    lines: Lines
    rejections: Rejections
    tag_columns: Callable[[Columns, int], Columns]
    keep_lines: bool

    def parsed(self, pieces: Iterable[Piece]) -> Parsed:
        """The tables of `pieces` and all rejections so far."""
        by_table: dict[str, list[Piece]] = defaultdict(list)
        for piece in pieces:
            if len(piece.lines):
                by_table[piece.table].append(piece)
        tables = {name: self._table(name, by_table[name]) for name in sorted(by_table)}
        kept = {name: table for name, table in tables.items() if table is not None}
        return Parsed(kept, self.rejections.table(self.lines), self.lines.count)

    def _table(self, name: str, pieces: list[Piece]) -> pa.Table | None:
        pieces, types = self._agree(name, pieces)
        if not pieces:
            return None
        numbers = np.concatenate([piece.lines for piece in pieces])
        order = None if len(pieces) == 1 or ascending(numbers) else pa.array(np.argsort(numbers, kind="stable"))
        lengths = [len(piece.lines) for piece in pieces]
        key_names = sorted({key for piece in pieces for key in piece.keys})
        keys = {key: _joined([piece.keys.get(key) for piece in pieces], lengths, None, order) for key in key_names}
        columns = self.tag_columns(keys, len(numbers))
        columns[TIME_COLUMN] = _joined([pa.array(piece.times) for piece in pieces], lengths, pa.int64(), order)
        for field_name, kind in sorted(types.items()):
            columns[field_name] = _joined(
                [piece.fields.get(field_name) for piece in pieces], lengths, kind.arrow, order
            )
        if self.keep_lines:
            self._add_lines(columns, numbers if order is None else numbers[order.to_numpy()])
        return pa.table(columns)

    def _add_lines(self, columns: Columns, numbers: Integers) -> None:
        if self.lines.messages is not None and self.lines.numbers is not None:
            columns[MESSAGE_COLUMN] = pa.array(self.lines.messages[numbers])
            numbers = self.lines.numbers[numbers]
        columns[LINE_COLUMN] = pa.array(numbers)

    def _agree(self, table: str, pieces: list[Piece]) -> tuple[list[Piece], dict[str, FieldType]]:
        """The pieces whose fields fit together, and the type of each column they have.

        A declared type decides; of an undeclared field the first line that has it does, among the lines that fit the declared ones. An int64
        field that meets a float64 one becomes float64; a line with any other difference is refused.
        """
        declared = self.options.declared_types(table)
        pieces = self._fitting((_without_empty(piece) for piece in pieces), declared)
        pieces = self._fitting(pieces, _first_types(pieces))
        return pieces, _seen_types(pieces, declared)

    def _fitting(self, pieces: Iterable[Piece], types: Mapping[str, FieldType]) -> list[Piece]:
        fitted = (self._fitted(piece, types) for piece in pieces)
        return [piece for piece in fitted if len(piece.lines)]

    def _fitted(self, piece: Piece, types: Mapping[str, FieldType]) -> Piece:
        """The rows of a piece that fit `types`; the others are refused. A row without the field that clashes fits."""
        folded = {name.lower(): name for name in types}
        tags = {*self.options.declared_tags.get(piece.table, ()), *dict(self.options.static_tags)}
        for name in list(piece.fields):
            values = piece.fields.get(name)
            if values is None:
                continue
            problem = _problem(name, kind_of(values), types.get(name), folded.get(name.lower(), name), name in tags)
            if problem is not None:
                present = values.is_valid()
                refused = piece.lines[present.to_numpy(zero_copy_only=False)]
                self.rejections.add(refused, f"field {name!r} of table {piece.table!r} {problem}")
                piece = _filtered(piece, pc.invert(present), without=name)
        return piece


def _problem(name: str, seen: FieldType, held: FieldType | None, same_folded: str, is_tag: bool) -> str | None:
    if is_tag:
        return "is a tag and the line has it as a field"
    if held is None:
        return f"differs from {same_folded!r} only in case" if same_folded != name else None
    return f"is {held} and the line has {seen}" if widened(held, seen) is None else None


def _filtered(piece: Piece, mask: pa.Array, without: str) -> Piece:
    keep = mask.to_numpy(zero_copy_only=False)
    keys = {name: column.filter(mask) for name, column in piece.keys.items()}
    fields = {name: column.filter(mask) for name, column in piece.fields.items() if name != without}
    return _without_empty(Piece(piece.table, piece.lines[keep], piece.times[keep], keys, fields))


def _without_empty(piece: Piece) -> Piece:
    """The piece without the fields that no row of it has."""
    fields = {name: column for name, column in piece.fields.items() if column.null_count < len(column)}
    return piece if len(fields) == len(piece.fields) else replace(piece, fields=fields)


def kind_of(values: pa.Array) -> FieldType:
    """The field type of a column of values."""
    kind = FieldType.of_arrow(values.type)
    assert kind is not None
    return kind


def _first_types(pieces: list[Piece]) -> dict[str, FieldType]:
    """The type that the first line with each field gives it; of names that differ only in case the first one."""
    firsts: dict[str, tuple[int, str, FieldType]] = {}
    for piece in pieces:
        for name, values in piece.fields.items():
            first = 0 if values.null_count == 0 else pc.index(values.is_valid(), value=True).as_py()
            candidate = (int(piece.lines[first]), name, kind_of(values))
            firsts[name.lower()] = min(candidate, firsts.get(name.lower(), candidate))
    return {name: kind for _, name, kind in firsts.values()}


def _seen_types(pieces: list[Piece], declared: Mapping[str, FieldType]) -> dict[str, FieldType]:
    types: dict[str, FieldType] = {}
    for piece in pieces:
        for name, values in piece.fields.items():
            seen = kind_of(values)
            wide = widened(types.get(name, seen), seen)
            assert wide is not None
            types[name] = wide
    for name, kind in types.items():
        if declared.get(name) is FieldType.FLOAT64:
            types[name] = widened(kind, FieldType.FLOAT64) or kind
    return types


def _joined(
    columns: list[pa.Array | None], lengths: list[int], kind: pa.DataType | None, order: pa.Array | None
) -> pa.Array:
    """Columns one after the other as one array, absent ones as nulls, in the given order."""
    wanted = kind or next(column.type for column in columns if column is not None)
    parts = [
        pa.nulls(length, wanted)
        if column is None
        else column
        if column.type == wanted
        else pc.cast(column, wanted, safe=False)
        for column, length in zip(columns, lengths, strict=True)
    ]
    whole = parts[0] if len(parts) == 1 else joined_array(parts)
    return in_order(whole, order)


def ascending(numbers: Integers) -> bool:
    """Whether `numbers` never go down."""
    return bool(np.all(numbers[1:] >= numbers[:-1]))


def in_order(column: pa.Array, order: pa.Array | None) -> pa.Array:
    """A column taken in `order`; None leaves it as it is."""
    return column if order is None else column.take(order)


def joined_array(parts: Sequence[pa.Array]) -> pa.Array:
    """Arrays of one type one after the other, dictionaries unified."""
    if len(parts) == 1:
        return parts[0]
    chunked = pa.chunked_array(parts)
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.unify_dictionaries()
    joined = chunked.combine_chunks()
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
