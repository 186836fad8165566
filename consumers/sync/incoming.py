"""Files on their way at a receiver: bytes are hashed while they are written, a segment and its series apart.

Nothing here outlives the process: after a start the records are read again, from the first of each open file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from headrace.connectors.files import create_directories
from headrace.consumers.sync.file_check import FileDamaged, series_path
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncFile

DIRECTORY = "incoming"


class ReceiverDiskFull(HeadraceError):
    """No space for a chunk; it is read again later."""


class _Part:
    """A segment, or its series: the bytes that count, and their digest. Its file is made by the first byte."""

    def __init__(self, path: Path) -> None:
        self._is_made = False
        self.path = path
        self.size_bytes = 0
        self.digest = xxhash.xxh3_128()

    def append(self, data: memoryview) -> None:
        """Write bytes that count from `take` on."""
        if not data:
            return
        if not self._is_made:
            # A new file in any case: one that an earlier process left may be linked into a member's store.
            self.path.unlink(missing_ok=True)
        # Opened for each chunk: a hundred senders have more files in their middle than a process has descriptors.
        with io.FileIO(self.path, "r+b" if self._is_made else "xb") as file:
            self._is_made = True
            file.seek(self.size_bytes)
            while data:
                data = data[file.write(data) :]

    def restore(self) -> None:
        """Remove what does not count."""
        if self._is_made:
            os.truncate(self.path, self.size_bytes)

    def take(self, data: memoryview) -> None:
        """Count what was written."""
        self.digest.update(data)
        self.size_bytes += len(data)


class IncomingFile:
    """One segment, at `path`, and its series. Owned by one thread at a time."""

    def __init__(self, path: Path, body: SyncFile) -> None:
        self.path = path
        self._body = body
        self._md5 = hashlib.md5(usedforsecurity=False) if body.segment_md5 else None
        self._segment = _Part(path)
        self._series = _Part(series_path(path))

    @property
    def size_bytes(self) -> int:
        """Bytes of both parts."""
        return self._segment.size_bytes + self._series.size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append a chunk, whole or not at all. Raises ReceiverDiskFull."""
        # A chunk may hold the end of the segment and the begin of its series.
        split = max(0, min(len(data), self._body.segment_bytes - self.size_bytes))
        head, tail = memoryview(data)[:split], memoryview(data)[split:]
        with _disk(self.path):
            try:
                self._segment.append(head)
                self._series.append(tail)
            except OSError:
                self._segment.restore()
                self._series.restore()
                raise
        self._segment.take(head)
        self._series.take(tail)
        if self._md5 is not None:
            self._md5.update(head)

    def finish(self) -> None:
        """Compare what was hashed with the manifest. Raises FileDamaged."""
        body, found = self._body, (self._segment.digest.digest(), self._series.digest.digest())
        if found != (body.segment_digest, body.series_digest):
            raise FileDamaged(f"the file {body.file} arrived with other bytes than its digest names", retriable=True)
        if self._md5 is not None and self._md5.digest() != body.segment_md5:
            raise FileDamaged(f"the file {body.file} arrived with other bytes than its MD5 names", retriable=True)

    def discard(self) -> None:
        """Remove it."""
        for part in (self._segment, self._series):
            part.path.unlink(missing_ok=True)


class IncomingFiles:
    """The directory of incoming files, empty at the start."""

    def __init__(self, data_directory: Path) -> None:
        self._directory = data_directory / DIRECTORY
        shutil.rmtree(self._directory, ignore_errors=True)
        create_directories(self._directory)
        self._number = 0

    def open(self, body: SyncFile) -> IncomingFile:
        """A new file."""
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
