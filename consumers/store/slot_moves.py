"""Slots that come to a store and leave it: the part of `Store` for changes of a cluster's members."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.consumers.store.cut import Cut, HoldJob, ReleaseJob, make_cut, read_series, write_export
from headrace.consumers.store.cut_rows import read_cut
from headrace.consumers.store.former_rows import RankedRows
from headrace.consumers.store.load_job import LoadJob, attach, awaited_entry
from headrace.consumers.store.memtable import TableMetadata, live_batch, newer_schema
from headrace.consumers.store.pruning import ScanRequest
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.slots import Hold, Slots
from headrace.consumers.store.staged_file import read_staged, staged_names
from headrace.consumers.store.store_errors import StagedFileInvalid
from headrace.consumers.store.store_job import StoreComponents
from headrace.consumers.store.tombstones import Tombstone, tombstone
from headrace.schemas.messages import Load
from headrace.schemas.tables import DatabaseSchema, TableSchema


@dataclass(frozen=True, slots=True)
class HandedRank:
    """The rank of a record in the log that took it first, and the era since which this group holds its slots."""

    era: int
    version: int
    held_since: int = 0


class SlotMoves:
    """Files, rows and deletes of other logs, and files that leave with their slots."""

    def __init__(self, components: StoreComponents) -> None:
        """Begins with what the index has."""
        self._components = components
        self._frozen_version = components.view.frontier
        # The newest version that no own segment to come has ranks up to: of a seal, or of a file of a sync sender.
        self._divided_version = components.view.frontier
        self._version = components.view.frontier

    def write_handed(
        self, version: int, rank: HandedRank, schema: TableSchema, database: DatabaseSchema, batch: pa.RecordBatch
    ) -> None:
        """Adds rows that another log took first, with their rank there; all are of slots held since `rank.held_since`.

        Raises BatchInvalid and then stores nothing.
        """
        assert rank.held_since > rank.era, rank
        self._advance(version)
        if len(batch):
            rows = live_batch(rank.version, rank.era, schema, batch, rank.held_since)
            self._components.view.add(TableMetadata(database, schema), rows)

    def delete_handed(self, version: int, deleted: Tombstone) -> None:
        """Deletes rows of some slots of lower rank than a delete of another log, also those that arrive later.

        `deleted` is made by `handed_tombstone`.
        """
        assert deleted.slots, deleted
        self._advance(version)
        self._components.view.add_tombstone(deleted)

    def load(self, version: int, load: Load, schema: TableSchema, database: DatabaseSchema, era: int = 0) -> LoadJob:
        """Adds a sealed file of another log, whose rows keep their rank; `schema` is the one that it names.

        The rows of a sync sender get a rank of this log; `era` is that of the group, and nothing may be unsealed that
        was written before (see headrace.consumers.store.synced).

        The file is attached if it is staged (see headrace.consumers.store.load_job), and awaited otherwise. The
        job raises JobSuperseded for a file that cannot be one of this store; nothing is added then. Rows and
        deletes that follow have at least the era `load.held_since`, unless that is 0.
        """
        self._advance(version)
        table, view = (load.database, load.table), self._components.view
        current = view.metadata(table)
        known = TableMetadata(database, newer_schema(current.schema if current else None, schema))
        view.note_table(known)
        if load.sender:
            # Own segments to come begin behind it: with the file's rank inside of their range, no order of names is
            # right.
            self._divided_version = version
        return LoadJob(
            self._components, version, awaited_entry(version, load), known, synced_era=era if load.sender else None
        )

    @property
    def staging_directory(self) -> Path:
        """Where files of other logs are fetched to, under the names of `staged_names`. It may not exist."""
        return self._components.staging

    def awaited(self) -> list[SegmentEntry]:
        """The files that loads have named and that are not here, in order of name.

        Rows of their slots are incomplete here. Those of slots that left are not among them.
        """
        return self._components.view.awaited()

    def awaits(self, content_digest: str) -> bool:
        """Whether a file with some content is not here yet, also one of slots that left."""
        return self._components.view.awaits(content_digest)

    def has_loaded(self, entry: SegmentEntry) -> bool:
        """Whether the load of a file was carried out, and its file is in the catalogue, here or awaited."""
        return self._components.view.entry(entry.name) is not None

    def note_verified(self, content_digest: str) -> None:
        """The bytes of a staged file were compared with the digest of their sender, and synced: its load trusts them."""
        segment, series = (self.staging_directory / name for name in staged_names(content_digest))
        # What cannot be read is read again by the load, which refuses it.
        with suppress(StagedFileInvalid):
            self._components.verified.note(content_digest, read_staged(segment, series))

    def prepare(self, entry: SegmentEntry) -> None:
        """Make the directory of a file whose load may come: hundreds at once would wait for the disk then.

        Raises StoreFull or StoreUnwritable.
        """
        self._components.files.prepare(entry.name)

    def clear_staging(self) -> None:
        """Remove everything that is staged."""
        # In this order: what a load finds in memory must be on the disk.
        self._components.verified.clear()
        shutil.rmtree(self.staging_directory, ignore_errors=True)

    def attach(self, *content_digests: str, verified: Collection[str] = ()) -> int:
        """Attaches staged files wherever they are awaited; returns the number of segments that they became.

        The bytes of those in `verified` were compared with the digest of their sender, and synced, since this process
        began. Waits for a running job. Raises StagedFileInvalid when all others are attached (it was removed; fetch
        it again), StoreFull or StoreUnwritable (all stay awaited).
        """
        return attach(self._components, frozenset(content_digests), verified)

    def hold(self, version: int, slots: Slots) -> HoldJob:
        """`slots` leave with the cut at `version`, up to which everything is frozen.

        From now on nobody reads their rows here, and merges and drops leave their files as they are, until `release`.
        The job takes their rows out of the last rows. The caller's state has the slots: one that opens the store
        calls this again before anything else, whatever was released meanwhile.
        """
        hold = Hold(version, slots)
        self._components.view.hold(hold)
        return HoldJob(self._components, hold)

    def cut(self, version: int, slots: Slots) -> Cut:
        """What leaves with `slots`, which were held at `version`, and sealed: equal on all replicas.

        Raises CutUnready before that seal has written them, or after the release, and SegmentAwaited.
        """
        return make_cut(self._components, version, slots)

    def export(self, version: int, slots: Slots, directory: Path) -> Cut:
        """A cut, and its files in a new directory under the names of `staged_names`.

        The directory has all of them, or does not exist; it survives a crash and whatever the store does. It must
        be on the same file system. Raises what `cut` raises, StoreFull or StoreUnwritable.
        """
        return write_export(self._components, version, slots, directory)

    def read_cut(
        self, version: int, slots: Slots, table: tuple[str, str], request: ScanRequest
    ) -> tuple[TableSchema, list[RankedRows]]:
        """Rows that left with `slots`, which were held at `version`, and their schema; before its seal, too.

        Raises TableUnknown, CutUnready, CutTooLarge, SegmentAwaited, StoreRetired or StoreDamaged.
        """
        return read_cut(self._components, Hold(version, slots), table, request)

    def cut_files(self) -> list[SegmentEntry]:
        """The files that left with their slots and are not released yet.

        Those that are awaited are among them, and those of a cut whose seal has not committed.
        """
        view = self._components.view
        with view.lock:
            return [*view.cut_entries(), *view.uncommitted_cut.entries()]

    def series_file(self, entry: SegmentEntry) -> bytes:
        """What travels beside a segment that is here, the content of its series file. Raises SegmentGone."""
        return read_series(self._components, entry)

    def release(self, version: int, slots: Slots) -> ReleaseJob:
        """Removes the files of `slots` that left; those that have come since then stay.

        Replicas may call it at different times and versions.
        """
        return ReleaseJob(self._components, version, slots)

    def _advance(self, version: int) -> None:
        # Several records may have one version (the rows of one
        # message), but none may follow a seal of that version.
        assert version > self._frozen_version, (version, self._frozen_version)
        assert version >= self._version, (version, self._version)
        self._version = version


def handed_tombstone(
    version: int,
    rank: HandedRank,
    slots: Slots,
    table: tuple[str, str],
    tags: Mapping[str, tuple[str, ...]],
    between_ns: tuple[int | None, int | None],
) -> Tombstone:
    """A delete of another log that concerns rows of some slots and came here at `version`."""
    plain = tombstone(rank.version, rank.era, table, tags, *between_ns)
    return Tombstone(
        *table,
        plain.era,
        plain.version,
        plain.tags,
        plain.start_ns,
        plain.end_ns,
        version,
        tuple(sorted(slots.numbers)),
        slots.total,
    )
