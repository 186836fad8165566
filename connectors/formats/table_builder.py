"""The builder that concatenates chunks into one table per name, and rejects the rows that do not fit together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.chunks import Rejections, TableChunk, concat_arrays, is_sorted, reorder
from headrace.connectors.formats.column_names import known_names, name_clashes
from headrace.connectors.formats.field_agreement import FieldAgreement
from headrace.connectors.formats.interface import LINE_COLUMN, MESSAGE_COLUMN, FormatOptions, ParseResult
from headrace.connectors.formats.lines import Booleans, Integers, Lines
from headrace.connectors.formats.row_rules import NO_SUCH_TIME, accepted_times
from headrace.connectors.formats.text_columns import Columns
from headrace.schemas.tables import TIME_COLUMN


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
            # A refused row decides no type and no role: before all other rules.
            timed = self._with_accepted_times(chunk)
            if len(timed.lines):
                by_table[chunk.table].append(timed)
        tables = {name: self._table(name, by_table[name]) for name in sorted(by_table)}
        kept = {name: table for name, table in tables.items() if table is not None}
        return ParseResult(kept, self.rejections.table(self.lines), self.lines.count)

    def _with_accepted_times(self, chunk: TableChunk) -> TableChunk:
        """The rows with a time that SQL has; others are rejected."""
        accepted = accepted_times(pa.array(chunk.times))
        if accepted is None:
            return chunk
        self.rejections.add(chunk.lines[~accepted], NO_SUCH_TIME)
        return chunk.where(pa.array(accepted))

    def _table(self, name: str, chunks: list[TableChunk]) -> pa.Table | None:
        chunks, types = FieldAgreement(self.options, self.rejections).agreeing(name, chunks)
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


def _present(columns: Columns, rows: Booleans) -> Columns:
    """Some rows of the columns that these rows have."""
    found = {name: values.filter(pa.array(rows)) for name, values in columns.items()}
    return {name: values for name, values in found.items() if values.null_count < len(values)}


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
