"""Slots that leave a group: what goes with them, links for those who fetch it, and their removal.

A cut is made of sealed files. Its caller freezes the group at the version of the cut, and calls `Store.hold`
then. The seal writes the files of these slots first, and they are listed before it commits. From that record on
neither merges nor drops change the files of these slots, so every replica lists the same ones at any later time.
Nobody reads them any more but those who fetch them. What goes with a file are its series and the deletes that it
has not applied; last rows are derived from the file where it arrives (`last_rows.newest_of_file`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.connectors.files import PARTIAL_SUFFIX, create_directories, fsync_directory, rename_durably
from headrace.consumers.store.batch_columns import Mask
from headrace.consumers.store.index import BucketKey, IndexChanges
from headrace.consumers.store.last_rows import apply_tombstones, empty_last, encode_last, merge_last, newest_of_file
from headrace.consumers.store.memtable import TableMetadata
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import translate_errors
from headrace.consumers.store.slots import Hold, Slots
from headrace.consumers.store.staged_file import SeriesFile, staged_names
from headrace.consumers.store.store_errors import CutUnready, SegmentAwaited, SegmentGone
from headrace.consumers.store.store_job import StoreComponents, StoreJob
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.messages import CarriedDelete, Leadership, Load


@dataclass(frozen=True, slots=True)
class CutFile:
    """One file of a cut; `deletes` are those that it has not applied, of this group and of earlier holders."""

    entry: SegmentEntry
    deletes: tuple[Tombstone, ...]

    def load(self, leadership: Leadership, origin: str, held_since: int) -> Load:
        """The record by which the new holder of the slot attaches the file."""
        entry = self.entry
        deletes = (
            CarriedDelete(each.era, each.version, each.tags, each.start_ns, each.end_ns) for each in self.deletes
        )
        return Load(
            leadership,
            origin,
            held_since,
            *entry.location,
            entry.era,
            entry.first_version,
            entry.last_version,
            entry.generation,
            bytes.fromhex(entry.content_digest),
            entry.rows,
            entry.min_time_ns,
            entry.max_time_ns,
            entry.size_bytes,
            entry.schema_version,
            tuple(deletes),
            order=entry.order,
            synced=entry.synced,
            stores=entry.stores,
            loaded_era=entry.loaded_rank[0],
            loaded_version=entry.loaded_rank[1],
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """What leaves a group with some slots, as of one version of its log; files in order of name."""

    version: int
    files: tuple[CutFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(file.entry.size_bytes for file in self.files)


def make_cut(components: StoreComponents, version: int, slots: Slots, pin: bool = False) -> Cut:
    """What belongs to `slots`, with the deletes up to `version`.

    With `pin` the files stay on disk until they are released. Raises CutUnready or SegmentAwaited.
    """
    view = components.view
    # One instant: a merge commits under this lock before it removes files.
    with view.lock:
        # Its own files may be listed before the seal commits; only an export needs them in the index.
        if view.frontier < version and (pin or view.uncommitted_cut.version != version):
            raise CutUnready(f"the cut at version {version} is not sealed; the newest seal is {view.frontier}")
        # A hold that is not known yet has removed nothing.
        if not view.held.get(version, True):
            raise CutUnready(f"the files of the cut at version {version} were removed here")
        cut = Hold(version, slots)
        every = (*view.catalogue(), *view.cut_entries(), *view.uncommitted_cut.entries())
        entries = [entry for entry in every if cut.covers(entry)]
        entries.sort(key=lambda each: each.name)
        awaited = [entry.name for entry in entries if entry.awaited]
        if awaited:
            raise SegmentAwaited(f"the cut at version {version} waits for {', '.join(awaited[:3])}")
        by_table = view.tombstones_by_table()
        if pin:
            components.files.pin(entry.name for entry in entries)
    return Cut(version, tuple(_cut_file(entry, by_table, version) for entry in entries))


def _cut_file(entry: SegmentEntry, by_table: dict[tuple[str, str], TombstoneSet], version: int) -> CutFile:
    own = by_table.get((entry.database, entry.table), NO_TOMBSTONES)
    # Later deletes of this log are no part of the cut: as records of it they are handed over by themselves.
    return CutFile(entry, own.up_to(version).unapplied(entry).items)


def write_export(components: StoreComponents, version: int, slots: Slots, directory: Path) -> Cut:
    """Makes a cut and links its files into a new directory, all or none; see `Store.export`."""
    partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
    cut = make_cut(components, version, slots, pin=True)
    names = [file.entry.name for file in cut.files]
    try:
        with translate_errors(directory):
            # What a crash has left: no name in it is known to anyone.
            shutil.rmtree(partial, ignore_errors=True)
            create_directories(partial)
            for file in cut.files:
                _link(components, file.entry, partial)
            fsync_directory(partial)
            rename_durably(partial, directory)
    finally:
        components.files.release(names)
    return cut


def read_series(components: StoreComponents, entry: SegmentEntry) -> bytes:
    """The content of the series file of a segment. Raises SegmentGone."""
    if (uncommitted := components.view.uncommitted_cut.files.get(entry.name)) is not None:
        return SeriesFile.of(*uncommitted).to_bytes()
    # The index keeps the runs of a pinned segment, also when it is removed meanwhile.
    components.files.pin([entry.name])
    try:
        present = components.view.entry(entry.name)
        if present is None or present.awaited:
            raise SegmentGone(f"group {components.group} does not have {entry.name} any more", retriable=True)
        return SeriesFile.of(present, components.runs.get(present.name).to_bytes()).to_bytes()
    finally:
        components.files.release([entry.name])


def _link(components: StoreComponents, entry: SegmentEntry, directory: Path) -> None:
    segment, series = (directory / name for name in staged_names(entry.content_digest))
    # Two databases may hold the same rows: the content names the file.
    if segment.exists():
        return
    # The bytes were synced when the file was sealed or attached: only what is written here needs a sync.
    os.link(components.files.path(entry.name), segment)
    content = SeriesFile.of(entry, components.runs.get(entry.name).to_bytes()).to_bytes()
    with series.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


class HoldJob(StoreJob):
    """Takes the rows of slots that left out of the last rows."""

    can_be_cancelled = False
    urgent = True

    def __init__(self, components: StoreComponents, hold: Hold) -> None:
        """Created by `Store.hold`, which has made the rows invisible already."""
        super().__init__(components, hold.version)
        self._hold = hold

    def _execute(self) -> None:
        components, view = self._components, self._components.view
        if self._hold.version in view.held:
            return
        leaving = [entry for entry in view.cut_entries() if self._hold.covers(entry)]
        # Of every bucket that loses files. One whose last row stayed would bring back what the new holder deletes.
        buckets = {(entry.database, entry.table, entry.bucket) for entry in leaving}
        staying: dict[BucketKey, list[SegmentEntry]] = {key: [] for key in buckets}
        for entry in view.entries():
            staying.get((entry.database, entry.table, entry.bucket), []).append(entry)
        last = {key: encode_last(self._remaining(key, staying[key])) for key in sorted(buckets)}
        components.commit(IndexChanges(last=last, held={**view.held, self._hold.version: True}))

    def _remaining(self, key: BucketKey, staying: Sequence[SegmentEntry]) -> pa.RecordBatch:
        """The last rows of a bucket, computed again from the segments that stay where their row has left."""
        view, table = self._components.view, key[:2]
        known = view.metadata(table)
        assert known is not None, key
        fields = known.schema.field_types()
        rows = self._components.last(key)
        rows = empty_last(fields) if rows is None else rows
        tombstones = view.tombstones_by_table().get(table, NO_TOMBSTONES)
        rows = apply_tombstones(rows, tombstones.newer_than(view.frontier), view.era_max)
        rows = rows.filter(pa.array(self._stays(rows, known, key[2])))
        # Newest slices first: what is known from them spares reading the files of older ones.
        for entry in sorted(staying, key=lambda each: each.max_time_ns, reverse=True):
            path, runs = self._components.files.path(entry.name), self._components.runs.get(entry.name)
            found = newest_of_file(path, entry, runs, tombstones.unapplied(entry), rows, fields)
            rows = rows if found is None else merge_last([rows, found], fields)
        return rows

    def _stays(self, rows: pa.RecordBatch, known: TableMetadata, bucket: int) -> Mask:
        """Which last rows are of slices that stay, and not stale."""
        slices = np.floor_divide(rows.column(1).to_numpy(), known.database.slice_ns)
        gone = [
            number
            for number in np.unique(slices).tolist()
            if self._hold.slots.hold(known.schema.database, bucket, int(number))
        ]
        kept: Mask = ~(np.isin(slices, gone) | rows.column(3).to_numpy(zero_copy_only=False))
        return kept


class ReleaseJob(StoreJob):
    """Removes the files of slots that left, as of the cuts that they left with."""

    can_be_cancelled = False

    def __init__(self, components: StoreComponents, version: int, slots: Slots) -> None:
        """Created by `Store.release`."""
        super().__init__(components, version)
        self._slots = slots

    def _execute(self) -> None:
        view = self._components.view
        # Only what a hold covers: files of a slot that has come back since came behind its cut.
        names = [entry.name for entry in view.cut_entries() if self._slots.hold_segment(entry)]
        emptied = {each.version: False for each in view.holds if each.without(self._slots) is None}
        self._components.commit(IndexChanges(removed=names, held={**view.held, **emptied}), released=self._slots)
        self._components.files.remove(names)
        self._components.rollups.remove(names)
