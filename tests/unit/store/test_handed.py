"""Rows and deletes that another log took first: their rank is that of the log, through memory, files and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.consumers.store import HandedRank, Slots, Store, handed_tombstone, seal_job
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, contents, expected, row_batch, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import slots_of_slices
from tests.unit.store.test_deletes import last

A = {"host": "a"}
MOVED = slots_of_slices(1)


def row(value: int, at: int = 1) -> Row:
    """A row of the slice that moved."""
    return A, HOUR_NS + at, {"busy": value}


def hand(store: Store, version: int, rank: tuple[int, int], *rows: Row) -> None:
    """Late rows of the former holder, of slots that came with table 4."""
    store.write_handed(version, HandedRank(*rank, 4), CPU, DATABASE, row_batch(CPU, rows))


def delete(store: Store, version: int, rank: tuple[int, int], slots: Slots = MOVED) -> None:
    """A delete of the former holder."""
    deleted = handed_tombstone(version, HandedRank(*rank), slots, ("plant", "cpu"), {"host": ("a",)}, (None, None))
    store.delete_handed(version, deleted)


def test_a_row_keeps_its_rank_wherever_it_is(store: Store, home: Path) -> None:
    """Two seals, the second with a version from between those of the first: the highest wins, also after a merge."""
    write(store, 1, [row(50, at=2)], era=4)
    hand(store, 2, (1, 700), row(7))
    hand(store, 3, (1, 900), row(9, at=3))
    hand(store, 4, (1, 800), row(8, at=3), row(8))
    seal(store, 5, era=3)
    wanted = expected([row(8), row(50, at=2), row(9, at=3)])
    assert wanted == contents(store)
    assert [(1, 800, 900), (4, 1, 5)] == sorted((e.era, e.first_version, e.last_version) for e in store.segments())
    hand(store, 6, (1, 750), row(75))
    hand(store, 7, (1, 950), row(95, at=3))
    hand(store, 8, (3, 2), row(32))
    seal(store, 9, era=3)
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    wanted = expected([row(32), row(50, at=2), row(95, at=3)])
    assert wanted == contents(again)
    assert expected([row(95, at=3)]) == last(again)
    again.close()


def test_a_file_never_has_ranks_on_both_sides_of_another(store: Store) -> None:
    """Versions of one log may come in two ways, and a file is in one place in the order of ranks."""
    hand(store, 1, (1, 800), row(8), row(8, at=2))
    seal(store, 2)
    hand(store, 3, (1, 700), row(7), row(7, at=3))
    hand(store, 4, (1, 900), row(9, at=2))
    seal(store, 5)
    assert [(700, 700), (800, 800), (900, 900)] == [(e.first_version, e.last_version) for e in store.segments()]
    assert expected([row(8), row(9, at=2), row(7, at=3)]) == contents(store)


def test_own_deletes_from_before_the_slots_came_concern_no_row_of_them(store: Store) -> None:
    """Another group has decided about them then; later ones concern them, and are kept for those that come late."""
    write(store, 1, [(A, 1, {"busy": 1})], era=3)
    store.delete(2, 3, "plant", "cpu", {})
    hand(store, 3, (3, 1), row(1))
    assert expected([row(1)]) == contents(store) == last(store)
    seal(store, 4, era=3)
    assert expected([row(1)]) == contents(store) == last(store)
    store.delete(5, 4, "plant", "cpu", {})
    seal(store, 6, era=3)
    hand(store, 7, (3, 2), row(2))
    assert {} == contents(store)
    seal(store, 8, era=3)
    assert {} == contents(store)


def test_a_handed_delete_concerns_lower_ranks_of_its_slots(store: Store, home: Path) -> None:
    """Sealed, unsealed, frozen and late ones; never rows of other slots, and never rows of a higher rank."""
    own: Row = (A, 1, {"busy": 100})
    write(store, 1, [own], era=1)
    hand(store, 2, (2, 10), row(1))
    seal(store, 3, era=1)
    hand(store, 4, (2, 11), row(2, at=2))
    frozen = store.freeze(5, 1, b"")
    hand(store, 6, (2, 12), row(3, at=3))
    hand(store, 7, (2, 99), row(4, at=4))
    write(store, 8, [row(5, at=5)], era=4)
    delete(store, 9, (2, 50))
    wanted = expected([own, row(4, at=4), row(5, at=5)])
    assert wanted == contents(store)
    frozen.run()
    assert wanted == contents(store)
    hand(store, 10, (2, 13), row(6, at=6))
    hand(store, 11, (1, 900), row(7, at=7))
    assert wanted == contents(store)
    seal(store, 12, era=4)
    assert wanted == contents(store)
    hand(store, 13, (2, 14), row(8, at=8))
    for plan in store.plan_compaction():
        store.compact(13, plan.inputs).run()
    assert wanted == contents(store)
    seal(store, 14, era=4)
    store.close()
    again = Store.open(home, "n1", SETTINGS)
    hand(again, 15, (2, 15), row(9, at=9))
    assert wanted == contents(again)
    again.close()


def test_a_file_has_no_ranks_of_other_slots(store: Store) -> None:
    """Rows of two former holders are sealed together. A delete of the one does not know versions of the other."""
    hand(store, 1, (1, 7), row(7))
    other: Row = (A, 2 * HOUR_NS + 1, {"busy": 900})
    hand(store, 2, (1, 900), other)
    seal(store, 3)
    assert [(7, 7), (900, 900)] == [(each.first_version, each.last_version) for each in store.segments()]
    delete(store, 4, (1, 8))
    assert expected([other]) == contents(store)
    seal(store, 5)
    for plan in store.plan_compaction():
        store.compact(6, plan.inputs).run()
    assert expected([other]) == contents(store)


def test_handed_deletes_are_kept_for_late_rows_up_to_a_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay when nothing here awaits them; one of the own log goes, whose rows cannot come any more."""
    monkeypatch.setattr(seal_job, "LATE_TOMBSTONES_MAX", 3)
    store.delete(1, 4, "plant", "cpu", {})
    for version in range(2, 5):
        delete(store, version, (2, 10 * version))
    seal(store, 5, era=4)
    assert [2, 3, 4] == sorted(each.came_at for each in store._components.view.tombstones())
    for version in range(6, 8):
        delete(store, version, (2, 10 * version))
    seal(store, 8, era=4)
    assert [4, 6, 7] == sorted(each.came_at for each in store._components.view.tombstones())


def test_a_handed_delete_makes_no_wrong_last_row(store: Store) -> None:
    """The newest row of a series is unknown then, until a scan or a newer row."""
    write(store, 1, [(A, 5, {"busy": 1})], era=4)
    hand(store, 2, (2, 10), row(1))
    seal(store, 3, era=3)
    assert expected([row(1)]) == last(store)
    delete(store, 4, (2, 11))
    assert store.last_rows("plant", "cpu") is None
    seal(store, 5, era=3)
    assert store.last_rows("plant", "cpu") is None
    write(store, 6, [row(2, at=2)], era=4)
    assert expected([row(2, at=2)]) == last(store)


def test_what_left_is_shown_to_nobody_before_any_job_has_run(store: Store) -> None:
    """Rows that the seal of the cut still writes, and last rows that the next job takes out."""
    stays: Row = ({"host": "a"}, 9, {"busy": 9})
    write(store, 1, [stays, row(1)])
    seal(store, 2)
    write(store, 3, [row(2, at=2)])
    sealing = store.freeze(4, 1, b"")
    holding = store.hold(4, MOVED)
    assert expected([stays]) == contents(store)
    assert store.last_rows("plant", "cpu") is None
    sealing.run()
    assert expected([stays]) == contents(store)
    holding.run()
    assert expected([stays]) == contents(store) == last(store)
    assert [1, 1] == [file.entry.slice_number for file in store.cut(4, MOVED).files]
