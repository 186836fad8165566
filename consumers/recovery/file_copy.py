"""Copies a group's files from another member, and puts them in the place of the old ones.

docs/internals/recovery.md has the algorithm and the crashes. A file in the directory counts by its digest
alone: one that has the size and the digest of the snapshot's listing is kept, from whichever source it came;
a partial file is continued; everything else is deleted. So a source may die at any byte, and so may this
process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import xxhash

from headrace.connectors.files import (
    PARTIAL_SUFFIX,
    Buffer,
    create_directories,
    fsync_directory,
    fsync_file,
    rename_durably,
)
from headrace.consumers.recovery.progress import CopyObserver
from headrace.schemas.errors import HeadraceError

RECOVERING = "recovering"
"""`{data}/recovering/{group}`: a copy under way."""
RECOVERED = "recovered"
"""`{data}/recovered/{group}`: a complete, verified copy that takes the place of the store, also after a crash."""
REPLACED = "replaced"
"""`{data}/replaced/{group}`: the store it took the place of, until that is deleted."""
SNAPSHOTS = "snapshots"
"""`{data}/snapshots/{id}`: the files that this node sends to other members."""
PARTS = ("segments", "index")
# One buffer of this size is filled again and again for a whole file.
CHUNK_BYTES = 1 << 18
PATH_BYTES_MAX = 1_000
ReadFrom = Callable[[int], Iterator[Buffer]]
"""The bytes of one file from an offset, in chunks, each valid until the next one; may end early."""


class SourceFailed(HeadraceError):
    """A source that died, does not answer or refuses; what it sent is kept, and another source continues."""


class SourceCorrupt(HeadraceError):
    """A source that sends other bytes than its own catalogue lists; it must not be used again soon."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file: path below the data directory, size, xxh3-128 of its bytes in hex.

    The digest of a segment is the catalogue's, computed when it was sealed.
    """

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group at one instant between two records: everything up to `offset` is in the files."""

    id: str
    group: str
    topic_id: str
    version: int
    offset: int
    era: int
    chain: str
    files: tuple[SnapshotFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def document(self) -> dict[str, Any]:
        """The listing as JSON values."""
        files = [{"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest} for file in self.files]
        return {name: getattr(self, name) for name in _PLAIN} | {"files": files}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Snapshot:
        """The inverse of `document`.

        Raises SourceCorrupt for a listing that no node writes, above all for paths outside the directory.
        """
        try:
            files = tuple(
                SnapshotFile(str(file["path"]), int(file["size_bytes"]), str(file["digest"]))
                for file in document["files"]
            )
            plain = {name: kind(document[name]) for name, kind in _PLAIN.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SourceCorrupt(f"a listing of a snapshot cannot be read: {error!r}") from error
        for file in files:
            _check_path(file)
        return cls(files=files, **plain)


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "id": str,
    "group": str,
    "topic_id": str,
    "version": int,
    "offset": int,
    "era": int,
    "chain": str,
}


class Source(Protocol):
    """One member's snapshot. Every method raises SourceFailed."""

    def open(self) -> Snapshot:
        """Make the snapshot; it is kept until it is released or was not used for some time."""
        ...

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """The bytes of a file from an offset, in chunks, each valid until the next one; may end early."""
        ...

    def release(self, snapshot: Snapshot) -> None:
        """Let the member delete the snapshot."""
        ...


def fetch(
    source: Source,
    directory: Path,
    observer: CopyObserver,
    own: Path | None = None,
    on_listing: Callable[[Snapshot], None] = lambda _snapshot: None,
) -> Snapshot:
    """Copy a snapshot of a source into `directory`, complete, verified and durable.

    Raises SourceFailed, SourceCorrupt, TransferStopped, OSError. Segments that the data directory `own` has
    are linked instead of copied, and verified like any other. `on_listing` is called before any file is
    copied. After any error a later call, with the same or another source, continues with the files in the
    directory.
    """
    snapshot = source.open()
    try:
        on_listing(snapshot)
        create_directories(directory)
        _remove_others(directory, snapshot)
        if own is not None:
            _link_own(own, directory, snapshot)
        observer.begin(len(snapshot.files), snapshot.total_bytes)
        with _FileSync(observer.file_done) as file_sync:
            # Segments first: those of one source are good for another one, while the index belongs to one
            # snapshot only.
            for file in sorted(snapshot.files, key=lambda file: (not file.path.startswith(PARTS[0]), file.path)):
                _fetch_file(source, snapshot, file, directory, observer, file_sync)
        for parent, _, _ in os.walk(directory, topdown=False):
            fsync_directory(parent)
    finally:
        source.release(snapshot)
    return snapshot


class _FileSync:
    """Syncs and renames complete, verified files in its own thread, while the next file is received.

    At most one file waits for its sync. Names become durable at the end of `fetch`, with their directory;
    until then a file counts by its digest alone. Leaving the block waits for the last file. Raises OSError,
    later than the call that it belongs to.
    """

    # A copy is bound by the disk: without this thread the network would be idle during each fsync, and the
    # disk in between.

    def __init__(self, on_synced: Callable[[], None]) -> None:
        self._on_synced = on_synced
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="file-sync")
        self._running: Future[None] | None = None

    def __enter__(self) -> _FileSync:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._pool:
            if error is None:
                self.wait()

    def submit(self, partial: Path, target: Path) -> None:
        """Sync and rename a partial file whose bytes are all written."""
        self.wait()
        self._running = self._pool.submit(self._sync, partial, target)

    def wait(self) -> None:
        """Wait for the file whose sync is running."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
            self._on_synced()

    @staticmethod
    def _sync(partial: Path, target: Path) -> None:
        # Never the other way round: after a crash a file without the suffix would have its size and perhaps
        # not its bytes.
        fsync_file(partial)
        os.rename(partial, target)


def digest_of(path: Path) -> str:
    """xxh3-128 of a file's bytes in hex."""
    return _digest_so_far(path).hexdigest()


def _fetch_file(
    source: Source,
    snapshot: Snapshot,
    file: SnapshotFile,
    directory: Path,
    observer: CopyObserver,
    file_sync: _FileSync,
) -> None:
    target = directory / file.path
    if target.exists():
        if target.stat().st_size == file.size_bytes and digest_of(target) == file.digest:
            observer.kept(file.size_bytes)
            observer.file_done()
            return
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    complete_file(lambda offset: source.read(snapshot, file.path, offset), file, partial, observer)
    file_sync.submit(partial, target)


def complete_file(read: ReadFrom, file: SnapshotFile, partial: Path, observer: CopyObserver) -> None:
    """Complete a partial file, which may exist, and compare it with its digest; it is not synced.

    Raises SourceFailed, SourceCorrupt, TransferStopped, OSError. What was received stays, unless it is wrong.
    """
    begun = partial.exists()
    # The beginning may be another source's. Only a file that came from this source as a whole proves it corrupt.
    if not _complete(read, file, partial, observer) and not (begun and _complete(read, file, partial, observer)):
        raise SourceCorrupt(f"{file.path} does not have the digest {file.digest} that its sender's catalogue lists")


def _complete(read: ReadFrom, file: SnapshotFile, partial: Path, observer: CopyObserver) -> bool:
    """Whether the partial file, completed, has its digest; else it is deleted. Raises SourceFailed if it ends early."""
    if partial.exists() and partial.stat().st_size > file.size_bytes:
        partial.unlink()
    digest = _digest_so_far(partial) if partial.exists() else xxhash.xxh3_128()
    received = partial.stat().st_size if partial.exists() else 0
    observer.kept(received)
    with partial.open("ab", buffering=0) as out:
        if received < file.size_bytes:
            for chunk in read(received):
                received += len(chunk)
                _write(out, chunk)
                digest.update(chunk)
                observer.received(len(chunk))
                # A source that sends without end must not fill the disk.
                if received > file.size_bytes:
                    break
    if received < file.size_bytes:
        raise SourceFailed(f"{file.path} ended at byte {received} of {file.size_bytes}", retriable=True)
    if received == file.size_bytes and digest.hexdigest() == file.digest:
        return True
    partial.unlink()
    observer.discarded(received)
    return False


def _write(out: FileIO, chunk: Buffer) -> None:
    # An unbuffered file may take less than it is given, at a signal or on a disk that is nearly full.
    view = memoryview(chunk)
    while view:
        view = view[out.write(view) :]


def _digest_so_far(path: Path) -> xxhash.xxh3_128:
    digest = xxhash.xxh3_128()
    with path.open("rb") as data:
        while chunk := data.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest


def _remove_others(directory: Path, snapshot: Snapshot) -> None:
    """Delete the files of an earlier snapshot that this one does not list."""
    wanted = {file.path for file in snapshot.files}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            if str(path.relative_to(directory)).removesuffix(PARTIAL_SUFFIX) not in wanted:
                path.unlink()


def _link_own(own: Path, directory: Path, snapshot: Snapshot) -> None:
    """Link segments of the same path and size instead of copying them.

    A member that lost one file then copies one file.
    """
    # Segments never change once they have their name. Whether this one rotted, its digest decides like that
    # of a received file.
    for file in snapshot.files:
        here, target = own / file.path, directory / file.path
        if file.path.startswith(f"{PARTS[0]}/") and not target.exists() and _size(here) == file.size_bytes:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(here, target)


def _size(path: Path) -> int:
    """Size in bytes, -1 for a file that does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _check_path(file: SnapshotFile) -> None:
    # The paths come from another process and decide where this one writes: `..`, `/etc` and NUL are refused
    # before any open.
    path = PurePosixPath(file.path)
    plain = str(path) == file.path and not path.is_absolute() and ".." not in path.parts and "\0" not in file.path
    if not plain or path.parts[0] not in PARTS or len(file.path.encode()) > PATH_BYTES_MAX or file.size_bytes < 0:
        raise SourceCorrupt(f"a listing of a snapshot has the file {file.path!r}")


# The swap. `{group}` is the directory name of the group.


def commit_copy(data_directory: Path, group: str) -> None:
    """Decide for the copy in `recovering`.

    `finish_swap` puts it in the place of the group's store, now or at the next start.
    """
    create_directories(data_directory / RECOVERED)
    rename_durably(data_directory / RECOVERING / group, data_directory / RECOVERED / group)


def commit_empty(data_directory: Path, group: str) -> None:
    """Decide for an empty store: the group's data is wrong, and the log has everything."""
    copy = data_directory / RECOVERING / group
    shutil.rmtree(copy, ignore_errors=True)
    for part in PARTS:
        create_directories(copy / part / group)
    commit_copy(data_directory, group)


def is_committed(data_directory: Path, group: str) -> bool:
    """Whether a copy is to be swapped in by `finish_swap`."""
    return (data_directory / RECOVERED / group).exists()


def finish_swap(data_directory: Path, group: str) -> None:
    """Move the old store aside, a committed copy into its place, then delete the old one.

    Can be repeated after a crash at any step.
    """
    copied, aside = data_directory / RECOVERED / group, data_directory / REPLACED / group
    # `recovered` is deleted last of the copy: while it exists, a start after a crash repeats the steps that
    # are left.
    if copied.exists():
        # Whoever committed it may have failed, or been killed, before the sync of its name.
        fsync_directory(copied.parent)
        for part in PARTS:
            _swap_part(copied / part / group, data_directory / part / group, aside / part)
        shutil.rmtree(copied)
        fsync_directory(copied.parent)
    shutil.rmtree(aside, ignore_errors=True)


def finish_swaps(data_directory: Path) -> list[str]:
    """Finish the swaps that a crash interrupted, before any store is opened; the groups that got their copy."""
    names = [path.name for path in (data_directory / RECOVERED).glob("*")]
    for group in names:
        finish_swap(data_directory, group)
    shutil.rmtree(data_directory / REPLACED, ignore_errors=True)
    return sorted(names)


def _swap_part(new: Path, place: Path, aside: Path) -> None:
    if not new.exists():
        # Moved before, by a call that perhaps ended at its sync: a power cut would take the move back.
        if place.exists():
            fsync_directory(place.parent)
        return
    if place.exists():
        # While the old store is in its place, a directory aside is of an earlier swap.
        shutil.rmtree(aside, ignore_errors=True)
        create_directories(aside.parent)
        rename_durably(place, aside)
    create_directories(place.parent)
    rename_durably(new, place)
