"""The index of a store: one RocksDB (rocksdict, raw keys and values) in `{data}/index/{group}`.

Column families and keys (text is UTF-8; `0x00` cannot occur in a name):

    catalogue    `s/` + segment name                              JSON of SegmentEntry
                 `t/` + database 0x00 table                       JSON {"database": {slice_ns, buckets},
                                                                        "schema": {version, tags, fields, …}}
    series       segment name                                     runs of the segment (see segment.py)
    last         database 0x00 table 0x00 bucket (5 digits)       newest row of each series (see last_rows.py)
    tombstones   version (20 digits) 0x00 xxh3-128 of the value   JSON of Tombstone
    state        `format`                                         `1`; `2` once a file of another log was loaded;
                                                                        `3` once it had rows of a sync sender
                 `loaded`                                         version of the newest committed load, decimal
                 `frontier`                                       version of the last committed seal, decimal
                 `state`                                          the bytes that the caller passed to that seal
                 `held`                                           JSON {cut version: whether its files are all
                                                                        here}, once its last rows are out
                 `removed`                                        JSON list: removed segments that still have runs

One commit is one synced WriteBatch. The runs of a segment outlive it: a reader that has the segment pinned may
still need them, so a later commit, after the last pin, deletes them. There is a key for each segment and each bucket, never for a row, since
rocksdict holds the interpreter lock during each call.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash
from rocksdict import Checkpoint, Options, Rdict, WriteBatch, WriteOptions

from headrace.connectors.files import has_no_space
from headrace.consumers.store.memtable import TableKey, TableMetadata
from headrace.consumers.store.segment import Runs, SegmentEntry
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.store_errors import (
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
)
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema, TimeResolution

INDEX_FORMAT = b"1"
LOADED_FORMAT = b"2"
"""Of an index with files of other logs, whose entries an earlier build cannot read."""
SYNCED_FORMAT = b"3"
"""Of an index with files of sync senders, which a build of the former format cannot rank."""
REMOVED_KEY = b"removed"
HELD_KEY = b"held"
FAMILIES = ("catalogue", "series", "last", "tombstones", "state")
BucketKey = tuple[str, str, int]
"""(database, table, bucket)."""


@dataclass(slots=True)
class IndexChanges:
    """The changes of one commit, applied all or none. Segments are added with the bytes of their runs.

    An awaited segment has none.
    """

    added: list[tuple[SegmentEntry, bytes | None]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    tables: dict[TableKey, TableMetadata] = field(default_factory=dict)
    last: dict[BucketKey, bytes] = field(default_factory=dict)
    new_tombstones: list[Tombstone] = field(default_factory=list)
    purged_tombstones: list[Tombstone] = field(default_factory=list)
    state: tuple[int, bytes] | None = None
    loaded_version: int | None = None
    held: dict[int, bool] = field(default_factory=dict)

    @property
    def needed_format(self) -> bytes:
        """The oldest format of a build that can read what is added."""
        if any(entry.synced for entry, _ in self.added):
            return SYNCED_FORMAT
        foreign = any(entry.held_since for entry, _ in self.added) or any(each.slots for each in self.new_tombstones)
        return LOADED_FORMAT if foreign or self.loaded_version is not None or self.held else INDEX_FORMAT


@dataclass(slots=True)
class IndexContent:
    """Content of the index when it was opened. `state` is None before the first seal."""

    entries: dict[str, SegmentEntry]
    tables: dict[TableKey, TableMetadata]
    tombstones: list[Tombstone]
    frontier: int
    state: bytes | None
    loaded_version: int
    held: dict[int, bool]


class Index:
    """Owns `directory`; one opener at a time (RocksDB's own lock).

    `commit` from one thread, reads from any.
    """

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        """Opens or creates the index.

        Raises StoreLocked, StoreFull, StoreUnwritable, StoreDamaged or StoreFormatUnknown.
        """
        self.directory = directory
        self._settings = settings
        self._failed = False
        self._opening = threading.Lock()
        self._open()
        self._format: bytes = self._families["state"].get(b"format") or INDEX_FORMAT
        if self._families["state"].get(b"format") is None:
            batch = WriteBatch(raw_mode=True)
            batch.put(b"format", INDEX_FORMAT, self._handles["state"])
            self._write(batch)
        elif self._format not in (INDEX_FORMAT, LOADED_FORMAT, SYNCED_FORMAT):
            self.close()
            raise StoreFormatUnknown(
                f"index {directory} has format {self._format!r}, this build reads up to {SYNCED_FORMAT!r}"
            )
        self._removed = self._removed_before()

    def load(self) -> IndexContent:
        """The content except runs and last rows, which grow with the series and are read on demand.

        Raises StoreFormatUnknown.
        """
        try:
            return self._load()
        except (LookupError, TypeError, ValueError) as error:
            # RocksDB has checked the bytes, so a build has written them that knows more than this one.
            raise StoreFormatUnknown(
                f"index {self.directory} has an entry that this build cannot read: {error!r}"
            ) from error

    def _load(self) -> IndexContent:
        state = self._families["state"]
        entries, tables = {}, {}
        for key, value in self._items("catalogue"):
            kind, _, name = key.decode().partition("/")
            if kind == "s":
                entries[name] = SegmentEntry.from_json(value)
            else:
                database, _, table = name.partition("\0")
                tables[(database, table)] = _metadata_from_json(database, table, value)
        tombstones = [Tombstone.from_json(value) for _, value in self._items("tombstones")]
        frontier, loaded = (int(state.get(key) or 0) for key in (b"frontier", b"loaded"))
        held = {int(version): whole for version, whole in json.loads(state.get(HELD_KEY) or b"{}").items()}
        return IndexContent(entries, tables, tombstones, frontier, state.get(b"state"), loaded, held)

    def runs(self, name: str) -> Runs:
        """The runs of a segment, also of a removed one while it is pinned.

        Raises StoreDamaged if there are none.
        """
        data = self._read("series", name.encode())
        if data is None:
            raise StoreDamaged(f"index {self.directory} has no series of segment {name}")
        return Runs.from_bytes(data)

    def last(self, key: BucketKey) -> bytes | None:
        """The last rows of one bucket."""
        return self._read("last", _bucket_key(key))

    def commit(self, changes: IndexChanges, pinned: Iterable[str] = ()) -> None:
        """Makes `changes` durable in one synced batch.

        Of the segments that earlier commits removed, those in `pinned` keep their runs. After an error the
        outcome is unknown until the same changes have been committed again.
        """
        # RocksDB refuses every write after a failed one, also
        # when the disk has space again, until it is reopened.
        self._reopen_failed()
        added = {entry.name for entry, _ in changes.added}
        kept = self._removed.intersection(pinned)
        removed = kept.union(changes.removed) - added
        batch = self._batch(changes)
        for name in self._removed - kept - added:
            batch.delete(name.encode(), self._handles["series"])
        if removed != self._removed:
            batch.put(REMOVED_KEY, json.dumps(sorted(removed)).encode(), self._handles["state"])
        self._write(batch)
        self._removed = removed
        self._format = max(self._format, changes.needed_format)

    def checkpoint(self, directory: Path) -> None:
        """A consistent copy of the index in a new directory, hard-linked where RocksDB can. Raises StoreError."""
        try:
            Checkpoint(self._database).create_checkpoint(str(directory))
        except Exception as error:
            # What is damaged are the files of this index; anything else is in the way of the new one.
            raise _store_error(error, self.directory if "Corruption" in str(error) else directory) from error

    def close(self) -> None:
        """Releases the directory; a second call does nothing. Every commit was synced before."""
        if self._families:
            self._close_handles()

    def _open(self) -> None:
        options = {name: self._options() for name in FAMILIES}
        try:
            self._database = Rdict(str(self.directory), self._options(), column_families=options)
            self._families = {name: self._database.get_column_family(name) for name in FAMILIES}
            self._handles = {name: self._database.get_column_family_handle(name) for name in FAMILIES}
        except Exception as error:
            raise _store_error(error, self.directory) from error

    def _options(self) -> Options:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        # A node opens one index for each group, so buffers, open files and threads of each are kept small.
        options.set_write_buffer_size(self._settings.index_write_buffer_bytes)
        options.set_max_open_files(self._settings.index_open_files_max)
        options.set_max_background_jobs(1)
        # RocksDB writes a new info log at each opening and would keep 1,000 of them.
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        return options

    def _batch(self, changes: IndexChanges) -> WriteBatch:
        batch, handles = WriteBatch(raw_mode=True), self._handles
        for name in changes.removed:
            batch.delete(b"s/" + name.encode(), handles["catalogue"])
        for entry, runs in changes.added:
            batch.put(b"s/" + entry.name.encode(), entry.to_json(), handles["catalogue"])
            if runs is not None:
                batch.put(entry.name.encode(), runs, handles["series"])
        for (database, table), metadata in changes.tables.items():
            batch.put(f"t/{database}\0{table}".encode(), _metadata_json(metadata), handles["catalogue"])
        for key, value in changes.last.items():
            batch.put(_bucket_key(key), value, handles["last"])
        for tombstone in changes.purged_tombstones:
            batch.delete(_tombstone_key(tombstone), handles["tombstones"])
        for tombstone in changes.new_tombstones:
            batch.put(_tombstone_key(tombstone), tombstone.to_json().encode(), handles["tombstones"])
        if changes.state is not None:
            frontier, state = changes.state
            batch.put(b"frontier", str(frontier).encode(), handles["state"])
            batch.put(b"state", state, handles["state"])
        # The format rises with the first entry that needs it and not with the build: up to then the build before
        # opens the index, so an upgrade can be taken back.
        if changes.needed_format > self._format:
            batch.put(b"format", changes.needed_format, handles["state"])
        if changes.held:
            batch.put(HELD_KEY, json.dumps(changes.held, sort_keys=True).encode(), handles["state"])
        if changes.loaded_version is not None:
            batch.put(b"loaded", str(changes.loaded_version).encode(), handles["state"])
        return batch

    def _removed_before(self) -> set[str]:
        """Segments that were removed when the index was closed, and whose runs it still has."""
        names = json.loads(self._families["state"].get(REMOVED_KEY) or b"[]")
        # An earlier build, which does not know the list, may have written a segment of the same name since.
        return {name for name in names if self._families["catalogue"].get(b"s/" + name.encode()) is None}

    def _write(self, batch: WriteBatch) -> None:
        # Synced, because a seal is followed by the deletion of its rows from the journal, and a merge by the
        # deletion of its inputs: an index commit that a power cut takes back would lose both copies.
        options = WriteOptions()
        options.sync = True
        try:
            self._database.write(batch, options)
        except Exception as error:
            self._failed = True
            raise _store_error(error, self.directory) from error

    def _read(self, family: str, key: bytes) -> bytes | None:
        """Raises StoreUnwritable for an index that is closed, also while it is being read, or StoreDamaged."""
        handle = self._family(family)
        try:
            found: bytes | None = handle.get(key)
        except Exception as error:
            raise _store_error(error, self.directory) from error
        return found

    def _family(self, name: str) -> Rdict:
        family = self._families.get(name)
        if family is None:
            # A seal reads before it commits, so the first read after a failed write reopens the index.
            self._reopen_failed()
            family = self._families.get(name)
        if family is None:
            raise StoreUnwritable(f"index {self.directory} is closed")
        return family

    def _reopen_failed(self) -> None:
        """Reopens the index after a failed write.

        Raises StoreFull, and then stays closed until the next call.
        """
        with self._opening:
            if self._failed:
                self._close_handles()
                self._open()
                self._failed = False

    def _items(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        yield from self._families[family].items()

    def _close_handles(self) -> None:
        """Closes all handles and the database."""
        # rocksdict keeps the database and its lock while any handle exists. RocksDB flushes as it closes, which a full
        # disk refuses, and it closes all the same. Nothing is lost, since every commit that succeeded was synced.
        self._handles.clear()
        families, self._families = list(self._families.values()), {}
        fault: StoreError | None = None
        for each in (*families, self._database):
            try:
                each.close()
            except Exception as error:
                fault = fault or _store_error(error, self.directory)
        if fault is not None and not (self._failed or isinstance(fault, StoreFull)):
            raise fault


def _store_error(error: Exception, directory: Path) -> StoreError:
    # rocksdict raises a bare Exception for every condition; only its text distinguishes them.
    text = str(error)
    if has_no_space(text):
        return StoreFull(f"index {directory} cannot be written: {text}")
    if "lock hold by current process" in text or "While lock file" in text:
        return StoreLocked(
            f"index {directory} is open already: {text}", action="stop the process that has it open first"
        )
    if "Column families not opened" in text:
        return StoreFormatUnknown(f"index {directory} is of a newer build: {text}")
    # A file that the database knows is gone. Without the directory it may be the disk that is away.
    is_gone = "No such file or directory" in text and directory.is_dir()
    if "Corruption" in text or is_gone:
        return StoreDamaged(
            f"index {directory} is damaged: {text}", action="recover this replica from another one or from the log"
        )
    return StoreUnwritable(
        f"index {directory} cannot be opened or written: {text}", action="check the disk and its permissions"
    )


def _bucket_key(key: BucketKey) -> bytes:
    return f"{key[0]}\0{key[1]}\0{key[2]:05}".encode()


def _tombstone_key(tombstone: Tombstone) -> bytes:
    # Several deletes may have one version; the hash gives each a key of its own.
    text = tombstone.to_json()
    return f"{tombstone.version:020}\0{xxhash.xxh3_128_hexdigest(text.encode())}".encode()


def _metadata_json(metadata: TableMetadata) -> bytes:
    database, schema = metadata.database, metadata.schema
    value = {
        "database": {"slice_ns": database.slice_ns, "buckets": database.buckets},
        "schema": {
            "version": schema.version,
            "tags": schema.tags,
            "fields": schema.fields,
            "retention_ns": schema.retention_ns,
            "resolution": schema.recorded_resolution,
        },
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _metadata_from_json(database: str, table: str, data: bytes) -> TableMetadata:
    value = json.loads(data)
    schema = value["schema"]
    fields = tuple((name, FieldType(kind)) for name, kind in schema["fields"])
    # An index of 0.1.0 has none.
    named = schema.get("resolution")
    resolution = None if named is None else TimeResolution(named)
    tags, retention_ns = tuple(schema["tags"]), schema["retention_ns"]
    return TableMetadata(
        DatabaseSchema(database, **value["database"]),
        TableSchema(database, table, schema["version"], tags, fields, retention_ns, resolution),
    )
