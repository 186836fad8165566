"""Rows of one table that wait until there are enough of them for a big forward message. Pure.

What leaves together is decided by counts and sizes alone, never by a clock: the same input is cut into the same messages again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from schemas.tables import TableSchema

ROWS_PER_GROUP = 100_000
BYTES_PER_GROUP = 24 * 1024 * 1024
BYTES_MAX = 96 * 1024 * 1024


@dataclass(slots=True)
class _Waiting:
    schema: TableSchema
    pieces: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Flushed:
    """Rows that leave together, in order of arrival, under one version of their table."""

    schema: TableSchema
    rows: pa.Table


class PendingRows:
    """The waiting rows of one task, by table. `groups` is how many data groups share the rows of a table: each gets a part of them."""

    def __init__(self, groups: int) -> None:
        self._rows_max = ROWS_PER_GROUP * groups
        self._bytes_max = min(BYTES_PER_GROUP * groups, BYTES_MAX // 2)
        self._bytes = 0
        self._waiting: dict[str, _Waiting] = {}

    def add(self, schema: TableSchema, rows: pa.Table) -> list[Flushed]:
        """Take rows that fit `schema`; what must leave now, the rows of a table in order of arrival."""
        waiting = self._waiting.setdefault(schema.table, _Waiting(schema))
        if schema.version > waiting.schema.version:
            # Later versions only add or widen, so what waits fits them too.
            waiting.schema = schema
        waiting.pieces.append(rows)
        waiting.rows += rows.num_rows
        waiting.bytes += rows.nbytes
        self._bytes += rows.nbytes
        flushed: list[Flushed] = []
        if waiting.rows >= self._rows_max or waiting.bytes >= self._bytes_max:
            flushed.append(self._flush(schema.table))
        while self._bytes > BYTES_MAX:
            flushed.append(self._flush(max(self._waiting, key=lambda name: (self._waiting[name].bytes, name))))
        return flushed

    def finish(self) -> list[Flushed]:
        """Everything that still waits, tables in order of name."""
        return [self._flush(table) for table in sorted(self._waiting)]

    def _flush(self, table: str) -> Flushed:
        waiting = self._waiting.pop(table)
        self._bytes -= waiting.bytes
        pieces = [_widened(waiting.schema, piece) for piece in waiting.pieces]
        return Flushed(waiting.schema, pa.concat_tables(pieces, promote_options="default"))


def _widened(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """The rows with each field in the type of the table; the only change of type there is, is int64 to float64."""
    for name, kind in schema.fields:
        index = rows.schema.get_field_index(name)
        if index >= 0 and rows.schema.field(index).type != kind.arrow:
            rows = rows.set_column(index, name, rows.column(index).cast(kind.arrow, safe=False))
    return rows
