"""Deletes the directories of a group that was closed, so that a crash leaves all of them or none.

`{data}/deleted/{directory}` is the decision. The passes, each with the crash that it answers:

1. `decide` creates it, durably. A crash before leaves the group as it was closed.
2. Each directory of the group is renamed into it. A crash in between leaves an index without its segments, which
   would be damage: so the next start finishes a deletion before it opens any store.
3. What was moved is removed. Then the node forgets the group in its `node.json`, and `deleted/{directory}` goes last. A
   crash in between leaves files that nothing names, or a group without files; the next start ends that, because the
   decision is still there.

The files go before `node.json` is written: a full disk refuses that until they are gone.

Whoever opens a group of that name later finds nothing, and the group begins empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from headrace.connectors.files import create_directories, fsync_directory, rename_durably
from headrace.consumers.recovery.file_copy import PARTS, RECOVERED, RECOVERING, REPLACED
from headrace.consumers.store.store_directory import ROLLUPS_DIRECTORY, STAGING_DIRECTORY

DELETED = "deleted"
_PARTS = (*PARTS, ROLLUPS_DIRECTORY, STAGING_DIRECTORY, RECOVERING, RECOVERED, REPLACED)


def decide(data_directory: Path, directory: str) -> None:
    """Decide that a group is deleted; `finish_deletion` does it, now or at the next start."""
    create_directories(data_directory / DELETED / directory)


def is_decided(data_directory: Path, directory: str) -> bool:
    """Whether a deletion is not finished."""
    return (data_directory / DELETED / directory).exists()


def finish_deletion(data_directory: Path, directory: str, forget: Callable[[str], None]) -> None:
    """Delete what is left of a group whose deletion was decided. Can be repeated after a crash at any step.

    `forget(directory)` makes the node forget the group, durably. Raises OSError, also what `forget` raises.
    """
    target = data_directory / DELETED / directory
    for part in _PARTS:
        if (source := data_directory / part / directory).exists():
            # Of an attempt that failed before a group of this name was opened again.
            shutil.rmtree(target / part, ignore_errors=True)
            rename_durably(source, target / part)
    # The decision is removed last, by itself.
    for moved in list(target.iterdir()):
        shutil.rmtree(moved)
    forget(directory)
    target.rmdir()
    fsync_directory(target.parent)


def finish_deletions(data_directory: Path, forget: Callable[[str], None]) -> list[str]:
    """Finish the deletions that a crash interrupted, before any store is opened; the directories of their groups."""
    names = sorted(path.name for path in (data_directory / DELETED).glob("*"))
    for directory in names:
        finish_deletion(data_directory, directory, forget)
    return names


def sweep_staging(data_directory: Path, kept: Collection[str]) -> None:
    """Remove what is staged for groups that nobody knows, at a start: `kept` are the directories of all others.

    A fetch that was under way when its group was deleted may have made the directory again.
    """
    for path in (data_directory / STAGING_DIRECTORY).glob("*"):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)
