"""A copy of a store at one instant between two commits."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.files import create_directories, fsync_directory
from consumers.store.files import typed_errors
from consumers.store.jobs import StoreParts
from consumers.store.segment import SegmentEntry


def write_snapshot(
    parts: StoreParts, directory: Path, index_directory: str, segments_directory: str
) -> list[SegmentEntry]:
    """Hard-links every segment of the catalogue and checkpoints the index, while no job can commit."""
    group = parts.files.root.name
    target = directory / segments_directory / group
    with typed_errors(directory), parts.commit_lock:
        create_directories(target)
        create_directories(directory / index_directory)
        entries = parts.view.entries()
        for entry in entries:
            link = target / entry.name
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(parts.files.path(entry.name), link)
        parts.index.checkpoint(directory / index_directory / group)
    with typed_errors(directory):
        for parent, _, _ in os.walk(directory, topdown=False):
            fsync_directory(parent)
    return entries
