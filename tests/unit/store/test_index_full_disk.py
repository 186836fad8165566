"""The index on a disk that is really full, since RocksDB fails every write after a failed one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.store.index import Index, IndexChanges
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.store_errors import StoreFull


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB; skipped where nothing can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Allocate all free space."""
    path = place / "filler"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(descriptor, bytes(4_096))
    except OSError:
        return path
    finally:
        os.close(descriptor)


def change(number: int) -> IndexChanges:
    """A commit of some size."""
    return IndexChanges(last={("d", "t", number): os.urandom(200_000)}, state=(number, b"state"))


def test_commits_fail_while_the_disk_is_full_and_succeed_after(small_disk: Path) -> None:
    """Every commit on the full disk is StoreFull; with space the same index continues, and no commit is lost."""
    index = Index(small_disk / "index", StoreSettings())
    index.commit(change(1))
    filler = fill(small_disk)
    for number in range(2, 6):
        with pytest.raises(StoreFull):
            index.commit(change(number))
    filler.unlink()
    index.commit(change(6))
    assert (6, b"state") == (index.load().frontier, index.load().state)
    index.close()
    reopened = Index(small_disk / "index", StoreSettings())
    assert reopened.load().frontier == 6
    assert reopened.last(("d", "t", 1)) is not None
    reopened.close()


def test_a_reader_reopens_the_index_too(small_disk: Path) -> None:
    """A seal reads before it commits, so a read must reopen what a full disk has closed, without waiting for a commit."""
    index = Index(small_disk / "index", StoreSettings())
    index.commit(change(1))
    filler = fill(small_disk)
    for number in range(2, 6):
        with pytest.raises(StoreFull):
            index.commit(change(number))
    filler.unlink()
    assert index.last(("d", "t", 1)) is not None
    index.commit(change(6))
    assert index.load().frontier == 6
    index.close()


def test_an_index_closes_on_a_full_disk(small_disk: Path) -> None:
    """RocksDB flushes at its end, which the disk refuses: every commit is there all the same, and the lock is free."""
    index = Index(small_disk / "index", StoreSettings())
    for number in range(1, 6):
        index.commit(change(number))
    filler = fill(small_disk)
    index.close()
    filler.unlink()
    reopened = Index(small_disk / "index", StoreSettings())
    assert reopened.load().frontier == 5
    reopened.close()
