"""Files on their way at a receiver: bytes are hashed while they are written.

Nothing here outlives the process: after a start the records are read again, from the first of each open file.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from headrace.connectors.files import create_directories
from headrace.consumers.sync.file_check import FileDamaged
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncFile

DIRECTORY = "incoming"


class ReceiverDiskFull(HeadraceError):
    """No space for a chunk; it is read again later."""


class IncomingFile:
    """One file of segment and series. Owned by one thread at a time."""

    def __init__(self, path: Path, body: SyncFile) -> None:
        """Raises ReceiverDiskFull."""
        self.path = path
        self._body = body
        self.size_bytes = 0
        self._segment, self._series = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._md5 = hashlib.md5(usedforsecurity=False) if body.segment_md5 else None
        with _disk(path):
            self._data = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Append a chunk, whole or not at all. Raises ReceiverDiskFull."""
        with _disk(self.path):
            left = memoryview(data)
            try:
                while left:
                    left = left[self._data.write(left) :]
            except OSError:
                self._data.truncate(self.size_bytes)
                self._data.seek(self.size_bytes)
                raise
        # A chunk may hold the end of the segment and the begin of its series.
        split = max(0, min(len(data), self._body.segment_bytes - self.size_bytes))
        head, tail = memoryview(data)[:split], memoryview(data)[split:]
        self._segment.update(head)
        self._series.update(tail)
        if self._md5 is not None:
            self._md5.update(head)
        self.size_bytes += len(data)

    def finish(self) -> None:
        """Compare what was hashed with the manifest. Raises FileDamaged."""
        self._data.close()
        body = self._body
        if self._segment.digest() != body.segment_digest or self._series.digest() != body.series_digest:
            raise FileDamaged(f"the file {body.file} arrived with other bytes than its digest names", retriable=True)
        if self._md5 is not None and self._md5.digest() != body.segment_md5:
            raise FileDamaged(f"the file {body.file} arrived with other bytes than its MD5 names", retriable=True)

    def discard(self) -> None:
        """Remove it."""
        self._data.close()
        self.path.unlink(missing_ok=True)


class IncomingFiles:
    """The directory of incoming files, empty at the start."""

    def __init__(self, data_directory: Path) -> None:
        self._directory = data_directory / DIRECTORY
        shutil.rmtree(self._directory, ignore_errors=True)
        create_directories(self._directory)
        self._number = 0

    def open(self, body: SyncFile) -> IncomingFile:
        """A new file. Raises ReceiverDiskFull."""
        # A number of our own: no name of a sender is ever a path here.
        self._number += 1
        return IncomingFile(self._directory / f"{self._number}.part", body)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Raises ReceiverDiskFull in place of an OSError that space would end."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ReceiverDiskFull(
            f"{path.parent} is full: {error.strerror}", action="make room there", retriable=True
        ) from error
