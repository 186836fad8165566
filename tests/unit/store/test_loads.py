"""Files of other logs: how they rank, when they are here, and what a crash or a bad copy leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.store import (
    JobSuperseded,
    SegmentAwaited,
    SegmentEntry,
    StagedFileInvalid,
    Store,
    Tombstone,
    last_rows,
    load_job,
    staged_file,
)
from headrace.consumers.store.index import Index, IndexChanges
from headrace.consumers.store.last_rows import LastRanks, last_batch, merge_last
from headrace.consumers.store.segment import EncodedSegment
from headrace.consumers.store.segment_files import file_digest
from headrace.consumers.store.segment_reader import read_rows
from headrace.schemas.messages import CarriedDelete
from headrace.schemas.tables import FieldType
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, contents, drop, expected, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import foreign_files, load_of, stage
from tests.unit.store.test_deletes import last
from tests.unit.store.test_durable_order import record
from tests.unit.store.test_stateful import copy_at_step

A = {"host": "a"}
SINCE = 4
"""The era since which the group holds the slots of the loaded files."""


def row(at: int, value: int, tags: dict[str, str] = A) -> Row:
    """One row."""
    return tags, at, {"busy": value}


def one_file(*rows: Row, era: int = 3, first: int = 500, last: int = 600) -> EncodedSegment:
    """A file of one slice and bucket."""
    (file,) = foreign_files(rows, (era, first, last))
    return file


def load(
    store: Store, version: int, file: EncodedSegment, deletes: tuple[CarriedDelete, ...] = (), since: int = SINCE
) -> None:
    """Run a load."""
    store.load(version, load_of(file, since, deletes), CPU, DATABASE).run()


@pytest.fixture
def reopened(store: Store, home: Path) -> Iterator[Any]:
    """Closes the store and opens it again, as often as it is called."""
    opened = [store]

    def again() -> Store:
        opened[-1].close()
        opened.append(Store.open(home, "n1", SETTINGS))
        return opened[-1]

    yield again
    opened[-1].close()


def test_a_file_that_is_staged_is_there_with_its_load(store: Store, reopened: Any) -> None:
    """Its rows, its last rows and its name, which keeps the ranks of the log that took the rows."""
    file = one_file(row(1, 1), row(5, 5))
    staged = stage(store, file)
    load(store, 7, file)
    assert not any(path.exists() for path in staged)
    (entry,) = store.segments()
    assert "000003-000000000000500-000000000000600.parquet" == entry.name.rsplit("/", 1)[1]
    again = reopened()
    assert expected([row(1, 1), row(5, 5)]) == contents(again)
    assert expected([row(5, 5)]) == last(again)
    assert [entry] == again.segments()


def test_loads_that_wait_together_are_one_commit(store: Store, reopened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync for each would take longer than the files. What does not fit is void, and a seal ends the row of them."""
    files = [one_file(row(at, at), first=at * 10, last=at * 10 + 9) for at in range(1, 6)]
    stage(store, files[1])
    jobs = [store.load(version, load_of(file, SINCE), CPU, DATABASE) for version, file in enumerate(files[:3], 1)]
    jobs.append(store.load(4, load_of(files[0], SINCE), CPU, DATABASE))
    write(store, 5, [row(9, 9)], era=SINCE)
    sealed = store.freeze(6, SINCE, b"state")
    jobs.append(store.load(7, load_of(files[4], SINCE), CPU, DATABASE))
    commits: list[IndexChanges] = []
    commit = Index.commit

    def noted(index: Index, changes: IndexChanges, *more: Any) -> None:
        commits.append(changes)
        commit(index, changes, *more)

    monkeypatch.setattr(Index, "commit", noted)
    jobs[0].run()
    assert (1, 4, 2) == (len(commits), store.loaded_version, store.pending_jobs())
    for job in jobs[1:3]:
        job.run()
    with pytest.raises(JobSuperseded):
        jobs[3].run()
    assert 1 == len(commits)
    sealed.run()
    jobs[4].run()
    assert [3, 1, 1] == [len(changes.added) for changes in commits]
    store = reopened()
    assert [files[0].entry.name, files[2].entry.name, files[4].entry.name] == [each.name for each in store.awaited()]
    assert expected([row(2, 2), row(9, 9)]) == contents(store)


def test_of_files_that_come_together_the_newest_alone_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last rows are newer than those of the others. They have the columns of every file, whichever came last."""
    narrow = replace(CPU, fields=CPU.fields[:1])
    schemas = (narrow, narrow, CPU)
    rows = (row(3, 3), row(5, 5), (A, 1, {"busy": 1, "load": 0.5}))
    files = [
        foreign_files([each], (3, 10 * number, 10 * number + 9), schema)[0]
        for number, (each, schema) in enumerate(zip(rows, schemas, strict=True), 1)
    ]
    read = list[Path]()

    def noted(path: Path, *more: Any) -> pa.RecordBatch:
        read.append(path)
        return read_rows(path, *more)

    monkeypatch.setattr(last_rows, "read_rows", noted)
    for file in files:
        stage(store, file)
    jobs = [
        store.load(version, load_of(file, SINCE), schema, DATABASE)
        for version, (file, schema) in enumerate(zip(files, schemas, strict=True), 1)
    ]
    jobs[0].run()
    assert [files[1].entry.name] == ["/".join(path.parts[-4:]) for path in read]
    assert expected(rows) == contents(store)
    assert expected([row(5, 5)]) == last(store)


def test_files_that_are_attached_together_are_one_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them that is wrong keeps none of the others, and the bytes of those that were verified are not read again."""
    files = [one_file(row(at, at), first=at * 10, last=at * 10 + 9) for at in (1, 2, 3)]
    for version, file in enumerate(files, 1):
        load(store, version, file)
        stage(store, file)
    wrong, _ = stage(store, files[1])
    wrong.write_bytes(wrong.read_bytes()[:4] + b"\xff" + wrong.read_bytes()[5:])
    commits, read = [0], list[Path]()
    commit = Index.commit

    def counted(index: Index, *given: Any) -> None:
        commits[0] += 1
        commit(index, *given)

    def noted(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(Index, "commit", counted)
    monkeypatch.setattr(staged_file, "file_digest", noted)
    digests = [file.entry.content_digest for file in files]
    with pytest.raises(StagedFileInvalid) as caught:
        store.attach(*digests, verified={digests[0]})
    assert frozenset({digests[1]}) == caught.value.digests
    assert {digests[1], digests[2]} == {path.stem for path in read}
    assert (1, [files[1].entry.name]) == (commits[0], [each.name for each in store.awaited()])
    assert expected([row(1, 1), row(3, 3)]) == contents(store)


def test_a_closed_store_takes_no_file(store: Store) -> None:
    """A change was cancelled while a file was fetched. What is staged stays: another store may have its place."""
    file = one_file(row(1, 1))
    load(store, 1, file)
    staged = stage(store, file)
    store.close()
    assert 0 == store.attach(file.entry.content_digest)
    assert all(path.exists() for path in staged)


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_read_of_a_verified_file_is_kept_for_its_load(
    store: Store, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Up to a size; a file that was verified when it came has its bytes compared no more in either case."""
    files = [one_file(row(at, at), first=at * 10, last=at * 10 + 9) for at in (1, 2)]
    if not kept:
        monkeypatch.setattr(staged_file, "KEPT_BYTES_MAX", 10)
    for file in files:
        stage(store, file)
        store.note_verified(file.entry.content_digest)
    read, real = list[Path](), staged_file.read_staged

    def counted(segment: Path, series: Path) -> staged_file.StagedFile:
        read.append(segment)
        return real(segment, series)

    monkeypatch.setattr(load_job, "read_staged", counted)
    monkeypatch.setattr(staged_file, "file_digest", lambda _path: "")
    for version, file in enumerate(files, 1):
        load(store, version, file)
    assert ([] if kept else [file.entry.content_digest for file in files]) == [path.stem for path in read]
    assert expected([row(1, 1), row(2, 2)]) == contents(store)
    assert all(file.entry.content_digest not in store._components.verified for file in files)


def test_a_verified_file_that_cannot_be_read_is_awaited(store: Store) -> None:
    """Its load looks again, and removes it: it is fetched once more."""
    file = one_file(row(1, 1))
    _, series = stage(store, file)
    series.write_bytes(b"no series")
    store.note_verified(file.entry.content_digest)
    load(store, 1, file)
    assert [file.entry.name] == [entry.name for entry in store.awaited()]
    assert not series.exists()


@pytest.mark.parametrize("moment", ["listed", "compared"])
def test_a_staged_file_that_is_swept_at_this_moment_is_awaited(
    store: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Nobody knew of its load yet; the group continues, and fetches it again."""
    file, real, listed = one_file(row(1, 1)), staged_file.StagedFile.compare, os.listdir
    stage(store, file)
    store.note_verified(file.entry.content_digest)

    def swept(*given: Any) -> list[str]:
        store.clear_staging()
        return listed(*given)

    def compared(found: staged_file.StagedFile, *given: Any, **named: Any) -> None:
        real(found, *given, **named)
        store.clear_staging()

    if moment == "listed":
        monkeypatch.setattr(os, "listdir", swept)
    else:
        monkeypatch.setattr(staged_file.StagedFile, "compare", compared)
    load(store, 1, file)
    assert [file.entry.name] == [entry.name for entry in store.awaited()]


def test_a_file_that_is_not_here_is_awaited(store: Store, reopened: Any) -> None:
    """The log continues meanwhile; digests count the file; it is attached by its content, also after a restart."""
    file = one_file(row(1, 1), row(5, 5))
    load(store, 7, file)
    write(store, 8, [row(6, 6)], era=SINCE)
    seal(store, 9, era=SINCE)
    assert expected([row(6, 6)]) == contents(store)
    assert None is last(store)
    digests = store.digests()
    assert file.entry.content_digest in digests.values()
    store = reopened()
    assert [file.entry.name] == [entry.name for entry in store.awaited()]
    assert 0 == store.attach(file.entry.content_digest)
    stage(store, file)
    assert 1 == store.attach(file.entry.content_digest)
    assert 0 == store.attach(file.entry.content_digest)
    store = reopened()
    assert ([], digests) == (store.awaited(), store.digests())
    assert expected([row(1, 1), row(5, 5), row(6, 6)]) == contents(store)
    assert expected([row(6, 6)]) == last(store)


def test_rows_of_the_present_era_win_and_those_of_two_files_by_their_ranks(store: Store) -> None:
    """Whatever their versions are, and in whatever order the files come."""
    files = [one_file(row(1, 20), row(2, 20), row(3, 20), era=3, first=5, last=9),
             one_file(row(1, 10), row(2, 10), era=2, first=700, last=900),
             one_file(row(1, 15), era=3, first=1, last=4)]  # fmt: skip
    write(store, 1, [row(1, 30)], era=SINCE)
    for version, file in enumerate(files, 2):
        stage(store, file)
        load(store, version, file)
    want = expected([row(1, 30), row(2, 20), row(3, 20)])
    assert want == contents(store)
    seal(store, 9, era=SINCE)
    assert want == contents(store)
    assert expected([row(3, 20)]) == last(store)


@pytest.mark.parametrize("late", [False, True])
def test_which_deletes_concern_a_file(store: Store, late: bool) -> None:
    """Those since the slot came, of whatever version, and those that came with it; none of this group's earlier ones.

    That stays so when the deletes have been applied to the file.
    """
    rows = [row(at, at) for at in range(6)]
    file = one_file(*rows)
    write(store, 1, [row(at, -1, {"host": "z"}) for at in (1, 9)])
    store.delete(2, 3, "plant", "cpu", {}, None, 2)
    store.delete(900, SINCE, "plant", "cpu", {}, 1, 2)
    carried = (CarriedDelete(3, 601, (("host", ("a",)),), 4, 5), CarriedDelete(3, 700, (("host", ("b",)),)))
    if not late:
        stage(store, file)
    load(store, 901, file, carried)
    store.delete(902, SINCE, "plant", "cpu", {}, 3, 4)
    if late:
        stage(store, file)
        store.attach(file.entry.content_digest)
    want = expected([*(rows[at] for at in (0, 2, 5)), row(9, -1, {"host": "z"})])
    newest = expected([rows[5], row(9, -1, {"host": "z"})])
    assert (want, newest) == (contents(store), last(store))
    seal(store, 903, era=SINCE)
    assert (want, newest) == (contents(store), last(store))
    for version, plan in enumerate(store.plan_compaction(), 904):
        store.compact(version, plan.inputs).run()
    assert (want, []) == (contents(store), store.plan_compaction())
    loaded = next(entry for entry in store.segments() if entry.era == 3)
    assert ((), 1, SINCE, 901) == (loaded.carried, loaded.generation, loaded.held_since, loaded.loaded_version)
    seal(store, 910, era=SINCE)
    assert () == store._components.view.tombstones()
    assert (want, newest) == (contents(store), last(store))


def test_a_delete_waits_for_a_file_that_is_not_here(store: Store) -> None:
    """No seal forgets it, or the row would come back with the file."""
    file = one_file(row(1, 1), row(2, 2))
    load(store, 7, file)
    store.delete(8, SINCE, "plant", "cpu", {}, None, 2)
    for version in (9, 10):
        seal(store, version, era=SINCE)
    stage(store, file)
    store.attach(file.entry.content_digest)
    assert expected([row(2, 2)]) == contents(store) == last(store)


def test_a_table_with_a_file_that_its_deletes_do_not_concern_is_not_empty(store: Store) -> None:
    """Also while the file is awaited; a delete of the whole table in the era of the group empties it."""
    write(store, 1, [row(1, 1, {"host": "z"})])
    store.delete(2, 9, "plant", "cpu", {})
    assert store.is_empty("plant", "cpu")
    load(store, 3, one_file(row(1, 1)), since=10)
    assert not store.is_empty("plant", "cpu")
    store.delete(4, 10, "plant", "cpu", {})
    assert store.is_empty("plant", "cpu")


def test_a_drop_takes_files_that_are_not_here(store: Store) -> None:
    """A copy that comes later finds nobody who waits for it."""
    file, later = one_file(row(1, 1)), one_file(row(HOUR_NS, 2))
    for version, each in ((7, file), (8, later)):
        load(store, version, each)
    job = store.drop(9, SINCE, "plant", "cpu", HOUR_NS)
    assert job is not None
    job.run()
    assert [later.entry.name] == [entry.name for entry in store.awaited()]
    stage(store, file)
    assert 0 == store.attach(file.entry.content_digest)
    assert {} == contents(store)


def test_a_drop_that_is_read_again_keeps_what_was_loaded_after_it(store: Store, reopened: Any) -> None:
    """The replica that did not crash has kept it too."""
    write(store, 1, [row(1, 1, {"host": "z"})])
    seal(store, 2)
    drop(store, 3, HOUR_NS, 9)
    file = one_file(row(1, 1))
    stage(store, file)
    load(store, 4, file)
    digests = store.digests()
    store = reopened()
    drop(store, 3, HOUR_NS, 9)
    load(store, 4, file)
    assert digests == store.digests()


def test_a_drop_of_an_earlier_era_keeps_a_file_that_came_since(store: Store) -> None:
    """It was for the slots that the group held then."""
    file = one_file(row(1, 1))
    stage(store, file)
    load(store, 7, file)
    job = store.drop(8, 3, "plant", "cpu", HOUR_NS)
    assert job is not None
    job.run()
    assert expected([row(1, 1)]) == contents(store)


def test_a_merge_waits_for_a_file_that_is_not_here(store: Store) -> None:
    """Other members have it: the merge is neither skipped nor done without it. It is not planned here."""
    files = [one_file(row(at, at), first=at * 10, last=at * 10 + 9) for at in (1, 2, 3)]
    for version, file in enumerate(files, 1):
        if file is not files[1]:
            stage(store, file)
        load(store, version, file)
    assert [] == store.plan_compaction()
    job = store.compact(5, [file.entry.name for file in files])
    with pytest.raises(SegmentAwaited) as caught:
        job.run()
    assert caught.value.retriable
    stage(store, files[1])
    store.attach(files[1].entry.content_digest)
    job.run()
    (entry,) = store.segments()
    assert (10, 39, SINCE, 3) == (entry.first_version, entry.last_version, entry.held_since, entry.loaded_version)
    assert expected([row(at, at) for at in (1, 2, 3)]) == contents(store)


def test_a_load_that_is_read_again_changes_nothing(store: Store, reopened: Any) -> None:
    """A crash comes before the next seal, and after a merge that has removed the name of the file."""
    files = [one_file(row(at, at), first=at * 10, last=at * 10 + 9) for at in (1, 2)]
    for version, file in enumerate(files, 1):
        stage(store, file)
        load(store, version, file)
    names = [entry.name for entry in store.segments()]
    store.compact(3, names).run()
    digests = store.digests()
    store = reopened()
    for version, file in enumerate(files, 1):
        stage(store, file)
        load(store, version, file)
    store.compact(3, names).run()
    assert (digests, []) == (store.digests(), store.awaited())


OVERLAP = one_file(row(2, 2), first=600, last=700)


@pytest.mark.parametrize(
    "wrong",
    [
        OVERLAP,
        replace(OVERLAP, entry=replace(OVERLAP.entry, slice_number=1, first_version=800, last_version=900)),
        replace(OVERLAP, entry=replace(OVERLAP.entry, bucket=DATABASE.buckets, first_version=800, last_version=900)),
    ],
    ids=["ranks", "slice", "bucket"],
)
def test_a_file_that_cannot_be_of_this_store_is_void(store: Store, reopened: Any, wrong: EncodedSegment) -> None:
    """On every replica alike, also on one that reads the load again when the catalogue has changed."""
    file = one_file(row(1, 1))
    stage(store, file)
    load(store, 7, file)
    before = store.digests()
    job = store.load(8, load_of(wrong, SINCE), CPU, DATABASE)
    with pytest.raises(JobSuperseded):
        job.run()
    job.cancel()
    drop(store, 9, HOUR_NS, SINCE)
    store = reopened()
    load(store, 8, wrong)
    assert ([], []) == (store.awaited(), store.segments())
    assert before


@pytest.mark.parametrize("part", ["segment", "footer", "short", "series", "runs", "other"])
def test_a_bad_copy_is_removed_and_awaited(store: Store, part: str) -> None:
    """Neither a load nor an attach takes it; the same file is fetched again."""
    file = one_file(row(1, 1), row(5, 5))
    for version in (7, 8):
        segment, series = stage(store, file)
        if part == "segment":
            segment.write_bytes(segment.read_bytes()[:4] + b"\xff" + segment.read_bytes()[5:])
        elif part == "footer":
            segment.write_bytes(segment.read_bytes()[:-20] + b"\0" * 20)
        elif part == "short":
            os.truncate(segment, file.entry.size_bytes - 9)
        elif part == "series":
            series.write_bytes(b"{}\n")
        elif part == "runs":
            line, _, _ = series.read_bytes().partition(b"\n")
            series.write_bytes(line + b"\n" + one_file(row(1, 1)).runs.to_bytes())
        else:
            other = one_file(row(1, 1), row(5, 6))
            content = {**json.loads(series.read_bytes().partition(b"\n")[0]), "file_digest": other.entry.file_digest}
            segment.write_bytes(other.data.to_pybytes())
            series.write_bytes(json.dumps(content).encode() + b"\n" + other.runs.to_bytes())
        if version == 7:
            load(store, version, file)
        else:
            with pytest.raises(StagedFileInvalid) as caught:
                store.attach(file.entry.content_digest)
            assert caught.value.retriable
        assert not segment.exists()
        assert not series.exists()
        assert ([file.entry.name], {}) == ([entry.name for entry in store.awaited()], contents(store))
    stage(store, file)
    assert 1 == store.attach(file.entry.content_digest)
    assert expected([row(1, 1), row(5, 5)]) == contents(store)


@pytest.mark.parametrize("late", [False, True])
def test_a_file_is_attached_after_a_kill_at_any_step(store: Store, home: Path, tmp_path: Path, late: bool) -> None:
    """It is attached or still staged: a link without its commit is an orphan that opening removes (pass 4)."""
    file = one_file(row(1, 1), row(5, 5))
    if late:
        load(store, 7, file)
    stage(store, file)
    store.close()
    outcomes = set()
    for step in range(12):
        base, killed = tmp_path / f"base-{step}", tmp_path / f"killed-{step}"
        shutil.copytree(home, base)
        running = Store.open(base, "n1", SETTINGS)
        with copy_at_step(base, killed, step):
            if late:
                running.attach(file.entry.content_digest)
            else:
                load(running, 7, file)
        running.close()
        if not killed.exists():
            break
        survivor = Store.open(killed, "n1", SETTINGS)
        present = bool(survivor.segments())
        outcomes.add(present)
        on_disk = sum(1 for _ in (killed / "segments").rglob("*.parquet"))
        assert on_disk == int(present)
        load(survivor, 7, file)
        survivor.attach(file.entry.content_digest)
        assert ([], expected([row(1, 1), row(5, 5)])) == (survivor.awaited(), contents(survivor))
        assert expected([row(5, 5)]) == last(survivor)
        survivor.close()
    else:
        pytest.fail("more steps than the test knows")
    assert {False, True} == outcomes


def test_a_file_is_durable_before_the_catalogue_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes, then its name, then one synced commit."""
    file = one_file(row(1, 1))
    stage(store, file)
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    events = record(store, monkeypatch)
    load(store, 7, file)
    assert synced[0] == str(store.staging_directory / f"{file.entry.content_digest}.parquet")
    directory = file.entry.name.rsplit("/", 1)[0]
    parents = [directory, *(str(parent) for parent in Path(directory).parents)]
    assert [*(("sync", parent) for parent in parents), ("commit", "synced")] == [
        event for event in events if event[0] != "unlink"
    ]


def test_only_an_index_with_files_of_other_logs_is_refused_by_earlier_builds(store: Store) -> None:
    """They read format 1 only."""
    state = store._components.index._families["state"]
    write(store, 1, [row(1, 1, {"host": "z"})])
    seal(store, 2)
    assert b"1" == state.get(b"format")
    load(store, 3, one_file(row(1, 1)))
    assert b"2" == state.get(b"format")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_newest_row_of_a_series_follows_from_ranks_not_from_arrival(order: tuple[int, ...]) -> None:
    """Files come in any order. Of rows of one time the higher era wins, then the higher version."""
    ranks = [(2, 900), (3, 5), (3, 40)]
    batches = [
        last_batch(pa.array(["s"]), np.array([7]), LastRanks(*np.array([[era], [version], [0]])), {"v": pa.array([at])})
        for at, (era, version) in enumerate(ranks)
    ]
    merged = merge_last([batches[place] for place in order], {"v": FieldType.INT64})
    assert [2] == merged.column("v").to_pylist()


def test_a_file_is_subject_to_deletes_since_its_slot_came() -> None:
    """Those of lower eras were for other slots, whatever their version is."""
    loaded = SegmentEntry("x", "d", "t", 0, 0, 3, 500, 600, 0, 9, 0, 99, 1, "", "", 1, 0, held_since=4)
    assert not loaded.is_subject_to(Tombstone("d", "t", 3, 900))
    assert loaded.is_subject_to(Tombstone("d", "t", 4, 1))
