"""Reads rows of segments from decoded columns of their row groups that are kept in memory: few series, or a small file.

A query of one series and an hour reads a few rows of a row group that takes a millisecond to decode. The next such
query mostly reads another series of the same row group. A segment is sorted by series and time, and the index knows the
rows of each series: so these rows are found without a look at all others.

Small files that share times are merged by every query until a merge replaces them. To open one and decode a column of
it takes much longer than to use its rows.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.store.batch_columns import Int64s, Mask, one_array
from headrace.consumers.store.segment import Runs, SegmentEntry
from headrace.consumers.store.segment_reader import nanoseconds, read_error, rows_kept
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN

BLOCKS_PER_SCAN_MAX = 32
"""Blocks that one scan may decode: about a millisecond each, without a pause, and a megabyte."""
SERIES_PER_READ_MAX = 16
SMALL_ROWS_MAX = 4_096
"""Rows of a small file."""
BLOCK_BYTES_MAX = 2 << 20
"""A larger block, as of long texts, is not kept: it would take the place of many."""
BLOCK_OVERHEAD_BYTES = 1_024
"""What a block takes in memory beside its values, by which the blocks of files of ten rows are bounded."""
LAYOUTS_MAX = 16_384
"""Segments whose row groups are remembered, some 300 bytes each. With fewer than a scan has, each scan opens them all."""
NAMES_MAX = 1_024
"""Sets of columns that layouts share."""

_Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The row groups of a file: the row behind each, and the columns that the file has."""

    ends: tuple[int, ...]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows [low, high) of a row group, all of the series at a place of the runs."""

    place: int
    group: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class SeriesRows:
    """Rows of few series, and how many row groups they are from."""

    rows: pa.RecordBatch
    groups: int


class BlockCache:
    """Blocks are columns of row groups, by the digest of their file. Thread-safe: at worst two threads read one block."""

    def __init__(self, bytes_max: int) -> None:
        """Keeps the blocks that were used last, of `bytes_max` together; none with 0."""
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Key, pa.Array] = OrderedDict()
        self._layouts: OrderedDict[str, _Layout] = OrderedDict()
        self._names: dict[frozenset[str], frozenset[str]] = {}
        self._bytes = 0

    @property
    def cached_bytes(self) -> int:
        """The size of all blocks in memory."""
        with self._lock:
            return self._bytes

    def read_series(
        self,
        root: Path,
        entry: SegmentEntry,
        runs: Runs,
        places: Int64s,
        fields: Sequence[str],
        start_ns: int | None,
        end_ns: int | None,
        groups_max: int,
    ) -> SeriesRows | None:
        """See `segment_reader.read_rows`: the rows of the series at these places. None where that is no narrow read.

        `root` is the directory of the store's files. `fields` are numbers or truth values, whose blocks have a known
        size. `groups_max`: of how many row groups.
        """
        if not self.bytes_max or len(places) > SERIES_PER_READ_MAX:
            return None
        try:
            with _SegmentBlocks(self, root, entry) as blocks:
                return blocks.rows(runs, places, fields, start_ns, end_ns, groups_max)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise read_error(root / entry.name, entry, error) from error

    def read_small(
        self,
        root: Path,
        entry: SegmentEntry,
        runs: Runs,
        fields: Sequence[str],
        start_ns: int | None,
        end_ns: int | None,
        wanted: Mask | None,
    ) -> pa.RecordBatch | None:
        """See `segment_reader.read_rows`: the rows of a small file. None for another one."""
        if not self.bytes_max or entry.rows > SMALL_ROWS_MAX:
            return None
        try:
            with _SegmentBlocks(self, root, entry) as blocks:
                return blocks.all_rows(runs, fields, start_ns, end_ns, wanted)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise read_error(root / entry.name, entry, error) from error

    def layout(self, digest: str) -> _Layout | None:
        """The row groups of a file that was read before."""
        with self._lock:
            return self._layouts.get(digest)

    def put_layout(self, digest: str, layout: _Layout) -> None:
        """Remember the row groups of a file."""
        with self._lock:
            # Most files of a table have the same columns.
            names = self._names.setdefault(layout.names, layout.names)
            self._layouts[digest] = _Layout(layout.ends, names)
            if len(self._names) > NAMES_MAX:
                self._names.clear()
            if len(self._layouts) > LAYOUTS_MAX:
                self._layouts.popitem(last=False)

    def get(self, key: _Key) -> pa.Array | None:
        """A block that is in memory."""
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def put(self, key: _Key, block: pa.Array) -> None:
        """Keep a block, in the place of those that were used longest ago."""
        with self._lock:
            if key in self._blocks or _size_bytes(block) > min(self.bytes_max, BLOCK_BYTES_MAX):
                return
            self._blocks[key] = block
            self._bytes += _size_bytes(block)
            while self._bytes > self.bytes_max:
                _, dropped = self._blocks.popitem(last=False)
                self._bytes -= _size_bytes(dropped)


class _SegmentBlocks:
    """The blocks of one segment during one read. The file is opened when the first block is missing."""

    def __init__(self, cache: BlockCache, root: Path, entry: SegmentEntry) -> None:
        self._cache = cache
        self._root = root
        self._entry = entry
        self._file: pq.ParquetFile | None = None

    def __enter__(self) -> _SegmentBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def rows(
        self,
        runs: Runs,
        places: Int64s,
        fields: Sequence[str],
        start_ns: int | None,
        end_ns: int | None,
        groups_max: int,
    ) -> SeriesRows | None:
        """See `BlockCache.read_series`."""
        layout = self._layout()
        names = [name for name in fields if name in layout.names]
        parts = list(_parts(layout, runs, places))
        groups = {part.group for part in parts}
        if len(groups) > groups_max:
            return None
        blocks = {group: self._blocks(group, names) for group in groups}
        found = [self._within(part, blocks[part.group][TIME_COLUMN], start_ns, end_ns) for part in parts]
        found = [part for part in found if part.low < part.high]
        numbers = places.tolist()
        if len(numbers) == 1:
            # By far the most: one series, whose code is zero.
            codes = np.zeros(sum(part.high - part.low for part in found), np.int32)
            keys = runs.keys.slice(numbers[0], 1)
        else:
            order = {place: number for number, place in enumerate(numbers)}
            codes = np.repeat(
                np.array([order[part.place] for part in found], np.int32), [part.high - part.low for part in found]
            )
            # Not by a kernel of Arrow, which gives the interpreter's lock away, and waits for it as long as a small query
            # takes.
            keys = pa.array([runs.keys[place].as_py() for place in numbers], runs.keys.type)
        series = pa.DictionaryArray.from_arrays(pa.array(codes), keys)
        columns = [_joined(blocks, found, name) for name in (TIME_COLUMN, *names)]
        rows = pa.RecordBatch.from_arrays([series, *columns], names=[SERIES_COLUMN, TIME_COLUMN, *names])
        return SeriesRows(rows, len(groups))

    def all_rows(
        self, runs: Runs, fields: Sequence[str], start_ns: int | None, end_ns: int | None, wanted: Mask | None
    ) -> pa.RecordBatch | None:
        """See `BlockCache.read_small`."""
        layout = self._layout()
        if len(layout.ends) != 1:
            return None
        names = [name for name in fields if name in layout.names]
        blocks = self._blocks(0, names)
        codes = np.repeat(np.arange(len(runs.lengths), dtype=np.int32), runs.lengths)
        series = pa.DictionaryArray.from_arrays(pa.array(codes), runs.keys)
        columns = [series, *(blocks[name] for name in (TIME_COLUMN, *names))]
        rows = pa.RecordBatch.from_arrays(columns, names=[SERIES_COLUMN, TIME_COLUMN, *names])
        times = blocks[TIME_COLUMN].to_numpy(zero_copy_only=True)
        keep = rows_kept(self._entry, times, codes, start_ns, end_ns, wanted)
        return rows if keep is None or keep.all() else rows.filter(pa.array(keep))

    def _within(self, part: _Part, times: pa.Array, start_ns: int | None, end_ns: int | None) -> _Part:
        # Rows of a series are in order of time.
        of_series = times.to_numpy(zero_copy_only=True)[part.low : part.high]
        low = 0 if start_ns is None else int(of_series.searchsorted(start_ns, "left"))
        high = len(of_series) if end_ns is None else int(of_series.searchsorted(end_ns, "left"))
        return _Part(part.place, part.group, part.low + low, part.low + max(low, high))

    def _blocks(self, group: int, names: Sequence[str]) -> dict[str, pa.Array]:
        """These columns of a row group, and its times in ns."""
        digest, wanted = self._entry.file_digest, (TIME_COLUMN, *names)
        found = {name: block for name in wanted if (block := self._cache.get((digest, group, name))) is not None}
        missing = [name for name in wanted if name not in found]
        if missing:
            # One thread: queries already run several at a time on a few cores.
            table = self._opened().read_row_group(group, columns=missing, use_threads=False)
            for name in missing:
                column = table.column(name)
                found[name] = pa.array(nanoseconds(column)) if name == TIME_COLUMN else one_array(column)
                self._cache.put((digest, group, name), found[name])
        return found

    def _layout(self) -> _Layout:
        known = self._cache.layout(self._entry.file_digest)
        if known is not None:
            return known
        metadata = self._opened().metadata
        if metadata.num_rows != self._entry.rows:
            raise ValueError(f"{metadata.num_rows} rows, the catalogue has {self._entry.rows}")
        ends = accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        layout = _Layout(tuple(ends), frozenset(self._opened().schema_arrow.names))
        self._cache.put_layout(self._entry.file_digest, layout)
        return layout

    def _opened(self) -> pq.ParquetFile:
        if self._file is None:
            # With checksums: a flipped bit has to be an error, and never another value in an answer.
            self._file = pq.ParquetFile(self._root / self._entry.name, page_checksum_verification=True)
        return self._file


def _size_bytes(block: pa.Array) -> int:
    return int(block.nbytes) + BLOCK_OVERHEAD_BYTES


def _parts(layout: _Layout, runs: Runs, places: Int64s) -> Iterable[_Part]:
    """Where the rows of each series are."""
    for place in places.tolist():
        end = int(runs.ends[place])
        row = end - int(runs.lengths[place])
        while row < end:
            group = bisect_right(layout.ends, row)
            begin = layout.ends[group - 1] if group else 0
            stop = min(end, layout.ends[group])
            yield _Part(place, group, row - begin, stop - begin)
            row = stop


def _joined(blocks: dict[int, dict[str, pa.Array]], parts: Sequence[_Part], name: str) -> pa.Array:
    pieces = [blocks[part.group][name].slice(part.low, part.high - part.low) for part in parts]
    if len(pieces) == 1:
        return pieces[0]
    # Of no rows too a column has its type.
    return pa.concat_arrays(pieces or [block[name].slice(0, 0) for block in blocks.values()][:1])
