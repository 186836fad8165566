"""Opening after crashes and damage, and jobs on a failing disk."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from rocksdict import Options, Rdict

from headrace.connectors.files import PARTIAL_SUFFIX
from headrace.consumers.store import (
    Store,
    StoreDamaged,
    StoreFormatUnknown,
    StoreFull,
    StoreLocked,
    StoreSettings,
    StoreUnwritable,
)
from headrace.consumers.store import index as index_module
from headrace.consumers.store.index import FAMILIES, Index
from headrace.schemas.framing import SchemaUnknown
from tests.unit.store.builders import Row, contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS

A, B = {"host": "a"}, {"host": "b"}
ROWS = [({"host": host}, at, {"busy": at}) for at, host in enumerate("abcdefghij")]
"""Enough series for a file in each of the three buckets."""


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, after: int = 0) -> list[int]:
    """Lets `os.{name}` fail from the call `after` on; clearing the returned list ends the fault."""
    original: Callable[..., Any] = getattr(os, name)
    broken, calls = [1], [0]

    def wrapped(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if broken and calls[0] > after:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **options)

    monkeypatch.setattr(os, name, wrapped)
    return broken


def test_files_that_the_catalogue_does_not_name_are_removed(store: Store, home: Path) -> None:
    """Partial files, segments without an entry and empty directories are removed; a file of another kind stays."""
    write(store, 1, ROWS[:1])
    seal(store, 2)
    (entry,) = store.segments()
    store.close()
    good = home / "segments" / "n1" / entry.name
    orphan = good.with_name("000001-000000000000003-000000000000004.parquet")
    partial = good.with_name(good.name + PARTIAL_SUFFIX)
    foreign, empty = good.with_name("notes.txt"), good.parent.parent / "9-9"
    for path in (orphan, partial, foreign):
        shutil.copy(good, path)
    empty.mkdir()
    reopened = Store.open(home, "n1", SETTINGS)
    assert [False, False, True, False] == [path.exists() for path in (orphan, partial, foreign, empty)]
    assert expected(ROWS[:1]) == contents(reopened)
    reopened.close()


@pytest.mark.parametrize("damage", ["missing", "short", "long"])
def test_a_missing_or_short_segment_is_damage(store: Store, home: Path, damage: str) -> None:
    """A store whose files do not match its catalogue does not open; the error names the file."""
    write(store, 1, ROWS[:1])
    seal(store, 2)
    (entry,) = store.segments()
    store.close()
    path = home / "segments" / "n1" / entry.name
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, entry.size_bytes + (1 if damage == "long" else -1))
    with pytest.raises(StoreDamaged, match=entry.name):
        Store.open(home, "n1", SETTINGS)


@pytest.mark.parametrize("lost", ["directory", "content", "root"])
def test_a_lost_index_deletes_nothing(store: Store, home: Path, lost: str) -> None:
    """Segments whose index is gone are damage, at every opening: they may be the only copy, and never orphans."""
    write(store, 1, ROWS)
    seal(store, 2)
    names = [entry.name for entry in store.segments()]
    store.close()
    index = home / "index" / "n1"
    if lost == "root":
        (index / "CURRENT").unlink()
    else:
        shutil.rmtree(index)
    if lost == "content":
        index.mkdir()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="segments"):
            Store.open(home, "n1", SETTINGS)
    assert all((home / "segments" / "n1" / name).exists() for name in names)
    aside = Store.quarantine(home, "n1")
    assert all((aside / "segments" / name).exists() for name in names)
    reopened = Store.open(home, "n1", SETTINGS)
    assert [] == reopened.segments()
    reopened.close()


def test_a_damaged_index_is_reported(store: Store, home: Path) -> None:
    """An index that RocksDB cannot read is StoreDamaged, never an empty store."""
    write(store, 1, ROWS)
    seal(store, 2)
    store.close()
    for path in (home / "index" / "n1").glob("MANIFEST-*"):
        path.write_bytes(path.read_bytes()[:-7] + b"garbage")
    with pytest.raises(StoreDamaged):
        Store.open(home, "n1", SETTINGS)


def test_an_index_of_another_format_is_refused(store: Store, home: Path) -> None:
    """A store written by a build with another format is refused and left as it is."""
    store.close()
    options = Options(raw_mode=True)
    database = Rdict(str(home / "index" / "n1"), options, {name: Options(raw_mode=True) for name in FAMILIES})
    state = database.get_column_family("state")
    state[b"format"] = b"99"
    state.close()
    database.close()
    for _ in range(2):
        with pytest.raises(StoreFormatUnknown, match="99"):
            Store.open(home, "n1", SETTINGS)


def put_entries(home: Path, family: str, entries: dict[bytes, bytes], families: Iterable[str] = FAMILIES) -> None:
    """Writes raw values into the index of a closed store."""
    options = {name: Options(raw_mode=True) for name in families}
    creating = Options(raw_mode=True)
    creating.create_missing_column_families(True)
    database = Rdict(str(home / "index" / "n1"), creating, options)
    opened = database.get_column_family(family)
    for key, value in entries.items():
        opened[key] = value
    opened.close()
    database.close()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("catalogue", b"s/plant/cpu/0-0/000001-000000000000001-000000000000001.parquet", b'{"name": "x", "colour": 1}'),
        ("catalogue", b"t/plant\0cpu", b'{"database": {"slice_ns": 1, "buckets": 1, "shape": 2}, "schema": {}}'),
        ("tombstones", b"9", b'{"version": 9, "tags": [], "depth": 3}'),
    ],
)
def test_an_entry_of_a_newer_build_is_refused(store: Store, home: Path, family: str, key: bytes, value: bytes) -> None:
    """The error has the way out, and no file is removed: the catalogue may have more than this build understands."""
    store.close()
    put_entries(home, family, {key: value})
    orphan = home / "segments" / "n1" / "orphan.parquet"
    orphan.write_bytes(b"of the newer build")
    with pytest.raises(StoreFormatUnknown, match="has an entry that this build cannot read.*move the data directory"):
        Store.open(home, "n1", SETTINGS)
    assert orphan.exists()


def test_an_index_with_more_families_is_of_a_newer_build(store: Store, home: Path) -> None:
    """The disk and its permissions are right."""
    store.close()
    put_entries(home, "shapes", {b"a": b"b"}, (*FAMILIES, "shapes"))
    with pytest.raises(StoreFormatUnknown, match="shapes.*run the build that wrote it"):
        Store.open(home, "n1", SETTINGS)


def test_a_state_of_a_newer_build_is_refused(store: Store, home: Path) -> None:
    """Before any pass over the files; it names the data directory and the group. The lock is free again."""
    store.close()
    put_entries(home, "state", {b"state": b"a newer one"})
    orphan = home / "segments" / "n1" / "orphan.parquet"
    orphan.write_bytes(b"of the newer build")

    def unknown(_state: bytes) -> None:
        raise SchemaUnknown("no schema we know")

    for _ in range(2):
        with pytest.raises(StoreFormatUnknown, match=f"{home} has a state of group n1 that a newer build has written"):
            Store.open(home, "n1", SETTINGS, read_state=unknown)
    assert orphan.exists()
    Store.open(home, "n1", SETTINGS).close()
    assert not orphan.exists()


def test_a_store_has_one_opener(store: Store, home: Path) -> None:
    """A second opening reports the holder; after closing it opens; another group beside it is free."""
    with pytest.raises(StoreLocked):
        Store.open(home, "n1", SETTINGS)
    Store.open(home, "n2", SETTINGS).close()
    store.close()
    Store.open(home, "n1", SETTINGS).close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening on a read-only file system, or below a file, is StoreUnwritable."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnwritable, match="file"):
        Store.open(tmp_path / "file", "n1", SETTINGS)
    failing(monkeypatch, "mkdir", errno.EROFS)
    with pytest.raises(StoreUnwritable, match="Read-only"):
        Store.open(tmp_path / "data", "n1", SETTINGS)


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir"])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_seal_fails_on_a_full_disk_and_succeeds_with_space(
    home: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: int, threads: int
) -> None:
    """At any step a full disk is StoreFull: retriable, nothing visible, rows still answered.

    The same job succeeds afterwards with the same result.
    """
    store = Store.open(home, "n1", StoreSettings(encode_threads=threads))
    write(store, 1, ROWS)
    job = store.freeze(2, 1, b"two")
    broken = failing(monkeypatch, call, errno.ENOSPC, after)
    for _ in range(2):
        with pytest.raises(StoreFull) as caught:
            job.run()
        assert caught.value.retriable
    assert (None, [], 1) == (store.state, store.segments(), store.pending_jobs())
    assert expected(ROWS) == contents(store)
    assert not list(home.rglob("*" + PARTIAL_SUFFIX))
    broken.clear()
    job.run()
    assert expected(ROWS) == contents(store)
    digests = store.digests()
    store.close()
    reopened = Store.open(home, "n1")
    assert (b"two", digests) == (reopened.state, reopened.digests())
    reopened.close()


def test_a_seal_succeeds_after_a_full_disk_under_the_index(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the index itself cannot be written the seal is StoreFull, the index is reopened, and the same job succeeds."""
    write(store, 1, ROWS)
    job = store.freeze(2, 1, b"two")

    class Full:
        """A database without space."""

        def __init__(self, database: Rdict) -> None:
            self.database = database

        def write(self, *_: Any) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

        def close(self) -> None:
            self.database.close()

    index: Index = store._components.index
    index._database = cast("Rdict", Full(index._database))
    with pytest.raises(StoreFull):
        job.run()
    assert expected(ROWS) == contents(store)
    job.run()
    assert (b"two", 2) == (store.state, store.frontier)
    assert expected(ROWS) == contents(store)


def test_another_disk_error_is_not_retriable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing disk is StoreUnwritable: the caller stops instead of retrying for ever."""
    write(store, 1, ROWS)
    job = store.freeze(2, 1, b"")
    failing(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StoreUnwritable) as caught:
        job.run()
    assert not caught.value.retriable


def test_a_file_of_fewer_rows_is_damage_and_no_shorter_answer(store: Store) -> None:
    """Another valid segment in the place of one: its rows would be taken for the first ones of the catalogue."""
    rows: list[Row] = [({"host": "a"}, at, {"busy": at}) for at in range(3)]
    write(store, 1, rows[:1])
    seal(store, 2)
    write(store, 3, rows)
    seal(store, 4)
    fewer, more = sorted(store.segments(), key=lambda entry: entry.rows)
    assert (1, 3) == (fewer.rows, more.rows)
    shutil.copy(store.segments_directory / fewer.name, store.segments_directory / more.name)
    with pytest.raises(StoreDamaged, match=more.name), store.scan("plant", "cpu"):
        pass


def test_a_file_that_is_damaged_during_a_scan_is_reported(store: Store) -> None:
    """A merge or a scan that meets an unreadable file raises StoreDamaged that names it."""
    write(store, 1, ROWS[:1])
    seal(store, 2)
    write(store, 3, ROWS[:1])
    (entry,) = store.segments()
    path = store.segments_directory / entry.name
    path.write_bytes(b"\0" * entry.size_bytes)
    with pytest.raises(StoreDamaged, match=entry.name):
        store.scan("plant", "cpu")
    with pytest.raises(StoreDamaged, match=entry.name):
        store.compact(4, [entry.name]).run()


def test_a_snapshot_is_a_store(store: Store, tmp_path: Path) -> None:
    """A snapshot holds what was committed, shares the files' bytes, opens like any data directory, and later changes do not reach it."""
    write(store, 1, ROWS)
    seal(store, 2, b"two")
    write(store, 3, [(A, 9, {"busy": 9})])
    snapshot = store.snapshot(tmp_path / "copy")
    entries = snapshot.entries
    seal(store, 4)
    store.compact(5, [entry.name for entry in store.segments() if entry.bucket == entries[0].bucket]).run()
    copy = Store.open(tmp_path / "copy", "n1", SETTINGS)
    assert (b"two", b"two", 2) == (snapshot.state, copy.state, copy.frontier)
    assert expected(ROWS) == contents(copy)
    assert {entry.name: entry.content_digest for entry in entries} == copy.digests()
    copy.close()


def test_a_snapshot_of_the_index_that_cannot_be_written_is_an_error_of_the_store(store: Store, tmp_path: Path) -> None:
    """As of its segments: the caller frees the disk and tries again, and the store is not taken for damaged."""
    write(store, 1, ROWS)
    store.snapshot(tmp_path / "copy")
    with pytest.raises(StoreUnwritable, match="copy"):
        store.snapshot(tmp_path / "copy")
    store.snapshot(tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IO error: No space left on device: While appending to file", StoreFull),
        ("IO error: No such file or directory: While mkdir", StoreUnwritable),
        ("Corruption: Can't access /000012.sst", StoreDamaged),
    ],
)
def test_what_refuses_a_snapshot_of_the_index_has_its_class(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception]
) -> None:
    """A directory that is missing at the copy is no damage of the index."""

    class Refused:
        def __init__(self, _: Any) -> None:
            pass

        def create_checkpoint(self, _: str) -> None:
            raise Exception(text)

    monkeypatch.setattr(index_module, "Checkpoint", Refused)
    index = Index(home / "index", SETTINGS)
    with pytest.raises(kind):
        index.checkpoint(tmp_path / "copy")
    index.close()


def test_readers_always_see_one_instant(store: Store) -> None:
    """While seals and merges swap files under them, scans in other threads see every row exactly once."""
    want, problems, stop = expected(ROWS), list[object](), threading.Event()
    write(store, 1, ROWS)

    def read() -> None:
        while not stop.is_set():
            try:
                found = contents(store)
                if found != want:
                    problems.append(found)
            except Exception as error:
                problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    version = 1
    for _ in range(6):
        write(store, version + 1, ROWS)
        seal(store, version + 2)
        version += 2
        for plan in store.plan_compaction():
            version += 1
            store.compact(version, plan.inputs).run()
    stop.set()
    for reader in readers:
        reader.join()
    assert [] == problems
    assert {path.name for path in store.segments_directory.rglob("*.parquet")} == {
        entry.name.rsplit("/", 1)[1] for entry in store.segments()
    }


@pytest.mark.parametrize("lost", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_an_index_without_one_of_its_files_is_damage(store: Store, home: Path, lost: str) -> None:
    """And no disk to be checked: the group recovers from another member or the log."""
    write(store, 1, [({"host": "a"}, 1, {"busy": 1})])
    seal(store, 2)
    store.close()
    files = list((home / "index" / "n1").glob(lost))
    for path in files:
        path.unlink()
    assert files
    with pytest.raises(StoreDamaged):
        Store.open(home, "n1", SETTINGS)
