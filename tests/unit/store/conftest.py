"""A store in a fresh directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.store import Store, StoreSettings
from tests.memory_directory import tmp_path

__all__ = ["SETTINGS", "home", "store", "tmp_path"]

SETTINGS = StoreSettings(row_group_rows=4, compaction_files_min=2, compaction_rows_max=1_000)
"""Small enough that a handful of rows makes several row groups and a merge."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data directory of `store`."""
    return tmp_path / "data"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """An empty store of group n1."""
    opened = Store.open(home, "n1", SETTINGS)
    yield opened
    opened.close()
