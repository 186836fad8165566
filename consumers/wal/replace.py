"""Atomic replacement of a file: `.partial`, sync, rename, sync of the directory.

The file layer receives each step by name, so that crash tests can stop between any two.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.connectors.files import PARTIAL_SUFFIX, FileLayer


def write_partial(files: FileLayer, path: Path, pieces: Iterable[bytes]) -> int:
    """Writes `path` + `.partial` durably and returns its size; leaves no file when that fails."""
    partial = partial_of(path)
    # What a crash has left: creating a file that exists is an error, and its bytes are no beginning of this one.
    files.unlink(partial)
    descriptor = files.create(partial)
    try:
        offset = 0
        for piece in pieces:
            offset = _write_all(files, descriptor, piece, offset)
        files.step(f"{path.name}: partial written")
        files.sync(descriptor)
        files.step(f"{path.name}: partial synced")
    except BaseException:
        files.unlink(partial)
        raise
    finally:
        files.close(descriptor)
    return offset


def publish_partial(files: FileLayer, path: Path) -> None:
    """Renames the partial file to `path`, durably."""
    # When the rename succeeds and the sync of the directory fails, a crash may leave either file. Callers
    # therefore keep everything that the old one needs until this returns.
    try:
        files.rename(partial_of(path), path)
    except BaseException:
        files.unlink(partial_of(path))
        raise
    files.step(f"{path.name}: renamed")
    files.sync_directory(path.parent)
    files.step(f"{path.name}: durable")


def partial_of(path: Path) -> Path:
    """The path of a file while it is written."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def read_whole(files: FileLayer, path: Path) -> bytes:
    """The bytes of a small file; raises `FileNotFoundError`."""
    descriptor = files.open(path)
    try:
        return files.read(descriptor, files.size(descriptor), 0)
    finally:
        files.close(descriptor)


def _write_all(files: FileLayer, descriptor: int, data: bytes, offset: int) -> int:
    view = memoryview(data)
    while view:
        written = files.write(descriptor, [view], offset)
        if written <= 0:
            raise OSError(5, "the file accepts no more bytes")
        offset += written
        view = view[written:]
    return offset
