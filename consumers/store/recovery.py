"""Opening a store after a crash, in numbered passes. Each removes or reports what one kind of crash leaves behind.

1. RocksDB replays its own log: a crash before or in a synced batch leaves the commit before it.
2. `*.partial` files go: a crash while a segment was written.
3. Segments that the catalogue does not name go: a crash after a segment got its name and before its commit; or after a merge or a drop was
   committed and before the replaced files were unlinked; or while a reader still held them.
4. Directories that are empty go: a crash between making one and its first file, or a slice that was dropped.
5. Every segment of the catalogue must be there with its size: no crash leaves another state, so this is damage.

Nothing here reads a segment, so opening takes time by the number of files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from connectors.files import PARTIAL_SUFFIX
from consumers.store.errors import StoreDamaged
from consumers.store.files import SegmentFiles
from consumers.store.names import SEGMENT_SUFFIX
from consumers.store.segment import SegmentEntry


def remove_orphans(files: SegmentFiles, entries: Mapping[str, SegmentEntry]) -> list[str]:
    """Passes 2 to 4; returns the names of the files removed. Files that no store writes are left alone."""
    ours = (PARTIAL_SUFFIX, SEGMENT_SUFFIX)
    orphans = [name for name, _ in files.found() if name not in entries and name.endswith(ours)]
    for name in orphans:
        files.path(name).unlink()
    for directory, _, _ in os.walk(files.root, topdown=False):
        if directory != str(files.root) and not os.listdir(directory):
            os.rmdir(directory)
    return sorted(orphans)


def check_segments(files: SegmentFiles, entries: Mapping[str, SegmentEntry]) -> None:
    """Pass 5. Raises StoreDamaged that names the first few missing or short files."""
    found = dict(files.found())
    wrong = [
        f"{name} ({'missing' if name not in found else f'{found[name]} bytes where the index says {entry.size_bytes}'})"
        for name, entry in sorted(entries.items())
        if found.get(name) != entry.size_bytes
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise StoreDamaged(
            f"segments in {files.root} do not match their index: {', '.join(wrong[:3])}{more}",
            action="recover this replica from another one or from the log",
        )
