"""The directory of a store that a replay builds: it takes its place when it is complete, and is removed after an error."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.connectors.files import has_no_space
from headrace.schemas.errors import HeadraceError


class DiskFull(HeadraceError):
    """The disk of a new store has no space left."""


@contextmanager
def unfinished_directory(directory: Path) -> Iterator[Path]:
    """Removes a directory now, and again after an error. Raises DiskFull for one that a full disk caused."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    except BaseException as error:
        cause = _disk_full(directory, error) if _is_of_full_disk(error) else error
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists() and isinstance(cause, HeadraceError):
            cause.action = f"{cause.action}; delete {directory}, which could not be removed"
        if cause is error:
            raise
        raise cause from error


def _is_of_full_disk(error: BaseException) -> bool:
    # One that has its name already came through the directory beside this one.
    return not isinstance(error, DiskFull) and has_no_space(str(error))


def _disk_full(directory: Path, error: BaseException) -> DiskFull:
    cause = error.message if isinstance(error, HeadraceError) else str(error)
    return DiskFull(
        f"the disk of {directory.parent} has no space left: {cause}",
        action="nothing was replaced; free space, then replay again: a new store needs room beside the old one",
    )
