"""Slots that leave a store: what goes with them, and that nothing of them stays."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace.consumers.store import CutUnready, JobSuperseded, SegmentAwaited, Store, StoreFull
from headrace.consumers.store.cut import Cut, CutFile
from headrace.consumers.store.seal_job import SealJob
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.consumers.store.store_job import StoreJob
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, contents, drop, expected, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import LEADER, foreign_files, load_of, slots_of_slices, stage_export
from tests.unit.store.test_deletes import last

A, B = {"host": "a"}, {"host": "b"}
EARLY = [(tags, at, {"busy": at}) for tags in (A, B) for at in (1, 2)]
LATE: list[Row] = [(A, HOUR_NS + 1, {"busy": 11}), (B, HOUR_NS + 2, {"busy": 12})]
MOVED = slots_of_slices(1)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """The store of the group that gets the slots."""
    opened = Store.open(tmp_path / "other", "n2", SETTINGS)
    yield opened
    opened.close()


def hand_over(donor: Store, version: int, receiver: Store, directory: Path, held_since: int = 4) -> None:
    """All of a migration that concerns the stores."""
    donor.freeze(version, 1, b"cut").run()
    donor.hold(version, MOVED).run()
    cut = donor.export(version, MOVED, directory)
    stage_export(receiver, directory)
    for number, file in enumerate(cut.files, 1):
        receiver.load(number, file.load(LEADER, "origin", held_since), CPU, DATABASE).run()
    donor.release(version + 1, MOVED).run()


def test_a_slot_leaves_with_its_rows_deletes_and_last_rows(store: Store, other: Store, tmp_path: Path) -> None:
    """The new holder has them; the old one has neither them nor a last row that the new one may delete."""
    write(store, 1, [*EARLY, *LATE])
    seal(store, 2)
    write(store, 3, [(A, HOUR_NS + 5, {"busy": 15})])
    store.delete(4, 1, "plant", "cpu", {"host": ("b",)}, HOUR_NS, None)
    hand_over(store, 5, other, tmp_path / "export")
    assert (expected(EARLY), expected([EARLY[1], EARLY[3]])) == (contents(store), last(store))
    assert expected([LATE[0], (A, HOUR_NS + 5, {"busy": 15})]) == contents(other)
    assert expected([(A, HOUR_NS + 5, {"busy": 15})]) == last(other)
    write(other, 50, [(B, HOUR_NS + 2, {"busy": 99})], era=4)
    assert expected([LATE[0], (A, HOUR_NS + 5, {"busy": 15}), (B, HOUR_NS + 2, {"busy": 99})]) == contents(other)


def test_a_delete_of_the_receiver_from_before_does_not_reach_what_came(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """It has a larger version than any row that came, and an era in which the donor decided about them."""
    for version in range(1, 40):
        other.delete(version, 3, "plant", "cpu", {})
    other.freeze(40, 3, b"").run()
    write(store, 1, LATE, era=3)
    store.freeze(2, 3, b"").run()
    store.hold(2, MOVED).run()
    cut = store.export(2, MOVED, tmp_path / "export")
    stage_export(other, tmp_path / "export")
    for version, file in enumerate(cut.files, 41):
        other.load(version, file.load(LEADER, "origin", 4), CPU, DATABASE).run()
    assert expected(LATE) == contents(other) == last(other)


def test_a_slot_that_comes_back_has_what_happened_meanwhile(store: Store, other: Store, tmp_path: Path) -> None:
    """Rows and deletes of all holders, each with the era of its time; nothing that was deleted returns."""
    write(store, 1, LATE)
    hand_over(store, 2, other, tmp_path / "there")
    write(other, 50, [(A, HOUR_NS + 9, {"busy": 19})], era=4)
    other.delete(51, 4, "plant", "cpu", {"host": ("b",)})
    other.freeze(52, 4, b"").run()
    cut = other.export(52, MOVED, tmp_path / "back")
    stage_export(store, tmp_path / "back")
    for version, file in enumerate(cut.files, 10):
        store.load(version, file.load(LEADER, "origin", 5), CPU, DATABASE).run()
    assert expected([LATE[0], (A, HOUR_NS + 9, {"busy": 19})]) == contents(store)
    assert expected([(A, HOUR_NS + 9, {"busy": 19})]) == last(store)


def test_a_file_that_comes_back_outlives_an_old_reader(store: Store, other: Store, home: Path, tmp_path: Path) -> None:
    """A slow query has it pinned since before its slot left; the end of that query must not unlink what came back."""
    write(store, 1, LATE)
    seal(store, 2)
    scan = store.scan("plant", "cpu")
    hand_over(store, 3, other, tmp_path / "there")
    other.freeze(52, 4, b"").run()
    other.hold(52, MOVED).run()
    cut = other.export(52, MOVED, tmp_path / "back")
    stage_export(store, tmp_path / "back")
    for version, file in enumerate(cut.files, 10):
        store.load(version, file.load(LEADER, "origin", 5), CPU, DATABASE).run()
    scan.close()
    assert expected(LATE) == contents(store)
    store.close()
    with closing(Store.open(home, "n1", SETTINGS)) as again:
        assert expected(LATE) == contents(again)


@pytest.mark.parametrize("fails", [False, True])
def test_files_that_leave_are_sealed_first_and_listed_before_the_others(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The next holder waits for these alone. Where the seal fails behind them, it writes the others later."""
    write(store, 1, LATE)
    seal(store, 2)
    write(store, 3, [*EARLY, (A, HOUR_NS + 5, {"busy": 15})])
    store.delete(4, 1, "plant", "cpu", {"host": ("b",)}, HOUR_NS, None)
    job = store.freeze(5, 1, b"cut")
    job.leaving = MOVED
    hold = store.hold(5, MOVED)
    finished, early = list[Sequence[str]](), list[tuple[Cut, list[bytes]]]()
    finish = SegmentFiles.finish

    def look(files: SegmentFiles, names: Sequence[str]) -> None:
        finished.append(names)
        if len(finished) == 2:
            cut = store.cut(5, MOVED)
            early.append((cut, [store.series_file(file.entry) for file in cut.files]))
            assert {file.entry.name for file in cut.files} == {entry.name for entry in store.cut_files()}
            assert all((store.segments_directory / file.entry.name).exists() for file in cut.files)
            with pytest.raises(CutUnready):
                store.export(5, MOVED, tmp_path / "export")
            if fails:
                raise StoreFull("no space left on device")
        finish(files, names)

    monkeypatch.setattr(SegmentFiles, "finish", look)
    assert fails is _is_full(job)
    job.run()
    hold.run()
    cut = store.cut(5, MOVED)
    assert [(cut, [store.series_file(file.entry) for file in cut.files])] == early
    assert ([1, 2], True) == ([len(names) for names in finished[:2]], bool(cut.files[0].deletes))
    assert expected(EARLY) == contents(store)
    stage_export(other, _exported(store, tmp_path / "export"))
    for number, file in enumerate(early[0][0].files, 1):
        other.load(number, file.load(LEADER, "origin", 4), CPU, DATABASE).run()
    assert expected([LATE[0], (A, HOUR_NS + 5, {"busy": 15})]) == contents(other)
    store.release(6, MOVED).run()
    assert [] == store.cut_files()


def test_a_donor_that_dies_behind_the_files_of_a_cut_gives_the_same_again(
    store: Store, other: Store, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next start removes them, and the journal's rows are sealed once more: whoever has fetched some has the right ones."""
    write(store, 1, LATE)
    seal(store, 2)
    records = [*EARLY, (A, HOUR_NS + 5, {"busy": 15}), (B, HOUR_NS + 7, {"busy": 17})]
    finish, finished = SegmentFiles.finish, list[Sequence[str]]()

    def apply_from_journal(donor: Store) -> tuple[SealJob, StoreJob]:
        write(donor, 3, records)
        donor.delete(4, 1, "plant", "cpu", {"host": ("b",)}, HOUR_NS, HOUR_NS + 6)
        job = donor.freeze(5, 1, b"cut")
        job.leaving = MOVED
        return job, donor.hold(5, MOVED)

    def die(files: SegmentFiles, names: Sequence[str]) -> None:
        finished.append(names)
        if len(finished) == 2:
            early.extend(
                (file, store.series_file(file.entry), _bytes_of(store, file)) for file in store.cut(5, MOVED).files
            )
            shutil.copytree(home, tmp_path / "died")
        finish(files, names)

    early = list[tuple[CutFile, bytes, bytes]]()
    job, _ = apply_from_journal(store)
    monkeypatch.setattr(SegmentFiles, "finish", die)
    job.run()
    monkeypatch.setattr(SegmentFiles, "finish", finish)
    with closing(Store.open(tmp_path / "died", "n1", SETTINGS)) as again:
        assert 2 == again.frontier
        known = {entry.name for entry in again.segments()}
        new = [file.entry.name for file, _, _ in early if file.entry.name not in known]
        assert new
        assert not any((again.segments_directory / name).exists() for name in new)
        for each in apply_from_journal(again):
            each.run()
        assert early == [
            (file, again.series_file(file.entry), _bytes_of(again, file)) for file in again.cut(5, MOVED).files
        ]
        stage_export(other, _exported(again, tmp_path / "export"))
        assert expected(EARLY) == contents(again)
    for number, (file, _, _) in enumerate(early, 1):
        other.load(number, file.load(LEADER, "origin", 4), CPU, DATABASE).run()
    assert expected([LATE[0], (A, HOUR_NS + 5, {"busy": 15}), (B, HOUR_NS + 7, {"busy": 17})]) == contents(other)


def _bytes_of(store: Store, file: CutFile) -> bytes:
    return (store.segments_directory / file.entry.name).read_bytes()


def _is_full(job: SealJob) -> bool:
    try:
        job.run()
    except StoreFull:
        return True
    return False


def _exported(store: Store, directory: Path) -> Path:
    store.export(5, MOVED, directory)
    return directory


def test_what_is_held_does_not_change_until_it_is_released(store: Store) -> None:
    """Every replica lists the same cut at any later time: merges are void, drops pass the files by."""
    for version in (1, 3):
        write(store, version, [*EARLY, *LATE])
        seal(store, version + 1)
    store.delete(5, 1, "plant", "cpu", {"host": ("b",)})
    seal(store, 6)
    before = [entry.name for entry in store.segments() if entry.slice_number == 1]
    store.hold(6, MOVED).run()
    cut = store.cut(6, MOVED)
    names = [file.entry.name for file in cut.files]
    assert names == before
    assert [] == [entry.name for entry in store.segments() if entry.slice_number == 1]
    assert sum(file.entry.size_bytes for file in cut.files) == cut.size_bytes > 0
    assert not any(set(plan.inputs) & set(names) for plan in store.plan_compaction())
    job = store.compact(7, names[:1])
    with pytest.raises(JobSuperseded):
        job.run()
    job.cancel()
    store.delete(8, 1, "plant", "cpu", {})
    drop(store, 9, 2 * HOUR_NS)
    seal(store, 10)
    assert cut == store.cut(6, MOVED)
    assert {4, 5} >= {each.version for file in cut.files for each in file.deletes}
    store.release(11, MOVED).run()
    with pytest.raises(CutUnready):
        store.cut(6, MOVED)


def test_a_release_that_is_read_again_keeps_a_slot_that_came_back(store: Store, home: Path) -> None:
    """Between the two seals the slot left and came: only the first files are removed."""
    write(store, 1, LATE)
    seal(store, 2)
    store.hold(2, MOVED).run()
    store.release(3, MOVED).run()
    files = foreign_files(LATE, (1, 1, 2))
    for version, file in enumerate(files, 4):
        store.load(version, load_of(file, 3), CPU, DATABASE).run()
    digests = store.digests()
    assert digests
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    again.hold(2, MOVED).run()
    again.release(3, MOVED).run()
    for version, file in enumerate(files, 4):
        again.load(version, load_of(file, 3), CPU, DATABASE).run()
    assert digests == again.digests()
    again.close()


def test_a_cut_waits_for_its_seal_and_its_files(store: Store) -> None:
    """A list that lacks rows would lose them."""
    write(store, 1, LATE)
    job = store.freeze(2, 1, b"")
    with pytest.raises(CutUnready):
        store.cut(2, MOVED)
    job.run()
    assert store.cut(2, MOVED).files
    (file, *_) = foreign_files([(A, HOUR_NS + 7, {"busy": 1})], (0, 1, 9))
    store.load(3, load_of(file, 1), CPU, DATABASE).run()
    seal(store, 4)
    store.hold(4, MOVED).run()
    with pytest.raises(SegmentAwaited):
        store.cut(4, MOVED)


def test_an_export_has_all_files_or_does_not_exist(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated after a failure or a kill, shares the bytes, and outlives the release."""
    write(store, 1, [*EARLY, *LATE])
    seal(store, 2)
    links, real = [0], os.link

    def full(source: Path, target: Path) -> None:
        links[0] += 1
        if links[0] == 2:
            raise OSError(errno.ENOSPC, "full")
        real(source, target)

    monkeypatch.setattr(os, "link", full)
    directory = tmp_path / "export"
    with pytest.raises(StoreFull):
        store.export(2, MOVED, directory)
    assert not directory.exists()
    assert frozenset() == store._components.files.pinned()
    cut = store.export(2, MOVED, directory)
    assert 2 * len(cut.files) == len(list(directory.iterdir()))
    store.hold(2, MOVED).run()
    store.release(3, MOVED).run()
    stage_export(other, directory)
    for version, file in enumerate(cut.files, 1):
        other.load(version, file.load(LEADER, "origin", 2), CPU, DATABASE).run()
    assert ([], expected(LATE)) == (other.awaited(), contents(other))
