"""Durable file operations: what a reader or a crash may see of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import (
    DirectoryHeld,
    DirectoryLock,
    create_directories,
    fsync_file,
    rename_durably,
    sync_together,
    unlink_durably,
    write_atomically,
)


@pytest.fixture
def calls(monkeypatch: Any) -> list[str]:
    """Names of the syncs and renames, in order."""
    made: list[str] = []

    def noted(name: str, real: Callable[..., object], *arguments: object) -> object:
        made.append(name)
        return real(*arguments)

    for name in ("fsync", "rename"):
        monkeypatch.setattr(os, name, partial(noted, name, getattr(os, name)))
    return made


def test_a_file_is_synced_renamed_and_its_directory_synced(tmp_path: Path, calls: list[str]) -> None:
    """In this order, for text, bytes and pieces."""
    for data, expected in (("käse", "käse".encode()), (b"1", b"1"), ([b"1", memoryview(b"2")], b"12")):
        calls.clear()
        write_atomically(tmp_path / "file", data)  # type: ignore[arg-type]
        assert expected == (tmp_path / "file").read_bytes()
        assert ["fsync", "rename", "fsync"] == calls
    assert ["file"] == os.listdir(tmp_path)


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: Any) -> None:
    """No partial file stays, and the error is raised."""
    write_atomically(tmp_path / "file", "old")

    def fail(_: int) -> None:
        raise OSError(5, "injected")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="injected"):
        write_atomically(tmp_path / "file", "new")
    assert "old" == (tmp_path / "file").read_text()
    assert ["file"] == os.listdir(tmp_path)


def test_new_directories_are_synced_in_their_parents(tmp_path: Path, calls: list[str]) -> None:
    """One sync for each that was missing, and in each process one for that which was found."""
    assert tmp_path / "a" / "b" == create_directories(tmp_path / "a" / "b")
    assert ["fsync"] * 3 == calls
    for _ in range(3):
        create_directories(tmp_path / "a" / "b")
    assert ["fsync"] * 4 == calls


class UnsyncedNames:
    """Directories that were made since the last sync of their parent; the nth next sync fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = set[str]()
        self.fails_in = 0
        self._mkdir = Path.mkdir
        monkeypatch.setattr(os, "fsync", self._sync)

        def mkdir(path: Path, **named: Any) -> None:
            self._mkdir(path, **named)
            self.names.add(str(path))

        monkeypatch.setattr(Path, "mkdir", mkdir)

    def _sync(self, descriptor: int) -> None:
        self.fails_in -= 1
        if self.fails_in == 0:
            raise OSError(5, "injected")
        at = os.readlink(f"/proc/self/fd/{descriptor}")
        self.names = {name for name in self.names if os.path.dirname(name) != at}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_directories_that_a_failed_call_made_are_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Whoever is given a directory puts files into it, and those may not go with it in a power cut."""
    unsynced = UnsyncedNames(monkeypatch)
    unsynced.fails_in = nth
    with pytest.raises(OSError, match="injected"):
        create_directories(tmp_path / "a" / "b")
    create_directories(tmp_path / "a" / "b")
    assert set() == unsynced.names


def test_a_directory_that_is_made_again_is_not_known_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found and synced, then deleted, and the call that made it anew failed."""
    unsynced = UnsyncedNames(monkeypatch)
    for _ in range(2):
        create_directories(tmp_path / "a")
    (tmp_path / "a").rmdir()
    unsynced.fails_in = 1
    with pytest.raises(OSError, match="injected"):
        create_directories(tmp_path / "a")
    assert {str(tmp_path / "a")} == unsynced.names
    create_directories(tmp_path / "a")
    assert set() == unsynced.names


def test_a_directory_in_a_parent_that_may_not_be_read_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data directory below one that its owner made for others to enter only."""
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert tmp_path == create_directories(tmp_path)


def test_a_directory_that_cannot_be_created_names_what_is_in_the_way(tmp_path: Path) -> None:
    """The parent that is a file is in the error, and not the directory that nobody could create."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as raised:
        create_directories(tmp_path / "file" / "a" / "b")
    assert str(tmp_path / "file") == raised.value.filename


def test_renames_and_deletions_are_synced(tmp_path: Path, calls: list[str]) -> None:
    """Both directories of a move are synced; deleting a missing file has no effect."""
    (tmp_path / "a").mkdir()
    (tmp_path / "file").write_text("x")
    fsync_file(tmp_path / "file")
    rename_durably(tmp_path / "file", tmp_path / "a" / "file")
    assert ["fsync", "rename", "fsync", "fsync"] == calls
    unlink_durably(tmp_path / "a" / "file")
    unlink_durably(tmp_path / "a" / "file")
    assert [] == os.listdir(tmp_path / "a")
    assert 6 == len(calls)


@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_many_files_are_synced_together(count: int) -> None:
    """Each once, by several threads if there are many; one that fails ends none of the others, and is raised."""
    names, synced, threads = [str(number) for number in range(count)], list[str](), set[str]()

    def sync(name: str) -> None:
        threads.add(threading.current_thread().name)
        synced.append(name)
        if name == "0" and count > 8:
            raise OSError("no disk")

    with nullcontext() if count <= 8 else pytest.raises(OSError, match="no disk"):
        sync_together(sync, names)
    missing = set(names) - set(synced)
    assert missing <= set(names[0::8])
    assert ({threading.current_thread().name} == threads) is (count <= 8)
    if count <= 8:
        assert names == synced


def test_a_held_directory_names_the_holder(tmp_path: Path) -> None:
    """Another process is refused with the pid of the holder; it is free after release, or when the holder ends."""
    program = (
        "import sys, time; from headrace.connectors.files import DirectoryLock; "
        "lock = DirectoryLock(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    )
    repository = Path(__file__).parents[4]
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    with subprocess.Popen(command, cwd=repository, env=environment, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert b"held\n" == holder.stdout.readline()
        with pytest.raises(DirectoryHeld, match=f"journal .* is held by the process with pid {holder.pid}") as caught:
            DirectoryLock(tmp_path, purpose="journal")
        assert holder.pid == caught.value.pid
        holder.kill()
    with DirectoryLock(tmp_path, purpose="journal"), pytest.raises(DirectoryHeld, match="this very process"):
        DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()


def test_an_unreadable_lock_file_still_holds(tmp_path: Path) -> None:
    """The pid in the file only informs."""
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(DirectoryHeld, match="another process") as caught:
            DirectoryLock(tmp_path)
        assert caught.value.pid is None
