"""The journal of a group: entries come back in order, and a missing one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.log.port import Record
from headrace.consumers.replication.journal import Journal, JournalBroken, JournalEntry
from headrace.schemas.errors import StateUnknown
from tests.unit.wal.disk import SimulatedDisk
from tests.unit.wal.test_durable_order import Chosen


def entry(group: str, version: int, value: bytes) -> JournalEntry:
    """A journal entry as the log consumer makes it."""
    return JournalEntry.of(
        group, version, Record("topic", version * 2, 99, None, value, (("format", b"1"), ("x", b"")))
    )


def test_the_journal_returns_the_records_that_no_segment_holds(tmp_path: Path) -> None:
    """Small and large entries survive a reopening by group and in order; forgotten ones do not."""
    journal = Journal(tmp_path, ("a", "b"))
    entries = {"a": [entry("a", version, b"x" * version * 3_000) for version in range(1, 6)], "b": [entry("b", 1, b"")]}
    journal.append(entries)
    journal.forget("a", 2)
    journal.close()
    again = Journal(tmp_path, ("b", "a", "c"))
    assert entries["a"][2:] == list(again.recovered("a", 2))
    assert entries["b"] == list(again.recovered("b", 0))
    assert [5, 1, 0] == [again.newest_version(group) for group in ("a", "b", "c")]
    again.forget("a", 5)
    again.forget("a", 5)
    again.close()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_entries_that_another_members_files_replaced_never_come_back(end: str) -> None:
    """Not after a power cut either: they may be of wrong data, which nothing marks as wrong any more."""
    disk, directory = SimulatedDisk(), Path("/journal")
    journal = Journal(directory, ("a", "b"), disk, maintained=False)
    journal.append({"a": [entry("a", version, b"wrong") for version in range(101, 111)], "b": [entry("b", 1, b"1")]})
    journal.forget_all("a")
    again = Journal(directory, ("a", "b"), getattr(disk, end)(), maintained=False)
    assert [0, 1] == [again.newest_version(group) for group in ("a", "b")]


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_entries_that_a_failed_append_left_are_forgotten_with_the_others(end: str) -> None:
    """The update of one group is written before that of another fails, and counts for nobody: after another member's
    files took the group's place, a start applies none of it to them.
    """
    disk, directory = SimulatedDisk(), Path("/journal")
    disk.random = Chosen()
    journal = Journal(directory, ("a", "b"), disk, maintained=False)
    journal.append({"a": [entry("a", version, b"old") for version in range(1, 11)], "b": [entry("b", 1, b"1")]})
    disk.fail("write", 2)
    with pytest.raises(OSError, match="injected"):
        journal.append({"a": [entry("a", version, b"old") for version in range(11, 16)], "b": [entry("b", 2, b"2")]})
    journal.forget_all("a")
    journal.append({"a": [entry("a", 13, b"new")], "b": [entry("b", 2, b"2")]})
    left = getattr(disk, end)()
    again = Journal(directory, ("a", "b"), left, maintained=False)
    assert [entry("a", 13, b"new")] == list(again.recovered("a", 12))
    assert {"a": [13], "b": [1, 2]} == again._recovered
    again.forget_all("a")
    assert 0 == Journal(directory, ("a", "b"), left.kill(), maintained=False).newest_version("a")


def test_a_gap_in_the_journal_is_an_error(tmp_path: Path) -> None:
    """Missing records are never skipped."""
    journal = Journal(tmp_path, ("a",))
    journal.append({"a": [entry("a", 1, b"1"), entry("a", 3, b"3")]})
    journal.close()
    again = Journal(tmp_path, ("a",))
    with pytest.raises(JournalBroken, match="from version 1 to 3"):
        list(again.recovered("a", 0))
    again.close()


def test_a_group_is_forgotten_although_a_sync_has_failed() -> None:
    """While every group of a node recovers, nothing is appended: without a repair no recovery would ever end."""
    disk = SimulatedDisk()
    journal = Journal(Path("/sim/journal"), ("a",), disk, maintained=False)
    journal.append({"a": [entry("a", 1, b"1")]})
    disk.fail("data", 1)
    with pytest.raises(StateUnknown):
        journal.append({"a": [entry("a", 2, b"2")]})
    journal.forget_all("a")
    journal.append({"a": [entry("a", 7, b"7")]})
    journal.close()
    again = Journal(Path("/sim/journal"), ("a",), disk, maintained=False)
    assert [7] == [found.version for found in again.recovered("a", 6)]


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_entries_are_forgotten_although_the_sync_of_that_failed(end: str) -> None:
    """The repair of the journal drops the deletes: the next call deletes again, and not what came behind them alone."""
    disk, directory = SimulatedDisk(), Path("/journal")
    journal = Journal(directory, ("a", "b"), disk, maintained=False)
    journal.append({group: [entry(group, version, b"1") for version in (1, 2)] for group in ("a", "b")})
    journal.forget("b", 1)
    disk.fail("data", 1)
    with pytest.raises(StateUnknown):
        journal.forget_all("a")
    journal.forget_all("a")
    journal.forget("b", 2)
    journal.append({"b": [entry("b", 3, b"3")]})
    again = Journal(directory, ("a", "b"), getattr(disk, end)(), maintained=False)
    assert {"a": [], "b": [3]} == again._recovered


def test_an_append_is_durable_for_all_groups() -> None:
    """One sync, the last one, covers every group of the poll: a power cut right after it takes nothing."""
    disk = SimulatedDisk()
    disk.random = Chosen()
    journal = Journal(Path("/sim/journal"), ("a", "b", "c"), disk, maintained=False)
    entries = {group: [entry(group, 1, b"1"), entry(group, 2, b"2")] for group in ("c", "a", "b")}
    journal.append(entries)
    again = Journal(Path("/sim/journal"), ("a", "b", "c"), disk.crash(), maintained=False)
    assert entries == {group: list(again.recovered(group, 0)) for group in ("c", "a", "b")}


def test_no_checkpoint_falls_between_the_updates_of_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync it drops what is not durable: the first groups of an append whose last update then syncs."""
    journal = Journal(tmp_path, ("a",))
    checkpoint, held = journal._wal.checkpoint, list[bool]()

    def noted() -> None:
        held.append(journal._lock.locked())
        checkpoint()

    monkeypatch.setattr(journal._wal, "checkpoint", noted)
    journal.checkpoint()
    assert [True] == held
    assert not journal._lock.locked()
    journal.close()


def test_entries_behind_another_members_files_are_forgotten_like_others(tmp_path: Path) -> None:
    """The files may end at a lower version than the data that they replaced."""
    journal = Journal(tmp_path, ("a",))
    journal.append({"a": [entry("a", version, b"wrong") for version in (101, 102)]})
    journal.forget_all("a")
    journal.append({"a": [entry("a", version, b"right") for version in (51, 52)]})
    journal.forget("a", 51)
    journal.close()
    again = Journal(tmp_path, ("a",))
    assert [52] == [found.version for found in again.recovered("a", 51)]
    with pytest.raises(JournalBroken, match="from version 50 to 52"):
        list(again.recovered("a", 50))
    again.forget("a", 52)
    again.close()
    last = Journal(tmp_path, ("a",))
    assert 0 == last.newest_version("a")
    last.close()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_group_that_leaves_is_cut_for_good(end: str) -> None:
    """Its partition is given to the next group that comes, and no entry of it returns, also after a power cut; the
    others keep theirs. One that comes back begins at any version.
    """
    disk, directory = SimulatedDisk(), Path("/journal")
    journal = Journal(directory, ("a", "b"), disk, maintained=False)
    journal.append({"a": [entry("a", 1, b"a"), entry("a", 2, b"a")], "b": [entry("b", 1, b"b")]})
    journal.remove("a")
    journal.remove("a")
    journal.add("c@2")
    journal.add("c@2")
    journal.append({"c@2": [entry("c@2", 7, b"c")], "b": [entry("b", 2, b"b")]})
    assert 2 == len([name for name in disk.names_seen if name.endswith(".wal")])
    journal.add("a")
    journal.append({"a": [entry("a", 9, b"again")]})
    again = Journal(directory, ("a", "b", "c@2"), getattr(disk, end)(), maintained=False)
    assert [9, 2, 7] == [again.newest_version(group) for group in ("a", "b", "c@2")]
    assert [entry("a", 9, b"again")] == list(again.recovered("a", 8))


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_entries_of_a_group_that_left_before_the_crash_are_cut_at_the_start(end: str) -> None:
    """The crash came between the end of the group and the cut of its partition."""
    disk, directory = SimulatedDisk(), Path("/journal")
    journal = Journal(directory, ("a", "b"), disk, maintained=False)
    journal.append({"a": [entry("a", 3, b"a")], "b": [entry("b", 1, b"b")]})
    disk = disk.kill()
    again = Journal(directory, ("b",), disk, maintained=False)
    assert ["a"] == again.remove_others()
    assert [] == again.remove_others()
    assert [entry("b", 1, b"b")] == list(again.recovered("b", 0))
    later = Journal(directory, ("a", "b"), getattr(disk, end)(), maintained=False)
    assert [0, 1] == [later.newest_version(group) for group in ("a", "b")]
