"""Directories of tests in memory.

Stores sync every file and directory, which takes milliseconds on a disk and nothing in memory. Whether they sync what
they must, and in which order, is recorded call by call. What a real disk does is for the tests of whole nodes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 1 << 30
"""A container has 64 MiB there."""


def memory() -> Path | None:
    """Where `tempfile` makes directories in memory; None, the disk, where memory is short or no place for files."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN else None


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory, removed after the test; on disk where memory is short, or no place for files."""
    place = memory()
    if place is None:
        yield tmp_path_factory.mktemp("test")
        return
    with TemporaryDirectory(prefix="headrace-test-", dir=place) as directory:
        yield Path(directory)
