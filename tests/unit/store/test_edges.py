"""Rows at the edges: of time ranges, ranks, schemas and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.consumers.store import Store, StoreDamaged
from headrace.schemas.tables import FieldType
from tests.unit.store.builders import CPU, HOUR_NS, Row, contents, expected, seal, write

A, B = {"host": "a"}, {"host": "b"}


def row(at: int, value: int, tags: dict[str, str] = A) -> Row:
    """One row."""
    return tags, at, {"busy": value}


@pytest.mark.parametrize(("start_ns", "end_ns", "left"), [(9, None, [1, 5]), (None, 2, [5, 9]), (9, 9, [1, 5, 9])])
def test_a_delete_reaches_the_first_and_the_last_row_of_a_file(
    store: Store, start_ns: int | None, end_ns: int | None, left: list[int]
) -> None:
    """Its start is included and its end is not."""
    write(store, 1, [row(at, at) for at in (1, 5, 9)])
    seal(store, 2)
    store.delete(3, 1, "plant", "cpu", {}, start_ns, end_ns)
    assert expected([row(at, at) for at in left]) == contents(store)


def test_a_delete_of_the_version_of_a_seal_is_applied_once(store: Store) -> None:
    """The seal has removed its rows: no file waits for it, and none is rewritten for it.

    Of a later era, and between the first and the last row: neither rank nor times show that it is applied.
    """
    write(store, 1, [row(1, 1), row(2, 2), row(3, 3)])
    store.delete(2, 2, "plant", "cpu", {}, 2, 3)
    seal(store, 2, era=2)
    assert expected([row(1, 1), row(3, 3)]) == contents(store)
    assert () == store._components.view.tombstones()
    assert [] == store.plan_compaction()


def test_a_row_at_the_end_of_one_file_and_within_another_is_there_once(store: Store) -> None:
    """Neither the first nor the last time of its series in both: only the times in the files show it."""
    write(store, 1, [row(1, 1), row(5, 1), row(10, 1)])
    seal(store, 2)
    write(store, 3, [row(2, 2), row(10, 2), row(20, 2)])
    seal(store, 4)
    assert expected([row(1, 1), row(2, 2), row(5, 1), row(10, 2), row(20, 2)]) == contents(store)


def test_a_drop_keeps_rows_of_higher_rank(store: Store) -> None:
    """Rows of a later era are not hidden by a drop of an earlier one, so their file must stay."""
    write(store, 1, [row(1, 1)], era=2)
    seal(store, 2)
    job = store.drop(3, 1, "plant", "cpu", HOUR_NS)
    assert job is not None
    job.run()
    assert expected([row(1, 1)]) == contents(store)


def test_rows_of_eras_that_alternate_are_all_in_files(store: Store) -> None:
    """A seal writes one file for all rows of an era, wherever those of another are between them."""
    for version, era in ((1, 2), (2, 1), (3, 2)):
        write(store, version, [row(version, version)], era=era)
    seal(store, 4)
    assert expected([row(1, 1), row(2, 2), row(3, 3)]) == contents(store)


def test_an_older_schema_that_comes_later_hides_no_column(store: Store) -> None:
    """In memory, and after a seal of rows that were all written with the older one."""
    newer = replace(CPU, version=2, fields=tuple(sorted((*CPU.fields, ("extra", FieldType.INT64)))))
    write(store, 1, [(A, 1, {"extra": 7})], schema=newer)
    write(store, 2, [row(2, 2)])
    assert newer == store.schema("plant", "cpu")
    seal(store, 3)
    write(store, 4, [row(3, 3)])
    seal(store, 5)
    assert newer == store.schema("plant", "cpu")


def test_a_merge_has_the_columns_of_the_newest_schema_among_its_inputs(store: Store) -> None:
    """A writer with the older one may come later."""
    newer = replace(CPU, version=2, fields=tuple(sorted((*CPU.fields, ("extra", FieldType.INT64)))))
    write(store, 1, [(A, 1, {"extra": 7})], schema=newer)
    seal(store, 2)
    write(store, 3, [row(2, 2)])
    store.freeze(4, 1, b"", {("plant", "cpu"): CPU}).run()
    inputs = [entry.name for entry in store.segments()]
    assert [2, 1] == [entry.schema_version for entry in store.segments()]
    store.compact(5, inputs).run()
    assert [2] == [entry.schema_version for entry in store.segments()]
    assert expected([(A, 1, {"extra": 7}), row(2, 2)]) == contents(store, newer)
    assert newer == store.schema("plant", "cpu")


def test_a_scan_that_fails_keeps_no_file_on_disk(store: Store, home: Path) -> None:
    """Else a file that cannot be read would stay for ever after a merge has replaced it."""
    for version in (1, 3):
        write(store, version, [row(1, version)])
        seal(store, version + 1)
    path = home / "segments" / "n1" / store.segments()[0].name
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(StoreDamaged), store.scan("plant", "cpu"):
        pass
    assert frozenset() == store._components.files.pinned()
