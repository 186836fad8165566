"""What of a copy is durable before what, and what a source may not do to this node."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.recovery.file_copy import (
    PARTS,
    RECOVERED,
    RECOVERING,
    Snapshot,
    SourceCorrupt,
    SourceFailed,
    commit_copy,
    commit_empty,
    fetch,
    finish_swap,
    is_committed,
)
from tests.unit.recovery.test_file_copy import CONTENT, Counter, FakeSource, found, good, listing

Event = tuple[str, str]


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is synced and renamed below the temporary directory."""
    noted: list[Event] = []

    def note(kind: str, real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            target = arguments[place]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            result = real(*arguments, **named)
            noted.append((kind, os.path.relpath(path, tmp_path)))
            return result

        return call

    for kind, name, place in (("sync", "fsync", 0), ("rename", "rename", 1)):
        monkeypatch.setattr(os, name, note(kind, getattr(os, name), place))
    return noted


def test_a_file_has_its_name_when_its_bytes_are_durable_and_a_copy_ends_with_its_directories(
    tmp_path: Path, events: list[Event]
) -> None:
    """A file without the suffix counts by its size and digest; a committed copy is never verified again."""
    fetch(good(), tmp_path / "copy", Counter())
    for path in CONTENT:
        synced, renamed = events.index(("sync", f"copy/{path}.partial")), events.index(("rename", f"copy/{path}"))
        assert synced < renamed
    last = max(place for place, (kind, _) in enumerate(events) if kind == "rename")
    directories = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert {("sync", directory) for directory in directories} <= set(events[last:])


def test_the_steps_of_a_swap_are_durable_in_their_order(tmp_path: Path, events: list[Event]) -> None:
    """A decision that a power cut takes back, after the old store was deleted, would leave none."""
    for part in PARTS:
        for place in (tmp_path, tmp_path / RECOVERING / "g"):
            (place / part / "g").mkdir(parents=True)
    commit_copy(tmp_path, "g")
    assert ("sync", RECOVERED) in events[events.index(("rename", f"{RECOVERED}/g")) :]
    finish_swap(tmp_path, "g")
    for part in PARTS:
        assert ("sync", part) in events[events.index(("rename", f"{part}/g")) :]


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_swap_that_failed_at_a_sync_is_durable_before_the_old_store_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Whichever sync failed: a power cut during the next attempt finds the new store in its place, or the old one."""
    for place, name in ((tmp_path, "old"), (tmp_path / RECOVERING / "g", "new")):
        for part in PARTS:
            (place / part / "g").mkdir(parents=True)
            (place / part / "g" / name).touch()
    unsynced, calls, real = set[str](), [0], {name: getattr(os, name) for name in ("fsync", "rename")}

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(errno.EIO, "injected")
        unsynced.discard(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    def rename(source: Path, target: Path) -> None:
        real["rename"](source, target)
        unsynced.update(os.path.relpath(Path(each).parent, tmp_path) for each in (source, target))

    def rmtree(path: Path, **named: Any) -> None:
        if path.exists():
            assert not unsynced & {RECOVERED, *PARTS}, path
        real_rmtree(path, **named)

    real_rmtree = shutil.rmtree
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with contextlib.suppress(OSError):
        commit_copy(tmp_path, "g")
    decided = is_committed(tmp_path, "g")
    with contextlib.suppress(OSError):
        finish_swap(tmp_path, "g")
    finish_swap(tmp_path, "g")
    # The first syncs are those of the directory of decided copies: nothing was decided.
    assert decided or nth <= 2
    assert [["new" if decided else "old"]] * 2 == [os.listdir(tmp_path / part / "g") for part in PARTS]


def test_an_empty_store_has_nothing_of_an_unfinished_copy(tmp_path: Path) -> None:
    """Its files would be taken for sealed rows of the log."""
    half = tmp_path / RECOVERING / "g" / "segments" / "g" / "1.parquet"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a copy")
    commit_empty(tmp_path, "g")
    assert {} == found(tmp_path)
    assert all((tmp_path / RECOVERED / "g" / part / "g").is_dir() for part in PARTS)


def test_a_source_that_sends_without_end_is_corrupt(tmp_path: Path) -> None:
    """It must not fill the disk."""

    class Endless(FakeSource):
        def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[bytes]:
            for _ in range(100):
                yield b"xxxx"
            pytest.fail("the file was read far beyond its end")

    with pytest.raises(SourceCorrupt):
        fetch(Endless(listing(CONTENT), CONTENT), tmp_path / "copy", Counter())


def test_a_file_that_ends_one_byte_early_is_continued(tmp_path: Path) -> None:
    """The source has failed and is not corrupt: all that it sent is kept."""
    path = "segments/g/db/t/1.parquet"
    with pytest.raises(SourceFailed):
        fetch(FakeSource(listing(CONTENT), {**CONTENT, path: CONTENT[path][:-1]}), tmp_path / "copy", Counter())
    source = good()
    fetch(source, tmp_path / "copy", Counter())
    assert 1 == source.sent.count(path)


def test_segments_are_linked_and_the_index_never(tmp_path: Path) -> None:
    """RocksDB writes to the files of its own index, which then would change in the copy."""
    own = tmp_path / "own"
    for path, data in CONTENT.items():
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).write_bytes(data)
    fetch(good(), tmp_path / "copy", Counter(), own=own)
    for path in CONTENT:
        linked = (own / path).samefile(tmp_path / "copy" / path)
        assert linked is path.startswith("segments")
