"""What a centre has not decided about yet: files and deletes of users above a version, as of one commit.

The files are hard links, so nothing that the store does later changes them. docs/internals/sync.md has the rules.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from headrace.connectors.files import create_directories
from headrace.consumers.store.brought_deletes import brought_deletes
from headrace.consumers.store.memtable import TableKey
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SEGMENT_SUFFIX, translate_errors
from headrace.consumers.store.segment_reader import schema_of_file
from headrace.consumers.store.staged_file import SERIES_SUFFIX, SeriesFile
from headrace.consumers.store.store_errors import SegmentAwaited
from headrace.consumers.store.store_job import StoreComponents
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.tables import DatabaseSchema, TableSchema


@dataclass(frozen=True, slots=True)
class UndecidedFile:
    """One file: its entry, the schema of its columns, the deletes of users that it has not applied, its series file."""

    entry: SegmentEntry
    schema: TableSchema
    database: DatabaseSchema
    deletes: tuple[Tombstone, ...]
    segment: Path
    series: Path
    series_bytes: int
    series_digest: bytes


@dataclass(frozen=True, slots=True)
class Undecided:
    """All that came above a version up to `through`, which is sealed; files lowest first, deletes in their order.

    `through` is the frontier, or less when there are more files than were asked for. `files_left` is how many.
    """

    through: int
    files: tuple[UndecidedFile, ...]
    deletes: tuple[Tombstone, ...]
    files_left: int


def write_undecided(components: StoreComponents, after: int, files_max: int, directory: Path) -> Undecided:
    """See `Store.undecided`. Nothing is synced: a restart of the process removes the directory."""
    view = components.view
    # One instant: a merge commits under this lock before it removes files.
    with view.lock:
        frontier = view.frontier
        entries = [entry for entry in view.catalogue() if entry.rows_version > after]
        entries.sort(key=lambda each: (each.rows_version, each.name))
        if awaited := [entry.name for entry in entries if entry.awaited]:
            raise SegmentAwaited(f"group {components.group} waits for {', '.join(awaited[:3])}")
        listed = _first_versions(entries, files_max)
        by_table = view.tombstones_by_table()
        components.files.pin(entry.name for entry in listed)
    try:
        with translate_errors(directory):
            create_directories(directory)
            files = [_file(components, entry, by_table, frontier, directory, n) for n, entry in enumerate(listed)]
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        components.files.release([entry.name for entry in listed])
    # Whole versions only: a file of the same version that is not listed would count as decided.
    through = frontier if len(listed) == len(entries) else listed[-1].rows_version
    deletes = [each for found in by_table.values() for each in found if _travels(each, after, frontier)]
    deletes.sort(key=lambda each: (each.version, each.to_json()))
    return Undecided(through, tuple(files), tuple(deletes), len(entries) - len(listed))


def first_undecided_ns(components: StoreComponents, table: TableKey, progress: int) -> int | None:
    """See `Store.first_undecided_ns`."""
    view = components.view.table(*table)
    slice_ns = view.metadata.database.slice_ns
    sealed = [each.slice_number * slice_ns for each in view.entries if each.rows_version > progress]
    return min([*sealed, *(batch.min_time_ns for batch in view.live)], default=None)


def _first_versions(entries: Sequence[SegmentEntry], files_max: int) -> Sequence[SegmentEntry]:
    """The first `files_max` files, and those of the same version as the last one."""
    if len(entries) <= files_max:
        return entries
    last = entries[files_max - 1].rows_version
    return [entry for entry in entries if entry.rows_version <= last]


def _travels(each: Tombstone, after: int, frontier: int) -> bool:
    # What another group has handed over, that group sends.
    return after < each.came_at <= frontier and not (each.is_drop or each.slots or each.is_fence)


def _file(
    components: StoreComponents,
    entry: SegmentEntry,
    by_table: dict[TableKey, TombstoneSet],
    frontier: int,
    directory: Path,
    number: int,
) -> UndecidedFile:
    # By number and not by content: two tables may hold the same rows in files of other bytes.
    segment, series = (directory / f"{number:06}{suffix}" for suffix in (SEGMENT_SUFFIX, SERIES_SUFFIX))
    os.link(components.files.path(entry.name), segment)
    runs = components.runs.get(entry.name)
    content = SeriesFile.of(entry, runs.to_bytes()).to_bytes()
    # Not synced, unlike in a cut: the directory ends with the process, and its files are read from the page cache.
    series.write_bytes(content)
    key = (entry.database, entry.table)
    known = components.view.metadata(key)
    assert known is not None, entry.name
    schema = schema_of_file(segment, entry)
    own = by_table.get(key, NO_TOMBSTONES).up_to(frontier)
    users = TombstoneSet(each for each in own.unapplied(entry).items if not (each.is_drop or each.is_fence))
    deletes = brought_deletes(users, runs.keys)
    schema = _with_resolution(schema, known.schema)
    digest = xxhash.xxh3_128_digest(content)
    return UndecidedFile(entry, schema, known.database, deletes, segment, series, len(content), digest)


def _with_resolution(schema: TableSchema, newest: TableSchema) -> TableSchema:
    # The file does not name it, and it is that of every version of the table.
    return TableSchema(
        schema.database, schema.table, schema.version, schema.tags, schema.fields, None, newest.recorded_resolution
    )
