"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakeDisk = Callable[[Path, int], None]


@pytest.fixture
def small_disk() -> Iterator[MakeDisk]:
    """`small_disk(directory, mebibytes)` puts a disk of that size at a directory; skips the test where nobody may mount."""
    mounted: list[Path] = []

    def make(directory: Path, mebibytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(directory)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            pytest.skip("there is no mount command here")
        if done.returncode != 0:
            pytest.skip("this user may not mount a small disk")
        mounted.append(directory)

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
