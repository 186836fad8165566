"""The segment files of one store: written durably, pinned while somebody reads them, unlinked when nobody does."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import xxhash

from connectors.files import PARTIAL_SUFFIX, fsync_directory
from consumers.store.errors import StoreError, StoreFull, StoreUnwritable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOST = (errno.EIO, errno.ENOENT, errno.EUCLEAN, errno.EBADMSG)
PIECE_BYTES = 1 << 20


class SegmentFiles:
    """Owns every file below `root`, named by their path relative to it. Thread-safe.

    A removed file that a reader has pinned stays on disk until the last pin is gone; after a crash it is an orphan, which opening removes.
    """

    def __init__(self, root: Path) -> None:
        """`root` exists."""
        self.root = root
        self._lock = threading.Lock()
        self._pins: Counter[str] = Counter()
        self._doomed: set[str] = set()

    def path(self, name: str) -> Path:
        """Where the file of this name is."""
        return self.root / name

    def write(self, name: str, data: pa.Buffer) -> None:
        """Creates or replaces a file: bytes durable, name not before `sync_directories`. Raises StoreFull or StoreUnwritable."""
        target = self.path(name)
        partial = target.with_name(target.name + PARTIAL_SUFFIX)
        with typed_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write_synced(partial, data)
                os.rename(partial, target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def sync_directories(self, names: Iterable[str]) -> None:
        """Makes the names of files, and of the directories above them up to the root, durable."""
        directories = {
            parent for name in names for parent in self.path(name).parents if parent.is_relative_to(self.root)
        }
        with typed_errors(self.root):
            for directory in sorted(directories, reverse=True):
                fsync_directory(directory)

    def pin(self, names: Iterable[str]) -> None:
        """Keeps files on disk until as many `release` calls."""
        with self._lock:
            self._pins.update(names)

    def release(self, names: Iterable[str]) -> None:
        """Takes pins back; what was removed meanwhile goes."""
        with self._lock:
            self._pins.subtract(names)
            free = [name for name in names if self._pins[name] <= 0]
            for name in free:
                del self._pins[name]
            gone = self._doomed.intersection(free)
            self._doomed -= gone
        self._unlink(gone)

    def remove(self, names: Iterable[str]) -> None:
        """Unlinks files that the catalogue no longer has, now or when their last pin is released."""
        with self._lock:
            held = {name for name in names if self._pins[name] > 0}
            self._doomed |= held
            free = set(names) - held
        self._unlink(free)

    def remove_all_doomed(self) -> None:
        """Unlinks every removed file, pinned or not: for closing, when no reader is left."""
        with self._lock:
            gone, self._doomed = self._doomed, set()
        self._unlink(gone)

    def digest(self, name: str, on_bytes: Callable[[int], None]) -> str:
        """xxh3-128 of a file's bytes in hex; empty when the disk does not give them."""
        digest = xxhash.xxh3_128()
        try:
            with self.path(name).open("rb") as data:
                while piece := data.read(PIECE_BYTES):
                    digest.update(piece)
                    on_bytes(len(piece))
        except OSError as error:
            if error.errno in _LOST:
                return ""
            raise os_error(error, self.path(name)) from error
        return digest.hexdigest()

    def found(self) -> Iterator[tuple[str, int]]:
        """Name and size in bytes of every file below the root."""
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = Path(directory, name)
                yield str(path.relative_to(self.root)), path.stat().st_size

    def _unlink(self, names: Iterable[str]) -> None:
        for name in names:
            # A file that cannot be unlinked now (a disk gone read-only) is an orphan, and orphans go at the next opening.
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError:
                continue


def _write_synced(path: Path, data: pa.Buffer) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Turns an OSError into StoreFull or StoreUnwritable that names `path`."""
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from error


def os_error(error: OSError, path: Path) -> StoreError:
    """The store's condition behind an operating system error."""
    if error.errno in _FULL:
        return StoreFull(f"{path} cannot be written: {error.strerror}")
    return StoreUnwritable(
        f"{path} cannot be written: {error}", action="check the disk and the permissions of the data directory"
    )
