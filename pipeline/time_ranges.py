"""Divides the rows of a table into ranges of time of about equal size. Pure.

The ends are open: rows outside of every known file, such as those not sealed yet, are in the first range or in the
last one. So each row is in exactly one range, whatever is sealed, merged or written meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

PARTITION_BYTES = 64 * 1024 * 1024
"""What the rows of one range take in the memory of a worker, about."""
VALUE_BYTES = 8
PARTITIONS_MAX = 10_000
# A cut between two files reads neither twice: rows of a file are in order of their series, so that a part of its time
# is in all of its row groups. It may make a range so much larger or smaller.
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
    crossed = _CrossedRows(clipped)
    targets = rows * np.arange(1, count) / count
    cuts: list[int] = []
    for cut in np.interp(targets, below, edges).tolist():
        snapped = _cheapest(_near(int(cut), slice_ns, edges, below, rows / count * _SNAP_SHARE), crossed)
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


class _CrossedRows:
    """The rows of the files that a cut divides, which both sides read."""

    def __init__(self, spans: Sequence[FileSpan]) -> None:
        self._starts, self._begun = _summed((span.min_time_ns, span.rows) for span in spans)
        self._ends, self._ended = _summed((span.max_time_ns + 1, span.rows) for span in spans)

    def at(self, cut: int) -> int:
        """Rows of files that have times on both sides of a cut."""
        return self._begun[bisect_left(self._starts, cut)] - self._ended[bisect_right(self._ends, cut)]


def _summed(times: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """(times in order, rows before each of them and behind the last one)."""
    ordered = sorted(times)
    return [time for time, _ in ordered], [0, *accumulate(rows for _, rows in ordered)]


def _near(
    cut: int, slice_ns: int, edges: Sequence[int], below: Sequence[float], rows_max: float
) -> list[tuple[float, int]]:
    """(rows that it moves to the other side, cut): the cut itself, and ends of slices and files near it."""
    at_cut = float(np.interp(cut, edges, below))
    first, last = bisect_left(below, at_cut - rows_max), bisect_right(below, at_cut + rows_max)
    found = [(0.0, cut), *((abs(below[place] - at_cut), edges[place]) for place in range(first, last))]
    for end in (cut // slice_ns * slice_ns, (cut // slice_ns + 1) * slice_ns):
        moved = abs(float(np.interp(end, edges, below)) - at_cut)
        if moved <= rows_max:
            found.append((moved, end))
    return found


def _cheapest(cuts: Sequence[tuple[float, int]], crossed: _CrossedRows) -> int:
    """The cut that divides the fewest rows of files; of equal ones the nearest."""
    return min(cuts, key=lambda each: (crossed.at(each[1]), each))[1]
