"""Planning and execution of merges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import JobSuperseded, SegmentEntry, Store, StoreSettings, Tombstone, plan_compaction
from headrace.consumers.store.segment_files import SegmentName, path_component
from headrace.consumers.store.tombstone_set import by_table
from tests.unit.store.builders import contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS

A = {"host": "a"}
PLANNING = StoreSettings(row_group_rows=40, compaction_files_min=3, compaction_rows_max=100)


def entry(first: int, rows: int, era: int = 1, bucket: int = 0, cleaned: int | None = None) -> SegmentEntry:
    """A catalogue entry of versions first to first + 9."""
    name = SegmentName("d", "t", 0, bucket, era, first, first + 9)
    blank = SegmentEntry(name.relative, "d", "t", 0, bucket, era, first, first + 9, 0, rows, 0, 99, 1, "", "", 1, 0)
    return replace(blank, cleaned_version=first + 9 if cleaned is None else cleaned)


def firsts(entries: list[SegmentEntry], tombstones: list[Tombstone] | None = None) -> list[list[int]]:
    """The first versions of the inputs of each planned merge."""
    by_name = {each.name: each.first_version for each in entries}
    plans = plan_compaction(reversed(entries), by_table(tombstones or []), PLANNING)
    return [[by_name[name] for name in plan.inputs] for plan in plans]


@pytest.mark.parametrize(
    ("entries", "plans"),
    [
        ([entry(10, 5), entry(20, 5)], []),
        ([entry(10, 5), entry(20, 5), entry(30, 5)], [[10, 20, 30]]),
        ([entry(10, 90), entry(20, 5), entry(30, 5), entry(40, 5)], [[20, 30, 40]]),
        ([entry(10, 5), entry(20, 5), entry(30, 90), entry(40, 5)], []),
        ([entry(10, 30), entry(20, 30), entry(30, 30), entry(40, 30)], [[10, 20, 30]]),
        ([entry(10, 5), entry(20, 5, era=2), entry(30, 5)], []),
        ([entry(10, 5), entry(20, 5, bucket=1), entry(30, 5)], []),
        ([entry(10, 5), replace(entry(20, 5), held_since=2), entry(30, 5)], []),
        ([entry(10, 500), entry(20, 500), entry(30, 500)], []),
        ([], []),
    ],
)
def test_neighbours_of_one_size_are_merged(entries: list[SegmentEntry], plans: list[list[int]]) -> None:
    """At least so many neighbours of about one size in one slice, bucket and era, never more rows than allowed."""
    assert plans == firsts(entries)


def test_a_file_with_deletes_to_apply_is_rewritten() -> None:
    """A file that an unapplied delete touches is rewritten alone, unless it is merged anyway, has it applied, or outranks it."""
    delete = Tombstone("d", "t", 1, 35)
    assert [[10], [20]] == firsts([entry(10, 90), entry(20, 90), entry(40, 90)], [delete])
    assert [[10, 20, 30]] == firsts([entry(10, 5), entry(20, 5), entry(30, 5)], [delete])
    assert [] == firsts([entry(10, 90, cleaned=40)], [delete])
    assert [] == firsts([entry(10, 90)], [replace(delete, table="other")])
    assert [] == firsts([entry(10, 90, era=2)], [delete])
    assert [] == firsts([entry(10, 90)], [replace(delete, start_ns=100)])


@given(
    rows=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 2), st.integers(0, 1)), max_size=14),
    deleted=st.integers(0, 150),
)
def test_plans_never_share_files_and_keep_the_limits(rows: list[tuple[int, int, int]], deleted: int) -> None:
    """Whatever the catalogue: plans are disjoint, of neighbours in rank, within the row limit, and independent of the listing's order."""
    entries = [entry(10 * (i + 1), count, era, bucket) for i, (count, era, bucket) in enumerate(rows)]
    by_name = {each.name: each for each in entries}
    plans = plan_compaction(entries, by_table([Tombstone("d", "t", 2, deleted)]), PLANNING)
    assert plans == plan_compaction(reversed(entries), by_table([Tombstone("d", "t", 2, deleted)]), PLANNING)
    inputs = [name for plan in plans for name in plan.inputs]
    assert len(inputs) == len(set(inputs))
    assert not {plan.output for plan in plans} & by_name.keys()
    for plan in plans:
        chosen = [by_name[name] for name in plan.inputs]
        assert len({(each.era, each.bucket) for each in chosen}) == 1
        assert len(chosen) == 1 or sum(each.rows for each in chosen) <= PLANNING.compaction_rows_max
        place = [each for each in entries if (each.era, each.bucket) == (chosen[0].era, chosen[0].bucket)]
        start = place.index(chosen[0])
        assert place[start : start + len(chosen)] == chosen


def sealed_thrice(store: Store) -> list[str]:
    """Three files of one slice and bucket with an upsert across them; their names, lowest rank first."""
    for index in range(3):
        write(store, index * 2 + 1, [(A, 1, {"busy": index}), (A, 10 + index, {"busy": index})])
        seal(store, index * 2 + 2)
    return [entry.name for entry in store.segments()]


WANT = expected([(A, 1, {"busy": 2}), (A, 10, {"busy": 0}), (A, 11, {"busy": 1}), (A, 12, {"busy": 2})])


def test_a_merge_keeps_the_answer_and_describes_its_output(store: Store) -> None:
    """The output has every winner once, covers the versions of its inputs, is named as planned, and scans need no merge."""
    inputs = sealed_thrice(store)
    (plan,) = store.plan_compaction()
    assert tuple(inputs) == plan.inputs
    store.compact(7, plan.inputs).run()
    assert WANT == contents(store)
    (entry,) = store.segments()
    assert (plan.output, 1, 6, 4, 7) == (
        entry.name, entry.first_version, entry.last_version, entry.rows, entry.cleaned_version
    )  # fmt: skip
    with store.scan("plant", "cpu") as scan:
        assert (1, 0) == (len(scan.files), scan.table.num_rows)
    assert not any((store.segments_directory / name).exists() for name in inputs)


def test_a_merge_read_again_after_a_crash_is_done_already(store: Store) -> None:
    """The record of a merge whose inputs are gone changes nothing."""
    inputs = sealed_thrice(store)
    store.compact(7, inputs).run()
    before = store.digests()
    store.compact(8, inputs).run()
    assert before == store.digests()
    assert 0 == store.pending_jobs()


@pytest.mark.parametrize("wrong", [[0, 2], [1, 0], [2, 1, 0]])
def test_a_merge_that_would_break_the_order_of_ranks_is_refused(store: Store, wrong: list[int]) -> None:
    """Inputs that are no neighbours, or not in order, are refused without a change.

    After a cancel the next job runs.
    """
    inputs = sealed_thrice(store)
    job = store.compact(7, [inputs[index] for index in wrong])
    with pytest.raises(JobSuperseded):
        job.run()
    seal_job = store.freeze(8, 1, b"eight")
    job.cancel()
    job.cancel()
    seal_job.run()
    assert b"eight" == store.state
    assert inputs == [entry.name for entry in store.segments()]
    assert WANT == contents(store)


def test_a_merge_with_a_missing_input_is_refused(store: Store) -> None:
    """Two merges planned over the same file cannot both count: the second is refused."""
    inputs = sealed_thrice(store)
    store.compact(7, inputs[:2]).run()
    with pytest.raises(JobSuperseded):
        store.compact(8, inputs[1:]).run()
    assert WANT == contents(store)


def test_a_merge_that_leaves_nothing_writes_no_file(store: Store, home: Path) -> None:
    """When every row of the inputs is deleted they are removed without an output; that survives reopening."""
    inputs = sealed_thrice(store)
    store.delete(7, 1, "plant", "cpu", {})
    store.compact(8, inputs).run()
    assert ([], {}) == (store.segments(), contents(store))
    seal(store, 9)
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    assert {} == contents(again)
    again.close()


def test_a_delete_between_merge_and_crash_is_applied_again_without_harm(store: Store, home: Path) -> None:
    """A merge commits before the seal that follows it.

    Read again from the last seal, delete and merge give the same files.
    """
    inputs = sealed_thrice(store)
    store.delete(7, 1, "plant", "cpu", {}, 10, 12)
    store.compact(8, inputs).run()
    before, want = store.digests(), contents(store)
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    assert 6 == again.frontier
    again.delete(7, 1, "plant", "cpu", {}, 10, 12)
    again.compact(8, inputs).run()
    assert (before, want) == (again.digests(), contents(again))
    seal(again, 9)
    assert () == again._components.view.tombstones()
    again.close()


def test_names_sort_by_rank() -> None:
    """Within one directory a later name holds higher ranks, by era first."""
    names = [
        SegmentName("d", "t", 0, 0, era, first, first + 8).relative
        for era in (1, 2, 30)
        for first in (1, 9, 100, 10**9)
    ]
    assert names == sorted(names)


@given(
    st.lists(st.text(st.sampled_from("aA./_%~=*ü \\?"), min_size=1, max_size=8), min_size=2, max_size=2, unique=True)
)
def test_path_components_are_safe_and_distinct(names: list[str]) -> None:
    """Different names never share a directory, and no component is hidden, a pattern, or more than one level."""
    parts = [path_component(name) for name in names]
    assert parts[0] != parts[1]
    assert not any(part[0] in "._" or set(part) & set("/*?[]=\\ ") for part in parts)
    assert parts != [path_component(name * 60) for name in names]
    assert all(len(path_component(name * 60).encode()) <= 200 for name in names)
