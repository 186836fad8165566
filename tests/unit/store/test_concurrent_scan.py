"""A scan during a merge or a drop: it sees the instant at which it began until it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.store import Store, StoreDamaged
from headrace.consumers.store import store as store_module
from headrace.consumers.store.index import Index, IndexChanges
from headrace.consumers.store.scan import read_table
from headrace.consumers.store.store_view import StoreView
from tests.unit.store.builders import HOUR_NS, Row, contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS

A = {"host": "a"}
ROWS: list[Row] = [(A, 1, {"busy": 1}), (A, 2, {"busy": 2})]


@pytest.fixture
def uncached(home: Path) -> Iterator[Store]:
    """A store with two segments, which keeps the runs of no more than one in memory."""
    store = Store.open(home, "n1", SETTINGS.model_copy(update={"runs_cache_series": 0}))
    for number, row in enumerate(ROWS):
        write(store, 2 * number + 1, [row])
        seal(store, 2 * number + 2)
    yield store
    store.close()


def between_view_and_runs(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Run `work` once, in a scan that has its view and has read nothing yet."""
    waiting = [work]

    def read_later(*arguments: Any, **options: Any) -> Any:
        while waiting:
            waiting.pop()()
        return read_table(*arguments, **options)

    monkeypatch.setattr(store_module, "read_table", read_later)


def test_a_merge_in_the_middle_of_a_scan_changes_nothing(uncached: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan still finds the series of the segments that it has seen."""
    inputs = [entry.name for entry in uncached.segments()]
    between_view_and_runs(monkeypatch, uncached.compact(5, inputs).run)
    assert expected(ROWS) == contents(uncached, tags={"host": ["a"]})
    assert expected(ROWS) == contents(uncached, tags={"host": ["a"]})
    assert 1 == len(uncached.segments())


def test_a_merge_at_the_moment_of_a_scans_view_removes_no_file_of_it(
    uncached: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view and its pins are one step: a commit comes before both, or behind both."""
    merges = [uncached.compact(5, [entry.name for entry in uncached.segments()]).run]
    table = StoreView.table

    def table_and_merge(*arguments: Any, **options: Any) -> Any:
        seen = table(*arguments, **options)
        while merges:
            merges.pop()()
        return seen

    monkeypatch.setattr(StoreView, "table", table_and_merge)
    assert expected(ROWS) == contents(uncached)
    assert expected(ROWS) == contents(uncached)


def test_a_drop_in_the_middle_of_a_scan_changes_nothing(uncached: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drop that began after the scan hides nothing from it, and everything from the next."""

    def drop() -> None:
        job = uncached.drop(5, 1, "plant", "cpu", HOUR_NS)
        assert job is not None
        job.run()

    between_view_and_runs(monkeypatch, drop)
    assert expected(ROWS) == contents(uncached, tags={"host": ["a"]})
    assert {} == contents(uncached, tags={"host": ["a"]})


def test_two_commits_in_the_middle_of_a_scan_change_nothing(uncached: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit behind the one that removed the segments does not take their series away either."""
    inputs = [entry.name for entry in uncached.segments()]

    def merge_and_seal() -> None:
        uncached.compact(5, inputs).run()
        seal(uncached, 6)

    between_view_and_runs(monkeypatch, merge_and_seal)
    assert expected(ROWS) == contents(uncached, tags={"host": ["a"]})


@pytest.mark.parametrize("restart", [False, True])
def test_the_runs_of_removed_segments_do_not_stay(uncached: Store, home: Path, restart: bool) -> None:
    """The next commit deletes them once no scan has the segment pinned, also after a restart."""
    removed = [entry.name for entry in uncached.segments()]
    uncached.compact(5, removed).run()
    (merged,) = uncached.segments()
    uncached.close()
    index = Index(home / "index" / "n1", SETTINGS)
    try:
        if not restart:
            index.commit(IndexChanges(), pinned=removed)
            assert [1, 1] == [len(index.runs(name).keys) for name in removed]
        index.commit(IndexChanges())
        for name in removed:
            with pytest.raises(StoreDamaged, match="no series"):
                index.runs(name)
        assert 1 == len(index.runs(merged.name).keys)
    finally:
        index.close()
