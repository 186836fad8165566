"""The index on a disk that is really full, since RocksDB keeps a failed write in mind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.store.errors import StoreFull
from consumers.store.index import Index, IndexChanges
from consumers.store.settings import StoreSettings


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
    """Take all the space there is."""
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


def test_commits_fail_while_the_disk_is_full_and_go_on_when_it_is_not(small_disk: Path) -> None:
    """Every commit on the full disk is StoreFull, however often it is tried; with space the same index goes on, and nothing committed is lost."""
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
    again = Index(small_disk / "index", StoreSettings())
    assert again.load().frontier == 6
    assert again.last(("d", "t", 1)) is not None
    again.close()


def test_a_reader_opens_the_index_again_too(small_disk: Path) -> None:
    """A seal reads before it commits, so a read must not wait for a commit to open what a full disk has closed."""
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
