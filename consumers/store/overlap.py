"""Whether two sets of sorted rows share a (series, time), remembered.

Files of one slice and bucket overlap in time at every seal, since messages of different series do not arrive in step; hardly ever do they hold
the same row. Where they do not, each can be read as it is. Three tests, each only when the one before cannot tell: the time ranges of the
files, the time ranges of each series (from the runs in the index), the times themselves (read from the files, once for each pair).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumers.store.files import SegmentFiles
from consumers.store.kernel import order_rows
from consumers.store.memtable import LiveBatch
from consumers.store.segment import Runs, SegmentEntry, read_rows
from consumers.store.series import Mask
from consumers.store.tombstones import rows_between

_Key = TypeVar("_Key")
REMEMBERED_MAX = 100_000
"""Answers kept; when there are more, all are forgotten and found again as they are needed."""


class Overlaps:
    """Answers about the files of one store, which never change. Thread-safe: at worst two threads find the same answer."""

    def __init__(self, files: SegmentFiles, runs_of: Callable[[str], Runs]) -> None:
        """`runs_of` gives the runs of a segment by name."""
        self._files = files
        self._runs_of = runs_of
        self._sealed: dict[tuple[str, str], bool] = {}
        self._live: dict[tuple[str, int, int], bool] = {}

    def shared(self, one: SegmentEntry, other: SegmentEntry) -> bool:
        """True if both segments hold a row with the same series and time. Both are pinned by the caller."""
        key = (min(one.name, other.name), max(one.name, other.name))
        known = self._sealed.get(key)
        if known is None:
            known = self._find(one, other)
            _remember(self._sealed, {key: known})
        return known

    def shared_live(self, entry: SegmentEntry, batches: Sequence[LiveBatch]) -> bool:
        """True if the segment may hold a row that one of these unsealed batches has too."""
        known = [self._live.get(_pair(entry, batch)) for batch in batches]
        if any(known):
            return True
        fresh = [batch for batch, answer in zip(batches, known, strict=True) if answer is None]
        found = bool(fresh) and self._find_live(entry, fresh)
        _remember(self._live, {_pair(entry, batch): found for batch in fresh})
        return found

    def _find(self, one: SegmentEntry, other: SegmentEntry) -> bool:
        mine, theirs = self._runs_of(one.name), self._runs_of(other.name)
        position = pc.index_in(theirs.keys, value_set=mine.keys)
        common = position.is_valid().to_numpy(zero_copy_only=False)
        place = position.fill_null(0).to_numpy()
        meet = common & (theirs.first_ns <= mine.last_ns[place]) & (theirs.last_ns >= mine.first_ns[place])
        if not meet.any():
            return False
        wanted = np.zeros(len(mine.keys), np.bool_)
        wanted[place[meet]] = True
        start, end = max(one.min_time_ns, other.min_time_ns), min(one.max_time_ns, other.max_time_ns) + 1
        return _share(self._times(one, mine, start, end, wanted), self._times(other, theirs, start, end, meet))

    def _find_live(self, entry: SegmentEntry, batches: Sequence[LiveBatch]) -> bool:
        runs = self._runs_of(entry.name)
        inside = [_within(rows_between(b.rows, entry.min_time_ns, entry.max_time_ns + 1), runs) for b in batches]
        inside = [rows for rows in inside if len(rows)]
        if not inside:
            return False
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


def _pair(entry: SegmentEntry, batch: LiveBatch) -> tuple[str, int, int]:
    # Versions are never used twice, so the address is only asked to tell apart batches of one message.
    return entry.name, batch.version, id(batch)


def _share(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """True if two row batches, each without repetition, have a (series, time) in common."""
    return len(order_rows([one.select([0, 1]), other.select([0, 1])]).rows) < len(one) + len(other)


def _within(rows: pa.RecordBatch, runs: Runs) -> pa.RecordBatch:
    """The rows whose time lies in the time range that their series has in `runs`."""
    series = rows.column(0)
    position = pc.index_in(series.dictionary, value_set=runs.keys)
    common = position.is_valid().to_numpy(zero_copy_only=False)
    place = position.fill_null(0).to_numpy()
    codes, times = series.indices.to_numpy(zero_copy_only=True), rows.column(1).to_numpy(zero_copy_only=True)
    keep = common[codes] & (times >= runs.first_ns[place][codes]) & (times <= runs.last_ns[place][codes])
    return rows.select([0, 1]).filter(pa.array(keep))


def _keys(rows: pa.RecordBatch) -> pa.Array:
    series = rows.column(0)
    return series.dictionary.take(pc.unique(series.indices))


def _remember(memory: dict[_Key, bool], answers: dict[_Key, bool]) -> None:
    if len(memory) + len(answers) > REMEMBERED_MAX:
        memory.clear()
    memory.update(answers)
