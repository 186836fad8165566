"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakeDisk = Callable[[Path, int], None]
TryDisk = Callable[[Path, int], bool]


@pytest.fixture
def small_disk_if_allowed() -> Iterator[TryDisk]:
    """`small_disk_if_allowed(directory, mebibytes)` mounts a small disk; False if this user may not mount."""
    mounted: list[Path] = []

    def make(directory: Path, mebibytes: int) -> bool:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(directory)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            return False
        if done.returncode == 0:
            mounted.append(directory)
        return done.returncode == 0

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def small_disk(small_disk_if_allowed: TryDisk) -> MakeDisk:
    """`small_disk(directory, mebibytes)` mounts a small disk; skips the test if this user may not mount."""

    def make(directory: Path, mebibytes: int) -> None:
        if not small_disk_if_allowed(directory, mebibytes):
            pytest.skip("this user may not mount a small disk, or there is no mount command")

    return make
