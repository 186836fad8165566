"""Work that changes a store's files: sealing, merging, dropping. Each job is made by the apply thread at one version and run later by a pool.

A job becomes visible in one step: files first (written, synced, renamed, directories synced), then one synced index batch, then the swap in
memory. A job that fails leaves nothing visible and can be run again. Jobs of a store succeed in the order they were made.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from consumers.store.compaction import are_neighbours, output_name
from consumers.store.errors import JobOutOfTurn, JobSuperseded
from consumers.store.files import SegmentFiles
from consumers.store.index import BucketKey, Index, IndexChanges
from consumers.store.kernel import Part
from consumers.store.last import decode_last, encode_last, hide_last, last_of_segment, merge_last
from consumers.store.live import LiveSummaries
from consumers.store.memtable import KnownTable, Memtable, TableKey, by_rank, newer
from consumers.store.names import SegmentName
from consumers.store.overlap import Overlaps
from consumers.store.pruning import pending
from consumers.store.segment import Runs, SegmentEntry, encode_segment, read_rows, schema_of_file
from consumers.store.settings import StoreSettings
from consumers.store.sorting import SortedTable, sort_table
from consumers.store.tombstones import Tombstone, survivors
from consumers.store.view import RunsCache, StoreView
from schemas.tables import FieldType, TableSchema


@dataclass(slots=True)
class StoreParts:
    """What the jobs of one store share. `encoders` runs what needs CPU; `commit_lock` is held from an index commit to the swap in memory, and by
    snapshots."""

    group: str
    settings: StoreSettings
    files: SegmentFiles
    index: Index
    view: StoreView
    runs: RunsCache
    overlaps: Overlaps
    live: LiveSummaries
    encoders: Executor
    commit_lock: threading.Lock = field(default_factory=threading.Lock)
    queue: deque[StoreJob] = field(default_factory=deque)

    def last(self, key: BucketKey) -> pa.RecordBatch | None:
        """The sealed last rows of one bucket of a table."""
        return self.view.last(key, self._load_last)

    def _load_last(self, key: BucketKey) -> pa.RecordBatch | None:
        data = self.index.last(key)
        return None if data is None else decode_last(data)


class StoreJob(ABC):
    """One change of the store's files. `run` may be called by any thread, once at a time, until it has returned without error."""

    def __init__(self, parts: StoreParts, version: int) -> None:
        """Takes its place behind the jobs made before."""
        self.version = version
        self._parts = parts
        self._running = threading.Lock()
        self.done = False
        parts.queue.append(self)

    def run(self) -> None:
        """Does the work; a second call after success does nothing. Raises JobOutOfTurn while an earlier job has not succeeded, StoreFull
        (run it again once there is space), StoreUnwritable or StoreDamaged; after an error nothing has become visible."""
        with self._running:
            if self.done:
                return
            if self._parts.queue[0] is not self:
                raise JobOutOfTurn(
                    f"the job of version {self.version} is not the next one of group {self._parts.group}",
                    retriable=True,
                )
            self._execute()
            self.done = True
            self._parts.queue.popleft()

    def cancel(self) -> None:
        """Gives the work up for good, wherever it stands in line; for a merge that is void. A seal cannot be given up: its rows would be lost."""
        assert not isinstance(self, SealJob), self.version
        with self._running:
            if not self.done:
                self.done = True
                self._parts.queue.remove(self)

    @abstractmethod
    def _execute(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Written:
    """A segment that is on disk under its final name but not yet in the index."""

    entry: SegmentEntry
    runs: Runs
    last: pa.RecordBatch


class SealJob(StoreJob):
    """Turns all rows up to one version into segments and commits the caller's state with them."""

    def __init__(
        self,
        parts: StoreParts,
        version: int,
        era_floor: int,
        state: bytes,
        schemas: Mapping[TableKey, TableSchema],
        first_version: int,
    ) -> None:
        """Made by `Store.freeze`."""
        super().__init__(parts, version)
        self._era_floor = era_floor
        self._state = state
        self._first_version = first_version
        self._memtable, self._tombstones = parts.view.freeze()
        self._known = {table: self._sealed_as(table, schemas) for table in self._memtable.batches}
        self._newest = {table: self._newest_of(table, known) for table, known in self._known.items()}
        self._written: dict[str, _Written] = {}

    def _newest_of(self, table: TableKey, sealed: KnownTable) -> KnownTable:
        known = self._parts.view.known(table)
        return KnownTable(sealed.database, newer(known.schema if known else None, sealed.schema))

    def _sealed_as(self, table: TableKey, schemas: Mapping[TableKey, TableSchema]) -> KnownTable:
        known = self._parts.view.known(table)
        assert known is not None, table
        given = schemas.get(table)
        return KnownTable(known.database, known.schema if given is None else given)

    def _execute(self) -> None:
        self._write_segments()
        parts, written = self._parts, list(self._written.values())
        entries = [each.entry for each in written]
        parts.files.sync_directories(entry.name for entry in entries)
        last = self._last_rows(written)
        forget = self._forgotten(entries)
        changes = IndexChanges(
            add=[(each.entry, each.runs) for each in written],
            tables=self._newest,
            last={key: encode_last(batch) for key, batch in last.items()},
            bury=[each for each in self._newly() if each not in forget],
            forget=forget,
            state=(self.version, self._state),
        )
        with parts.commit_lock:
            parts.index.commit(changes)
            parts.view.commit(
                add=entries, frozen=self._memtable, forget=forget, last=last, tables=self._newest, state=changes.state
            )
        self._memtable, self._written = Memtable(), {}

    def _write_segments(self) -> None:
        """Writes every segment of the seal, those of one table while the next is sorted; those a failed earlier run has written stay."""
        running: list[Future[None]] = []
        try:
            for table, known in sorted(self._known.items()):
                for era, rows in self._sorted(table, known):
                    for name, part in self._named(known.schema, era, rows):
                        if name.relative not in self._written:
                            running.append(self._parts.encoders.submit(self._write, name, known.schema, rows, part))
            for each in running:
                each.result()
        finally:
            for each in running:
                each.cancel()
            wait(running)

    def _sorted(self, table: TableKey, known: KnownTable) -> Iterator[tuple[int, SortedTable]]:
        """The visible rows of one table, each era by itself: a segment has one era."""
        relevant = [each for each in self._tombstones if (each.database, each.table) == table]
        for era, group in groupby(by_rank(self._memtable.batches[table]), key=lambda batch: batch.era):
            batches = [rows for rows in (batch.visible(relevant) for batch in group) if len(rows)]
            if batches:
                yield era, sort_table(batches, known.database, known.schema)

    def _named(self, schema: TableSchema, era: int, rows: SortedTable) -> Iterator[tuple[SegmentName, Part]]:
        place, ranks = (schema.database, schema.table), (era, self._first_version, self.version)
        for part in rows.parts:
            yield SegmentName(*place, part.slice_number, part.bucket, *ranks), part

    def _write(self, name: SegmentName, schema: TableSchema, rows: SortedTable, part: Part) -> None:
        segment = rows.rows_of(part)
        encoded = encode_segment(self._parts.group, name, schema, segment, self.version, self._parts.settings)
        self._parts.files.write(name.relative, encoded.data)
        self._written[name.relative] = _Written(encoded.entry, encoded.runs, last_of_segment(segment, name.era))

    def _last_rows(self, written: Sequence[_Written]) -> dict[BucketKey, pa.RecordBatch]:
        """The new last rows of every bucket that a segment or a delete of this seal has touched."""
        parts = self._parts
        fresh: dict[BucketKey, list[pa.RecordBatch]] = {}
        for each in sorted(written, key=lambda each: each.entry.name):
            key = (each.entry.database, each.entry.table, each.entry.bucket)
            fresh.setdefault(key, []).append(each.last)
        newly = self._newly()
        touched = {(each.database, each.table) for each in newly}
        for table in touched:
            known = self._parts.view.known(table)
            for bucket in range(known.database.buckets if known else 0):
                fresh.setdefault((*table, bucket), [])
        merged: dict[BucketKey, pa.RecordBatch] = {}
        for key, batches in fresh.items():
            held = parts.last(key)
            if held is not None:
                relevant = [each for each in newly if (each.database, each.table) == key[:2]]
                batches = [hide_last(held, relevant, parts.view.era_max), *batches]
            if batches:
                merged[key] = merge_last(batches, self._fields((key[0], key[1])))
        return merged

    def _newly(self) -> list[Tombstone]:
        """The deletes since the seal before; older ones are in the index already."""
        return [each for each in self._tombstones if each.version >= self._first_version]

    def _fields(self, table: TableKey) -> dict[str, FieldType]:
        known = self._newest.get(table) or self._parts.view.known(table)
        assert known is not None, table
        return known.schema.field_types()

    def _forgotten(self, added: Iterable[SegmentEntry]) -> list[Tombstone]:
        """Deletes that can hide nothing any more: every file they touch has them applied, and no row of lower rank can still arrive."""
        entries = [*self._parts.view.entries(), *added]
        return [each for each in self._tombstones if each.era <= self._era_floor and not _awaited(each, entries)]


class CompactJob(StoreJob):
    """Puts one segment in the place of several, or of one with deletes to apply."""

    def __init__(self, parts: StoreParts, version: int, inputs: Sequence[str]) -> None:
        """Made by `Store.compact`."""
        super().__init__(parts, version)
        self.inputs = tuple(inputs)
        self._tombstones = parts.view.tombstones()

    def _execute(self) -> None:
        view = self._parts.view
        found = [entry for entry in (view.entry(name) for name in self.inputs) if entry is not None]
        if not found:
            # The record is read again after a crash, or its slice has been dropped since: there is nothing left to do.
            return
        if len(found) != len(self.inputs) or not are_neighbours(found, view.entries()):
            raise JobSuperseded(
                f"compaction at version {self.version} names files that are no neighbours here: {', '.join(self.inputs)}"
            )
        self._replace(found, self._merge(found))

    def _merge(self, inputs: Sequence[SegmentEntry]) -> _Written | None:
        parts, known = self._parts, self._parts.view.known((inputs[0].database, inputs[0].table))
        assert known is not None, inputs[0].name
        # The newest schema among the inputs, not the newest known here: it is the same on every replica, whenever the job runs.
        newest = max(inputs, key=lambda entry: (entry.schema_version, entry.name))
        schema = schema_of_file(parts.files.path(newest.name), newest)
        fields = [name for name, _ in schema.fields]
        batches = []
        for entry in inputs:
            rows = read_rows(parts.files.path(entry.name), entry, parts.runs.get(entry.name), fields)
            batches.append(survivors(rows, pending(entry, self._tombstones)))
        name = output_name(inputs)
        merged = sort_table(batches, known.database, schema)
        assert len(merged.parts) <= 1, name
        if not merged.parts:
            return None
        segment = merged.rows_of(merged.parts[0])
        encoded = encode_segment(parts.group, name, schema, segment, self.version, parts.settings)
        parts.files.write(name.relative, encoded.data)
        parts.files.sync_directories([name.relative])
        return _Written(encoded.entry, encoded.runs, last_of_segment(segment, name.era))

    def _replace(self, inputs: Sequence[SegmentEntry], output: _Written | None) -> None:
        added = [] if output is None else [(output.entry, output.runs)]
        _swap(self._parts, inputs, added)


class DropJob(StoreJob):
    """Removes the segments of slices that a drop hides as a whole."""

    def __init__(self, parts: StoreParts, version: int, tombstone: Tombstone) -> None:
        """Made by `Store.drop`, which has hidden the rows already."""
        super().__init__(parts, version)
        self._tombstone = tombstone

    def _execute(self) -> None:
        drop = self._tombstone
        assert drop.end_ns is not None
        gone = [
            entry
            for entry in self._parts.view.entries()
            if (entry.database, entry.table) == (drop.database, drop.table)
            and entry.max_time_ns < drop.end_ns
            and drop.outranks(entry.era, entry.last_version)
        ]
        if gone:
            _swap(self._parts, gone, [])


def _swap(parts: StoreParts, remove: Sequence[SegmentEntry], add: list[tuple[SegmentEntry, Runs]]) -> None:
    names = [entry.name for entry in remove]
    with parts.commit_lock:
        parts.index.commit(IndexChanges(add=add, remove=names))
        parts.view.commit(remove=remove, add=[entry for entry, _ in add])
    parts.files.remove(names)


def _awaited(tombstone: Tombstone, entries: Iterable[SegmentEntry]) -> bool:
    return any(pending(entry, [tombstone]) for entry in entries)
