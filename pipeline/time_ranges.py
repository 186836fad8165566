"""Divides the rows of a table into ranges of time of about equal size. Pure.

The ends are open: rows outside of every known file, such as those not sealed yet, are in the first range or in the
last one. So each row is in exactly one range, whatever is sealed, merged or written meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PARTITION_BYTES = 64 * 1024 * 1024
"""What the rows of one range take in the memory of a worker, about."""
VALUE_BYTES = 8
PARTITIONS_MAX = 10_000
# A cut at the end of a slice reads no file twice. It may make a range so much larger or smaller.
_SNAP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Rows of one file, at min_time_ns <= time <= max_time_ns."""

    rows: int
    min_time_ns: int
    max_time_ns: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """start_ns <= time < end_ns; None does not restrict."""

    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def empty(self) -> bool:
        """Whether no time is in it."""
        return self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns

    def both(self, other: TimeRange) -> TimeRange:
        """The times that are in both."""
        starts = [each for each in (self.start_ns, other.start_ns) if each is not None]
        ends = [each for each in (self.end_ns, other.end_ns) if each is not None]
        return TimeRange(max(starts, default=None), min(ends, default=None))


def divided(spans: Sequence[FileSpan], wanted: TimeRange, slice_ns: int, columns: int) -> list[TimeRange]:
    """Disjoint ranges, in order, which together are `wanted`. Rows are taken as evenly spread over their file."""
    if wanted.empty:
        return []
    clipped = [clip for span in spans if (clip := _clipped(span, wanted)) is not None]
    rows = sum(span.rows for span in clipped)
    rows_per_range = max(1, PARTITION_BYTES // (VALUE_BYTES * max(1, columns)))
    count = min(PARTITIONS_MAX, -(-rows // rows_per_range))
    if count <= 1:
        return [wanted]
    edges, below = _distribution(clipped)
    targets = rows * np.arange(1, count) / count
    cuts: list[int] = []
    for cut in np.interp(targets, below, edges).tolist():
        snapped = _at_slice(int(cut), slice_ns, edges, below, rows / count * _SNAP_SHARE)
        # The first edge is no cut: nothing would be before it.
        if edges[0] < snapped < edges[-1] and (not cuts or snapped > cuts[-1]):
            cuts.append(snapped)
    bounds = [wanted.start_ns, *cuts, wanted.end_ns]
    return [TimeRange(start, end) for start, end in pairwise(bounds)]


def _clipped(span: FileSpan, wanted: TimeRange) -> FileSpan | None:
    low = span.min_time_ns if wanted.start_ns is None else max(span.min_time_ns, wanted.start_ns)
    high = span.max_time_ns if wanted.end_ns is None else min(span.max_time_ns, wanted.end_ns - 1)
    if low > high:
        return None
    share = (high - low + 1) / (span.max_time_ns - span.min_time_ns + 1)
    return FileSpan(max(1, round(span.rows * share)), low, high)


def _distribution(spans: Sequence[FileSpan]) -> tuple[list[int], list[float]]:
    """(times in order, rows before each of them)."""
    # Python's integers: the span of two times may exceed an int64.
    densities: dict[int, float] = {}
    for span in spans:
        density = span.rows / (span.max_time_ns + 1 - span.min_time_ns)
        densities[span.min_time_ns] = densities.get(span.min_time_ns, 0.0) + density
        densities[span.max_time_ns + 1] = densities.get(span.max_time_ns + 1, 0.0) - density
    edges = sorted(densities)
    below, density = [0.0], densities[edges[0]]
    for before, edge in pairwise(edges):
        below.append(below[-1] + max(0.0, density) * (edge - before))
        density += densities[edge]
    return edges, below


def _at_slice(cut: int, slice_ns: int, edges: Sequence[int], below: Sequence[float], rows_max: float) -> int:
    """The end of a slice near a cut, if it moves at most `rows_max` rows to the other side; else the cut."""
    at_cut = float(np.interp(cut, edges, below))
    moved = {
        end: abs(float(np.interp(end, edges, below)) - at_cut)
        for end in (cut // slice_ns * slice_ns, (cut // slice_ns + 1) * slice_ns)
    }
    nearest = min(moved, key=lambda end: moved[end])
    return nearest if moved[nearest] <= rows_max else cut
