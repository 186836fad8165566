"""The bytes of a rollup file, and its columns under the newest schema of the table.

{"format": 1, "content_digest": "…", "digest": "…"}\\n      digest: xxh3-128 of what follows, in hex
an Arrow IPC stream (zstd) of one batch, or nothing for a segment whose rollup does not pay
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash

from headrace.consumers.store.batch_columns import Int64s, widen
from headrace.consumers.store.rollup import fields_of, widened_sum
from headrace.consumers.store.rollup_columns import FIRST_NS, HOUR, LAST_NS, ROWS, SERIES, Rolled, RollupColumn
from headrace.schemas.tables import FieldType, widened

ROLLUP_FORMAT = 1
_TIME_TYPE = pa.timestamp("ns")
_FIXED = (SERIES, HOUR, ROWS, FIRST_NS, LAST_NS)
_OF_ROWS = {Rolled.COUNT: ROWS, Rolled.FIRST_TIME: FIRST_NS, Rolled.LAST_TIME: LAST_NS}
"""What all rows have in common with those in which a field without nulls has a value."""
_TIMES = frozenset({Rolled.FIRST_TIME, Rolled.LAST_TIME})
_LONG = (Rolled.SUM_HIGH, Rolled.SUM_LOW)


@dataclass(slots=True)
class DecodedRollup:
    """What is decoded of a rollup: columns by name, of those that it has. Without `fields` it has no rows."""

    content_digest: str
    fields: Mapping[str, FieldType] | None
    names: frozenset[str] = frozenset()
    columns: dict[str, pa.Array] = field(default_factory=dict)
    size_bytes: int = 0

    def lacks(self, names: Collection[str]) -> bool:
        """Whether one of these columns is in the file and not decoded."""
        return bool(self.names.intersection(names) - self.columns.keys())

    def rows_of(self, places: Int64s) -> Int64s:
        """The rows of some series, by their places in the runs of the segment."""
        series = self.columns[SERIES].to_numpy()
        low, high = np.searchsorted(series, places), np.searchsorted(series, places, "right")
        lengths = high - low
        # Number of each row among those of its series.
        number = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Int64s = np.repeat(low, lengths) + number
        return rows


def columns_of(wanted: Collection[RollupColumn]) -> set[str]:
    """The columns of a file that may be needed."""
    names = set(_FIXED)
    for column in wanted:
        if column.field:
            parts = (Rolled.SUM, *_LONG) if column.kind is Rolled.SUM else (column.kind,)
            names |= {part.of(column.field) for part in parts}
    return names


def encode_rollup(content_digest: str, batch: pa.RecordBatch | None) -> bytes:
    """The bytes of a file."""
    stream = b""
    if batch is not None:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        stream = sink.getvalue().to_pybytes()
    head = {"format": ROLLUP_FORMAT, "content_digest": content_digest, "digest": xxhash.xxh3_128_hexdigest(stream)}
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + stream


def decode_rollup(data: bytes, content_digest: str, names: Collection[str]) -> DecodedRollup:
    """Those columns that a file has of `names`. Raises ValueError, KeyError, TypeError or ArrowException for other bytes."""
    line, _, stream = data.partition(b"\n")
    head = json.loads(line)
    if head["format"] != ROLLUP_FORMAT or head["content_digest"] != content_digest:
        raise ValueError("it is not of this segment")
    if head["digest"] != xxhash.xxh3_128_hexdigest(stream):
        raise ValueError("its bytes have changed")
    if not stream:
        return DecodedRollup(content_digest, None)
    with pa.ipc.open_stream(stream) as reader:
        schema = reader.schema
    present = [place for place, name in enumerate(schema.names) if name in names]
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=present)
    with pa.ipc.open_stream(stream, options=options) as reader:
        batch = reader.read_next_batch()
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return DecodedRollup(content_digest, fields_of(schema), frozenset(schema.names), columns)


def time_of(rollup: DecodedRollup, name: str) -> pa.Array:
    """A column of times."""
    return rollup.columns[name].view(_TIME_TYPE)


def values_of(rollup: DecodedRollup, wanted: RollupColumn, types: Mapping[str, FieldType]) -> pa.Array | None:
    """A column that a query wants, under the newest types of fields; None where the rollup cannot give it."""
    kind, name = wanted.kind, wanted.field
    if not name:
        return time_of(rollup, _OF_ROWS[kind]) if kind in _TIMES else rollup.columns[ROWS]
    assert rollup.fields is not None, name
    have, want = rollup.fields.get(name), types[name]
    if have is None:
        return _absent(kind, want, len(rollup.columns[ROWS]))
    if widened(have, want) is not want:
        return None
    if kind in _OF_ROWS:
        return _of_rows(rollup, kind, name)
    if kind is Rolled.SUM and have is FieldType.INT64:
        high, low = (rollup.columns.get(part.of(name)) for part in _LONG)
        return None if high is None or low is None else widened_sum(high, low)
    found = rollup.columns.get(kind.of(name))
    if found is None or have is want or kind in _LONG:
        return found
    return widen(found, want.arrow)


def _of_rows(rollup: DecodedRollup, kind: Rolled, name: str) -> pa.Array:
    own = kind.of(name)
    column = own if own in rollup.names else _OF_ROWS[kind]
    return time_of(rollup, column) if kind in _TIMES else rollup.columns[column]


def _absent(kind: Rolled, want: FieldType, rows: int) -> pa.Array:
    """The column of a field that the segment does not have: null in every row."""
    if kind is Rolled.COUNT:
        return pa.array(np.zeros(rows, np.int64))
    if kind in _TIMES:
        return pa.nulls(rows, _TIME_TYPE)
    if kind in _LONG:
        return pa.nulls(rows, pa.int64())
    return pa.nulls(rows, pa.float64() if kind is Rolled.SUM else want.arrow)
