"""Joins small batches to large ones: raw messages before they are parsed, and rows before they become forward
messages. Pure.

Where a batch ends depends on counts and sizes alone, never on a clock or on how Kafka delivered: a task that
runs again cuts the same input into the same messages, and replicas drop them as repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.tables import TableSchema

# Parsing is cheapest for many lines at once; a worker holds such a batch twice while it is concatenated.
INPUT_MESSAGES_MAX = 65_536
INPUT_BYTES_MAX = 32 * 1024 * 1024
# Each forward message costs a record, a journal entry and a decode: 100,000 rows make that negligible.
ROWS_PER_GROUP = 100_000
BYTES_PER_GROUP = 24 * 1024 * 1024
ACCUMULATED_BYTES_MAX = 96 * 1024 * 1024


def rebatch(
    batches: Iterable[pa.RecordBatch], messages_max: int = INPUT_MESSAGES_MAX, bytes_max: int = INPUT_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The messages in order, each once, in larger batches; never an empty one.

    Each batch but the last ends with the message that reaches `messages_max` or `bytes_max` bytes of values.
    """
    accumulated: list[pa.RecordBatch] = []
    messages = size_bytes = 0
    for batch in batches:
        lengths = _value_lengths(batch)
        while batch.num_rows:
            count = min(batch.num_rows, messages_max - messages)
            filled = size_bytes + int(lengths[:count].sum()) >= bytes_max
            if filled:
                count = 1 + int(np.searchsorted(np.cumsum(lengths[:count]), bytes_max - size_bytes))
            accumulated.append(batch.slice(0, count))
            messages += count
            size_bytes += int(lengths[:count].sum())
            batch, lengths = batch.slice(count), lengths[count:]
            if filled or messages == messages_max:
                yield pa.concat_batches(accumulated)
                accumulated, messages, size_bytes = [], 0, 0
    if accumulated:
        yield pa.concat_batches(accumulated)


def _value_lengths(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The bytes of each value, 0 for a null."""
    values = batch["value"]
    if values.null_count or not len(values):
        return np.asarray(pc.fill_null(pc.binary_length(values), 0), dtype=np.int64)
    # A batch of a thousand messages takes a kernel longer to begin than to end.
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets).astype(np.int64)


@dataclass(slots=True)
class _TableBuffer:
    schema: TableSchema
    chunks: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FlushedRows:
    """Rows of one table in order of arrival, under one version of its schema."""

    schema: TableSchema
    rows: pa.Table


class RowAccumulator:
    """Accumulates the rows of one task by table.

    `groups` is the number of data groups, each of which gets a part of a table's rows.
    """

    def __init__(self, groups: int) -> None:
        self._rows_max = ROWS_PER_GROUP * groups
        # At most half of the limit for one table, so that a second table need not flush it early.
        self._bytes_max = min(BYTES_PER_GROUP * groups, ACCUMULATED_BYTES_MAX // 2)
        self._bytes = 0
        self._buffers: dict[str, _TableBuffer] = {}

    def add(self, schema: TableSchema, rows: pa.Table) -> list[FlushedRows]:
        """Add rows that match `schema`; returns what is full. The rows of a table keep their order."""
        buffer = self._buffers.setdefault(schema.table, _TableBuffer(schema))
        if schema.version > buffer.schema.version:
            # Later versions only add or widen columns, so the accumulated rows match them too.
            buffer.schema = schema
        buffer.chunks.append(rows)
        buffer.rows += rows.num_rows
        buffer.bytes += rows.nbytes
        self._bytes += rows.nbytes
        flushed: list[FlushedRows] = []
        if buffer.rows >= self._rows_max or buffer.bytes >= self._bytes_max:
            flushed.append(self._flush(schema.table))
        while self._bytes > ACCUMULATED_BYTES_MAX:
            # The name breaks ties: a replayed task has to flush the same table first.
            flushed.append(self._flush(max(self._buffers, key=lambda name: (self._buffers[name].bytes, name))))
        return flushed

    def finish(self) -> list[FlushedRows]:
        """All remaining rows, tables in order of name."""
        return [self._flush(table) for table in sorted(self._buffers)]

    def _flush(self, table: str) -> FlushedRows:
        buffer = self._buffers.pop(table)
        self._bytes -= buffer.bytes
        chunks = [_widened(buffer.schema, chunk) for chunk in buffer.chunks]
        return FlushedRows(buffer.schema, pa.concat_tables(chunks, promote_options="default"))


def _widened(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """The rows with each field in the table's type; the only change of type is int64 to float64."""
    for name, kind in schema.fields:
        index = rows.schema.get_field_index(name)
        if index >= 0 and rows.schema.field(index).type != kind.arrow:
            rows = rows.set_column(index, name, rows.column(index).cast(kind.arrow, safe=False))
    return rows
