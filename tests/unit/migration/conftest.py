"""A cluster whose fourth node joins, with rows in every group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.consumers.migration.peer_cut import PeerCut
from tests.memory_directory import tmp_path
from tests.unit.migration.moves import GAINED, Moves, random_rows, slot_of_row
from tests.unit.store.builders import HOUR_NS, Row

__all__ = ["STAYING", "moves", "one_by_one", "tmp_path", "unchanged_moves"]

STAYING = (0, 5, 10, 20)
"""Slots that do not move, and have rows all the same. A store has a file for each slice of each slot."""


@pytest.fixture
def moves(tmp_path: Path) -> Iterator[Moves]:
    """All groups are cut, the new one is open at its members, and every node answers."""
    with moving(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def unchanged_moves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moves]:
    """The same, once for all tests of a file that only ask."""
    with moving(tmp_path_factory.mktemp("moves")) as made:
        yield made


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No files come together: each is asked for alone, as large ones are."""
    monkeypatch.setattr(PeerCut, "stage_together", lambda *_of: frozenset())


@contextmanager
def moving(directory: Path) -> Iterator[Moves]:
    """See `moves`."""
    made = Moves(directory)
    try:
        for seed, table in enumerate(("cpu", "disk"), 1):
            made.write(table, of_some_slots(table, random_rows(seed)))
        made.delete("cpu", "h1", 0, 3 * HOUR_NS)
        made.cut()
        made.open_target()
        made.serve()
        yield made
    finally:
        made.close()


def of_some_slots(table: str, rows: list[Row]) -> list[Row]:
    """The rows of the slots that move, and of some that stay."""
    return [row for row in rows if slot_of_row(table, row[0], row[1]) in {*GAINED, *STAYING}]
