"""The view of a topic in a RocksDB, on a disk that is full for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from headrace.consumers.sync import view_database
from headrace.consumers.sync.view_database import ViewDatabase, ViewDiskFull, ViewUnwritable


class Disk:
    """Makes databases; while it is full, none can be written or opened."""

    def __init__(self) -> None:
        self.full = False

    def check(self) -> None:
        """Raises what rocksdict raises."""
        if self.full:
            raise Exception("IO error: No space left on device")

    def open(self, path: str, options: Any) -> Any:
        """See Rdict."""
        self.check()
        return Database(self, Rdict(path, options))


class Database:
    """A database on such a disk."""

    def __init__(self, disk: Disk, inner: Rdict) -> None:
        self._disk, self._inner = disk, inner

    def write(self, batch: Any) -> None:
        """See Rdict."""
        self._disk.check()
        self._inner.write(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of all views."""
    disk = Disk()
    monkeypatch.setattr(view_database, "Rdict", disk.open)
    return disk


def test_a_full_disk_is_waited_for(disk: Disk, tmp_path: Path) -> None:
    """Every use says so, as what passes by itself; with space it has what it had, and is written again."""
    view = ViewDatabase(tmp_path / "v", "t")
    view.put({b"a": b"1"}, 5)
    disk.full = True
    for use in (lambda: view.put({b"b": b"2"}, 6), lambda: view.get([b"a"]), lambda: view.next):
        with pytest.raises(ViewDiskFull, match="No space left") as raised:
            use()
        assert raised.value.retriable
    disk.full = False
    assert (5, [b"1", None]) == (view.next, view.get([b"a", b"b"]))
    view.put({b"b": b"2"}, 6)
    view.close()
    again = ViewDatabase(tmp_path / "v", "t")
    assert (6, [(b"", b"1")]) == (again.next, list(again.items(b"a")))
    again.close()


def test_a_view_that_could_not_be_opened_again_can_be_closed(disk: Disk, tmp_path: Path) -> None:
    """The error of the disk is what people see, and not one of the close."""
    view = ViewDatabase(tmp_path / "v", "t")
    disk.full = True
    with pytest.raises(ViewUnwritable):
        view.put({}, 1)
    view.close()


def test_a_view_of_another_topic_is_made_anew(tmp_path: Path) -> None:
    """What it has is of a topic that was deleted."""
    view = ViewDatabase(tmp_path / "v", "t")
    view.put({b"a": b"1"}, 5)
    view.close()
    other = ViewDatabase(tmp_path / "v", "u")
    assert (0, [None]) == (other.next, other.get([b"a"]))
    other.close()
