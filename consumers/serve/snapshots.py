"""Snapshots of a group's files for members that recover: the list, and the bytes of each file from any offset.

A snapshot is hard links in `{data}/snapshots/{id}`, so it takes only the space that compaction would free
meanwhile. It is deleted when its receiver releases it, after a while without reads, and when the node starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.files import ExpiringDirectories, create_directories
from headrace.consumers.recovery.file_copy import PARTS, SNAPSHOTS, Snapshot, SnapshotFile, digest_of
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.store import SegmentEntry, Store
from headrace.schemas.errors import HeadraceError

SNAPSHOTS_MAX = 8
IDLE_TIMEOUT_S = 60.0


class SnapshotRefused(HeadraceError):
    """A snapshot that cannot be made now: the group is not in sync, not sealed, or too many are in use."""


class SnapshotUnknown(HeadraceError):
    """A snapshot, or a file of one, that does not exist or was deleted."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """A snapshot, and the size of each of its files in bytes."""

    snapshot: Snapshot
    sizes: Mapping[str, int]


class SnapshotRegistry:
    """The snapshots in use. Owns `{data}/snapshots`; safe for any thread."""

    def __init__(self, data_directory: Path, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        """Deletes the snapshots of an earlier process: their receivers start again with a new one."""
        self.directory = data_directory / SNAPSHOTS
        self._kept = ExpiringDirectories[_Listed](self.directory, SNAPSHOTS_MAX, idle_timeout_s)

    def make(self, group: str, topic_id: str, era: int, store: Store) -> Snapshot:
        """A new snapshot of a group's store. Raises SnapshotRefused, StoreError."""
        name = self._kept.begin(_Listed(Snapshot("", group, topic_id, 0, 0, era, "", ()), {}))
        if name is None:
            raise SnapshotRefused(f"{SNAPSHOTS_MAX} snapshots are out already", retriable=True)
        try:
            made = self._write(name, group, topic_id, era, store)
        except BaseException:
            self.release(name)
            raise
        self._kept.finish(name, _Listed(made, {file.path: file.size_bytes for file in made.files}))
        return made

    def _write(self, name: str, group: str, topic_id: str, era: int, store: Store) -> Snapshot:
        create_directories(self.directory)
        copy = store.snapshot(self.directory / name)
        if copy.state is None:
            raise SnapshotRefused(f"group {group} has sealed nothing yet", action="follow its log", retriable=True)
        state = GroupState.from_bytes(copy.state)
        files = (*_segment_files(self.directory / name, copy.entries), *_index_files(self.directory / name))
        return Snapshot(name, group, topic_id, state.version, state.offset, era, state.chain.hex(), files)

    def open(self, name: str, path: str, offset: int) -> tuple[int, Iterator[bytes]]:
        """(number of bytes, the bytes) of a file from an offset. Raises SnapshotUnknown."""
        # The path comes from another machine: it is looked up in the list and never followed.
        listed = self._kept.use(name)
        size = listed.sizes.get(path) if listed is not None else None
        if size is None or not 0 <= offset <= size:
            raise SnapshotUnknown(f"there is no byte {offset} of file {path!r} in a snapshot {name!r}")
        if not (self.directory / name / path).exists():
            raise SnapshotUnknown(f"file {path!r} of snapshot {name!r} is gone")
        return size - offset, self._kept.read(name, path, offset, size)

    def release(self, name: str) -> None:
        """Delete a snapshot, if it exists."""
        self._kept.release(name)

    def expire(self) -> None:
        """Delete snapshots that were not read for a while: their receivers are gone."""
        self._kept.expire()


def _segment_files(root: Path, entries: list[SegmentEntry]) -> Iterator[SnapshotFile]:
    # The digests are those of the catalogue, not of the files: a file that rotted here since its seal must
    # not pass as good at the receiver.
    segments = root / PARTS[0]
    group = next(segments.iterdir()).name
    for entry in entries:
        yield SnapshotFile(f"{PARTS[0]}/{group}/{entry.name}", entry.size_bytes, entry.file_digest)


def _index_files(root: Path) -> Iterator[SnapshotFile]:
    # The index was written just now, so its digest is computed here; RocksDB checks its own blocks.
    for parent, _, names in os.walk(root / PARTS[1]):
        for name in sorted(names):
            path = Path(parent, name)
            yield SnapshotFile(str(path.relative_to(root)), path.stat().st_size, digest_of(path))
