"""What a store keeps for its centres: merges, drops and deletes wait, and snapshots list what is not decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.store import Store
from tests.unit.store.builders import HOUR_NS, contents, seal, write
from tests.unit.store.conftest import SETTINGS

HOSTS = ({"host": "a", "rack": "r"}, {"host": "b", "rack": "r"})


class FakeProgress:
    """The lowest progress of the centres; None: there are none."""

    def __init__(self) -> None:
        self.version: int | None = 0

    def lowest(self, group: str) -> int | None:
        """See CentreProgress."""
        assert group == "n1"
        return self.version


@pytest.fixture
def progress() -> FakeProgress:
    """The progress that `waiting` waits for."""
    return FakeProgress()


@pytest.fixture
def waiting(home: Path, progress: FakeProgress) -> Iterator[Store]:
    """An empty store with centres."""
    opened = Store.open(home, "n1", SETTINGS, centres=progress)
    yield opened
    opened.close()


def fill(store: Store, versions: int, first: int = 1) -> None:
    """Each pair of versions is one row and its seal."""
    for version in range(first, first + 2 * versions, 2):
        write(store, version, [(HOSTS[0], version, {"busy": version})])
        seal(store, version + 1)


def test_no_file_above_the_progress_is_merged(waiting: Store, progress: FakeProgress) -> None:
    """Merges take decided files alone; without centres they take all."""
    fill(waiting, 4)
    assert waiting.plan_compaction() == []
    progress.version = 4
    [plan] = waiting.plan_compaction()
    assert [name[-23:-8].lstrip("0") for name in plan.inputs] == ["2", "4"]
    progress.version = None
    assert len(waiting.plan_compaction()[0].inputs) == 4


def test_a_merge_keeps_the_version_of_its_rows(waiting: Store, progress: FakeProgress) -> None:
    """A merge of decided files is decided, however new its record is."""
    fill(waiting, 2)
    progress.version = 4
    waiting.compact(5, waiting.plan_compaction()[0].inputs).run()
    [entry] = waiting.segments()
    assert (entry.cleaned_version, entry.rows_version) == (5, 4)


def test_a_users_delete_is_kept_until_the_progress_has_passed_it(
    waiting: Store, progress: FakeProgress, home: Path, tmp_path: Path
) -> None:
    """A delete that no segment needs stays for the centre, over a restart; one of retention does not, and is not listed."""
    fill(waiting, 1)
    waiting.delete(3, 1, "plant", "cpu", {"host": ("a",)}, 0, 10)
    dropped = waiting.drop(4, 1, "plant", "cpu", HOUR_NS)
    assert dropped is not None
    dropped.run()
    # One that matches nothing, as receivers append them, is a fence of this log.
    waiting.delete(5, 1, "plant", "cpu", {}, 0, 0)
    seal(waiting, 6)
    waiting.close()
    again = Store.open(home, "n1", SETTINGS, centres=progress)
    listed = again.undecided(0, 10, tmp_path / "one")
    assert [(each.version, each.is_drop) for each in listed.deletes] == [(3, False)]
    progress.version = 3
    seal(again, 7)
    progress.version = 0
    assert again.undecided(0, 10, tmp_path / "two").deletes == ()


def test_a_snapshot_lists_what_is_sealed_above_a_version(waiting: Store, tmp_path: Path) -> None:
    """Files come lowest first, with the deletes that they have not applied; a limit ends the list at a version."""
    fill(waiting, 3)
    waiting.delete(7, 1, "plant", "cpu", {}, 0, 4)
    seal(waiting, 8)
    waiting.delete(9, 1, "plant", "cpu", {}, 0, 6)
    listed = waiting.undecided(2, 10, tmp_path / "all")
    assert [each.entry.last_version for each in listed.files] == [4, 6]
    assert (listed.through, listed.files_left) == (8, 0)
    # What is not sealed follows later.
    assert [each.version for each in listed.deletes] == [7]
    assert [[each.version for each in file.deletes] for file in listed.files] == [[7], []]
    first = listed.files[0]
    assert first.segment.read_bytes() == (waiting.segments_directory / first.entry.name).read_bytes()
    assert len(first.series.read_bytes()) == first.series_bytes
    part = waiting.undecided(0, 1, tmp_path / "part")
    assert ([each.entry.last_version for each in part.files], part.through, part.files_left) == ([2], 2, 2)


def test_links_outlive_the_files(waiting: Store, progress: FakeProgress, tmp_path: Path) -> None:
    """A merge removes what a snapshot has; the links stay readable."""
    fill(waiting, 2)
    listed = waiting.undecided(0, 10, tmp_path / "links")
    before = [each.segment.read_bytes() for each in listed.files]
    progress.version = 4
    waiting.compact(5, waiting.plan_compaction()[0].inputs).run()
    assert [each.segment.read_bytes() for each in listed.files] == before
    assert len(contents(waiting)) == 2


def test_the_first_undecided_time_holds_retention_back(waiting: Store) -> None:
    """It is the begin of the oldest slice with undecided rows, or the time of the oldest unsealed row."""
    write(waiting, 1, [(HOSTS[0], 3 * HOUR_NS + 5, {"busy": 1})])
    assert waiting.first_undecided_ns("plant", "cpu", 0) == 3 * HOUR_NS + 5
    seal(waiting, 2)
    assert waiting.first_undecided_ns("plant", "cpu", 0) == 3 * HOUR_NS
    assert waiting.first_undecided_ns("plant", "cpu", 2) is None


def test_a_file_brings_what_deletes_delete_in_it_alone(waiting: Store, tmp_path: Path) -> None:
    """A manifest has 16 MiB at most: with the names of thousands of other devices the file would wait for ever."""
    fill(waiting, 1)
    waiting.delete(3, 1, "plant", "cpu", {"host": ("a", *(f"other{number}" for number in range(1_000)))}, None, None)
    waiting.delete(4, 1, "plant", "cpu", {"host": ("other",)}, None, None)
    seal(waiting, 5)
    listed = waiting.undecided(0, 10, tmp_path / "all")
    assert [[(each.version, each.tags) for each in file.deletes] for file in listed.files] == [
        [(3, (("host", ("a",)),))]
    ]
    # Those of the round name whatever the user has named: files that are there have rows of it.
    assert [len(dict(each.tags)["host"]) for each in listed.deletes] == [1_001, 1]
