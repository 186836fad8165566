"""Which segments a scan reads, and which of them it must merge.

A segment can be read directly when each of its rows is valid: no other segment of its slice and bucket and no
unsealed batch holds the same (series, time), and no unapplied tombstone matches it. All other segments are
merged by rank. The catalogue decides where it can; only then runs and, last, times from the files are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, Mask
from headrace.consumers.store.memtable import LiveBatch
from headrace.consumers.store.row_order import order_rows
from headrace.consumers.store.segment import Runs, SegmentEntry
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.consumers.store.segment_reader import read_rows
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import rows_between
from headrace.schemas.tables import FieldType, TableSchema

CACHED_RESULTS_MAX = 100_000
"""Results kept. When there are more, all are dropped and computed again on demand."""

RunsOf = Callable[[str], Runs]

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Which rows a scan returns.

    Columns (None = all), times in [start_ns, end_ns), and the allowed values of tags ("" = absent).
    """

    columns: frozenset[str] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, Sequence[str]] | None = None

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The requested times."""
        return self.start_ns, self.end_ns

    def needs(self, column: str) -> bool:
        """True if the result has this column."""
        return self.columns is None or column in self.columns

    def fields_of(self, schema: TableSchema) -> Sequence[tuple[str, FieldType]]:
        """The fields of the result, in the order of the schema."""
        columns = self.columns
        return schema.fields if columns is None else [field for field in schema.fields if field[0] in columns]

    def overlaps(self, min_time_ns: int, max_time_ns: int) -> bool:
        """True if the request overlaps [min_time_ns, max_time_ns], both ends included."""
        after_start = self.start_ns is None or max_time_ns >= self.start_ns
        return after_start and (self.end_ns is None or min_time_ns < self.end_ns)


def candidates_of(
    entries: Iterable[SegmentEntry], request: ScanRequest, runs_of: RunsOf
) -> tuple[list[SegmentEntry], dict[str, Mask]]:
    """Segments that may hold requested rows.

    With tags, also which series of each match and overlap the requested time.
    """
    found = [entry for entry in entries if entry.overlaps(request.start_ns, request.end_ns)]
    if not request.tags:
        return found, {}
    masks, with_series = dict[str, Mask](), list[SegmentEntry]()
    for entry in found:
        runs = runs_of(entry.name)
        # Of a statement with one series most segments have none.
        places = runs.tags.places(request.tags)
        if len(places) and (mask := _wanted(runs, places, request)) is not None:
            masks[entry.name] = mask
            with_series.append(entry)
    return with_series, masks


def _wanted(runs: Runs, places: Int64s, request: ScanRequest) -> Mask | None:
    """Which of the series at these places have rows at the requested times, None for none."""
    if request.start_ns is not None:
        places = places[runs.last_ns[places] >= request.start_ns]
    if request.end_ns is not None:
        places = places[runs.first_ns[places] < request.end_ns]
    if not len(places):
        return None
    mask = np.zeros(len(runs.keys), np.bool_)
    mask[places] = True
    return mask


def split(
    candidates: Sequence[SegmentEntry],
    live: Sequence[LiveBatch],
    tombstones: TombstoneSet,
    request: ScanRequest,
    runs_of: RunsOf,
    overlaps: OverlapCache,
) -> tuple[list[SegmentEntry], list[SegmentEntry]]:
    """Candidates that can be read directly, and those that must be merged."""
    spans = [(*_clip(batch.min_time_ns, batch.max_time_ns, request), batch) for batch in live]
    unsealed = _union((low, high) for low, high, _ in spans)
    duplicated = _with_duplicates(candidates, request, overlaps)

    def must_merge(entry: SegmentEntry) -> bool:
        # Cheapest test first; the last one may read times from the file.
        if entry.name in duplicated:
            return True
        if (deleting := tombstones.unapplied(entry)) and deleting.matches(runs_of(entry.name).keys):
            return True
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, request)
        if not _any_overlap(unsealed, low, high):
            return False
        return overlaps.share_rows_live(entry, [batch for start, end, batch in spans if start <= high and end >= low])

    merged = {entry.name for entry in candidates if must_merge(entry)}
    direct = [entry for entry in candidates if entry.name not in merged]
    return direct, [entry for entry in candidates if entry.name in merged]


def _clip(min_time_ns: int, max_time_ns: int, request: ScanRequest) -> tuple[int, int]:
    low = min_time_ns if request.start_ns is None else max(min_time_ns, request.start_ns)
    high = max_time_ns if request.end_ns is None else min(max_time_ns, request.end_ns - 1)
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


def _any_overlap(union: list[tuple[int, int]], low: int, high: int) -> bool:
    position = bisect_right(union, high, key=lambda interval: interval[0]) - 1
    return position >= 0 and union[position][1] >= low


def _with_duplicates(candidates: Sequence[SegmentEntry], request: ScanRequest, overlaps: OverlapCache) -> set[str]:
    """Segments with a (series, time) that another segment of their slice and bucket has too."""
    if len(candidates) < 2:
        return set()
    # A sweep over the time ranges, clipped to the request:
    # only segments that overlap there are compared in pairs.
    locations: dict[tuple[int, int], list[tuple[int, int, SegmentEntry]]] = defaultdict(list)
    for entry in candidates:
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, request)
        locations[(entry.slice_number, entry.bucket)].append((low, high, entry))
    duplicated: set[str] = set()
    for spans in locations.values():
        open_spans: list[tuple[int, SegmentEntry]] = []
        for low, high, entry in sorted(spans, key=lambda span: (span[0], span[2].name)):
            open_spans = [(end, other) for end, other in open_spans if end >= low]
            for _, other in open_spans:
                if overlaps.share_rows(entry, other):
                    duplicated |= {entry.name, other.name}
            open_spans.append((high, entry))
    return duplicated


class OverlapCache:
    """Whether segments share a (series, time) with each other or with unsealed batches, cached.

    Segments of one slice and bucket overlap in time at every seal, since messages of different series do not
    arrive in step. They hardly ever hold the same row. Three tests run in order of cost: time ranges of the
    segments, time ranges of each series (runs in the index), and the times themselves (files, once for each
    pair). Thread-safe: at worst two threads compute the same result.
    """

    # Segments are known by their content, since a merge may give a name again, and batches are immutable. So a result
    # is never invalidated, only dropped for space.

    def __init__(self, files: SegmentFiles, runs_of: Callable[[str], Runs]) -> None:
        """`runs_of` gives the runs of a segment by name."""
        self._files = files
        self._runs_of = runs_of
        self._sealed: dict[tuple[str, str], bool] = {}
        self._live: dict[tuple[str, int], bool] = {}

    def share_rows(self, one: SegmentEntry, other: SegmentEntry) -> bool:
        """True if both segments hold a row with the same series and time. The caller has pinned both."""
        key = (min(one.content_digest, other.content_digest), max(one.content_digest, other.content_digest))
        known = self._sealed.get(key)
        if known is None:
            known = self._find(one, other)
            _store_results(self._sealed, {key: known})
        return known

    def share_rows_live(self, entry: SegmentEntry, batches: Sequence[LiveBatch]) -> bool:
        """True if the segment may share a row with one of these unsealed batches."""
        known = [self._live.get(_pair(entry, batch)) for batch in batches]
        if any(known):
            return True
        # All unknown batches at once: one read of the file serves them, and a positive result holds for each
        # of them as "may share".
        unknown = [batch for batch, result in zip(batches, known, strict=True) if result is None]
        found = bool(unknown) and self._find_live(entry, unknown)
        _store_results(self._live, {_pair(entry, batch): found for batch in unknown})
        return found

    def _find(self, one: SegmentEntry, other: SegmentEntry) -> bool:
        mine, theirs = self._runs_of(one.name), self._runs_of(other.name)
        position = pc.index_in(theirs.keys, value_set=mine.keys)
        common = position.is_valid().to_numpy(zero_copy_only=False)
        index = position.fill_null(0).to_numpy()
        overlapping = common & (theirs.first_ns <= mine.last_ns[index]) & (theirs.last_ns >= mine.first_ns[index])
        if not overlapping.any():
            return False
        # The first and the last time of a series are rows. Data that was written twice is mostly found by
        # them, and no file is read.
        bounds = (mine.first_ns[index], mine.last_ns[index])
        if any((common & ((theirs.first_ns == bound) | (theirs.last_ns == bound))).any() for bound in bounds):
            return True
        # Only times of series that overlap are read, in the common time range of both segments.
        wanted = np.zeros(len(mine.keys), np.bool_)
        wanted[index[overlapping]] = True
        start, end = max(one.min_time_ns, other.min_time_ns), min(one.max_time_ns, other.max_time_ns) + 1
        return _share(self._times(one, mine, start, end, wanted), self._times(other, theirs, start, end, overlapping))

    def _find_live(self, entry: SegmentEntry, batches: Sequence[LiveBatch]) -> bool:
        runs = self._runs_of(entry.name)
        inside = [_within(rows_between(b.rows, entry.min_time_ns, entry.max_time_ns + 1), runs) for b in batches]
        inside = [rows for rows in inside if len(rows)]
        if not inside:
            return False
        if any(_has_bound(rows, runs) for rows in inside):
            return True
        keys = pa.concat_arrays([_keys(rows) for rows in inside])
        wanted = pc.is_in(runs.keys, value_set=keys).to_numpy(zero_copy_only=False)
        times = [rows.column(1).to_numpy() for rows in inside]
        start, end = min(int(t.min()) for t in times), max(int(t.max()) for t in times) + 1
        ordering = order_rows(inside)
        live = pa.RecordBatch.from_arrays(
            [
                pa.DictionaryArray.from_arrays(pa.array(ordering.codes.astype(np.int32)), ordering.keys),
                pa.array(ordering.times),
            ],
            names=["__series", "time"],
        )
        return _share(self._times(entry, runs, start, end, wanted), live)

    def _times(self, entry: SegmentEntry, runs: Runs, start_ns: int, end_ns: int, wanted: Mask) -> pa.RecordBatch:
        return read_rows(self._files.path(entry.name), entry, runs, (), start_ns, end_ns, wanted)


def _pair(entry: SegmentEntry, batch: LiveBatch) -> tuple[str, int]:
    # Not by its rank: rows that were handed over may have that of another batch. What is left of a batch without some
    # rows shares no row that the batch did not share.
    return entry.content_digest, batch.number


def _share(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """True if two row batches, each without duplicates, have a (series, time) in common."""
    return len(order_rows([one.select([0, 1]), other.select([0, 1])]).rows) < len(one) + len(other)


def _within(rows: pa.RecordBatch, runs: Runs) -> pa.RecordBatch:
    """The rows whose time is within the time range that their series has in `runs`."""
    series = rows.column(0)
    position = pc.index_in(series.dictionary, value_set=runs.keys)
    common = position.is_valid().to_numpy(zero_copy_only=False)
    place = position.fill_null(0).to_numpy()
    codes, times = series.indices.to_numpy(zero_copy_only=True), rows.column(1).to_numpy(zero_copy_only=True)
    keep = common[codes] & (times >= runs.first_ns[place][codes]) & (times <= runs.last_ns[place][codes])
    return rows.select([0, 1]).filter(pa.array(keep))


def _has_bound(rows: pa.RecordBatch, runs: Runs) -> bool:
    """Whether some rows, all of series in `runs`, have the first or the last time of their series there."""
    series = rows.column(0)
    place = pc.index_in(series.dictionary, value_set=runs.keys).fill_null(0).to_numpy()
    place = place[series.indices.to_numpy(zero_copy_only=True)]
    times = rows.column(1).to_numpy(zero_copy_only=True)
    return bool(((times == runs.first_ns[place]) | (times == runs.last_ns[place])).any())


def _keys(rows: pa.RecordBatch) -> pa.Array:
    series = rows.column(0)
    return series.dictionary.take(pc.unique(series.indices))


def _store_results(cache: dict[_Key, bool], results: dict[_Key, bool]) -> None:
    # All at once: keeping an order of use would cost a lock at every look-up, for results that are seldom so many.
    if len(cache) + len(results) > CACHED_RESULTS_MAX:
        cache.clear()
    cache.update(results)
