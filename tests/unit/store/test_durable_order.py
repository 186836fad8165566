"""In which order a store makes its changes durable, and what a job may see of what came after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from headrace.consumers.store import Store, StoreFull, StoreUnwritable, segment_files
from headrace.consumers.store.index import Index, IndexChanges
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import foreign_files, load_of, stage

A, B = {"host": "a"}, {"host": "b"}
Event = tuple[str, str]


class RecordedIndex:
    """A RocksDB that notes each write."""

    def __init__(self, database: Any, events: list[Event]) -> None:
        self._database = database
        self._events = events

    def write(self, batch: Any, options: Any) -> None:
        """See Rdict."""
        self._database.write(batch, options)
        self._events.append(("commit", "synced" if options.sync else "not synced"))

    def close(self) -> None:
        """See Rdict."""
        self._database.close()


def record(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """From now on: what is synced, renamed and unlinked below the segments, and what is committed."""
    events: list[Event] = []
    root = str(store.segments_directory)

    def noted(kind: str, real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            target = arguments[place]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            result = real(*arguments, **named)
            if path.startswith(root):
                events.append((kind, os.path.relpath(path, root)))
            return result

        return call

    for kind, name, place in (("sync", "fsync", 0), ("rename", "rename", 1), ("unlink", "unlink", 0)):
        monkeypatch.setattr(os, name, noted(kind, getattr(os, name), place))
    index: Any = store._components.index
    index._database = RecordedIndex(index._database, events)
    return events


def durable_file(name: str, *, is_first: bool = True) -> list[Event]:
    """The events of a new file: its bytes, its name and, of the first of a directory, those of all directories above."""
    parents = [str(parent) for parent in PurePosixPath(name).parents][: None if is_first else 1]
    return [("sync", f"{name}.partial"), ("rename", name), *(("sync", parent) for parent in parents)]


def test_a_seal_commits_what_is_durable_in_one_synced_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal forgets its rows right after it: a file, a name or a commit that a power cut takes would lose them."""
    events = record(store, monkeypatch)
    write(store, 1, [(A, 1, {"busy": 1})])
    seal(store, 2, b"state")
    assert [*durable_file(store.segments()[0].name), ("commit", "synced")] == events


def test_a_file_has_no_name_before_its_bytes_are_durable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between would leave a segment without its rows, which opening takes for whole."""
    named, fsync = [], os.fsync

    def noted(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".partial"):
            named.append(os.path.exists(path.removesuffix(".partial")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(store, 1, [(A, 1, {"busy": 1})])
    seal(store, 2)
    assert [False] == named


def test_directories_count_as_durable_behind_their_sync_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose sync failed is synced again, with all above it."""
    write(store, 1, [(A, 1, {"busy": 1})])
    job = store.freeze(2, 1, b"state")
    with monkeypatch.context() as patch:

        def fail(_directory: object) -> None:
            raise OSError(errno.EIO, "no disk")

        patch.setattr(segment_files, "fsync_directory", fail)
        with pytest.raises(StoreUnwritable):
            job.run()
    events = record(store, monkeypatch)
    job.run()
    # The file has its bytes and its name since the first attempt.
    assert [*durable_file(store.segments()[0].name)[2:], ("commit", "synced")] == events


def test_a_merge_unlinks_its_inputs_after_a_synced_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it they are the only files that the index names."""
    for version in (1, 3):
        write(store, version, [(A, version, {"busy": 1})])
        seal(store, version + 1)
    inputs = [entry.name for entry in store.segments()]
    events = record(store, monkeypatch)
    store.compact(5, inputs).run()
    assert [*durable_file(store.segments()[0].name, is_first=False), ("commit", "synced")] == events[:-2]
    assert {("unlink", name) for name in inputs} == set(events[-2:])


@pytest.mark.parametrize("fetched", ["once", "again"])
def test_a_load_that_is_run_again_never_takes_the_name_of_its_file(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch, fetched: str
) -> None:
    """A commit that failed may be durable all the same: a kill would leave an index that names a missing file."""
    (file,) = foreign_files([(A, 1, {"busy": 1})], (3, 500, 600))
    stage(store, file)
    job, commit = store.load(1, load_of(file, 4), CPU, DATABASE), Index._write

    def fail_behind(index: Index, batch: Any) -> None:
        commit(index, batch)
        index._failed = True
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Index, "_write", fail_behind)
        with pytest.raises(StoreFull):
            job.run()
    if fetched == "again":
        for path in list(store.staging_directory.iterdir()):
            path.unlink()
        stage(store, file)
    events = record(store, monkeypatch)
    job.run()
    (entry,) = store.segments()
    assert ("unlink", entry.name) not in events
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    assert expected([(A, 1, {"busy": 1})]) == contents(again)
    again.close()


def test_no_snapshot_falls_between_an_index_commit_and_the_change_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seals, merges and drops hold the lock that a snapshot takes."""
    components: Any = store._components
    commit, held = components.index.commit, list[bool]()

    def noted(*arguments: Any) -> None:
        held.append(components.commit_lock.locked())
        commit(*arguments)

    monkeypatch.setattr(components.index, "commit", noted)
    for version in (1, 3):
        write(store, version, [(A, version, {"busy": 1})])
        seal(store, version + 1)
    store.compact(5, [entry.name for entry in store.segments()]).run()
    job = store.drop(6, 1, "plant", "cpu", HOUR_NS)
    assert job is not None
    job.run()
    assert [True] * 4 == held
    assert not components.commit_lock.locked()


def test_two_deletes_of_one_version_both_survive_a_restart(store: Store, home: Path) -> None:
    """A writer may delete several sets of series with one record."""
    write(store, 1, [(A, 1, {"busy": 1}), (B, 1, {"busy": 2}), ({}, 1, {"busy": 3})])
    seal(store, 2)
    for tags in (A, B):
        store.delete(3, 1, "plant", "cpu", {name: (value,) for name, value in tags.items()})
    seal(store, 4)
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    assert expected([({}, 1, {"busy": 3})]) == contents(again)
    again.close()


def test_a_file_stays_until_its_last_reader_is_done(store: Store) -> None:
    """Two scans have it: the end of the first one removes nothing."""
    for version in (1, 3):
        write(store, version, [(A, version, {"busy": version})])
        seal(store, version + 1)
    first, second = store.scan("plant", "cpu"), store.scan("plant", "cpu")
    store.compact(5, [entry.name for entry in store.segments()]).run()
    first.close()
    assert [True, True] == [path.exists() for path in second.files]
    second.close()
    assert [False, False] == [path.exists() for path in second.files]


def test_a_segment_that_is_there_again_keeps_its_runs(store: Store) -> None:
    """It was removed while a reader had it: the commit that adds it again does not drop what it has just written."""
    write(store, 1, [(A, 1, {"busy": 1})])
    seal(store, 2)
    index, (entry,) = store._components.index, store.segments()
    runs = index.runs(entry.name)
    index.commit(IndexChanges(removed=[entry.name]), pinned=[entry.name])
    index.commit(IndexChanges(added=[(entry, runs.to_bytes())]))
    assert runs.to_bytes() == index.runs(entry.name).to_bytes()


def test_a_merge_is_the_same_whenever_it_runs(tmp_path: Path) -> None:
    """A delete behind the merge in the log may be applied before its job runs: the files must not differ."""
    found = []
    for name in ("early", "late"):
        store = Store.open(tmp_path / name, "n1", SETTINGS)
        for version in (1, 3):
            write(store, version, [(A, version, {"busy": 1}), (B, version, {"busy": 2})])
            seal(store, version + 1)
        inputs = [entry.name for entry in store.segments() if entry.bucket == store.segments()[0].bucket]
        job = store.compact(5, inputs)
        if name == "early":
            job.run()
        store.delete(6, 1, "plant", "cpu", {}, 1, 2)
        job.run()
        found.append((store.digests(), contents(store)))
        store.close()
    assert found[0] == found[1]
    assert expected([(A, 3, {"busy": 1}), (B, 3, {"busy": 2})]) == found[0][1]
