"""A table that was dropped: not listed while it is empty, and listed again with its next row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.store import Store
from headrace.schemas.records import decode_schema_change, encode_schema_change, format_of_change
from headrace.schemas.tables import Catalogue, DatabaseChange, FieldType, TableChange, TableDrop
from tests.unit.store.builders import CPU, Row, seal, write

CREATED = TableChange("plant", "cpu", 0, CPU.tags, CPU.fields)
ROWS: list[Row] = [({"host": "a"}, 1, {"busy": 1}), ({"host": "b"}, 2, {"busy": 2})]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[Store]]:
    """The stores of two groups, without rows."""
    opened = [Store.open(tmp_path / name, name) for name in ("n1", "n2")]
    yield opened
    for store in opened:
        store.close()


def catalogue(*changes: Any) -> Catalogue:
    """A catalogue after changes that all count."""
    made = Catalogue()
    assert all(made.apply(change) for change in (DatabaseChange("plant"), CREATED, *changes))
    return made


def listed(stores: list[Store], known: Catalogue) -> bool:
    """Whether a node lists the table."""
    groups = {store_name: SimpleNamespace(store=store) for store_name, store in zip("ab", stores, strict=True)}
    return [("plant", "cpu")] == LocalSource(cast(Any, groups), known, cast(Any, None)).tables()


def test_a_dropped_table_is_listed_while_it_has_rows(stores: list[Store]) -> None:
    """Hidden once its rows are deleted, sealed or not, before its files are gone; back with the next row of any group,
    whatever schema version that names.
    """
    dropped = catalogue(TableDrop("plant", "cpu", 1))
    write(stores[0], 1, ROWS)
    seal(stores[0], 2)
    write(stores[0], 3, ROWS)
    write(stores[1], 3, ROWS)
    for store in stores:
        store.delete(4, 1, "plant", "cpu", {"host": ("a",)}, None, None)
        assert listed(stores, dropped)
    stores[0].delete(5, 1, "plant", "cpu", {}, None, None)
    assert listed(stores, dropped)
    stores[1].delete(5, 1, "plant", "cpu", {}, None, None)
    assert not listed(stores, dropped)
    assert stores[0].segments()
    for store in stores:
        seal(store, 6)
        for plan in store.plan_compaction():
            store.compact(7, plan.inputs).run()
        assert [] == store.segments()
    assert not listed(stores, dropped)
    write(stores[1], 8, ROWS)
    assert listed(stores, dropped)
    seal(stores[1], 9)
    assert listed(stores, dropped)


def test_a_table_without_rows_is_listed_unless_it_was_dropped(stores: list[Store]) -> None:
    """A table may be made before its first row, and a change of a dropped one makes it known again."""
    assert listed(stores, catalogue())
    dropped = catalogue(TableDrop("plant", "cpu", 1))
    assert not listed(stores, dropped)
    assert dropped.apply(TableChange("plant", "cpu", 1, ("site",)))
    assert listed(stores, dropped)


def test_a_drop_of_a_table_that_changed_meanwhile_does_not_count() -> None:
    """The writer of the change uses the table. A drop of an unknown table does not count either, nor of version 0."""
    known = catalogue(TableChange("plant", "cpu", 1, (), (("more", FieldType.BOOL),)))
    for drop in (TableDrop("plant", "cpu", 1), TableDrop("plant", "disk", 1), TableDrop("plant", "disk", 0)):
        assert not known.apply(drop)
    assert not known.dropped


def test_a_drop_is_a_record_of_the_table_log() -> None:
    """Every reader of the log knows it; one that is too old to know it skips it."""
    log, topics = MemoryLog(clock_ms=lambda: 0), Topics("c")
    log.create_topic(topics.table, {})
    writer, other = SchemaLog(log, topics), SchemaLog(log, topics)
    writer.ensure_database("plant")
    writer.ensure("plant", "cpu", CPU.tags, CPU.field_types())
    assert writer.drop("plant", "cpu")
    other.refresh()
    assert other.catalogue.is_dropped("plant", "cpu")
    assert not writer.drop("plant", "disk")
    drop = TableDrop("plant", "cpu", 1)
    assert ("w", drop) == decode_schema_change(encode_schema_change("w", drop))
    assert 1 == format_of_change(drop)
