"""One opener at a time for a directory, by `flock`."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.schemas.errors import HeadraceError

LOCK_NAME = "lock"
"""Default name of the lock file inside a directory.

Its text is the holder's pid and is valid only while the lock is held.
"""


class DirectoryHeld(HeadraceError):
    """Another opener holds the directory.

    `.pid` is the holder's process id, or None when it cannot be read.
    """

    def __init__(self, directory: Path, purpose: str, pid: int | None) -> None:
        holder = (
            "another process"
            if pid is None
            else "this very process"
            if pid == os.getpid()
            else f"the process with pid {pid}"
        )
        super().__init__(
            f"{purpose} {directory} is held by {holder}",
            action="stop that process first" if pid != os.getpid() else "close the first opener",
            retriable=True,
        )
        self.directory = directory
        self.pid = pid


class DirectoryLock:
    """Exclusive ownership of one directory; owns the lock file in it, which stays there after release.

    The kernel drops the lock when the holder dies, however it dies: a stale file never blocks anyone, and a
    copied directory opens like the original. Two openers within one process exclude each other too. Not
    thread-safe; usable as a context manager.
    """

    def __init__(self, directory: str | os.PathLike[str], *, purpose: str = "directory", name: str = LOCK_NAME) -> None:
        """Takes the lock at once; raises `DirectoryHeld` when it is taken, `OSError` for the file."""
        self.directory = Path(directory)
        self.path = self.directory / name
        self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # `flock` belongs to the open file; a POSIX lock would admit a second opener in this process.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = read_holder(self.path)
            self.release()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryHeld(self.directory, purpose, pid) from None
            raise
        self._write_pid(self._descriptor)

    def release(self) -> None:
        """Releases the directory; a second call does nothing."""
        # The file stays: after an unlink one opener could hold the old file and another one a new file.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()

    @staticmethod
    def _write_pid(descriptor: int) -> None:
        # The pid only informs people; a full disk must not keep the owner of the data out.
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def read_holder(path: Path) -> int | None:
    """The pid written in a lock file, or None; it is no sign that the lock is still held."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
