"""The store of one data group at one node: what the rest of the node sees of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa

from connectors.files import create_directories, rename_durably
from consumers.store.compaction import Compaction, plan_compaction
from consumers.store.files import SegmentFiles, typed_errors
from consumers.store.index import Index
from consumers.store.jobs import CompactJob, DropJob, SealJob, StoreParts
from consumers.store.last import has_stale, hide_last, last_table, merge_last, series_in
from consumers.store.live import LiveSummaries
from consumers.store.memtable import KnownTable, MemtableSize, TableKey, live_batch
from consumers.store.names import path_component
from consumers.store.overlap import Overlaps
from consumers.store.pruning import Question
from consumers.store.recovery import check_segments, remove_orphans
from consumers.store.scan import Scan, answer
from consumers.store.segment import SegmentEntry
from consumers.store.settings import StoreSettings
from consumers.store.snapshot import write_snapshot
from consumers.store.tombstones import tombstone
from consumers.store.view import RunsCache, StoreView
from schemas.tables import DatabaseSchema, TableSchema

INDEX_DIRECTORY = "index"
SEGMENTS_DIRECTORY = "segments"
DAMAGED_DIRECTORY = "damaged"


def encoding_threads(settings: StoreSettings) -> Executor:
    """Threads that are kept from seal to seal: new ones would begin with memory of their own each time. They start when first needed."""
    return ThreadPoolExecutor(settings.encode_threads, thread_name_prefix="encode")


class Store:
    """Rows of one data group: unsealed in memory, sealed in Parquet files, with an index that says which files count.

    Owns `{data}/segments/{group}` and `{data}/index/{group}`. `write`, `delete`, `freeze`, `compact` and `drop` are called by one thread in order
    of version; the jobs that the last three return are run by a pool in the order they were made; everything else by any thread. Durable is
    what a seal has committed: after a crash the caller feeds everything after the `frontier` again, and ends with the same content.
    """

    def __init__(self, parts: StoreParts, own_encoders: Executor | None) -> None:
        """Use `open`. `own_encoders` end with this store."""
        self._parts = parts
        self._own_encoders = own_encoders
        self._frozen_version = parts.view.frontier
        self._version = parts.view.frontier

    @classmethod
    def open(
        cls,
        data_directory: Path,
        group: str,
        settings: StoreSettings | None = None,
        encoders: Executor | None = None,
    ) -> Store:
        """Opens or creates the store of `group`, after recovery (see consumers.store.recovery). Takes time by the number of segments, not by
        their size. Stores of one process share `encoders` (see `encoding_threads`), which encode the files of their seals. Raises StoreHeld,
        StoreFull, StoreUnwritable, StoreDamaged or StoreFormatUnknown."""
        settings = settings or StoreSettings()
        root = Path(data_directory) / SEGMENTS_DIRECTORY / path_component(group)
        index_directory = Path(data_directory) / INDEX_DIRECTORY / path_component(group)
        with typed_errors(root):
            create_directories(root)
            create_directories(index_directory)
        index = Index(index_directory, settings)
        try:
            content = index.load()
            files = SegmentFiles(root)
            with typed_errors(root):
                remove_orphans(files, content.entries)
                check_segments(files, content.entries)
        except BaseException:
            index.close()
            raise
        runs = RunsCache(index.runs, settings.runs_cache_series)
        overlaps = Overlaps(files, runs.get)
        threads = encoders or encoding_threads(settings)
        view, live = StoreView(content), LiveSummaries()
        parts = StoreParts(group, settings, files, index, view, runs, overlaps, live, threads)
        return cls(parts, own_encoders=None if encoders else threads)

    @staticmethod
    def set_aside(data_directory: Path, group: str) -> Path:
        """Moves what is stored of a group, and cannot be opened, to `{data}/damaged/{group}-{n}`; nothing is deleted. Where it lies now."""
        component = path_component(group)
        damaged = create_directories(Path(data_directory) / DAMAGED_DIRECTORY)
        aside = next(place for number in count(1) if not (place := damaged / f"{component}-{number}").exists())
        with typed_errors(aside):
            for part in (SEGMENTS_DIRECTORY, INDEX_DIRECTORY):
                if (place := Path(data_directory) / part / component).exists():
                    create_directories(aside)
                    rename_durably(place, aside / part)
        return aside

    @property
    def state(self) -> bytes | None:
        """What the caller handed to the last committed seal; None before the first."""
        return self._parts.view.state

    @property
    def frontier(self) -> int:
        """Version of the last committed seal: every row up to it is in segments; 0 before the first."""
        return self._parts.view.frontier

    @property
    def segments_directory(self) -> Path:
        """Where segment names are relative to."""
        return self._parts.files.root

    def write(
        self, version: int, era: int, schema: TableSchema, database: DatabaseSchema, batch: pa.RecordBatch
    ) -> None:
        """Takes one message's rows (a row batch, see schemas.payload) written under `schema`. Work by the number of columns, not of rows, but
        for one pass over the times. Raises RowsInvalid, then nothing is stored."""
        self._advance(version)
        if len(batch):
            self._parts.view.add(KnownTable(database, schema), live_batch(version, era, schema, batch))

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
        """Hides rows of lower rank than (era, version), also such as arrive later: those with time in [start_ns, end_ns) that for every tag of
        `tags` carry one of its values ("" = absent)."""
        self._advance(version)
        self._parts.view.bury(tombstone(version, era, (database, table), tags, start_ns, end_ns))

    def freeze(
        self, version: int, era: int, state: bytes, schemas: Mapping[TableKey, TableSchema] | None = None
    ) -> SealJob:
        """Closes everything unsealed as of `version` for a seal; it stays visible until the job has put segments in its place.

        `era` is the lowest era that a row written after this seal may carry: deletes of no higher era are forgotten once nothing sealed needs
        them. `state` is committed with the segments. `schemas` says which schema each table is sealed with (at least the newest that its rows
        were written under; default: that one); it must be the same on every replica.
        """
        self._advance(version)
        first_version, self._frozen_version = self._frozen_version + 1, version
        return SealJob(self._parts, version, era, state, schemas or {}, first_version)

    def compact(self, version: int, inputs: Sequence[str]) -> CompactJob:
        """Merges segments of one slice, bucket and era, given by name, lowest rank first, and applies the deletes known by `version`. The same
        inputs at the same version give the same output everywhere. Inputs that are all gone: nothing to do (the record was applied before a
        crash). The job raises JobSuperseded if only some are there, or others lie between them."""
        self._advance(version)
        return CompactJob(self._parts, version, inputs)

    def drop(self, version: int, era: int, database: str, table: str, before_ns: int) -> DropJob | None:
        """Removes the slices of a table that end at or before `before_ns`: hidden at once, files removed by the job. None for an unknown
        table."""
        self._advance(version)
        known = self._parts.view.known((database, table))
        if known is None:
            return None
        end_ns = before_ns // known.database.slice_ns * known.database.slice_ns
        hidden = tombstone(version, era, (database, table), {}, None, end_ns)
        self._parts.view.bury(hidden)
        return DropJob(self._parts, version, hidden)

    def plan_compaction(self) -> list[Compaction]:
        """The merges worth doing now (see consumers.store.compaction); the leader appends each as a `Compact`."""
        return plan_compaction(self._parts.view.entries(), self._parts.view.tombstones(), self._parts.settings)

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        tags: Mapping[str, Sequence[str]] | None = None,
    ) -> Scan:
        """The rows of a table at this instant, pruned by time in [start_ns, end_ns), tag values and columns; see Scan for what is exact. Names
        in `columns` that the table lacks are left out. Raises TableUnknown or StoreDamaged."""
        parts = self._parts
        view = parts.view.table(database, table, on_entries=parts.files.pin)
        pinned = [entry.name for entry in view.entries]
        question = Question(None if columns is None else frozenset(columns), start_ns, end_ns, dict(tags or {}))
        try:
            unique = parts.live.of(view).unique
            clean, rows = answer(view, question, parts.files, parts.runs.get, parts.overlaps, unique)
        except BaseException:
            parts.files.release(pinned)
            raise
        names = {entry.name for entry in clean}
        parts.files.release([name for name in pinned if name not in names])
        return Scan([parts.files.path(name) for name in sorted(names)], rows, lambda: parts.files.release(names))

    def last_rows(self, database: str, table: str, tags: Mapping[str, Sequence[str]] | None = None) -> pa.Table | None:
        """The newest row of every series (of those with these tags), sealed or not, in the form users see; None when a delete has hidden the
        newest row of one of them, then only a scan can tell. Raises TableUnknown."""
        parts, wanted = self._parts, tags or {}
        with parts.view.lock:
            view = parts.view.table(database, table)
            keys = [(database, table, bucket) for bucket in range(view.known.database.buckets)]
            sealed = [batch for batch in map(parts.last, keys) if batch is not None]
            era_max, frontier = parts.view.era_max, parts.view.frontier
        newly = [each for each in view.tombstones if each.version > frontier]
        batches = [hide_last(batch, newly, era_max) for batch in sealed]
        batches = [series_in(batch, wanted) for batch in (*batches, parts.live.of(view).last)]
        merged = merge_last(batches, view.schema.field_types())
        return None if has_stale(merged) else last_table(merged, view.schema)

    def segments(self) -> list[SegmentEntry]:
        """The catalogue in order of name."""
        return self._parts.view.entries()

    def digests(self) -> dict[str, str]:
        """Segment name to content digest; equal on every replica after the same seals and merges."""
        return {entry.name: entry.content_digest for entry in self.segments()}

    def is_rotted(self, name: str, on_bytes: Callable[[int], None] = lambda _size: None) -> bool:
        """Whether a segment of the catalogue has other bytes than were sealed, or cannot be read; False for one that is gone by now.

        `on_bytes(size)` is called for every piece that was read, and may raise to stop.
        """
        files = self._parts.files
        files.pin([name])
        try:
            entry = self._parts.view.entry(name)
            return entry is not None and files.digest(name, on_bytes) != entry.file_digest
        finally:
            files.release([name])

    def tables(self) -> list[TableKey]:
        """(database, table) of every table that has or had rows, sorted."""
        return self._parts.view.tables()

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema the store has seen in writes and seals. Raises TableUnknown."""
        return self._parts.view.schema(database, table)

    def database(self, database: str, table: str) -> DatabaseSchema | None:
        """How the database of a table is cut, or None for an unknown table."""
        known = self._parts.view.known((database, table))
        return None if known is None else known.database

    def size(self) -> MemtableSize:
        """What the next seal would take: rows written and not frozen."""
        return self._parts.view.unfrozen()

    def unsealed(self) -> MemtableSize:
        """Everything that lies in memory: rows not frozen, and frozen ones whose seal has not committed."""
        return self._parts.view.unsealed()

    def pending_jobs(self) -> int:
        """Seals, merges and drops that have not succeeded yet."""
        return len(self._parts.queue)

    def snapshot(self, directory: Path) -> list[SegmentEntry]:
        """A copy of what is committed at this instant, laid out as a data directory that `open` takes: segments hard-linked, the index as a
        checkpoint. `directory` must not exist and lie on the same file system. Returns the catalogue of the copy."""
        return write_snapshot(self._parts, directory, INDEX_DIRECTORY, SEGMENTS_DIRECTORY)

    def close(self) -> None:
        """Releases the directories. Unsealed rows are not saved: the caller has them in its journal."""
        if self._own_encoders is not None:
            self._own_encoders.shutdown()
        self._parts.files.remove_all_doomed()
        self._parts.index.close()

    def _advance(self, version: int) -> None:
        assert version > self._frozen_version, (version, self._frozen_version)
        assert version >= self._version, (version, self._version)
        self._version = version
