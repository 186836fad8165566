"""The file operations that durable code is built on, as one object that tests replace.

A test passes a layer that loses unsynced bytes, fails the nth call, writes short or runs out of space; the
code above it is the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.connectors.files.durable import create_directories
from headrace.connectors.files.lock import DirectoryLock

Buffer = bytes | bytearray | memoryview


class FileLayer:
    """Real files. Every method is one system call and raises its `OSError`; descriptors are plain integers
    owned by the caller.

    Syncs go through `os.fdatasync` and `os.fsync`, looked up at each call. Thread-safe.
    """

    def create(self, path: Path) -> int:
        """Opens a new file for reading and writing; an existing one is an error."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: Path) -> int:
        """Opens an existing file for reading and writing, for reading alone where writing is not allowed."""
        # A log on a read-only medium can still be examined: only its first write fails.
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes the buffers one after the other at `offset`; returns the bytes written, which may be fewer."""
        return os.pwritev(descriptor, buffers, offset)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Returns up to `length` bytes from `offset`; fewer at the end of the file."""
        return os.pread(descriptor, length, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        """Sets the size of the file."""
        os.ftruncate(descriptor, length)

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        """Allocates space that reads as zeros: later writes there neither fail for space nor change metadata."""
        # Unlike `ftruncate` this allocates blocks: a full disk fails here, and later syncs write no size.
        os.posix_fallocate(descriptor, offset, length)

    def size(self, descriptor: int) -> int:
        """Returns the size of an open file in bytes."""
        return os.fstat(descriptor).st_size

    def sync_data(self, descriptor: int) -> None:
        """Makes the bytes written so far durable, and the size that is needed to read them."""
        os.fdatasync(descriptor)

    def sync(self, descriptor: int) -> None:
        """Makes bytes and metadata durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Closes the descriptor; nothing becomes durable by it."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` by `source` in one step; durable after `sync_directory`."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Removes a name; a missing one is fine."""
        path.unlink(missing_ok=True)

    def names(self, directory: Path) -> list[str]:
        """Returns the names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def sync_directory(self, directory: Path) -> None:
        """Makes created, renamed and removed names durable."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, directory: Path) -> None:
        """Creates a directory and its missing parents, durably; an existing one is fine."""
        create_directories(directory)

    def lock(self, directory: Path, purpose: str) -> DirectoryLock:
        """Takes a directory for one opener; raises `DirectoryHeld`."""
        return DirectoryLock(directory, purpose=purpose)

    def step(self, name: str) -> None:
        """Called between two operations at a named point of a protocol; crash tests stop the process here."""
