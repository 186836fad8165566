"""Reading one table: which files can be read as they are, and everything else merged.

A file can be read as it is when, within the time asked for, no other file of its slice and bucket and no unsealed batch has rows in its time
range (they might be the same rows with a higher or lower rank), and no delete that is not yet applied to it touches it. All other rows are
merged here: each (series, time) once, the highest rank wins, deletes applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumers.store.files import SegmentFiles
from consumers.store.kernel import field_column, gather, order_rows
from consumers.store.memtable import LiveBatch
from consumers.store.segment import Runs, SegmentEntry, read_rows
from consumers.store.series import Mask, series_mask, tag_column
from consumers.store.tombstones import Tombstone, rows_between, survivors
from consumers.store.view import TableView
from schemas.payload import SERIES_COLUMN, SERIES_TYPE
from schemas.tables import TIME_COLUMN, TableSchema

RunsOf = Callable[[str], Runs]


@dataclass(frozen=True, slots=True)
class Question:
    """What a scan is asked for: columns (None = all), time in [start_ns, end_ns), and for each tag the values allowed ("" = absent)."""

    columns: frozenset[str] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, Sequence[str]] | None = None

    def takes(self, column: str) -> bool:
        """True if the answer needs this column."""
        return self.columns is None or column in self.columns


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
    view: TableView, question: Question, files: SegmentFiles, runs_of: RunsOf
) -> tuple[list[SegmentEntry], pa.Table]:
    """The files that stand as they are, and the merged rest."""
    candidates, wanted = _candidates(view.entries, question, runs_of)
    live = [batch for batch in view.live if _meets(batch.min_time_ns, batch.max_time_ns, question)]
    clean, dirty = split(candidates, live, view.tombstones, question, runs_of)
    fields = [name for name, _ in view.schema.fields if question.takes(name)]
    ranked: list[tuple[tuple[int, int], pa.RecordBatch]] = []
    for entry in dirty:
        runs = runs_of(entry.name)
        rows = read_rows(
            files.path(entry.name), entry, runs, fields, question.start_ns, question.end_ns, wanted.get(entry.name)
        )
        ranked.append(((entry.era, entry.first_version), survivors(rows, pending(entry, view.tombstones))))
    masks = _MaskOf(question.tags or {})
    for batch in live:
        rows = rows_between(batch.visible(view.tombstones), question.start_ns, question.end_ns)
        ranked.append(((batch.era, batch.version), masks.keep(rows)))
    ranked.sort(key=lambda pair: pair[0])
    return clean, merge([rows for _, rows in ranked if len(rows)], view.schema, question)


def pending(entry: SegmentEntry, tombstones: Iterable[Tombstone]) -> list[Tombstone]:
    """The deletes that hide rows of a segment and are not yet applied to it."""
    return [
        each
        for each in tombstones
        if (each.database, each.table) == (entry.database, entry.table)
        and each.version > entry.cleaned_version
        and each.outranks(entry.era, entry.last_version)
        and each.touches(entry.min_time_ns, entry.max_time_ns)
    ]


def split(
    candidates: Sequence[SegmentEntry],
    live: Sequence[LiveBatch],
    tombstones: Sequence[Tombstone],
    question: Question,
    runs_of: RunsOf,
) -> tuple[list[SegmentEntry], list[SegmentEntry]]:
    """Candidates that can be read as they are, and those that must be merged."""
    unsealed = _union(_clip(batch.min_time_ns, batch.max_time_ns, question) for batch in live)
    crowded = _crowded(candidates, question)
    clean: list[SegmentEntry] = []
    dirty: list[SegmentEntry] = []
    for entry in candidates:
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, question)
        hidden = any(each.covers(runs_of(entry.name).keys).any() for each in pending(entry, tombstones))
        (dirty if hidden or entry.name in crowded or _hits(unsealed, low, high) else clean).append(entry)
    return clean, dirty


def merge(batches: Sequence[pa.RecordBatch], schema: TableSchema, question: Question) -> pa.Table:
    """Row batches, lowest rank first, as one table in the form users see, each (series, time) once."""
    if not batches:
        batches = [_no_rows()]
    ordering = order_rows(batches)
    columns: dict[str, pa.Array] = {
        tag: tag_column(ordering.keys, tag, ordering.codes.astype(np.int32))
        for tag in schema.tags
        if question.takes(tag)
    }
    columns[TIME_COLUMN] = pa.array(ordering.times)
    for name, kind in schema.fields:
        if question.takes(name):
            columns[name] = pc.cast(gather(field_column(batches, name, kind), ordering.rows), kind.arrow)
    return pa.table(columns)


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([], SERIES_TYPE), pa.array([], pa.int64())], [SERIES_COLUMN, TIME_COLUMN]
    )


def _candidates(
    entries: Iterable[SegmentEntry], question: Question, runs_of: RunsOf
) -> tuple[list[SegmentEntry], dict[str, Mask]]:
    """Segments that may hold an answer, and for each which of its series are asked for (only when tags are)."""
    found = [entry for entry in entries if entry.overlaps(question.start_ns, question.end_ns)]
    if not question.tags:
        return found, {}
    masks = {entry.name: series_mask(runs_of(entry.name).keys, question.tags) for entry in found}
    return [entry for entry in found if masks[entry.name].any()], masks


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


def _meets(min_time_ns: int, max_time_ns: int, question: Question) -> bool:
    after_start = question.start_ns is None or max_time_ns >= question.start_ns
    return after_start and (question.end_ns is None or min_time_ns < question.end_ns)


def _clip(min_time_ns: int, max_time_ns: int, question: Question) -> tuple[int, int]:
    low = min_time_ns if question.start_ns is None else max(min_time_ns, question.start_ns)
    high = max_time_ns if question.end_ns is None else min(max_time_ns, question.end_ns - 1)
    return low, high


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Closed intervals as sorted disjoint ones."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _hits(union: list[tuple[int, int]], low: int, high: int) -> bool:
    position = bisect_right(union, high, key=lambda interval: interval[0]) - 1
    return position >= 0 and union[position][1] >= low


def _crowded(candidates: Iterable[SegmentEntry], question: Question) -> set[str]:
    """Segments that share their slice, bucket and part of their time range with another one."""
    places: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for entry in candidates:
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, question)
        places[(entry.slice_number, entry.bucket)].append((low, high, entry.name))
    crowded: set[str] = set()
    for spans in places.values():
        reach, holder = None, ""
        for low, high, name in sorted(spans):
            if reach is not None and low <= reach:
                crowded |= {name, holder}
            if reach is None or high > reach:
                reach, holder = high, name
    return crowded
