"""The store of one data group at one node: the interface that the rest of the node uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.consumers.store.block_cache import BlockCache
from headrace.consumers.store.centres import NO_CENTRES, CentreProgress
from headrace.consumers.store.compact_job import CompactJob, DropJob
from headrace.consumers.store.compaction import Compaction, plan_compaction
from headrace.consumers.store.encoders import encoding_threads
from headrace.consumers.store.former_rows import FormerRows, table_view
from headrace.consumers.store.last_rows import LiveSummaries, with_tags
from headrace.consumers.store.last_tables import LastSource, LastTable, LastTables
from headrace.consumers.store.memtable import MemtableSize, TableKey, TableMetadata, live_batch
from headrace.consumers.store.pruning import OverlapCache, ScanRequest
from headrace.consumers.store.rollup_columns import RollupRequest
from headrace.consumers.store.rollup_files import RollupFiles
from headrace.consumers.store.runs_cache import RunsCache
from headrace.consumers.store.scan import TableScan, read_table
from headrace.consumers.store.seal_job import SealJob
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import path_component
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.slot_moves import SlotMoves
from headrace.consumers.store.store_directory import (
    STAGING_DIRECTORY,
    StoreSnapshot,
    open_directories,
    quarantine,
    write_snapshot,
)
from headrace.consumers.store.store_job import StoreComponents
from headrace.consumers.store.store_view import StoreView
from headrace.consumers.store.tombstones import tombstone
from headrace.consumers.store.undecided import Undecided, first_undecided_ns, write_undecided
from headrace.schemas.tables import DatabaseSchema, TableSchema


class Store(SlotMoves):
    """Rows of one data group.

    Unsealed rows are in memory and sealed rows in Parquet files; an index names the valid files. Owns
    `{data}/segments/{group}` and `{data}/index/{group}`, and removes from `{data}/staging/{group}` what it has
    attached. One thread calls `write`, `delete`, `freeze`, `compact`, `drop`, `load`, `hold`, `release` and those of
    what was handed over, in order of version. A pool runs the jobs that these return, in the order of their creation. Any thread may
    call everything else. Durable is what a seal has committed: after a crash the caller applies every record
    after the `frontier` again and ends with the same content.
    """

    def __init__(self, components: StoreComponents, own_encoders: Executor | None) -> None:
        """Use `open`. `own_encoders` are shut down with this store."""
        super().__init__(components)
        self._own_encoders = own_encoders

    @classmethod
    def open(
        cls,
        data_directory: Path,
        group: str,
        settings: StoreSettings | None = None,
        encoders: Executor | None = None,
        centres: CentreProgress = NO_CENTRES,
        read_state: Callable[[bytes], object] = bytes,
    ) -> Store:
        """Opens or creates the store of `group`.

        It runs the passes of store_directory, in a time by the number of segments, not their size. Stores of one
        process share `encoders` (see `encoding_threads`). Merges and deletes wait for `centres`. `read_state` raises
        SchemaUnknown for a newer build's. Raises StoreLocked, StoreFull, StoreUnwritable, StoreDamaged or StoreFormatUnknown.
        """
        opened = open_directories(Path(data_directory), group, settings := settings or StoreSettings(), read_state)
        runs = RunsCache(opened.index.runs, settings.runs_cache_series)
        threads = encoders or encoding_threads(settings)
        components = StoreComponents(
            group=group,
            settings=settings,
            files=opened.files,
            index=opened.index,
            view=StoreView(opened.content),
            runs=runs,
            overlaps=OverlapCache(opened.files, runs.get),
            blocks=BlockCache(settings.blocks_cache_bytes),
            live=LiveSummaries(),
            last_tables=LastTables(settings.last_tables_cache_bytes),
            encoders=threads,
            rollups=RollupFiles.open(opened.rollups, settings, opened.files, runs.get, threads, opened.content.entries),
            staging=Path(data_directory) / STAGING_DIRECTORY / path_component(group),
            centres=centres,
        )
        return cls(components, own_encoders=None if encoders else threads)

    @staticmethod
    def quarantine(data_directory: Path, group: str) -> Path:
        """Moves a store that cannot be opened to `{data}/damaged/{group}-{n}`; returns that path."""
        return quarantine(Path(data_directory), group)

    @property
    def state(self) -> bytes | None:
        """The caller's state of the last committed seal; None before the first."""
        return self._components.view.state

    @property
    def frontier(self) -> int:
        """Version of the last committed seal, 0 before the first. Every row up to it is in segments."""
        return self._components.view.frontier

    @property
    def group(self) -> str:
        """The name that it was opened for."""
        return self._components.group

    @property
    def segments_directory(self) -> Path:
        """The directory that segment names are relative to."""
        return self._components.files.root

    def write(
        self, version: int, era: int, schema: TableSchema, database: DatabaseSchema, batch: pa.RecordBatch
    ) -> None:
        """Adds the rows of one message (a row batch, see `schemas.payload`), written under `schema`.

        The work grows with the number of columns, plus one pass over the times. Raises BatchInvalid and then
        stores nothing.
        """
        self._advance(version)
        if len(batch):
            self._components.view.add(TableMetadata(database, schema), live_batch(version, era, schema, batch))

    def delete(
        self,
        version: int,
        era: int,
        database: str,
        table: str,
        tags: Mapping[str, tuple[str, ...]],
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        """Deletes rows of lower rank than (era, version), also those that arrive later.

        It matches rows with time in [start_ns, end_ns) that have one of the given values for every tag of
        `tags` ("" = absent).
        """
        self._advance(version)
        self._components.view.add_tombstone(tombstone(version, era, (database, table), tags, start_ns, end_ns))

    def freeze(
        self, version: int, era: int, state: bytes, schemas: Mapping[TableKey, TableSchema] | None = None
    ) -> SealJob:
        """Freezes all unsealed rows as of `version`; they stay visible until the job has sealed them.

        `era` is the lowest era of any row written or loaded after this seal: tombstones of no higher era are
        purged once no segment needs them. `state` is committed with the segments. `schemas` gives the schema under
        which each table is sealed, at least the newest that its rows were written under (the default). It
        must be the same on every replica.
        """
        self._advance(version)
        since, first_version = self._frozen_version + 1, self._divided_version + 1
        self._frozen_version = self._divided_version = version
        return SealJob(self._components, version, era, state, schemas or {}, first_version, since)

    def compact(self, version: int, inputs: Sequence[str]) -> CompactJob:
        """Merges segments of one slice, bucket and era and applies the tombstones so far.

        `inputs` are segment names, lowest rank first. The same inputs at the same version give the same
        output on every replica. If no input exists any more, the record was applied before a crash and the
        job does nothing. The job raises JobSuperseded if only some inputs exist, or if other segments are
        between them.
        """
        self._advance(version)
        return CompactJob(self._components, version, inputs)

    def drop(self, version: int, era: int, database: str, table: str, before_ns: int) -> DropJob | None:
        """Drops the slices of a table that end at or before `before_ns`; None for an unknown table.

        The rows are invisible at once; the job removes the files.
        """
        self._advance(version)
        metadata = self._components.view.metadata((database, table))
        if metadata is None:
            return None
        # Whole slices only, so that the job removes files and rewrites none.
        end_ns = before_ns // metadata.database.slice_ns * metadata.database.slice_ns
        dropped = replace(tombstone(version, era, (database, table), {}, None, end_ns), is_drop=True)
        self._components.view.add_tombstone(dropped)
        return DropJob(self._components, version, dropped)

    def plan_compaction(self) -> list[Compaction]:
        """The merges to do now (see headrace.consumers.store.compaction).

        The leader appends each as a `Compact`.
        """
        components, view = self._components, self._components.view
        progress = components.centres.lowest(components.group)
        return plan_compaction(view.catalogue(), view.tombstones_by_table(), components.settings, progress)

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        tags: Mapping[str, Sequence[str]] | None = None,
        rollup: RollupRequest | None = None,
        former: FormerRows | None = None,
    ) -> TableScan:
        """The rows of a table at this instant, with time in [start_ns, end_ns) and the given tag values.

        With `rollup` the scan has rollups in the place of files; of their hours the caller takes those in the range.
        TableScan says what is exact. Unknown names in `columns` are ignored. `former` are rows that are not here yet.
        Raises TableUnknown (not with `former`) or StoreDamaged.
        """
        parts, files = self._components, self._components.files
        content = table_view(parts.view, (database, table), former, files.pin)
        pinned = [entry.name for entry in content.entries]
        request = ScanRequest(None if columns is None else frozenset(columns), start_ns, end_ns, dict(tags or {}))
        try:
            unique = former is None and parts.live.of(content).unique
            given = (parts.runs.get, parts.overlaps, parts.blocks, unique)
            read = read_table(content, request, files, *given, whole_files=rollup is not None)
            direct, rolled = parts.rollups.divide(read.direct, rollup, content.schema, request.tags)
        except BaseException:
            files.release(pinned)
            raise
        # Segments that were merged or pruned are released now; only those that the caller reads stay pinned.
        files.release({*pinned} - {entry.name for entry in direct})
        return TableScan.over(files, direct, read, len(pinned), rolled)

    def last_rows(self, database: str, table: str, tags: Mapping[str, Sequence[str]] | None = None) -> pa.Table | None:
        """The newest row of every series with these tags, sealed or not.

        None when a tombstone has deleted the newest row of one of them: then only a scan finds the next older
        one. None also while a file of the table is awaited. Raises TableUnknown.
        """
        components, wanted = self._components, tags or {}
        # Held while the index is read: a store that has left its node is closed once nobody holds a name.
        with components.files.held():
            return self._last_rows(components, (database, table), wanted)

    def _last_rows(
        self, components: StoreComponents, key: TableKey, wanted: Mapping[str, Sequence[str]]
    ) -> pa.Table | None:
        database, table = key
        # One critical section: a seal between the two reads would move rows out of the one into the other.
        with components.view.lock:
            view = components.view.table(database, table)
            keys = [(database, table, bucket) for bucket in range(view.metadata.database.buckets)]
            last = [(name, batch) for name in keys if (batch := components.last(name)) is not None]
            era_max, frontier = components.view.era_max, components.view.frontier
            if any((entry.database, entry.table) == (database, table) for entry in components.view.awaited()):
                return None
            # The job that takes the rows of moved slots out of the last rows has not run yet.
            if any(hold.version not in components.view.held for hold in components.view.holds):
                return None
        # Tombstones that came up to the frontier were applied to the sealed last rows by their seal.
        unapplied = view.tombstones.newer_than(frontier)
        source = LastSource(tuple(batch for _, batch in last), unapplied, era_max, view.schema)
        live = components.live.of(view).last
        if not wanted:
            return components.last_tables.newest(key, source, live)
        named = [*last, (key, live)]
        # By the tags first: what is deleted matters of the wanted series alone.
        found = [with_tags(batch, wanted, components.last_tags.of(name, batch)) for name, batch in named]
        return LastTable.of(replace(source, batches=tuple(found[:-1]))).with_live(found[-1])

    def undecided(self, after: int, files_max: int, directory: Path) -> Undecided:
        """What came after a version and is sealed, lowest first, with links to its files in a new directory.

        Raises SegmentAwaited, StoreFull or StoreUnwritable, and then there is no directory.
        """
        return write_undecided(self._components, after, files_max, directory)

    def first_undecided_ns(self, database: str, table: str, progress: int) -> int | None:
        """A lower bound of the times of a table's rows above version `progress`, sealed or not; None without such rows."""
        return first_undecided_ns(self._components, (database, table), progress)

    @property
    def unsealed_deletes(self) -> int:
        """Deletes of users that no seal has committed yet."""
        return self.deletes_above(self.frontier)

    def deletes_above(self, version: int) -> int:
        """Deletes of users that came behind a version."""
        return sum(each.came_at > version and not each.is_drop for each in self._components.view.tombstones())

    def segments(self) -> list[SegmentEntry]:
        """The files of the catalogue that are here, in order of name."""
        return self._components.view.entries()

    def segments_of(self, database: str, table: str) -> Sequence[SegmentEntry]:
        """The files of a table that are here, in no order. Raises TableUnknown."""
        return self._components.view.table(database, table).entries

    @property
    def rollups(self) -> RollupFiles:
        """The rollups of its segments."""
        return self._components.rollups

    @property
    def block_bytes(self) -> int:
        """The size of the decoded columns of segments that it keeps for queries."""
        return self._components.blocks.cached_bytes

    @property
    def last_row_bytes(self) -> int:
        """The size of the last rows of tables that it keeps with their tags decoded."""
        return self._components.last_tables.cached_bytes

    @property
    def loaded_version(self) -> int:
        """Version of the newest load that was carried out, 0 before the first."""
        return self._components.view.loaded_version

    @property
    def size_bytes(self) -> int:
        """Bytes of the files of the catalogue that are here."""
        return self._components.view.size_bytes

    def digests(self) -> dict[str, str]:
        """Content digest by segment name; equal on every replica after the same jobs.

        Awaited files count as if they were here: the load has named their content.
        """
        return {entry.name: entry.content_digest for entry in self._components.view.catalogue()}

    def is_corrupt(self, name: str, on_bytes: Callable[[int], None] = lambda _size: None) -> bool:
        """Whether the bytes of a segment differ from those that were sealed, or cannot be read.

        False for a segment that the catalogue no longer names. `on_bytes(size)` is called for each chunk that
        was read and may raise to stop.
        """
        files = self._components.files
        # A file that a merge removes while it is read would look like one that the disk has lost.
        files.pin([name])
        try:
            entry = self._components.view.entry(name)
            return entry is not None and files.digest(name, on_bytes) != entry.file_digest
        finally:
            files.release([name])

    def tables(self) -> list[TableKey]:
        """(database, table) of every table that has or had rows, sorted."""
        return self._components.view.tables()

    def is_empty(self, database: str, table: str) -> bool:
        """Whether no row of a table is left; its files may be removed later."""
        return self._components.view.is_empty((database, table))

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema the store has seen in writes and seals. Raises TableUnknown."""
        return self._components.view.schema(database, table)

    def database(self, database: str, table: str) -> DatabaseSchema | None:
        """Slices and buckets of a table's database, or None for an unknown table."""
        metadata = self._components.view.metadata((database, table))
        return None if metadata is None else metadata.database

    def size(self) -> MemtableSize:
        """Size of the rows that the next seal would freeze."""
        return self._components.view.unfrozen()

    def unsealed(self) -> MemtableSize:
        """Size of all rows in memory: those not frozen, and frozen ones whose seal has not committed."""
        return self._components.view.unsealed()

    def pending_jobs(self) -> int:
        """Seals, merges and drops that have not succeeded yet."""
        return len(self._components.queue)

    def has_pending(self, version: int) -> bool:
        """Whether a job of a record up to a version has not succeeded yet."""
        return any(job.version <= version for job in tuple(self._components.queue))

    def snapshot(self, directory: Path) -> StoreSnapshot:
        """Copies the committed store into `directory`, as of one commit, however many follow meanwhile.

        The copy is a data directory that `open` accepts; it is not synced. Segments are hard-linked and the index is
        checkpointed, so `directory` must be on the same file system. It must not exist.
        """
        return write_snapshot(self._components, directory)

    def retire(self) -> bool:
        """Whether no reader is left; from then on a new one gets StoreRetired. Waits for a snapshot that is made."""
        with self._components.commit_lock:
            return self._components.files.retire()

    def close(self) -> None:
        """Releases the directories. Unsealed rows are not saved; the caller has them in its journal."""
        if self._own_encoders is not None:
            self._own_encoders.shutdown()
        self._components.close()
