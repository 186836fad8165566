"""A delete that is handed over again and again, with the slots of each change, is kept once: in memory and in the index."""

from __future__ import annotations

import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import SegmentEntry, Store, seal_job
from headrace.consumers.store.index import Index
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import Tombstone, joined
from headrace.schemas.series import slot_of
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, contents, expected, row_batch, seal
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import slots_of_slices
from tests.unit.store.test_deletes import last
from tests.unit.store.test_handed import delete, hand

SLICES = 4
SLOTS_TOTAL = 6
PIECES = st.lists(
    st.tuples(st.integers(1, 2), st.sets(st.integers(0, SLOTS_TOTAL - 1), min_size=1).map(sorted)),
    min_size=1,
    max_size=6,
)


def row(slice_number: int, value: int, at: int = 1) -> Row:
    """A row of one slice."""
    return {"host": "a"}, slice_number * HOUR_NS + at, {"busy": value}


def tombstones(store: Store) -> list[Tombstone]:
    """What a store keeps."""
    return sorted(store._components.view.tombstones(), key=lambda each: (each.era, each.version, each.came_at))


def in_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Tombstone]:
    """What the index of a closed store has."""
    found = list[Tombstone]()
    read = Index.load

    def noted(index: Index, *given: Any) -> Any:
        content = read(index, *given)
        found.extend(content.tombstones)
        return content

    with monkeypatch.context() as patched:
        patched.setattr(Index, "load", noted)
        Store.open(home, "n1", SETTINGS).close()
    return found


def test_it_is_kept_once(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its slots, through seals and restarts; and no row of any of them comes back."""
    delete(store, 1, (2, 50), slots_of_slices(0))
    seal(store, 2)
    delete(store, 3, (2, 50), slots_of_slices(1))
    delete(store, 4, (2, 50), slots_of_slices(1, 2))
    delete(store, 5, (2, 60), slots_of_slices(3))
    of_fifty, of_sixty = tombstones(store)
    assert (50, 4, slots_of_slices(0, 1, 2).numbers) == (of_fifty.version, of_fifty.came_at, frozenset(of_fifty.slots))
    assert {1: 3, 4: 6} == {place: of_fifty.places.count(place) for place in of_fifty.places}
    seal(store, 6)
    store.close()
    assert [of_fifty, of_sixty] == sorted(in_index(home, monkeypatch), key=lambda each: each.version)
    again = Store.open(home, "n1", SETTINGS)
    for number in range(SLICES):
        hand(again, 10 + number, (2, 40), row(number, 1))
    assert {} == contents(again)
    delete(again, 14, (2, 50), slots_of_slices(3))
    seal(again, 15)
    again.close()
    assert [14, 5] == [each.came_at for each in sorted(in_index(home, monkeypatch), key=lambda each: each.version)]


@given(PIECES, st.integers(0, SLOTS_TOTAL), st.integers(0, 7))
def test_it_concerns_a_file_if_one_of_the_times_does(
    pieces: list[tuple[int, list[int]]], cleaned: int, upto: int
) -> None:
    """A file has one applied that came at its slot before; for other slots it may have come later."""
    came = [
        Tombstone("d", "t", 3, version, place=place, slots=tuple(slots), slots_total=SLOTS_TOTAL)
        for place, (version, slots) in enumerate(pieces, 1)
    ]
    kept = [reduce(joined, each) for version in (1, 2) if (each := [one for one in came if one.version == version])]
    assert sorted(kept, key=lambda each: each.to_json()) == sorted(
        (Tombstone.from_json(each.to_json()) for each in kept), key=lambda each: each.to_json()
    )
    for bucket in range(4):
        entry = SegmentEntry("x", "d", "t", 0, bucket, 1, 1, 5, 0, 9, 0, 9, 1, "", "", 1, cleaned)
        slot = slot_of("d", bucket, 0, SLOTS_TOTAL)
        newest = {each.version: each.place for each in came if slot in each.slots}
        wanted = {version for version, place in newest.items() if place > cleaned}
        assert wanted == {each.version for each in TombstoneSet(kept).unapplied(entry)}
        before = {version for version, place in newest.items() if cleaned < place <= upto}
        assert before == {each.version for each in TombstoneSet(kept).up_to(upto).unapplied(entry)}
        later = [left for each in kept if (left := each.since(upto)) is not None]
        behind = {version for version, place in newest.items() if place > max(upto, cleaned)}
        assert behind == {each.version for each in TombstoneSet(later).unapplied(entry)}


class Forgetful(dict[Tombstone, Tombstone]):
    """Knows no delete that came before, so that each is kept apart."""

    def get(self, key: Tombstone, default: Any = None) -> Any:
        """Nothing."""
        del key
        return default


def apart(store: Store) -> None:
    """Let a store keep each delete as often as it comes."""
    store._components.view._handed = Forgetful()


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 500))])
def test_answers_are_those_of_deletes_that_are_kept_apart(tmp_path: Path, seed: int) -> None:
    """Rows, deletes by several ways, seals, merges and restarts in any order: two stores have the same rows."""
    drawn = random.Random(seed)
    homes = [tmp_path / "joined", tmp_path / "apart"]
    stores = [Store.open(home, "n1", SETTINGS) for home in homes]
    apart(stores[1])
    for store in stores:
        store_rows(store, 1, [row(SLICES, 1)], own=True)
    # Rows of one log come in its order. So do deletes, but by several ways: again, and behind rows above them.
    for version in range(2, 60):
        kind = drawn.choices(("rows", "delete", "seal", "merge", "restart"), (8, 8, 3, 2, 1))[0]
        slices, number = drawn.sample(range(SLICES), drawn.randint(1, 3)), drawn.randrange(9)
        given = [row(each, version, at=drawn.randrange(3)) for each in slices]
        for store in stores:
            if kind == "rows":
                store_rows(store, version, given, own=version % 10 == 0)
            elif kind == "delete":
                delete(store, version, (2, 8 * number), slots_of_slices(*slices))
            elif kind == "seal":
                seal(store, version, era=4)
            elif kind == "merge":
                for plan in store.plan_compaction():
                    store.compact(version, plan.inputs).run()
        if kind == "restart":
            for place, store in enumerate(stores):
                seal(store, version, era=4)
                store.close()
                stores[place] = Store.open(homes[place], "n1", SETTINGS)
            apart(stores[1])
        assert contents(stores[0]) == contents(stores[1]), (seed, version, kind)
        assert last(stores[0]) == last(stores[1]), (seed, version, kind)
    assert len(tombstones(stores[0])) <= 9 < len(tombstones(stores[1]))
    for store in stores:
        store.close()


def store_rows(store: Store, version: int, rows: list[Row], *, own: bool) -> None:
    """Rows of this group, or of a former holder."""
    if own:
        store.write(version, 4, CPU, DATABASE, row_batch(CPU, rows))
    else:
        hand(store, version, (2, version), *rows)


def test_what_is_forgotten_does_not_depend_on_when_a_seal_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal has decided about what had come then. What has come since is a delete of its own."""
    monkeypatch.setattr(seal_job, "LATE_TOMBSTONES_MAX", 1)
    delete(store, 1, (2, 50), slots_of_slices(0))
    delete(store, 2, (2, 60), slots_of_slices(0))
    sealing = store.freeze(3, 4, b"")
    delete(store, 4, (2, 50), slots_of_slices(1))
    sealing.run()
    assert [(50, 4, slots_of_slices(1).numbers), (60, 2, slots_of_slices(0).numbers)] == [
        (each.version, each.came_at, frozenset(each.slots)) for each in tombstones(store)
    ]
    hand(store, 5, (2, 40), row(1, 1))
    assert {} == contents(store)
    hand(store, 6, (2, 70), row(1, 2))
    assert expected([row(1, 2)]) == contents(store)
