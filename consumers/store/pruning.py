"""What a scan need not read, and what it may read as it is: decisions about files and batches, from the catalogue alone where it tells.

A file can be read as it is when no other file of its slice and bucket and no unsealed batch holds one of its rows (with a higher or lower
rank), and no delete that is not yet applied to it touches it. All other rows are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from consumers.store.memtable import LiveBatch
from consumers.store.overlap import Overlaps
from consumers.store.segment import Runs, SegmentEntry
from consumers.store.series import Mask, series_mask
from consumers.store.tombstones import Tombstone

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

    def meets(self, min_time_ns: int, max_time_ns: int) -> bool:
        """True if a time of [min_time_ns, max_time_ns], both ends included, is asked for."""
        after_start = self.start_ns is None or max_time_ns >= self.start_ns
        return after_start and (self.end_ns is None or min_time_ns < self.end_ns)


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


def candidates_of(
    entries: Iterable[SegmentEntry], question: Question, runs_of: RunsOf
) -> tuple[list[SegmentEntry], dict[str, Mask]]:
    """Segments that may hold an answer, and for each which of its series are, in the time asked for (only when tags are given)."""
    found = [entry for entry in entries if entry.overlaps(question.start_ns, question.end_ns)]
    if not question.tags:
        return found, {}
    masks = {entry.name: _wanted(runs_of(entry.name), question) for entry in found}
    return [entry for entry in found if masks[entry.name].any()], masks


def _wanted(runs: Runs, question: Question) -> Mask:
    mask = series_mask(runs.keys, question.tags or {})
    if question.start_ns is not None:
        mask &= runs.last_ns >= question.start_ns
    if question.end_ns is not None:
        mask &= runs.first_ns < question.end_ns
    return mask


def split(
    candidates: Sequence[SegmentEntry],
    live: Sequence[LiveBatch],
    tombstones: Sequence[Tombstone],
    question: Question,
    runs_of: RunsOf,
    overlaps: Overlaps,
) -> tuple[list[SegmentEntry], list[SegmentEntry]]:
    """Candidates that can be read as they are, and those that must be merged."""
    spans = [(*_clip(batch.min_time_ns, batch.max_time_ns, question), batch) for batch in live]
    unsealed = _union((low, high) for low, high, _ in spans)
    crowded = _crowded(candidates, question, overlaps)

    def dirty(entry: SegmentEntry) -> bool:
        if entry.name in crowded or any(
            each.covers(runs_of(entry.name).keys).any() for each in pending(entry, tombstones)
        ):
            return True
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, question)
        if not _hits(unsealed, low, high):
            return False
        return overlaps.shared_live(entry, [batch for start, end, batch in spans if start <= high and end >= low])

    merged = {entry.name for entry in candidates if dirty(entry)}
    clean = [entry for entry in candidates if entry.name not in merged]
    return clean, [entry for entry in candidates if entry.name in merged]


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


def _crowded(candidates: Iterable[SegmentEntry], question: Question, overlaps: Overlaps) -> set[str]:
    """Segments that hold a row which another one of their slice and bucket holds too."""
    places: dict[tuple[int, int], list[tuple[int, int, SegmentEntry]]] = defaultdict(list)
    for entry in candidates:
        low, high = _clip(entry.min_time_ns, entry.max_time_ns, question)
        places[(entry.slice_number, entry.bucket)].append((low, high, entry))
    crowded: set[str] = set()
    for spans in places.values():
        open_spans: list[tuple[int, SegmentEntry]] = []
        for low, high, entry in sorted(spans, key=lambda span: (span[0], span[2].name)):
            open_spans = [(end, other) for end, other in open_spans if end >= low]
            for _, other in open_spans:
                if overlaps.shared(entry, other):
                    crowded |= {entry.name, other.name}
            open_spans.append((high, entry))
    return crowded
