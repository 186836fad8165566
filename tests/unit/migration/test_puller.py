"""Slots come to every member of the group that gained them, with all of their rows, whatever happens on the way."""

from __future__ import annotations

from headrace.consumers.store import Store
from tests.unit.migration.moves import TABLE, TABLES, Moves
from tests.unit.store.builders import Row, contents, expected
from tests.unit.store.test_deletes import last


def newest(rows: list[Row]) -> list[Row]:
    """The last row of each series."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda each: each[1]):
        found[row[0]["host"]] = row
    return list(found.values())


def has_all(moves: Moves, store: Store) -> None:
    """A store has exactly the rows of the slots that moved, and their last rows."""
    for table, schema in TABLES.items():
        rows = moves.moved_rows(table)
        assert rows
        assert expected(rows) == contents(store, schema)


def finished(moves: Moves) -> None:
    """The change has ended, and every member has everything."""
    assert None is moves.state.change
    for member in TABLE.group("n4"):
        store = moves.nodes[member].target.store
        assert [] == store.awaited()
        has_all(moves, store)
        assert expected(newest(moves.moved_rows("cpu"))) == last(store)
        assert [] == list(store.staging_directory.glob("*"))


def test_every_member_gets_every_row_of_the_slots(moves: Moves) -> None:
    """With deletes and last rows. The change ends only when all takeovers are accepted."""
    moves.turns(count=10)
    assert [] == moves.reports
    assert all(frozenset() == moves.nodes[member].puller.pulling("n4") for member in TABLE.group("n4"))
    moves.hand_over()
    moves.turns(count=10)
    finished(moves)
