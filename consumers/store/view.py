"""What a store holds at one instant, in memory: catalogue, tables, unsealed rows, deletes, last rows. Everything changes under one lock, so a
reader gets one instant and never half a commit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from consumers.store.errors import TableUnknown
from consumers.store.index import BucketKey, IndexContent
from consumers.store.memtable import KnownTable, LiveBatch, Memtable, MemtableSize, TableKey, newer
from consumers.store.segment import Runs, SegmentEntry
from consumers.store.tombstones import Tombstone
from schemas.tables import TableSchema


@dataclass(frozen=True, slots=True)
class TableView:
    """One table at one instant: sealed files, unsealed batches in rank order, and the deletes that either may still meet."""

    known: KnownTable
    entries: tuple[SegmentEntry, ...]
    live: tuple[LiveBatch, ...]
    tombstones: tuple[Tombstone, ...]

    @property
    def schema(self) -> TableSchema:
        """Newest schema of the table."""
        return self.known.schema


class StoreView:
    """The in-memory side of a store. Writers are the apply thread and, for commits, the job in turn; readers are any thread."""

    def __init__(self, content: IndexContent) -> None:
        """Starts from what the index holds."""
        self.lock = threading.RLock()
        self.state = content.state
        self.frontier = content.frontier
        self._entries: dict[TableKey, dict[str, SegmentEntry]] = {}
        self._tables = content.tables
        self._tombstones = list(content.tombstones)
        self._frozen: list[Memtable] = []
        self._live = Memtable()
        self._last: dict[BucketKey, pa.RecordBatch] = {}
        self.era_max = max((entry.era for entry in content.entries.values()), default=0)
        for entry in content.entries.values():
            self._entries.setdefault((entry.database, entry.table), {})[entry.name] = entry

    def add(self, known: KnownTable, batch: LiveBatch) -> None:
        """Takes one message's rows."""
        table = (known.schema.database, known.schema.table)
        with self.lock:
            self._learn(table, known)
            self._live.add(table, batch)
            self.era_max = max(self.era_max, batch.era)

    def bury(self, tombstone: Tombstone) -> None:
        """Takes one delete."""
        with self.lock:
            if tombstone not in self._tombstones:
                self._tombstones.append(tombstone)

    def freeze(self) -> tuple[Memtable, tuple[Tombstone, ...]]:
        """Closes the unsealed rows; they stay visible until `commit` takes them out. Also the deletes known by now."""
        with self.lock:
            frozen, self._live = self._live, Memtable()
            self._frozen.append(frozen)
            return frozen, tuple(self._tombstones)

    def commit(
        self,
        remove: Iterable[SegmentEntry] = (),
        add: Iterable[SegmentEntry] = (),
        frozen: Memtable | None = None,
        forget: Iterable[Tombstone] = (),
        last: Mapping[BucketKey, pa.RecordBatch] | None = None,
        tables: Mapping[TableKey, KnownTable] | None = None,
        state: tuple[int, bytes] | None = None,
    ) -> None:
        """Swaps what an index commit has changed, at once for every reader."""
        forgotten = set(forget)
        with self.lock:
            for entry in remove:
                del self._entries[(entry.database, entry.table)][entry.name]
            for entry in add:
                self._entries.setdefault((entry.database, entry.table), {})[entry.name] = entry
            if frozen is not None:
                self._frozen = [memtable for memtable in self._frozen if memtable is not frozen]
            self._tombstones = [each for each in self._tombstones if each not in forgotten]
            self._last.update(last or {})
            for table, known in (tables or {}).items():
                self._learn(table, known)
            if state is not None:
                self.frontier, self.state = state

    def table(self, database: str, table: str, on_entries: Callable[[Iterable[str]], None] | None = None) -> TableView:
        """One table now; `on_entries` is called with the names of its files before they can be removed. Raises TableUnknown."""
        key = (database, table)
        with self.lock:
            known = self._known(key)
            live = [batch for memtable in (*self._frozen, self._live) for batch in memtable.snapshot(key)]
            entries = tuple(self._entries.get(key, {}).values())
            tombstones = tuple(each for each in self._tombstones if (each.database, each.table) == key)
            if on_entries is not None:
                on_entries([entry.name for entry in entries])
        live.sort(key=lambda batch: (batch.era, batch.version))
        return TableView(known, entries, tuple(live), tombstones)

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema that writes or seals have named. Raises TableUnknown."""
        with self.lock:
            return self._known((database, table)).schema

    def known(self, key: TableKey) -> KnownTable | None:
        """How a table is cut and what it looks like, or None."""
        with self.lock:
            return self._tables.get(key)

    def tables(self) -> list[TableKey]:
        """Every table with rows, now or once, sorted."""
        with self.lock:
            return sorted(self._tables)

    def entries(self) -> list[SegmentEntry]:
        """The whole catalogue in order of name."""
        with self.lock:
            return sorted((entry for held in self._entries.values() for entry in held.values()), key=lambda e: e.name)

    def entry(self, name: str) -> SegmentEntry | None:
        """One segment of the catalogue."""
        with self.lock:
            return next((held[name] for held in self._entries.values() if name in held), None)

    def tombstones(self) -> tuple[Tombstone, ...]:
        """Every delete that may still hide something."""
        with self.lock:
            return tuple(self._tombstones)

    def unsealed(self) -> MemtableSize:
        """How much is in no segment yet, frozen rows included."""
        with self.lock:
            sizes = [memtable.size() for memtable in (*self._frozen, self._live)]
            tables = len({key for memtable in (*self._frozen, self._live) for key in memtable.batches})
        return MemtableSize(sum(size.rows for size in sizes), sum(size.bytes for size in sizes), tables)

    def unfrozen(self) -> MemtableSize:
        """How much no seal has taken yet."""
        with self.lock:
            return self._live.size()

    def last(self, key: BucketKey, load: Callable[[BucketKey], pa.RecordBatch | None]) -> pa.RecordBatch | None:
        """The sealed last rows of one bucket, loaded once."""
        with self.lock:
            found = self._last.get(key)
            if found is None:
                found = load(key)
                if found is not None:
                    self._last[key] = found
            return found

    def _learn(self, table: TableKey, known: KnownTable) -> None:
        held = self._tables.get(table)
        self._tables[table] = KnownTable(known.database, newer(held.schema if held else None, known.schema))

    def _known(self, key: TableKey) -> KnownTable:
        known = self._tables.get(key)
        if known is None:
            raise TableUnknown(f"no table {key[0]}.{key[1]} here", action="SHOW TABLES lists the tables")
        return known


class RunsCache:
    """The series lists of segments, decoded, the least recently used thrown out. Thread-safe."""

    def __init__(self, load: Callable[[str], Runs], series_max: int) -> None:
        """`load` reads the runs of a segment by name; lists of more than `series_max` series together are not kept."""
        self._load = load
        self._series_max = series_max
        self._series = 0
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Runs] = OrderedDict()

    def get(self, name: str) -> Runs:
        """The runs of one segment."""
        with self._lock:
            found = self._held.get(name)
            if found is not None:
                self._held.move_to_end(name)
                return found
        loaded = self._load(name)
        with self._lock:
            if name not in self._held:
                self._held[name] = loaded
                self._series += len(loaded.keys)
            while self._series > self._series_max and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._series -= len(dropped.keys)
        return loaded
