"""The job that seals: sort, encode, sync, rename, one index batch. See `store_job` for the order of commits."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from headrace.consumers.store.batch_columns import Int64s, Mask
from headrace.consumers.store.encoding import ColumnEncoding, choose_encodings
from headrace.consumers.store.index import BucketKey, IndexChanges
from headrace.consumers.store.last_rows import apply_tombstones, encode_last, last_of_segment, merge_last
from headrace.consumers.store.memtable import LiveBatch, Memtable, TableKey, TableMetadata, by_rank, newer_schema
from headrace.consumers.store.row_order import Part, SortedTable, sort_table
from headrace.consumers.store.segment import SegmentEntry, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.slots import Slots
from headrace.consumers.store.store_job import StoreComponents, StoreJob
from headrace.consumers.store.store_view import UncommittedCut
from headrace.consumers.store.tombstone_set import TombstoneSet, by_table, visible
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.tables import FieldType, TableSchema

SHARED_ROWS_MAX = 32_768
"""Files of fewer rows share one choice of encodings: a choice for each took almost half the time of a file."""
LATE_TOMBSTONES_MAX = 10_000
"""Tombstones that a store keeps for late rows of earlier holders of its slots alone; the oldest is purged first."""


@dataclass(frozen=True, slots=True)
class _WrittenSegment:
    """A segment that is on disk under its final name but not yet in the index."""

    entry: SegmentEntry
    runs: bytes
    last: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks of rows; `held_since` is 0 for those of the own log. `versions` has one for each row that is handed."""

    era: int
    first_version: int
    last_version: int
    held_since: int = 0
    versions: Int64s | None = None


class SealJob(StoreJob):
    """Writes all rows up to one version into segments and commits the caller's state with them."""

    can_be_cancelled = False
    leaving: Slots | None = None
    """The slots that leave with the cut at this version, if it is one; set before the job runs."""

    def __init__(
        self,
        components: StoreComponents,
        version: int,
        era_min: int,
        state: bytes,
        schemas: Mapping[TableKey, TableSchema],
        first_version: int,
        since_version: int,
    ) -> None:
        """Created by `Store.freeze`.

        Own rows have versions from `first_version` on; the records since the seal before from `since_version` on.
        """
        super().__init__(components, version)
        self._since_version = since_version
        self._era_min = era_min
        self._state = state
        self._first_version = first_version
        self._memtable, self._tombstones, self._replaced = components.view.freeze()
        # Fixed now, on the apply thread. If a schema that arrives before the job runs changed what it writes,
        # replicas whose jobs run at other times would write other segments.
        self._sealed = {table: self._sealed_metadata(table, schemas) for table in self._memtable.batches}
        self._newest = {table: self._newest_metadata(table, sealed) for table, sealed in self._sealed.items()}
        self._written: dict[str, _WrittenSegment] = {}
        # Of these, those that are neither durable nor have their name.
        self._staged: list[str] = []

    def _newest_metadata(self, table: TableKey, sealed: TableMetadata) -> TableMetadata:
        current = self._components.view.metadata(table)
        return TableMetadata(sealed.database, newer_schema(current.schema if current else None, sealed.schema))

    def _sealed_metadata(self, table: TableKey, schemas: Mapping[TableKey, TableSchema]) -> TableMetadata:
        current = self._components.view.metadata(table)
        assert current is not None, table
        given = schemas.get(table)
        return TableMetadata(current.database, current.schema if given is None else given)

    def _execute(self) -> None:
        self._write_segments()
        components, written = self._components, list(self._written.values())
        entries = [each.entry for each in written]
        components.files.sync_directories(entry.name for entry in entries)
        last = self._last_rows(written)
        purged = self._purgeable(entries)
        changes = IndexChanges(
            added=[(each.entry, each.runs) for each in written],
            tables=self._newest,
            last={key: encode_last(batch) for key, batch in last.items()},
            new_tombstones=[each for each in self._new_tombstones() if each not in purged],
            purged_tombstones=[*purged, *self._replaced],
            state=(self.version, self._state),
        )
        # A snapshot between the two commits would checkpoint
        # an index that names segments which it does not link.
        with components.commit_lock:
            components.index.commit(changes, components.files.pinned())
            components.view.commit(
                added=entries, frozen=self._memtable, purged=purged, last=last, tables=self._newest, state=changes.state
            )
        components.live.forget(self._sealed)
        # The caller may keep the job; the rows must not stay in memory with it.
        self._memtable, self._written = Memtable(), {}

    def _write_segments(self) -> None:
        """Writes every segment of the seal; those of one table are encoded while the next one is sorted.

        Then all are synced together. Segments that a failed earlier run has finished are kept. Those of slots that
        leave come first, and are given away before the others are written.
        """
        with self._encoders() as encoders:
            self._write_with(encoders)

    @contextmanager
    def _encoders(self) -> Iterator[Executor]:
        """The threads that encode; those of an urgent seal have no added niceness, and end with it."""
        if not self.urgent:
            yield self._components.encoders
            return
        with ThreadPoolExecutor(self._components.settings.encode_threads, "encode-urgent") as threads:
            yield threads

    def _write_with(self, encoders: Executor) -> None:
        running, others = list[Future[None]](), list[Callable[[], None]]()
        try:
            for leaves, write in self._writes():
                if leaves or self.leaving is None:
                    running.append(encoders.submit(write))
                else:
                    others.append(write)
            if self.leaving is not None:
                self._give_away(running, self.leaving)
            running += [self._components.encoders.submit(write) for write in others]
            for each in running:
                each.result()
        finally:
            # Also after an error: a write that still runs must
            # not race with the next attempt for the same file.
            for each in running:
                each.cancel()
            wait(running)
            self._finish()

    def _writes(self) -> Iterator[tuple[bool, Callable[[], None]]]:
        """(whether its slot leaves, what writes it) for each segment that is not written yet."""
        for table, sealed in sorted(self._sealed.items()):
            for ranks, rows in self._sorted(table, sealed):
                shared = self._shared_encodings(sealed.schema, rows)
                for name, part in self._named(sealed.schema, ranks, rows):
                    if name.relative not in self._written:
                        own = shared if part.rows < SHARED_ROWS_MAX else None
                        leaves = self.leaving is not None and self.leaving.hold(
                            name.database, name.bucket, name.slice_number
                        )
                        yield leaves, partial(self._write, name, sealed.schema, rows, part, ranks.held_since, own)

    def _give_away(self, running: Iterable[Future[None]], leaving: Slots) -> None:
        """Finish the segments of slots that leave, and show them to those who fetch files of the cut."""
        for each in running:
            each.result()
        self._finish()
        written = [each for each in self._written.values() if leaving.hold_segment(each.entry)]
        files = {each.entry.name: (each.entry, each.runs) for each in written}
        self._components.view.uncommitted_cut = UncommittedCut(self.version, files)

    def _finish(self) -> None:
        """Everything that was staged gets durable, and its name; else it will be written again."""
        try:
            self._components.files.finish(sorted(self._staged))
        except BaseException:
            self._components.files.discard(self._staged)
            for name in self._staged:
                self._written.pop(name, None)
            raise
        finally:
            self._staged.clear()

    def _sorted(self, table: TableKey, sealed: TableMetadata) -> Iterator[tuple[_Ranks, SortedTable]]:
        """The visible rows of one table, sorted, for each era and log: a segment has one of each."""
        relevant = self._tombstones.get(table, TombstoneSet())
        for ranks, group in self._by_ranks(table):
            found = zip(group, visible(group, relevant), strict=True)
            left = [(batch.version, rows) for batch, rows in found if len(rows)]
            if left:
                of_rows = np.repeat([version for version, _ in left], [len(rows) for _, rows in left])
                ranks = replace(ranks, versions=of_rows if ranks.held_since else None)
                yield ranks, sort_table([rows for _, rows in left], sealed.database, sealed.schema)

    def _by_ranks(self, table: TableKey) -> Iterator[tuple[_Ranks, list[LiveBatch]]]:
        """The batches of one table, lowest rank first, by the ranks that their segments are named after."""
        own, handed = list[LiveBatch](), list[LiveBatch]()
        for batch in by_rank(self._memtable.batches[table]):
            (handed if batch.held_since else own).append(batch)
        for era, group in groupby(own, key=lambda batch: batch.era):
            yield _Ranks(era, self._first_version, self.version), list(group)
        # Rows of another log have versions of that log, which a range of this one does not hold. Its files are in
        # order of rank, so what belongs between two of them must not become one file.
        firsts: dict[int, list[int]] = {}
        for entry in self._components.view.catalogue():
            if entry.held_since and (entry.database, entry.table) == table:
                insort(firsts.setdefault(entry.era, []), entry.first_version)

        def place(batch: LiveBatch) -> tuple[int, int, int]:
            return batch.held_since, batch.era, bisect_right(firsts.get(batch.era, []), batch.version)

        for (since, era, _), group in groupby(sorted(handed, key=place), key=place):
            batches = list(group)
            yield _Ranks(era, batches[0].version, batches[-1].version, since), batches

    def _named(self, schema: TableSchema, ranks: _Ranks, rows: SortedTable) -> Iterator[tuple[SegmentName, Part]]:
        for part in rows.parts:
            place = (schema.database, schema.table, part.slice_number, part.bucket)
            yield SegmentName(*place, ranks.era, *_versions(ranks, rows, part)), part

    def _shared_encodings(self, schema: TableSchema, rows: SortedTable) -> Mapping[str, ColumnEncoding] | None:
        """The encodings of all small files of one table, None if it has not several."""
        small = [part for part in rows.parts if part.rows < SHARED_ROWS_MAX]
        if len(small) < 2:
            return None
        # Rows of one table are of one kind, whatever their day. The largest part shows the most of it.
        fields = rows.rows_of(max(small, key=lambda part: part.rows)).fields
        settings = self._components.settings
        return choose_encodings(fields, schema.field_types(), settings.row_group_rows, settings.compression_level)

    def _write(
        self,
        name: SegmentName,
        schema: TableSchema,
        rows: SortedTable,
        part: Part,
        held_since: int,
        encodings: Mapping[str, ColumnEncoding] | None,
    ) -> None:
        segment = rows.rows_of(part)
        group, settings = self._components.group, self._components.settings
        encoded = encode_segment(group, name, schema, segment, self.version, settings, encodings)
        self._components.files.stage(name.relative, encoded.data)
        # By threads of the pool, without a lock: each change is one call, which the interpreter does not divide.
        self._staged.append(name.relative)
        handed = self.version if held_since else 0
        entry = replace(encoded.entry, held_since=held_since, handed_version=handed)
        self._components.rollups.write(entry, segment)
        self._written[name.relative] = _WrittenSegment(entry, encoded.runs.to_bytes(), last_of_segment(segment, entry))

    def _last_rows(self, written: Sequence[_WrittenSegment]) -> dict[BucketKey, pa.RecordBatch]:
        """The new last rows of every bucket that has a segment or a tombstone of this seal."""
        components = self._components
        new: dict[BucketKey, list[pa.RecordBatch]] = {}
        for each in sorted(written, key=lambda each: each.entry.name):
            key = (each.entry.database, each.entry.table, each.entry.bucket)
            new.setdefault(key, []).append(each.last)
        # A tombstone can match series of any bucket, so all buckets of its table are examined.
        tombstones = by_table(self._new_tombstones())
        for table in tombstones:
            metadata = components.view.metadata(table)
            for bucket in range(metadata.database.buckets if metadata else 0):
                new.setdefault((*table, bucket), [])
        merged: dict[BucketKey, pa.RecordBatch] = {}
        for key, batches in new.items():
            # Only the rows of earlier seals: those of this one
            # were written without what the tombstones delete.
            earlier = components.last(key)
            if earlier is not None:
                if (relevant := tombstones.get(key[:2])) is not None:
                    earlier = apply_tombstones(earlier, relevant, components.view.era_max)
                batches = [earlier, *batches]
            if batches:
                merged[key] = merge_last(batches, self._fields((key[0], key[1])))
        return merged

    def _new_tombstones(self) -> list[Tombstone]:
        """The tombstones since the previous seal; older ones are in the index already."""
        # By the place where they came, not by rank: some were handed over.
        return [each for found in self._tombstones.values() for each in found if each.came_at >= self._since_version]

    def _fields(self, table: TableKey) -> dict[str, FieldType]:
        metadata = self._newest.get(table) or self._components.view.metadata(table)
        assert metadata is not None, table
        return metadata.schema.field_types()

    def _purgeable(self, added: Iterable[SegmentEntry]) -> set[Tombstone]:
        """Tombstones that can delete no row any more."""
        # Two conditions. No row of lower rank can arrive: rows written or loaded from now on have at least the
        # era `era_min`. And each segment that the tombstone overlaps has it applied, or reading that segment
        # would bring its rows back.
        entries: dict[TableKey, list[SegmentEntry]] = {}
        view = self._components.view
        # Those of slots that left, too: their new holder gets what is not applied to them.
        for entry in (*view.catalogue(), *view.cut_entries(), *added):
            entries.setdefault((entry.database, entry.table), []).append(entry)

        def unneeded(table: TableKey, found: TombstoneSet) -> TombstoneSet:
            return found.select(~_awaited(found, entries.get(table, ())))

        # What was handed over is for late rows of earlier holders, as those of an era are in which slots came. Such
        # rows may come at any time, so these stay, and only their number is bounded.
        late = {table: found.is_late(self._era_min) for table, found in self._tombstones.items()}
        purged = [each for key, found in self._tombstones.items() for each in unneeded(key, found.select(~late[key]))]
        if sum(int(mask.sum()) for mask in late.values()) > LATE_TOMBSTONES_MAX:
            found = [each for key, mask in late.items() for each in unneeded(key, self._tombstones[key].select(mask))]
            purged += sorted(found, key=lambda each: each.came_at)[:-LATE_TOMBSTONES_MAX]
        # A user's delete follows to the centres, so it stays until each has decided about it.
        progress = self._components.centres.lowest(self._components.group)
        return {each for each in purged if progress is None or each.came_at <= progress or each.is_drop}


def _versions(ranks: _Ranks, rows: SortedTable, part: Part) -> tuple[int, int]:
    """The lowest and the highest version of the rows of a part."""
    if ranks.versions is None:
        return ranks.first_version, ranks.last_version
    # Its own alone: the rows of other slots are of other logs, and their versions are no ranks of these. A delete that
    # was handed over concerns a file if it outranks all of its rows.
    own = ranks.versions[rows.ordering.rows[part.start : part.stop]]
    return int(own.min()), int(own.max())


def _awaited(tombstones: TombstoneSet, entries: Iterable[SegmentEntry]) -> Mask:
    """Which tombstones are not yet applied to one of the segments of their table."""
    awaited = np.zeros(len(tombstones), np.bool_)
    for entry in entries:
        awaited |= tombstones.unapplied_mask(entry)
    return awaited
