"""The rollup files of a store: derived data of its segments, written where the segments are written.

`{data}/rollups/{group}/{name of the segment}.rollup`: a line of JSON, then the rollup (see `rollup`) as an Arrow IPC
stream (zstd). The line has the content digest of the segment that the rollup is of, and xxh3-128 of the stream. A file
whose line is not that of its segment, or whose stream has other bytes, counts as missing.

Nothing depends on these files. They are no part of a snapshot, a cut or a digest, and are not synced: a crash may lose
or cut one. A segment without rollup is read as before, and a thread that encodes makes its rollup for later queries. So
a segment of few rows, which will be merged soon, gets none until then. One whose rollup does not pay has a file without
a stream.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import structlog

from headrace.connectors.files import PARTIAL_SUFFIX
from headrace.consumers.store.batch_columns import Int64s, tag_columns
from headrace.consumers.store.rollup import pays, rollup_of
from headrace.consumers.store.rollup_columns import HOUR, SERIES, RollupRequest
from headrace.consumers.store.rollup_encoding import (
    DecodedRollup,
    columns_of,
    decode_rollup,
    encode_rollup,
    time_of,
    values_of,
)
from headrace.consumers.store.segment import Runs, SegmentEntry, SegmentRows
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.consumers.store.segment_reader import read_rows, schema_of_file
from headrace.consumers.store.settings import StoreSettings
from headrace.schemas.tables import TIME_COLUMN, TableSchema

ROLLUP_SUFFIX = ".rollup"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RollupStatistics:
    """Counters since the store was opened; `cached_bytes` and `pending` are gauges."""

    written: int = 0
    used: int = 0
    missing: int = 0
    damaged: int = 0
    cached_bytes: int = 0
    pending: int = 0


class RollupFiles:
    """Owns `root`. Safe for any thread. Errors of its files are never those of a seal or a query."""

    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        files: SegmentFiles,
        runs_of: Callable[[str], Runs],
        threads: Executor,
    ) -> None:
        """`runs_of` gives the runs of a segment by name; `threads` make the rollups that are missing."""
        self.root = root
        self.statistics = RollupStatistics()
        self._settings = settings
        self._files = files
        self._runs_of = runs_of
        self._threads = threads
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, DecodedRollup] = OrderedDict()
        self._pending: OrderedDict[str, SegmentEntry] = OrderedDict()
        self._failed: deque[str] = deque(maxlen=settings.rollups_pending_max)
        self._is_making = False
        self._is_closed = False

    @classmethod
    def open(
        cls,
        root: Path,
        settings: StoreSettings,
        files: SegmentFiles,
        runs_of: Callable[[str], Runs],
        threads: Executor,
        present: Collection[str],
    ) -> RollupFiles:
        """Also removes the files that are of no segment in `present`."""
        opened = cls(root, settings, files, runs_of, threads)
        try:
            opened._remove_orphans(present)
        except OSError as error:
            _log.warning("rollups not cleaned", directory=str(root), error=str(error))
        return opened

    @property
    def enabled(self) -> bool:
        """Whether rollups are made and used."""
        return self._settings.rollups

    def write(self, entry: SegmentEntry, rows: SegmentRows) -> None:
        """Makes the rollup of a segment from its rows; that of a small one is left to the first query that wants it."""
        # Most small segments are merged before any query: their rollups were a quarter of the cost of their seals.
        if not self.enabled or entry.rows < self._settings.rollup_segment_rows_min:
            return
        batch = rollup_of(rows) if pays(rows.runs, entry.rows, self._settings.rollup_rows_min) else None
        try:
            self._store(entry, batch)
        except OSError as error:
            _log.warning("rollup not written", segment=entry.name, error=str(error))

    def remove(self, names: Iterable[str]) -> None:
        """Forgets segments that are gone."""
        for name in names:
            with self._lock:
                self._forget(name)
                self._pending.pop(name, None)
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError:
                # An orphan; the next opening removes it.
                continue

    def _remove_orphans(self, present: Collection[str]) -> None:
        """Removes every file that is not of one of these segments, or all of them where rollups are off."""
        wanted = {f"{name}{ROLLUP_SUFFIX}" for name in present} if self.enabled else set[str]()
        for directory, _, names in os.walk(self.root, topdown=False):
            for name in names:
                path = Path(directory, name)
                if str(path.relative_to(self.root)) not in wanted:
                    path.unlink(missing_ok=True)
            if directory != str(self.root) and not os.listdir(directory):
                os.rmdir(directory)

    def forget(self) -> None:
        """Forgets what is decoded; the files stay."""
        with self._lock:
            for name in list(self._cached):
                self._forget(name)

    def close(self) -> None:
        """Makes no more rollups."""
        with self._lock:
            self._is_closed = True
            self._pending.clear()

    def divide(
        self,
        entries: Sequence[SegmentEntry],
        request: RollupRequest | None,
        schema: TableSchema,
        tags: Mapping[str, Sequence[str]] | None,
    ) -> tuple[list[SegmentEntry], pa.Table | None]:
        """The segments whose rows must be read, and the rollups of all others, under the newest schema.

        Of series without one of the `tags` there may be rows or not. Columns are the tags (dictionary), `time` (the
        hour) and those of the request.
        """
        if request is None or not self.enabled:
            return list(entries), None
        unread, batches = list[SegmentEntry](), list[pa.RecordBatch]()
        for entry in entries:
            places = self._runs_of(entry.name).tags.places(tags) if tags else None
            batch = self._batch(entry, request, schema, places)
            unread.append(entry) if batch is None else batches.append(batch)
        self.statistics.used += len(batches)
        return unread, pa.Table.from_batches(batches) if batches else None

    def _batch(
        self, entry: SegmentEntry, request: RollupRequest, schema: TableSchema, places: Int64s | None
    ) -> pa.RecordBatch | None:
        """What a query wants of one rollup; None where its segment must be read."""
        found = self._decoded(entry, request)
        if found is None or found.fields is None:
            return None
        types, arrays = schema.field_types(), [found.columns[_tag(tag)] for tag in request.tags]
        arrays.append(time_of(found, HOUR))
        for column in request.columns:
            values = values_of(found, column, types)
            if values is None:
                return None
            arrays.append(values)
        names = [*request.tags, TIME_COLUMN, *map(request.name, range(len(request.columns)))]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return batch if places is None else batch.take(pa.array(found.rows_of(places)))

    def _decoded(self, entry: SegmentEntry, request: RollupRequest) -> DecodedRollup | None:
        """The rollup of a segment with all that a request names; None for one that is missing."""
        wanted, tags = columns_of(request.columns), [_tag(tag) for tag in request.tags]
        with self._lock:
            found = self._cached.get(entry.name)
            # By its content: a merge may give a name again.
            if found is not None and found.content_digest == entry.content_digest:
                self._cached.move_to_end(entry.name)
                if found.fields is None or not (found.lacks(wanted) or set(tags) - found.columns.keys()):
                    return found
        # Outside the lock: two threads may read one file, but no other query waits for it.
        read = self._read(entry, wanted)
        if read is None:
            self._request(entry)
            return None
        if read.fields is not None:
            keys, codes = self._runs_of(entry.name).keys, read.columns[SERIES].to_numpy()
            read.columns |= {
                _tag(tag): column for tag, column in tag_columns(keys, request.tags, codes, texts=False).items()
            }
        with self._lock:
            return self._cache(entry.name, read)

    def _read(self, entry: SegmentEntry, wanted: Collection[str]) -> DecodedRollup | None:
        try:
            data = self._path(entry.name).read_bytes()
        except OSError:
            self._count(missing=1)
            return None
        try:
            return decode_rollup(data, entry.content_digest, wanted)
        # Changed bytes fail in many ways, depending on which they are.
        except (ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
            _log.warning("rollup damaged, it will be made again", segment=entry.name, error=str(error))
            self._count(damaged=1)
            return None

    def _cache(self, name: str, read: DecodedRollup) -> DecodedRollup:
        known = self._cached.get(name)
        if known is not None and known.content_digest == read.content_digest:
            read.columns = known.columns | read.columns
        self._forget(name)
        read.size_bytes = sum(column.nbytes for column in read.columns.values())
        self._cached[name] = read
        self.statistics.cached_bytes += read.size_bytes
        while self.statistics.cached_bytes > self._settings.rollups_cache_bytes and len(self._cached) > 1:
            self._forget(next(iter(self._cached)))
        return read

    def _forget(self, name: str) -> None:
        known = self._cached.pop(name, None)
        if known is not None:
            self.statistics.cached_bytes -= known.size_bytes

    def _request(self, entry: SegmentEntry) -> None:
        """Has the rollup of a segment made, unless too many wait for theirs."""
        with self._lock:
            full = len(self._pending) >= self._settings.rollups_pending_max
            if self._is_closed or full or entry.name in self._pending or entry.name in self._failed:
                return
            self._pending[entry.name] = entry
            self.statistics.pending = len(self._pending)
            if self._is_making:
                return
            self._is_making = True
        try:
            self._threads.submit(self._make_pending)
        except RuntimeError:
            # The node ends, and its threads with it.
            self.close()

    def _make_pending(self) -> None:
        """Makes the rollups that wait, one after another: seals have the other threads."""
        while True:
            with self._lock:
                _, entry = self._pending.popitem(last=False) if self._pending else ("", None)
                self.statistics.pending = len(self._pending)
                if entry is None:
                    self._is_making = False
                    return
            try:
                self._make(entry)
            # Whatever it is: one that left this loop would leave every later rollup unmade.
            except Exception as error:
                # A damaged segment is found by scrubber and queries; here it is not tried again.
                _log.warning("rollup not made", segment=entry.name, error=repr(error))
                self._failed.append(entry.name)

    def _make(self, entry: SegmentEntry) -> None:
        """Makes the rollup of a segment from its file."""
        self._files.pin([entry.name])
        try:
            runs, path = self._runs_of(entry.name), self._files.path(entry.name)
            batch = None
            if pays(runs, entry.rows, self._settings.rollup_rows_min):
                names = [name for name, _ in schema_of_file(path, entry).fields]
                read = read_rows(path, entry, runs, names)
                values = {name: read.column(name) for name in names}
                batch = rollup_of(SegmentRows(runs, read.column(1).to_numpy(), values))
            self._store(entry, batch)
            # Whoever removed the segment or closed the store meanwhile has found no rollup, and nobody looks again.
            if self._is_closed or self._files.is_obsolete(entry.name):
                self._path(entry.name).unlink(missing_ok=True)
        finally:
            self._files.release([entry.name])

    def _store(self, entry: SegmentEntry, batch: pa.RecordBatch | None) -> None:
        path = self._path(entry.name)
        # Of its thread alone: a seal that is run again and a query's request may write one file.
        partial = path.with_name(f"{path.name}.{threading.get_ident()}{PARTIAL_SUFFIX}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(encode_rollup(entry.content_digest, batch))
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        self._count(written=1)

    def _path(self, name: str) -> Path:
        return self.root / f"{name}{ROLLUP_SUFFIX}"

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)


def _tag(name: str) -> str:
    """The name of a tag among decoded columns."""
    return f"tag:{name}"
