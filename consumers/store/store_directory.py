"""The directories of one store: opened after a crash, copied as a snapshot, moved to quarantine when damaged.

`{data}/segments/{group}` holds the segment files and `{data}/index/{group}` the RocksDB index. A segment
counts only if the catalogue in the index names it. Opening runs six passes; each handles what one kind of
crash leaves behind:

1. Where there are segments there must be an index: it is durable before the first segment is written. No
   crash leaves segments alone, so this is damage, and nothing is removed.
2. RocksDB replays its own log. Crash before or during a synced batch: the previous commit is the state.
3. `*.partial` files are removed. Crash while a segment was written.
4. Segments that the catalogue does not name are removed. Crash between the rename of a segment and its
   commit; or between the commit of a merge or drop and the unlinking of the replaced files; or while a reader
   had them pinned. A file that the catalogue names as awaited counts as not named: a crash came between its
   link and its commit, and it is linked again from the staging directory.
5. Empty directories are removed. Crash between the creation of a directory and its first file, or a dropped
   slice.
6. Each segment of the catalogue that is not awaited must exist with its size. No crash leaves another state,
   so this is damage.

No pass reads a segment, so the time to open depends on the number of files and not on their size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from headrace.connectors.files import PARTIAL_SUFFIX, create_directories, rename_durably
from headrace.consumers.store.index import Index, IndexContent
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SEGMENT_SUFFIX, SegmentFiles, path_component, translate_errors
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.store_errors import StoreDamaged, StoreFormatUnknown
from headrace.consumers.store.store_job import StoreComponents
from headrace.schemas.framing import SchemaUnknown

INDEX_DIRECTORY = "index"
ROLLUPS_DIRECTORY = "rollups"
SEGMENTS_DIRECTORY = "segments"
STAGING_DIRECTORY = "staging"
QUARANTINE_DIRECTORY = "damaged"
_INDEX_ROOT = "CURRENT"
"""The file from which RocksDB finds all others; without it, it makes a new database."""


@dataclass(frozen=True, slots=True)
class OpenedDirectories:
    """Index and segment files of a store after all passes."""

    index: Index
    content: IndexContent
    files: SegmentFiles
    rollups: Path


def open_directories(
    data_directory: Path, group: str, settings: StoreSettings, read_state: Callable[[bytes], object] = bytes
) -> OpenedDirectories:
    """Opens or creates the directories of a group and runs all passes.

    Raises StoreLocked, StoreFull, StoreUnwritable, StoreDamaged or StoreFormatUnknown, and then holds no
    lock.
    """
    root = data_directory / SEGMENTS_DIRECTORY / path_component(group)
    index_directory = data_directory / INDEX_DIRECTORY / path_component(group)
    with translate_errors(root):
        check_index_exists(index_directory, root)
        create_directories(root)
        create_directories(index_directory)
    # The index is opened first: its lock keeps a second
    # process from removing files that the first is writing.
    index = Index(index_directory, settings)
    try:
        content = index.load()
        # Before the passes, which remove files: those of a build that knows more stay as they are.
        if content.state is not None:
            _check_state(data_directory, group, content.state, read_state)
        files = SegmentFiles(root)
        with translate_errors(root):
            present = {name: entry for name, entry in content.entries.items() if not entry.awaited}
            remove_orphans(files, present)
            check_segments(files, present)
    except BaseException:
        index.close()
        raise
    return OpenedDirectories(index, content, files, data_directory / ROLLUPS_DIRECTORY / path_component(group))


def _check_state(data_directory: Path, group: str, state: bytes, read_state: Callable[[bytes], object]) -> None:
    try:
        read_state(state)
    except SchemaUnknown as error:
        raise StoreFormatUnknown(
            f"data directory {data_directory} has a state of group {group} that a newer build has written: {error.message}"
        ) from error


def check_index_exists(index_directory: Path, segments_root: Path) -> None:
    """Pass 1. Raises StoreDamaged when there are segments and no index."""
    # A new index would name none of them, and pass 4 would delete the only copy of the data.
    found = next(segments_root.rglob(f"*{SEGMENT_SUFFIX}"), None)
    if found is not None and not (index_directory / _INDEX_ROOT).exists():
        raise StoreDamaged(
            f"{segments_root} has segments, and their index {index_directory} is gone",
            action="recover this replica from another one or from the log",
        )


def remove_orphans(files: SegmentFiles, entries: Mapping[str, SegmentEntry]) -> list[str]:
    """Passes 3 to 5; returns the names of the removed files.

    Files with other suffixes are not the store's and stay.
    """
    suffixes = (PARTIAL_SUFFIX, SEGMENT_SUFFIX)
    orphans = [name for name, _ in files.list_files() if name not in entries and name.endswith(suffixes)]
    # No sync follows: an orphan that a power cut brings back is an orphan again at the next opening.
    for name in orphans:
        files.path(name).unlink()
    for directory, _, _ in os.walk(files.root, topdown=False):
        if directory != str(files.root) and not os.listdir(directory):
            os.rmdir(directory)
    return sorted(orphans)


def check_segments(files: SegmentFiles, entries: Mapping[str, SegmentEntry]) -> None:
    """Pass 6. Raises StoreDamaged that names the first three missing or short files."""
    # Sizes only. Reading every file would make opening as slow as the store is large; changed bytes are found
    # by the scrubber, which compares file digests in the background.
    sizes = dict(files.list_files())
    wrong = [
        f"{name} ({'missing' if name not in sizes else f'{sizes[name]} bytes, the index has {entry.size_bytes}'})"
        for name, entry in sorted(entries.items())
        if sizes.get(name) != entry.size_bytes
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise StoreDamaged(
            f"segments in {files.root} do not match their index: {', '.join(wrong[:3])}{more}",
            action="recover this replica from another one or from the log",
        )


def quarantine(data_directory: Path, group: str) -> Path:
    """Moves a store that cannot be opened to `{data}/damaged/{group}-{n}`; returns that path."""
    component = path_component(group)
    damaged = create_directories(data_directory / QUARANTINE_DIRECTORY)
    target = next(path for number in count(1) if not (path := damaged / f"{component}-{number}").exists())
    with translate_errors(target):
        # Segments first. A crash between the two renames leaves an index
        # without its files, which is damage again. The other order would leave
        # files without an index, which earlier builds deleted as orphans.
        for part in (SEGMENTS_DIRECTORY, INDEX_DIRECTORY):
            if (source := data_directory / part / component).exists():
                create_directories(target)
                rename_durably(source, target / part)
    return target


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """A copy of a store as of one commit: its files in order of name, and the caller's state of its newest seal."""

    entries: list[SegmentEntry]
    state: bytes | None


def write_snapshot(components: StoreComponents, directory: Path) -> StoreSnapshot:
    """Copies the committed store into a new data directory: links to segments, a checkpoint of the index."""
    group = components.files.root.name
    target = directory / SEGMENTS_DIRECTORY / group
    # Under the commit lock no job can commit or remove files, so links, checkpoint and state are of the same commit.
    with translate_errors(directory), components.commit_lock:
        # Refused once the store is retired: its index may be closed.
        components.files.pin(())
        create_directories(target)
        create_directories(directory / INDEX_DIRECTORY)
        entries = components.view.files()
        for entry in entries:
            link = target / entry.name
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(components.files.path(entry.name), link)
        components.index.checkpoint(directory / INDEX_DIRECTORY / group)
        # Nothing is synced: a snapshot ends with the process that made it.
        return StoreSnapshot(entries, components.view.state)
