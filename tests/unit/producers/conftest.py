"""The scene of every test of producers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.producers.scene import (
    Scene,
    open_scene,
)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A cluster of three nodes, all of which hold every row."""
    with open_scene() as made:
        yield made
