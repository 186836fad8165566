"""Deletes: which rows they hide, when they are applied and dropped, and last rows under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.store import Store
from headrace.consumers.store.tombstones import Tombstone, tombstone
from tests.unit.store.builders import CPU, Answer, Row, answer_of, contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS

A, B, NONE = {"host": "a", "rack": "r"}, {"host": "b", "rack": "r"}, {"rack": "r"}
ROWS: list[Row] = [(tags, at, {"busy": at}) for tags in (A, B, NONE) for at in (1, 2, 3)]


def last(store: Store, **conditions: Any) -> Answer | None:
    """The last rows, or None when a scan is needed."""
    table = store.last_rows("plant", "cpu", **conditions)
    return None if table is None else answer_of([table], CPU.tags)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("tags", "start", "end", "left"),
    [
        ({}, None, None, []),
        ({"host": ("a",)}, None, None, ROWS[3:]),
        ({"host": ("a", "b")}, 2, 3, [ROWS[0], ROWS[2], ROWS[3], ROWS[5], *ROWS[6:]]),
        ({"host": ("",)}, 3, None, ROWS[:8]),
        ({"host": ("a",), "rack": ("x",)}, None, None, ROWS),
        ({"host": ()}, None, None, ROWS),
        ({"nothing": ("",)}, None, 2, [row for row in ROWS if row[1] >= 2]),
        ({}, 2, 2, ROWS),
    ],
)
def test_what_a_delete_hides(
    store: Store, sealed: bool, tags: dict[str, tuple[str, ...]], start: int | None, end: int | None, left: list[Row]
) -> None:
    """Rows with time in [start, end) whose every named tag has an allowed value, where "" is absence.

    In memory, in files, and after a merge.
    """
    write(store, 1, ROWS)
    if sealed:
        seal(store, 2)
    store.delete(3, 1, "plant", "cpu", tags, start, end)
    assert expected(left) == contents(store)
    seal(store, 4)
    for plan in store.plan_compaction():
        store.compact(5, plan.inputs).run()
    assert expected(left) == contents(store)
    assert len(left) == sum(entry.rows for entry in store.segments())


def test_rows_written_after_a_delete_stay(store: Store) -> None:
    """A delete hides lower ranks only, within one seal too."""
    write(store, 1, ROWS)
    store.delete(2, 1, "plant", "cpu", {})
    write(store, 3, ROWS[:1])
    assert expected(ROWS[:1]) == contents(store)
    seal(store, 4)
    assert expected(ROWS[:1]) == contents(store)
    assert expected(ROWS[:1]) == last(store)


def test_a_delete_hides_later_rows_of_lower_rank(store: Store, home: Path) -> None:
    """A row of an older era that arrives after the delete is hidden, also with seals and a restart between."""
    write(store, 1, ROWS[:1], era=2)
    store.delete(2, 2, "plant", "cpu", {"host": ("a",)})
    seal(store, 3, era=1)
    store.close()
    reopened = Store.open(home, "n1", SETTINGS)
    write(reopened, 4, [ROWS[1], ROWS[4]], era=1)
    assert expected([ROWS[4]]) == contents(reopened)
    seal(reopened, 5, era=1)
    assert expected([ROWS[4]]) == contents(reopened)
    reopened.close()


def test_a_tombstone_is_dropped_when_it_can_hide_nothing(store: Store) -> None:
    """It stays while an unmerged file may hold rows it hides, or rows of a lower era may come.

    Then a seal drops it.
    """
    write(store, 1, ROWS)
    seal(store, 2)
    store.delete(3, 1, "plant", "cpu", {"host": ("a",)})
    seal(store, 4)
    assert 1 == len(store._components.view.tombstones())
    for version, plan in enumerate(store.plan_compaction(), 5):
        store.compact(version, plan.inputs).run()
    seal(store, 20, era=0)
    assert 1 == len(store._components.view.tombstones())
    seal(store, 21, era=1)
    assert 0 == len(store._components.view.tombstones())
    assert expected(ROWS[3:]) == contents(store)
    assert [] == store.plan_compaction()


def test_a_delete_of_another_table_touches_nothing(store: Store) -> None:
    """Deletes are by table; one for a table without rows is stored without harm."""
    write(store, 1, ROWS)
    store.delete(2, 1, "plant", "gpu", {})
    store.delete(3, 1, "other", "cpu", {})
    seal(store, 4)
    assert expected(ROWS) == contents(store)


def test_equal_tombstones_have_equal_text() -> None:
    """Equal deletes have one text for any order of tags, and it reads back."""
    one = tombstone(7, 1, ("d", "t"), {"b": ("2", "1"), "a": ("x",)}, None, 5)
    two = tombstone(7, 1, ("d", "t"), {"a": ("x", "x"), "b": ("1", "2")}, None, 5)
    assert one.to_json() == two.to_json()
    assert one == Tombstone.from_json(one.to_json())


def test_last_rows_follow_sealed_frozen_and_live_rows(store: Store, home: Path) -> None:
    """The newest row by time, with upserts, over sealed, frozen and live rows; it survives reopening."""
    write(store, 1, [(A, 5, {"busy": 5}), (B, 1, {"busy": 1})])
    seal(store, 2)
    write(store, 3, [(A, 4, {"busy": 4}), (B, 2, {"load": 2.0})])
    assert expected([(A, 5, {"busy": 5}), (B, 2, {"load": 2.0})]) == last(store)
    job = store.freeze(4, 1, b"")
    write(store, 5, [(A, 5, {"busy": 55})])
    assert expected([(A, 5, {"busy": 55}), (B, 2, {"load": 2.0})]) == last(store)
    job.run()
    seal(store, 6)
    want = expected([(A, 5, {"busy": 55}), (B, 2, {"load": 2.0})])
    assert want == last(store)
    assert expected([(B, 2, {"load": 2.0})]) == last(store, tags={"host": ["b", "x"]})
    store.close()
    reopened = Store.open(home, "n1", SETTINGS)
    assert want == last(reopened)
    reopened.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_hidden_last_row_is_unknown_until_a_newer_one(store: Store, sealed: bool) -> None:
    """After a delete of its newest sealed row a series needs a scan, until a newer row; other series do not."""
    write(store, 1, ROWS)
    seal(store, 2)
    store.delete(3, 1, "plant", "cpu", {"host": ("a",)}, 3, None)
    if sealed:
        seal(store, 4)
    assert None is last(store)
    assert expected([ROWS[5]]) == last(store, tags={"host": ["b"]})
    write(store, 5, [(A, 3, {"busy": 33})])
    assert expected([(A, 3, {"busy": 33}), ROWS[5], ROWS[8]]) == last(store)
    seal(store, 6)
    assert expected([(A, 3, {"busy": 33}), ROWS[5], ROWS[8]]) == last(store)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_series_without_rows_has_no_last_row(store: Store, sealed: bool) -> None:
    """A delete without start that reaches the newest row, and a drop of its slice, leave no last row and no need to scan."""
    write(store, 1, ROWS)
    seal(store, 2)
    store.delete(3, 1, "plant", "cpu", {"host": ("a",)}, None, 4)
    if sealed:
        seal(store, 4)
    assert expected([ROWS[5], ROWS[8]]) == last(store)


def test_last_rows_of_an_empty_table(store: Store) -> None:
    """When every row is deleted there is an empty table with all columns."""
    write(store, 1, ROWS)
    store.delete(2, 1, "plant", "cpu", {})
    table = store.last_rows("plant", "cpu")
    assert table is not None
    assert (0, ["host", "rack", "time", "busy", "load", "note", "up"]) == (table.num_rows, table.schema.names)
    seal(store, 3)
    assert {} == last(store)
