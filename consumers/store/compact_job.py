"""The jobs that replace files: merges and drops. See `store_job` for the order of commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.consumers.store.compaction import are_neighbours, output_name
from headrace.consumers.store.index import IndexChanges
from headrace.consumers.store.row_order import sort_table
from headrace.consumers.store.segment import SegmentEntry, encode_segment
from headrace.consumers.store.segment_reader import read_rows, schema_of_file, union_of
from headrace.consumers.store.slots import without_held
from headrace.consumers.store.store_errors import JobSuperseded, SegmentAwaited
from headrace.consumers.store.store_job import StoreComponents, StoreJob
from headrace.consumers.store.synced import of_all
from headrace.consumers.store.tombstone_set import TombstoneSet, without_deleted
from headrace.consumers.store.tombstones import Tombstone


class CompactJob(StoreJob):
    """Replaces several segments, or one with unapplied tombstones, by one segment."""

    def __init__(self, components: StoreComponents, version: int, inputs: Sequence[str]) -> None:
        """Created by `Store.compact`."""
        super().__init__(components, version)
        self.inputs = tuple(inputs)
        # Those known at this version, not when the job runs: the output must be the same on every replica.
        self._tombstones = components.view.tombstones_by_table()
        self._held = components.view.holds

    def _execute(self) -> None:
        view = self._components.view
        found = [entry for entry in (view.entry(name) for name in self.inputs) if entry is not None]
        if not found:
            # The record was applied before a crash and is read again, or its slice has been dropped since.
            return
        if len(found) != len(self.inputs) or not are_neighbours(found, (*view.catalogue(), *view.cut_entries())):
            raise JobSuperseded(
                f"compaction at version {self.version} names segments that are not neighbours here: {', '.join(self.inputs)}"
            )
        if len(without_held(found, self._held)) < len(found):
            raise JobSuperseded(f"compaction at version {self.version} names segments of slots that leave")
        awaited = [entry.name for entry in found if entry.awaited]
        if awaited:
            # Never skipped: the members that have the file merge it.
            raise SegmentAwaited(f"compaction at version {self.version} waits for {', '.join(awaited)}")
        self._replace(found, self._merge(found))

    def _merge(self, inputs: Sequence[SegmentEntry]) -> tuple[SegmentEntry, bytes] | None:
        components = self._components
        metadata = components.view.metadata((inputs[0].database, inputs[0].table))
        assert metadata is not None, inputs[0].name
        # What the inputs have, not the newest in memory: it is the same on every replica, whenever the job runs. The
        # file of a sync sender may lack columns that the table had before.
        files = [schema_of_file(components.files.path(entry.name), entry) for entry in inputs]
        # The resolution is not in the file. It is that of every version of the table.
        schema = replace(union_of(files), recorded_resolution=metadata.schema.recorded_resolution)
        fields = [name for name, _ in schema.fields]
        batches = []
        tombstones = self._tombstones.get((inputs[0].database, inputs[0].table), TombstoneSet())
        # The largest merge takes minutes on a slow machine, longer than anybody waits for the end of a node.
        for entry in inputs:
            self._end_if_unwanted()
            rows = read_rows(components.files.path(entry.name), entry, components.runs.get(entry.name), fields)
            batches += without_deleted([rows], tombstones.unapplied(entry), [0])
        name = output_name(inputs)
        self._end_if_unwanted()
        merged = sort_table(batches, metadata.database, schema)
        assert len(merged.parts) <= 1, name
        if not merged.parts:
            return None
        segment = merged.rows_of(merged.parts[0])
        encoded = encode_segment(
            components.group, name, schema, segment, self.version, components.settings, between=self._end_if_unwanted
        )
        components.files.write(name.relative, encoded.data)
        components.files.sync_directories([name.relative])
        # Rows of one slot and era are of one log, so the inputs have both in common (see `are_neighbours`).
        synced, stores = of_all(inputs)
        entry = replace(
            encoded.entry,
            held_since=inputs[0].held_since,
            loaded_version=max(entry.loaded_version for entry in inputs),
            handed_version=max(entry.handed_version for entry in inputs),
            order=name.order,
            synced=synced,
            stores=stores,
            loaded_rank=max(each.loaded_rank for each in inputs),
        )
        components.rollups.write(entry, segment)
        return entry, encoded.runs.to_bytes()

    def _replace(self, inputs: Sequence[SegmentEntry], output: tuple[SegmentEntry, bytes] | None) -> None:
        _replace_segments(self._components, inputs, [] if output is None else [output])


class DropJob(StoreJob):
    """Removes the segments of slices that a drop deletes as a whole."""

    def __init__(self, components: StoreComponents, version: int, tombstone: Tombstone) -> None:
        """Created by `Store.drop`, whose tombstone has made the rows invisible already."""
        super().__init__(components, version)
        self._tombstone = tombstone
        self._held = components.view.holds

    def _execute(self) -> None:
        view, drop = self._components.view, self._tombstone
        assert drop.end_ns is not None
        dropped = [
            entry
            # A drop from before a cut concerns the files that leave, also when it runs after it.
            for entry in without_held((*view.catalogue(), *view.cut_entries()), self._held)
            # Read again after a crash, a drop finds files that were loaded after it: another replica keeps them.
            if entry.loaded_version < self.version
            and (entry.database, entry.table) == (drop.database, drop.table)
            and entry.max_time_ns < drop.end_ns
            and entry.is_subject_to(drop)
        ]
        if dropped:
            _replace_segments(self._components, dropped, [])


def _replace_segments(
    components: StoreComponents, removed: Sequence[SegmentEntry], added: Sequence[tuple[SegmentEntry, bytes | None]]
) -> None:
    names = [entry.name for entry in removed]
    with components.commit_lock:
        components.index.commit(IndexChanges(added=list(added), removed=names), components.files.pinned())
        components.view.commit(removed=removed, added=[entry for entry, _ in added])
    components.runs.forget([*names, *(entry.name for entry, _ in added)])
    # Last, and only after the synced commit: the catalogue must never name a file that is unlinked.
    components.files.remove(names)
    components.rollups.remove(names)
