"""The newest row of every series, kept so that a last-row query reads no file.

The value of one bucket of a table is an Arrow IPC stream (zstd) with one row a series: `__series` (series key), `time` (ns), `__era`,
`__stale`, then the fields. A stale row is one that a delete hid without telling what is older: the newest row of that series is unknown until a
row at least as new arrives, and whoever needs it must scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumers.store.kernel import field_column
from consumers.store.segment import SegmentRows
from consumers.store.series import series_mask, tag_column
from consumers.store.tombstones import Tombstone
from schemas.payload import SERIES_COLUMN
from schemas.tables import TIME_COLUMN, FieldType, TableSchema

ERA_COLUMN = "__era"
STALE_COLUMN = "__stale"
_FIXED = (SERIES_COLUMN, TIME_COLUMN, ERA_COLUMN, STALE_COLUMN)


def last_of_segment(rows: SegmentRows, era: int) -> pa.RecordBatch:
    """The newest row of each series of a segment."""
    ends = np.cumsum(rows.runs.lengths) - 1
    fields = {name: values.take(pa.array(ends)) for name, values in rows.fields.items()}
    return last_batch(rows.runs.keys, rows.times[ends], np.full(len(ends), era, np.int64), fields)


def merge_last(batches: Sequence[pa.RecordBatch], fields: Mapping[str, FieldType]) -> pa.RecordBatch:
    """The newest row of each series; of two with one time the higher era wins, then the later batch. A stale row gives way in the same order."""
    keys = pa.concat_arrays([batch.column(0) for batch in batches]).dictionary_encode()
    codes = keys.indices.to_numpy()
    times = np.concatenate([batch.column(1).to_numpy() for batch in batches])
    eras = np.concatenate([batch.column(2).to_numpy() for batch in batches])
    order = np.lexsort((np.arange(len(codes)), eras, times, codes))
    ends = np.append(np.flatnonzero(np.diff(codes[order])), len(order) - 1) if len(order) else order
    rows = pa.array(order[ends])
    stale = pa.concat_arrays([batch.column(3) for batch in batches]).take(rows)
    columns = [keys.dictionary, times[order[ends]], eras[order[ends]], stale]
    columns.extend(field_column(batches, name, kind).take(rows) for name, kind in fields.items())
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=[*_FIXED, *fields])


def hide_last(batch: pa.RecordBatch, tombstones: Iterable[Tombstone], era_max: int) -> pa.RecordBatch:
    """Applies deletes that are newer than every row of `batch`; `era_max` is the highest era any row of the store has.

    A delete without start that reaches the newest row of a series hides all of it, so the row goes; any other leaves the row stale.
    """
    for each in tombstones:
        times, eras = batch.column(1).to_numpy(), batch.column(2).to_numpy()
        hit = each.covers(batch.column(0)) & (eras <= each.era)
        if each.start_ns is not None:
            hit &= times >= each.start_ns
        if each.end_ns is not None:
            hit &= times < each.end_ns
        if not hit.any():
            continue
        if each.start_ns is None and era_max <= each.era:
            batch = batch.filter(pa.array(~hit))
        else:
            batch = batch.set_column(3, STALE_COLUMN, pc.or_(batch.column(3), pa.array(hit)))
    return batch


def no_last(fields: Mapping[str, FieldType]) -> pa.RecordBatch:
    """The last rows of a table that has none."""
    columns = {name: pa.array([], kind.arrow) for name, kind in fields.items()}
    empty = np.empty(0, np.int64)
    return last_batch(pa.array([], pa.string()), empty, empty, columns)


def has_stale(batch: pa.RecordBatch) -> bool:
    """True if some series' newest row is unknown."""
    return bool(pc.any(batch.column(3)).as_py())


def last_table(batch: pa.RecordBatch, schema: TableSchema) -> pa.Table:
    """Last rows as users see rows: tags (dictionary<int32, string>), time (int64 ns), fields."""
    keys = batch.column(0)
    every = np.arange(len(keys), dtype=np.int32)
    columns: dict[str, pa.Array] = {tag: tag_column(keys, tag, every) for tag in schema.tags}
    columns[TIME_COLUMN] = batch.column(1)
    for name, kind in schema.fields:
        columns[name] = pc.cast(field_column([batch], name, kind), kind.arrow)
    return pa.table(columns)


def series_in(batch: pa.RecordBatch, tags: Mapping[str, Sequence[str]]) -> pa.RecordBatch:
    """The last rows of the series that carry these tags."""
    return batch.filter(pa.array(series_mask(batch.column(0), tags))) if tags else batch


def encode_last(batch: pa.RecordBatch) -> bytes:
    """The value of a bucket in the index."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode_last(data: bytes) -> pa.RecordBatch:
    """The inverse of `encode_last`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def last_batch(keys: pa.Array, times: np.ndarray, eras: np.ndarray, fields: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Last rows, none of them stale, from columns."""
    stale = np.zeros(len(times), np.bool_)
    columns = [keys, pa.array(times), pa.array(eras), pa.array(stale), *fields.values()]
    return pa.RecordBatch.from_arrays(columns, names=[*_FIXED, *fields])
