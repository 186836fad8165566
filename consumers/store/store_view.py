"""The in-memory state of a store: catalogue, tables, unsealed rows, tombstones, last rows.

Everything changes under one lock, so a reader sees one instant and never half a commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.consumers.store.index import BucketKey, IndexContent
from headrace.consumers.store.memtable import LiveBatch, Memtable, MemtableSize, TableKey, TableMetadata, newer_schema
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.slots import Hold, Slots, batch_without, batch_without_handed
from headrace.consumers.store.store_errors import TableUnknown
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import Tombstone, joined
from headrace.schemas.tables import TableSchema


@dataclass(frozen=True, slots=True)
class TableView:
    """One table at one instant: segments, unsealed batches in order of rank, and tombstones for both."""

    metadata: TableMetadata
    entries: tuple[SegmentEntry, ...]
    live: tuple[LiveBatch, ...]
    tombstones: TombstoneSet

    @property
    def schema(self) -> TableSchema:
        """Newest schema of the table."""
        return self.metadata.schema


@dataclass(frozen=True, slots=True)
class UncommittedCut:
    """Files of the cut at `version` whose seal has not committed, with their runs, by name.

    They are on the disk, and given to the next holder of their slots. After a crash the seal writes them again.
    """

    version: int = 0
    files: Mapping[str, tuple[SegmentEntry, bytes]] = field(default_factory=dict)

    def entries(self) -> list[SegmentEntry]:
        """Their entries."""
        return [entry for entry, _ in self.files.values()]


class StoreView:
    """The in-memory state of a store.

    The apply thread changes it, and the running job at its commit; any thread reads. Rows of slots that left are
    shown to nobody: their files are in `cut_entries`, and frozen rows are shown without them.
    """

    def __init__(self, content: IndexContent) -> None:
        """Starts with the content of the index."""
        # Reentrant, so that `Store.last_rows` can read several parts of one instant.
        self.lock = threading.RLock()
        self.state = content.state
        self.frontier = content.frontier
        self.loaded_version = content.loaded_version
        self.holds: tuple[Hold, ...] = ()
        self.held = content.held
        self.uncommitted_cut = UncommittedCut()
        self._entries: dict[TableKey, dict[str, SegmentEntry]] = {}
        self._of_cuts: dict[str, SegmentEntry] = {}
        self._awaited: dict[str, SegmentEntry] = {}
        self._tables = content.tables
        self._tombstones: dict[TableKey, dict[Tombstone, None]] = {}
        self._sets: dict[TableKey, TombstoneSet] = {}
        # Those that were handed over by what they delete; and what others have taken the place of, for the next seal.
        self._handed: dict[Tombstone, Tombstone] = {}
        self._replaced: list[Tombstone] = []
        for tombstone in content.tombstones:
            self._tombstones.setdefault((tombstone.database, tombstone.table), {})[tombstone] = None
            if tombstone.slots:
                self._handed[tombstone.delete] = tombstone
        # What a seal writes, and what readers see of it. Slots that leave are hidden from readers at once, and
        # sealed all the same: their next holder gets the file.
        self._frozen: list[tuple[Memtable, Memtable]] = []
        self._live = Memtable()
        self._last: dict[BucketKey, pa.RecordBatch] = {}
        self.era_max = 0
        for entry in content.entries.values():
            self._add_entry(entry)

    def add(self, known: TableMetadata, batch: LiveBatch) -> None:
        """Adds the rows of one message."""
        table = (known.schema.database, known.schema.table)
        with self.lock:
            self._update_metadata(table, known)
            left = batch_without_handed(batch, known.database, self._set_of(table).limited)
            if left is not None:
                self._live.add(table, left)
            self.era_max = max(self.era_max, batch.era)

    def note_table(self, known: TableMetadata) -> None:
        """A table of which a file was loaded."""
        with self.lock:
            self._update_metadata((known.schema.database, known.schema.table), known)

    def add_tombstone(self, tombstone: Tombstone) -> None:
        """Adds one tombstone."""
        table = (tombstone.database, tombstone.table)
        with self.lock:
            of_table = self._tombstones.setdefault(table, {})
            self._sets.pop(table, None)
            if tombstone.slots:
                # At once: what is unsealed then has it applied, and a seal that comes has nothing to do with it.
                alone = TombstoneSet([tombstone])
                self._show(lambda of, batch: self._without(of, batch, alone) if of == table else batch)
                # Every change brings it again with the slots that move: one for each would be more with every change.
                earlier = self._handed.get(tombstone.delete)
                if earlier is not None:
                    of_table.pop(earlier, None)
                    self._replaced.append(earlier)
                    tombstone = joined(earlier, tombstone)
                self._handed[tombstone.delete] = tombstone
            of_table[tombstone] = None

    def hold(self, hold: Hold) -> None:
        """The rows of slots that left are shown to nobody from now on; the caller has frozen what is unsealed."""
        with self.lock:
            self.holds = (*self.holds, hold)
            for entry in list(self.entries()):
                if hold.covers(entry):
                    del self._entries[entry.database, entry.table][entry.name]
                    self._of_cuts[entry.name] = entry
            self._show(lambda table, batch: batch_without(batch, self._require(table).database, hold.slots))

    def _show(self, change: Callable[[TableKey, LiveBatch], LiveBatch | None]) -> None:
        # What a seal writes is fixed when it was frozen: only what readers see of it changes.
        self._frozen = [(frozen, shown.mapped(change)) for frozen, shown in self._frozen]
        self._live = self._live.mapped(change)

    def _without(self, table: TableKey, batch: LiveBatch, deletes: TombstoneSet) -> LiveBatch | None:
        return batch_without_handed(batch, self._require(table).database, deletes)

    def freeze(self) -> tuple[Memtable, Mapping[TableKey, TombstoneSet], Sequence[Tombstone]]:
        """Makes the unsealed rows immutable; returns them, the tombstones so far, and those that these replace.

        The rows stay visible until `commit` removes them.
        """
        with self.lock:
            frozen, self._live = self._live, Memtable()
            self._frozen.append((frozen, frozen))
            replaced, self._replaced = self._replaced, []
            return frozen, self.tombstones_by_table(), replaced

    def commit(
        self,
        removed: Iterable[SegmentEntry] = (),
        added: Iterable[SegmentEntry] = (),
        frozen: Memtable | None = None,
        purged: Iterable[Tombstone] = (),
        last: Mapping[BucketKey, pa.RecordBatch] | None = None,
        tables: Mapping[TableKey, TableMetadata] | None = None,
        state: tuple[int, bytes] | None = None,
        loaded_version: int | None = None,
        held: Mapping[int, bool] | None = None,
        released: Slots | None = None,
    ) -> None:
        """Applies what an index commit has changed, at once for every reader."""
        # One critical section: between "segments added" and
        # "frozen rows removed" a reader would see rows twice.
        with self.lock:
            for entry in removed:
                self._entries.get((entry.database, entry.table), {}).pop(entry.name, None)
                self._awaited.pop(entry.name, None)
                self._of_cuts.pop(entry.name, None)
            # Holds before files: they decide where `_add_entry` puts one.
            if released is not None:
                self.holds = tuple(kept for each in self.holds if (kept := each.without(released)) is not None)
            if held is not None:
                self.held = {**self.held, **held}
            for entry in added:
                self._add_entry(entry)
            if frozen is not None:
                self._frozen = [each for each in self._frozen if each[0] is not frozen]
            self._purge(purged)
            self._last.update(last or {})
            for table, known in (tables or {}).items():
                self._update_metadata(table, known)
            if state is not None:
                self.frontier, self.state = state
                self.uncommitted_cut = UncommittedCut()
            if loaded_version is not None:
                self.loaded_version = loaded_version

    def table(self, database: str, table: str, on_entries: Callable[[Iterable[str]], None] | None = None) -> TableView:
        """One table at this instant. Raises TableUnknown.

        `on_entries` is called with the names of its segments before they can be removed.
        """
        key = (database, table)
        with self.lock:
            metadata = self._require(key)
            live = [batch for memtable in self._shown() for batch in memtable.snapshot(key)]
            entries = tuple(self._entries.get(key, {}).values())
            tombstones = self._set_of(key)
            # Under the lock: a merge commits under it before it
            # removes files, so the caller pins them in time.
            if on_entries is not None:
                on_entries([entry.name for entry in entries])
        live.sort(key=lambda batch: (batch.era, batch.version))
        return TableView(metadata, entries, tuple(live), tombstones)

    def frozen(self, key: TableKey) -> list[LiveBatch]:
        """What seals that have not committed write of a table, rows of slots that left among them."""
        with self.lock:
            return [batch for frozen, _ in self._frozen for batch in frozen.snapshot(key)]

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema that writes or seals have named. Raises TableUnknown."""
        with self.lock:
            return self._require((database, table)).schema

    def metadata(self, key: TableKey) -> TableMetadata | None:
        """Partitioning and newest schema of a table, or None for an unknown one."""
        with self.lock:
            return self._tables.get(key)

    def tables(self) -> list[TableKey]:
        """Every table that has or had rows, sorted."""
        with self.lock:
            return sorted(self._tables)

    def is_empty(self, key: TableKey) -> bool:
        """Whether no row of a table is left: none at all, or a delete of the whole table outranks every one.

        Rows of a file that is awaited count.
        """
        with self.lock:
            batches = [batch for memtable in self._shown() for batch in memtable.snapshot(key)]
            awaited = [entry for entry in self.awaited() if (entry.database, entry.table) == key]
            entries = [*self._entries.get(key, {}).values(), *awaited]
            deletes = [each for each in self._tombstones.get(key, ()) if each.is_whole_table]
        if not deletes:
            return not batches and not entries
        # What the highest one does not reach, none reaches: the era since which a slot is held counts as a rank.
        highest = max(deletes, key=lambda each: (each.era, each.version))
        reached = all(highest.outranks(batch.era, batch.version) for batch in batches)
        return reached and all(entry.is_subject_to(highest) for entry in entries)

    def catalogue(self) -> list[SegmentEntry]:
        """The catalogue in order of name, with the files that are awaited: equal on all replicas.

        Files of slots that left are no part of it, since each replica removes them at its own time.
        """
        with self.lock:
            return sorted((*self.entries(), *self.awaited()), key=lambda each: each.name)

    def cut_entries(self) -> list[SegmentEntry]:
        """The files of slots that left and that are not released, in order of name, with those that are awaited."""
        with self.lock:
            awaited = (entry for entry in self._awaited.values() if self.is_held(entry))
            return sorted((*self._of_cuts.values(), *awaited), key=lambda each: each.name)

    def is_held(self, entry: SegmentEntry) -> bool:
        """Whether a file is of slots that left."""
        return any(hold.covers(entry) for hold in self.holds)

    def files(self) -> list[SegmentEntry]:
        """Every file of the store that is here, in order of name."""
        with self.lock:
            return sorted((*self.entries(), *self._of_cuts.values()), key=lambda each: each.name)

    def awaited(self, of_cuts: bool = False) -> list[SegmentEntry]:
        """The files of the catalogue that are not here yet, in order of name; with `of_cuts` also those of cuts."""
        with self.lock:
            found = (entry for entry in self._awaited.values() if of_cuts or not self.is_held(entry))
            return sorted(found, key=lambda each: each.name)

    def awaits(self, content_digest: str) -> bool:
        """Whether a file with some content is not here yet, also one of a cut."""
        with self.lock:
            return any(entry.content_digest == content_digest for entry in self._awaited.values())

    def entries(self) -> list[SegmentEntry]:
        """The files of the catalogue that are here, in order of name."""
        with self.lock:
            return sorted(
                (entry for entries in self._entries.values() for entry in entries.values()), key=lambda e: e.name
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of those files."""
        with self.lock:
            return sum(entry.size_bytes for entries in self._entries.values() for entry in entries.values())

    def entry(self, name: str) -> SegmentEntry | None:
        """One segment of the catalogue."""
        with self.lock:
            if (found := self._awaited.get(name, self._of_cuts.get(name))) is not None:
                return found
            return next((entries[name] for entries in self._entries.values() if name in entries), None)

    def tombstones(self) -> tuple[Tombstone, ...]:
        """Every tombstone that may still delete a row."""
        with self.lock:
            return tuple(each for found in self._tombstones.values() for each in found)

    def tombstones_by_table(self) -> dict[TableKey, TombstoneSet]:
        """Every tombstone that may still delete a row, by the table that it is of."""
        with self.lock:
            return {table: self._set_of(table) for table in self._tombstones}

    def unsealed(self) -> MemtableSize:
        """Size of the rows that are in no segment yet, frozen rows included."""
        with self.lock:
            memtables = [*(frozen for frozen, _ in self._frozen), self._live]
            sizes = [memtable.size() for memtable in memtables]
            tables = len({key for memtable in memtables for key in memtable.batches})
        return MemtableSize(sum(size.rows for size in sizes), sum(size.bytes for size in sizes), tables)

    def unfrozen(self) -> MemtableSize:
        """Size of the rows that no seal has frozen yet."""
        with self.lock:
            return self._live.size()

    def last(self, key: BucketKey, load: Callable[[BucketKey], pa.RecordBatch | None]) -> pa.RecordBatch | None:
        """The sealed last rows of one bucket, loaded once."""
        with self.lock:
            # Loaded under the lock: a commit between the read
            # and the store would be overwritten by older rows.
            found = self._last.get(key)
            if found is None:
                found = load(key)
                if found is not None:
                    self._last[key] = found
            return found

    def _shown(self) -> list[Memtable]:
        return [*(shown for _, shown in self._frozen), self._live]

    def _set_of(self, table: TableKey) -> TombstoneSet:
        """The tombstones of a table; the same object until they change, so that it computes its columns once."""
        found = self._sets.get(table)
        if found is None:
            found = self._sets[table] = TombstoneSet(self._tombstones.get(table, ()))
        return found

    def _purge(self, tombstones: Iterable[Tombstone]) -> None:
        for each in tombstones:
            table = (each.database, each.table)
            of_table = self._tombstones.get(table, {})
            of_table.pop(each, None)
            self._sets.pop(table, None)
            if each.slots:
                self._purge_handed(of_table, each)
            if not of_table:
                self._tombstones.pop(table, None)

    def _purge_handed(self, of_table: dict[Tombstone, None], purged: Tombstone) -> None:
        newest = self._handed.pop(purged.delete, None)
        # It may have come again since the seal that has decided: of that alone, whenever the seal ends.
        left = None if newest is None else newest.since(purged.came_at)
        if newest is not None:
            of_table.pop(newest, None)
        if left is not None:
            self._handed[left.delete] = left
            of_table[left] = None

    def _add_entry(self, entry: SegmentEntry) -> None:
        # A delete leaves older rows where a row may be of a later era, or of a slot that came later.
        self.era_max = max(self.era_max, entry.era, entry.held_since)
        if entry.awaited:
            self._awaited[entry.name] = entry
            return
        self._awaited.pop(entry.name, None)
        if self.is_held(entry):
            self._of_cuts[entry.name] = entry
            return
        self._entries.setdefault((entry.database, entry.table), {})[entry.name] = entry

    def _update_metadata(self, table: TableKey, new: TableMetadata) -> None:
        # By version, not by arrival: rows written under an older schema may come after newer ones.
        current = self._tables.get(table)
        self._tables[table] = TableMetadata(new.database, newer_schema(current.schema if current else None, new.schema))

    def _require(self, key: TableKey) -> TableMetadata:
        metadata = self._tables.get(key)
        if metadata is None:
            raise TableUnknown(f"no table {key[0]}.{key[1]} here", action="SHOW TABLES lists the tables")
        return metadata
