"""Whole-file replacement through the file layer: `.partial`, sync, rename, sync of the directory, with a named step
after each.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from connectors.files import PARTIAL_SUFFIX, FileLayer


def write_partial(files: FileLayer, path: Path, pieces: Iterable[bytes]) -> int:
    """Writes `path` + `.partial` durably and returns its size; leaves nothing behind when that fails."""
    partial = partial_of(path)
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
    """Gives the partial file its name. When the rename worked and the directory's sync did not, a crash may leave
    either file.
    """
    try:
        files.rename(partial_of(path), path)
    except BaseException:
        files.unlink(partial_of(path))
        raise
    files.step(f"{path.name}: renamed")
    files.sync_directory(path.parent)
    files.step(f"{path.name}: durable")


def partial_of(path: Path) -> Path:
    """The name a file has while it is written."""
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
            raise OSError(5, "the file takes no more bytes")
        offset += written
        view = view[written:]
    return offset
