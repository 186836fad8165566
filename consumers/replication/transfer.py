"""Copies a group's files from another member into a new directory, and puts them in the place of the old ones (docs/internals/recovery.md).

What is in the directory is trusted for its digest and nothing else: a file that has the size and the digest of the snapshot's listing is kept,
whoever sent it and whenever; a partial file is gone on with; everything else goes. So a source may die at any byte, and so may this process.
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

from connectors.files import (
    PARTIAL_SUFFIX,
    Buffer,
    create_directories,
    fsync_directory,
    fsync_file,
    rename_durably,
)
from schemas.errors import HeadraceError

RECOVERING = "recovering"
"""`{data}/recovering/{group}`: a copy under way."""
RECOVERED = "recovered"
"""`{data}/recovered/{group}`: a complete, verified copy that takes the place of the store, also after a crash."""
REPLACED = "replaced"
"""`{data}/replaced/{group}`: the store it took the place of, until that is deleted."""
SNAPSHOTS = "snapshots"
"""`{data}/snapshots/{id}`: what this node hands out to others."""
PARTS = ("segments", "index")
PIECE_BYTES = 1 << 18
PATH_BYTES_MAX = 1_000


class SourceFailed(HeadraceError):
    """A source that died, does not answer or refuses; what it sent is kept, and another one goes on."""


class SourceCorrupt(HeadraceError):
    """A source that sends other bytes than its own catalogue promises; it must not be asked again."""


class TransferStopped(HeadraceError):
    """The node is stopping; the copy goes on at its next start."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file: path below the data directory, size, xxh3-128 of its bytes in hex (of a segment: the catalogue's, computed at seal)."""

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
        """The inverse of `document`. Raises SourceCorrupt for one that no node writes, above all for paths that lead elsewhere."""
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
        """Make the snapshot; it stays until it is released or was not used for some time."""
        ...

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """The bytes of a file from an offset, in pieces, each valid until the next one; may end early."""
        ...

    def release(self, snapshot: Snapshot) -> None:
        """Give the snapshot up."""
        ...


class Watcher(Protocol):
    """Sees a copy advance; each call may raise TransferStopped."""

    def begin(self, files: int, total_bytes: int) -> None:
        """This much is to be copied; counts from nothing again."""
        ...

    def have(self, size_bytes: int) -> None:
        """So many bytes were here already."""
        ...

    def received(self, size_bytes: int) -> None:
        """So many bytes more have come; may wait, to hold a rate."""
        ...

    def lost(self, size_bytes: int) -> None:
        """So many bytes that were here are not what they should be."""
        ...

    def file_done(self) -> None:
        """One file more is verified and durable."""
        ...


def fetch(
    source: Source,
    directory: Path,
    watcher: Watcher,
    own: Path | None = None,
    on_listing: Callable[[Snapshot], None] = lambda _snapshot: None,
) -> Snapshot:
    """Bring a snapshot of a source into `directory`, complete, verified and durable. Raises SourceFailed, SourceCorrupt, TransferStopped, OSError.

    Segments that the data directory `own` has are linked instead of copied, and verified like any other. `on_listing` is called before any
    file is copied. After any error a later call, with the same or another source, goes on with what is there.
    """
    snapshot = source.open()
    try:
        on_listing(snapshot)
        create_directories(directory)
        _remove_others(directory, snapshot)
        if own is not None:
            _link_own(own, directory, snapshot)
        watcher.begin(len(snapshot.files), snapshot.total_bytes)
        with _Settling(watcher.file_done) as settling:
            for file in sorted(snapshot.files, key=lambda file: (not file.path.startswith(PARTS[0]), file.path)):
                _fetch_file(source, snapshot, file, directory, watcher, settling)
        for parent, _, _ in os.walk(directory, topdown=False):
            fsync_directory(parent)
    finally:
        source.release(snapshot)
    return snapshot


class _Settling:
    """Syncs and renames files that are complete and verified, in a thread of its own: meanwhile the next one comes.

    One file at most waits for its sync. A name is made durable by the end of `fetch`, with its directory: until then a file counts for its
    digest only. Leaving the block waits for the last one. Raises OSError, later than the call that it belongs to.
    """

    def __init__(self, on_settled: Callable[[], None]) -> None:
        self._on_settled = on_settled
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="settle")
        self._running: Future[None] | None = None

    def __enter__(self) -> _Settling:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._pool:
            if error is None:
                self.wait()

    def settle(self, partial: Path, target: Path) -> None:
        """Take a partial file whose bytes are all written."""
        self.wait()
        self._running = self._pool.submit(self._settle, partial, target)

    def wait(self) -> None:
        """Until the file in hand is settled."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
            self._on_settled()

    @staticmethod
    def _settle(partial: Path, target: Path) -> None:
        fsync_file(partial)
        os.rename(partial, target)


def digest_of(path: Path) -> str:
    """xxh3-128 of a file's bytes in hex."""
    return _digest_so_far(path).hexdigest()


def _fetch_file(
    source: Source, snapshot: Snapshot, file: SnapshotFile, directory: Path, watcher: Watcher, settling: _Settling
) -> None:
    target = directory / file.path
    if target.exists():
        if target.stat().st_size == file.size_bytes and digest_of(target) == file.digest:
            watcher.have(file.size_bytes)
            watcher.file_done()
            return
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    begun = partial.exists()
    if not _complete(source, snapshot, file, partial, watcher) and not (
        # The beginning may be another source's: only bytes that are all its own speak against this one.
        begun and _complete(source, snapshot, file, partial, watcher)
    ):
        raise SourceCorrupt(
            f"{file.path} is not what the catalogue of its sender says: digest {file.digest} is not met"
        )
    settling.settle(partial, target)


def _complete(source: Source, snapshot: Snapshot, file: SnapshotFile, partial: Path, watcher: Watcher) -> bool:
    """Whether the partial file, read on to its end, has its digest; otherwise it is gone. Raises SourceFailed when cut short."""
    if partial.exists() and partial.stat().st_size > file.size_bytes:
        partial.unlink()
    digest = _digest_so_far(partial) if partial.exists() else xxhash.xxh3_128()
    received = partial.stat().st_size if partial.exists() else 0
    watcher.have(received)
    with partial.open("ab", buffering=0) as out:
        if received < file.size_bytes:
            for piece in source.read(snapshot, file.path, received):
                received += len(piece)
                _write(out, piece)
                digest.update(piece)
                watcher.received(len(piece))
                if received > file.size_bytes:
                    break
    if received < file.size_bytes:
        raise SourceFailed(f"{file.path} ended at byte {received} of {file.size_bytes}", retriable=True)
    if received == file.size_bytes and digest.hexdigest() == file.digest:
        return True
    partial.unlink()
    watcher.lost(received)
    return False


def _write(out: FileIO, piece: Buffer) -> None:
    view = memoryview(piece)
    while view:
        view = view[out.write(view) :]


def _digest_so_far(path: Path) -> xxhash.xxh3_128:
    digest = xxhash.xxh3_128()
    with path.open("rb") as data:
        while piece := data.read(PIECE_BYTES):
            digest.update(piece)
    return digest


def _remove_others(directory: Path, snapshot: Snapshot) -> None:
    """Delete what an earlier snapshot had and this one has not."""
    wanted = {file.path for file in snapshot.files}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            if str(path.relative_to(directory)).removesuffix(PARTIAL_SUFFIX) not in wanted:
                path.unlink()


def _link_own(own: Path, directory: Path, snapshot: Snapshot) -> None:
    """Segments never change once they have their name, so a link is as good as a copy; whether this one is good its digest says."""
    for file in snapshot.files:
        here, target = own / file.path, directory / file.path
        if file.path.startswith(f"{PARTS[0]}/") and not target.exists() and _size(here) == file.size_bytes:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(here, target)


def _size(path: Path) -> int:
    """Size in bytes, -1 for a file that is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _check_path(file: SnapshotFile) -> None:
    path = PurePosixPath(file.path)
    plain = str(path) == file.path and not path.is_absolute() and ".." not in path.parts and "\0" not in file.path
    if not plain or path.parts[0] not in PARTS or len(file.path.encode()) > PATH_BYTES_MAX or file.size_bytes < 0:
        raise SourceCorrupt(f"a listing of a snapshot has the file {file.path!r}")


# The swap. `{group}` is the directory name of the group.


def commit_copy(data_directory: Path, group: str) -> None:
    """From here on the copy in `recovering` takes the place of the group's store: `finish_swap` does it, now or at the next start."""
    create_directories(data_directory / RECOVERED)
    rename_durably(data_directory / RECOVERING / group, data_directory / RECOVERED / group)


def commit_nothing(data_directory: Path, group: str) -> None:
    """Decide for a store without anything in it: what the group holds is wrong, and the log has everything."""
    copy = data_directory / RECOVERING / group
    shutil.rmtree(copy, ignore_errors=True)
    for part in PARTS:
        create_directories(copy / part / group)
    commit_copy(data_directory, group)


def is_committed(data_directory: Path, group: str) -> bool:
    """Whether a copy waits for `finish_swap`."""
    return (data_directory / RECOVERED / group).exists()


def finish_swap(data_directory: Path, group: str) -> None:
    """Move a committed copy into place, the old store aside, and only then delete the old one. Can be repeated after a crash at any step."""
    copied, aside = data_directory / RECOVERED / group, data_directory / REPLACED / group
    if copied.exists():
        for part in PARTS:
            _swap_part(copied / part / group, data_directory / part / group, aside / part)
        shutil.rmtree(copied)
        fsync_directory(copied.parent)
    shutil.rmtree(aside, ignore_errors=True)


def finish_swaps(data_directory: Path) -> list[str]:
    """Finish what a crash has interrupted, before any store is opened; the groups that got their copy."""
    names = [path.name for path in (data_directory / RECOVERED).glob("*")]
    for group in names:
        finish_swap(data_directory, group)
    shutil.rmtree(data_directory / REPLACED, ignore_errors=True)
    return sorted(names)


def _swap_part(new: Path, place: Path, aside: Path) -> None:
    if not new.exists():
        return
    if place.exists():
        # While the old store is in its place, what lies aside is of an earlier swap.
        shutil.rmtree(aside, ignore_errors=True)
        create_directories(aside.parent)
        rename_durably(place, aside)
    create_directories(place.parent)
    rename_durably(new, place)
