"""Snapshots of a group's files for members that recover: the list, and the bytes of each file from any offset.

A snapshot is hard links in `{data}/snapshots/{id}`, so it takes only the space that compaction would free
meanwhile. It is deleted when its receiver releases it, after a while without reads, and when the node starts.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.files import create_directories
from headrace.consumers.recovery.file_copy import PARTS, SNAPSHOTS, Snapshot, SnapshotFile, digest_of
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.store import SegmentEntry, Store
from headrace.schemas.errors import HeadraceError

SNAPSHOTS_MAX = 8
IDLE_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 20
"""Each chunk costs a switch between event loop and thread, so it is larger than a read of the receiver."""


class SnapshotRefused(HeadraceError):
    """A snapshot that cannot be made now: the group is not in sync, not sealed, or too many are in use."""


class SnapshotUnknown(HeadraceError):
    """A snapshot, or a file of one, that does not exist or was deleted."""


@dataclass(slots=True)
class _Entry:
    snapshot: Snapshot
    sizes: dict[str, int]
    used_s: float


class SnapshotRegistry:
    """The snapshots in use. Owns `{data}/snapshots`; safe for any thread."""

    def __init__(self, data_directory: Path, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        """Deletes the snapshots of an earlier process: their receivers start again with a new one."""
        self.directory = data_directory / SNAPSHOTS
        shutil.rmtree(self.directory, ignore_errors=True)
        self._idle_timeout_s = idle_timeout_s
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def make(self, group: str, topic_id: str, era: int, store: Store) -> Snapshot:
        """A new snapshot of a group's store. Raises SnapshotRefused, StoreError."""
        self.expire()
        with self._lock:
            # Making one takes long, so it happens outside the lock. Its entry is added first, or several
            # callers could pass the limit together.
            if len(self._entries) >= SNAPSHOTS_MAX:
                raise SnapshotRefused(f"{SNAPSHOTS_MAX} snapshots are out already", retriable=True)
            name = uuid.uuid4().hex
            # Nobody reads it yet, so it is not idle, however long a busy machine takes.
            self._entries[name] = _Entry(Snapshot(name, group, topic_id, 0, 0, era, "", ()), {}, math.inf)
        try:
            made = self._write(name, group, topic_id, era, store)
        except BaseException:
            self.release(name)
            raise
        with self._lock:
            self._entries[name] = _Entry(made, {file.path: file.size_bytes for file in made.files}, time.monotonic())
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
        with self._lock:
            entry = self._entries.get(name)
            size = entry.sizes.get(path) if entry is not None else None
        if entry is None or size is None or not 0 <= offset <= size:
            raise SnapshotUnknown(f"there is no byte {offset} of file {path!r} in a snapshot {name!r}")
        located = self.directory / name / path
        if not located.exists():
            raise SnapshotUnknown(f"file {path!r} of snapshot {name!r} is gone")
        return size - offset, _chunks(located, offset, size, entry)

    def release(self, name: str) -> None:
        """Delete a snapshot, if it exists."""
        with self._lock:
            known = self._entries.pop(name, None)
        if known is not None:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def expire(self) -> None:
        """Delete snapshots that were not read for a while: their receivers are gone."""
        now = time.monotonic()
        with self._lock:
            idle = [name for name, entry in self._entries.items() if now - entry.used_s > self._idle_timeout_s]
        for name in idle:
            self.release(name)


def _chunks(path: Path, offset: int, size: int, entry: _Entry) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while offset < size and (chunk := os.pread(descriptor, min(CHUNK_BYTES, size - offset), offset)):
            # A file of many gigabytes takes longer than the idle time, so each chunk counts as use.
            entry.used_s = time.monotonic()
            yield chunk
            offset += len(chunk)
    finally:
        os.close(descriptor)


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
