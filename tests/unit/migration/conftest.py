"""A cluster whose fourth node joins, with rows in every group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.migration.moves import HOUR_NS, Moves, random_rows


@pytest.fixture
def moves(tmp_path: Path) -> Iterator[Moves]:
    """All groups are cut, the new one is open at its members, and every node answers."""
    made = Moves(tmp_path)
    try:
        made.write("cpu", random_rows(1))
        made.write("disk", random_rows(2))
        made.delete("cpu", "h1", 0, 3 * HOUR_NS)
        made.cut()
        made.open_target()
        made.serve()
        yield made
    finally:
        made.close()
