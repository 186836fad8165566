"""Reading one table: the files that stand as they are, and everything else merged.

Which is which says consumers.store.pruning. What is merged has each (series, time) once, the highest rank wins, deletes are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consumers.store.files import SegmentFiles
from consumers.store.kernel import field_column, gather, order_rows, unify_series
from consumers.store.overlap import Overlaps
from consumers.store.pruning import Question, RunsOf, candidates_of, pending, split
from consumers.store.segment import SegmentEntry, read_rows
from consumers.store.series import Mask, series_mask, tag_column
from consumers.store.tombstones import rows_between, survivors
from consumers.store.view import TableView
from schemas.payload import SERIES_COLUMN, SERIES_TYPE
from schemas.tables import TIME_COLUMN, TableSchema


class Scan:
    """An answer in two halves whose union is exact but for pruning: `files` are Parquet files whose rows are all valid and unique as they are,
    `table` holds every other row, merged.

    Pruning by time, tags and columns never leaves out a row that was asked for; `files` may hold more (whole files are named), `table` holds
    only rows in the time range with the tags asked for. The columns of `table` are the tags (dictionary<int32, string>), `time` (int64 ns,
    always there) and the fields that were asked for, in this order. Files stay on disk until `close`; use it as a context manager.
    """

    def __init__(self, files: list[Path], table: pa.Table, close: Callable[[], None]) -> None:
        """Made by `Store.scan`."""
        self.files = files
        self.table = table
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Lets the files go; a second call does nothing."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(
    view: TableView, question: Question, files: SegmentFiles, runs_of: RunsOf, overlaps: Overlaps, live_is_unique: bool
) -> tuple[list[SegmentEntry], pa.Table]:
    """The files that stand as they are, and the merged rest. `live_is_unique`: no two visible unsealed rows share series and time."""
    candidates, wanted = candidates_of(view.entries, question, runs_of)
    live = [batch for batch in view.live if question.meets(batch.min_time_ns, batch.max_time_ns)]
    clean, dirty = split(candidates, live, view.tombstones, question, runs_of, overlaps)
    fields = [name for name, _ in view.schema.fields if question.takes(name)]
    ranked: list[tuple[tuple[int, int], pa.RecordBatch]] = []
    for entry in dirty:
        runs, mask = runs_of(entry.name), wanted.get(entry.name)
        rows = read_rows(files.path(entry.name), entry, runs, fields, question.start_ns, question.end_ns, mask)
        ranked.append(((entry.era, entry.first_version), survivors(rows, pending(entry, view.tombstones))))
    masks = _MaskOf(question.tags or {})
    for batch in live:
        narrow = _columns(batch.visible(view.tombstones), fields)
        rows = rows_between(narrow, question.start_ns, question.end_ns)
        ranked.append(((batch.era, batch.version), masks.keep(rows)))
    ranked.sort(key=lambda pair: pair[0])
    batches = [rows for _, rows in ranked if len(rows)]
    return clean, merge(batches, view.schema, question, live_is_unique and not dirty)


def merge(batches: Sequence[pa.RecordBatch], schema: TableSchema, question: Question, unique: bool) -> pa.Table:
    """Row batches, lowest rank first, as one table in the form users see, each (series, time) once; `unique` says they are that already."""
    batches = batches or [_no_rows()]
    if unique:
        keys, codes = unify_series(batches)
        times = np.concatenate([batch.column(1).to_numpy(zero_copy_only=True) for batch in batches])
        return _user_table(batches, schema, question, keys, codes, times, None)
    ordering = order_rows(batches)
    return _user_table(batches, schema, question, ordering.keys, ordering.codes, ordering.times, ordering.rows)


def _user_table(
    batches: Sequence[pa.RecordBatch],
    schema: TableSchema,
    question: Question,
    keys: pa.StringArray,
    codes: npt.NDArray[Any],
    times: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64] | None,
) -> pa.Table:
    """Tags, time and fields asked for; of the batches laid end to end all rows, or `rows` in that order."""
    columns: dict[str, pa.Array] = {tag: tag_column(keys, tag, codes) for tag in schema.tags if question.takes(tag)}
    columns[TIME_COLUMN] = pa.array(times)
    for name, kind in schema.fields:
        if question.takes(name):
            column = field_column(batches, name, kind)
            columns[name] = pc.cast(column if rows is None else gather(column, rows), kind.arrow)
    return pa.table(columns)


def _columns(rows: pa.RecordBatch, fields: Sequence[str]) -> pa.RecordBatch:
    held = set(rows.schema.names)
    return rows.select([SERIES_COLUMN, TIME_COLUMN, *(name for name in fields if name in held)])


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([], SERIES_TYPE), pa.array([], pa.int64())], [SERIES_COLUMN, TIME_COLUMN]
    )


class _MaskOf:
    """Which rows of live batches carry the tags asked for; batches of one writer mostly share a dictionary, so the last answer is kept."""

    def __init__(self, tags: Mapping[str, Sequence[str]]) -> None:
        self._tags = tags
        self._dictionary: pa.Array | None = None
        self._mask: Mask | None = None

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self._tags:
            return rows
        series = rows.column(0)
        if self._mask is None or self._dictionary is None or not self._dictionary.equals(series.dictionary):
            self._dictionary, self._mask = series.dictionary, series_mask(series.dictionary, self._tags)
        if not self._mask.any():
            return rows.slice(0, 0)
        return rows.filter(pa.array(self._mask[series.indices.to_numpy(zero_copy_only=True)]))
