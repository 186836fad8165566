"""Rows of a new table without tags that share a time: nearly always rows of several series, whose tags were forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN

SAMPLE_TIMES_MAX = 100_000
"""Times that a task keeps, 8 bytes each, to be compared with those of others."""
NAME_TAGS = "name the columns that identify a series: tags=a,b; an empty list makes a table without any"
Hashes = npt.NDArray[np.uint64]


class RowsRepeat(HeadraceError):
    """Rows of a new table without tags that share a time: they would replace each other."""

    exit_code = 3


def check_distinct(rows: pa.Table, table: str, action: str = NAME_TAGS) -> None:
    """Raises RowsRepeat for rows of a new table without tags that share a time. The rows are normal, see `normal_rows`."""
    times = rows.column(TIME_COLUMN)
    repeated = len(times) - pc.count_distinct(times).as_py()
    if repeated:
        raise RowsRepeat(
            f"{repeated:,} of {len(times):,} rows for the new table {table} have the time of another one, and no tags "
            "tell them apart: one would replace the other",
            action=action,
        )


@dataclass(slots=True)
class TimeSample:
    """Times of rows that no process sees together, to find that two of them share one.

    It has all times, as hashes, until they are too many; then those below `limit`, which two samples choose alike.
    `repeats` is whether a time came twice.
    """

    hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    limit: int = 1 << 64
    repeats: bool = False

    def add(self, times_ns: npt.NDArray[np.int64]) -> None:
        """Add the times of rows."""
        self._merge(_hashes(times_ns), self.limit)

    def _merge(self, hashes: Hashes, limit: int) -> None:
        self.limit = min(self.limit, limit)
        both = np.concatenate([self.hashes, hashes])
        if self.limit < 1 << 64:
            both = both[both < np.uint64(self.limit)]
        found = np.unique(both)
        self.repeats = self.repeats or len(found) < len(both)
        if len(found) > SAMPLE_TIMES_MAX:
            self.limit = int(found[SAMPLE_TIMES_MAX // 2])
            found = found[: SAMPLE_TIMES_MAX // 2]
        self.hashes = found

    @classmethod
    def of_all(cls, samples: Iterable[TimeSample]) -> TimeSample:
        """What several samples have together."""
        total = cls()
        for sample in samples:
            total.repeats = total.repeats or sample.repeats
            total._merge(sample.hashes, sample.limit)
        return total


def refuse_repeats(sample: TimeSample, table: str) -> None:
    """Raises RowsRepeat for rows of a new table that are written, and of which some have replaced others."""
    if sample.repeats:
        raise RowsRepeat(
            f"rows for the new table {table} share a time, and no tags tell them apart: some have replaced others",
            action=f'drop {table}, and write it again with the tags: option tags="a,b"',
        )


def _hashes(times_ns: npt.NDArray[np.int64]) -> Hashes:
    """Numbers that are spread evenly, one for each time (the finalizer of splitmix64)."""
    mixed = times_ns.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
