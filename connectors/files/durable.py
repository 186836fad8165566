"""Durable files: each is either complete or absent, also after a power cut.

A rename is atomic but not durable until the directory that holds the name is synced; a file's bytes are not
durable until the file is. Every function here does both, in the order that leaves no window. Syncs go through
`os.fsync`, looked up at each call, so that a test can count or fail them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PARTIAL_SUFFIX = ".partial"
"""Suffix of a file that is still being written. Whoever finds one after a crash may delete it."""

SYNCED_ALONE_MAX = 8
"""So many files are synced by the thread that asks."""
SYNC_THREADS = 8
AnyPath = str | os.PathLike[str]


def fsync_directory(directory: AnyPath) -> None:
    """Makes the names in `directory` durable: created, renamed and deleted entries survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: AnyPath) -> None:
    """Makes the bytes and the size of an existing file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_together(sync: Callable[[str], None], names: Sequence[str]) -> None:
    """Calls `sync` for each name, many of them at the same time.

    Raises the error of one that failed, when all have ended. One after the other, each waits for the disk and then for
    a processor: on a busy machine that was 5 ms for a directory of which nothing was left to write.
    """
    if len(names) <= SYNCED_ALONE_MAX:
        for name in names:
            sync(name)
        return
    with ThreadPoolExecutor(SYNC_THREADS, "sync") as threads:
        shares = [threads.submit(_sync_each, sync, names[place::SYNC_THREADS]) for place in range(SYNC_THREADS)]
    for share in shares:
        share.result()


def _sync_each(sync: Callable[[str], None], names: Sequence[str]) -> None:
    for name in names:
        sync(name)


_found_durable: set[str] = set()
"""Directories that existed, of which this process has synced the name: a sync costs milliseconds on a busy disk."""


def create_directories(directory: AnyPath) -> Path:
    """Creates `directory` and its missing parents, each durable in its own parent; returns the path.

    Also what an earlier call has only made, because it failed or was killed before its sync. An `OSError` names in
    `filename` what is in the way: the parent that is a file or may not be written.
    """
    path = Path(directory)
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    # The lowest that exists, and none above it: an earlier call has synced each before it made the next one.
    _sync_found(path)
    # From the top down: a synced child under an unsynced parent is unreachable after a power cut.
    for child in reversed(missing):
        _found_durable.discard(os.path.abspath(child))
        try:
            child.mkdir(exist_ok=True)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(_in_the_way(child))) from None
        fsync_directory(child.parent)
    return Path(directory)


def _sync_found(directory: Path) -> None:
    """Makes the name of a directory that exists durable, once in a process."""
    name = os.path.abspath(directory)
    # The name of a mount point is on another file system, and nothing that this process has made.
    if name in _found_durable or os.path.ismount(name):
        return
    try:
        fsync_directory(os.path.dirname(name))
    except PermissionError:
        # A directory that may be entered and not read, of another owner: it cannot be synced from here.
        return
    _found_durable.add(name)


def _in_the_way(directory: Path) -> Path:
    """The nearest existing path from a directory upwards, else the directory itself."""
    return next((path for path in (directory, *directory.parents) if os.path.lexists(path)), directory)


def write_atomically(
    path: AnyPath, data: bytes | memoryview | str | Iterable[bytes | memoryview], *, mode: int = 0o644
) -> None:
    """Replaces the file at `path` by `data`: readers and crashes see the old content or the new.

    A `str` is written as UTF-8; an iterable is written chunk by chunk, so that a large file needs no copy.
    The temporary file is `path` + `.partial` and is removed when writing fails. Raises the `OSError` of the
    step that failed.
    """
    target = Path(path)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    try:
        _write_and_sync(partial, data, mode)
        os.rename(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync_directory(target.parent)


def rename_durably(source: AnyPath, target: AnyPath) -> None:
    """Renames a file or directory whose content is durable already, and makes the new name durable."""
    os.rename(source, target)
    # The new name first: a power cut between the syncs may leave both names, but never none.
    fsync_directory(Path(target).parent)
    if Path(source).parent != Path(target).parent:
        fsync_directory(Path(source).parent)


def unlink_durably(path: AnyPath) -> None:
    """Deletes a file (a missing one is fine) and makes the deletion durable."""
    Path(path).unlink(missing_ok=True)
    fsync_directory(Path(path).parent)


def _write_and_sync(path: Path, data: bytes | memoryview | str | Iterable[bytes | memoryview], mode: int) -> None:
    chunks: Iterable[bytes | memoryview]
    if isinstance(data, str):
        chunks = (data.encode(),)
    elif isinstance(data, bytes | memoryview):
        chunks = (data,)
    else:
        chunks = data
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
