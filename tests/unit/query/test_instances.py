"""The DuckDB instances that a node keeps for its queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.query import database as database_module
from headrace.consumers.query.database import IDLE_KEPT, SPARE_INTERVAL_S, Instance, LockedDatabase
from headrace.consumers.query.settings import QuerySettings
from tests.unit.scheduling.parts import VirtualClock
from tests.waiting import eventually

MEMORY_MB = 32


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Instance]:
    """Every instance, in the order in which they are made."""
    found: list[Instance] = []

    class Noted(Instance):
        def __init__(self, memory_mb: int, connection: object) -> None:
            super().__init__(memory_mb, connection)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(database_module, "Instance", Noted)
    return found


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LockedDatabase]:
    """One that makes instances ahead."""
    opened = LockedDatabase([tmp_path], QuerySettings(), spare_mb=MEMORY_MB)
    try:
        yield opened
    finally:
        opened.close()


def test_queries_that_follow_each_other_share_one_instance(database: LockedDatabase, made: list[Instance]) -> None:
    """None is made ahead for them: it takes memory."""
    for _ in range(5):
        database.give_back(database.lease(MEMORY_MB), reusable=True)
    assert len(made) == 1


def test_beside_running_queries_instances_are_made_ahead(database: LockedDatabase, made: list[Instance]) -> None:
    """Queries that come then find one, and do not make it themselves."""
    lent = [database.lease(MEMORY_MB) for _ in range(4)]
    eventually(lambda: len(made) == 6, "half as many as are lent")
    first = database.lease(MEMORY_MB)
    assert first in made[:6]
    for instance in (*lent, first):
        database.give_back(instance, reusable=True)


def test_a_lease_that_fails_counts_as_none(
    database: LockedDatabase, made: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that could not be made keeps nobody's place."""

    def fails(*_given: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(database_module, "_open", fails)
        for _ in range(8):
            with pytest.raises(OSError, match="no space left"):
                database.lease(MEMORY_MB)
    database.give_back(database.lease(MEMORY_MB), reusable=True)
    database.close()
    assert len(made) == 1


def test_without_a_thread_for_spares_queries_run_all_the_same(
    database: LockedDatabase, made: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may start no more threads loses neither an instance nor its place."""

    def refused() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(database._spares, "start", refused)
    lent = [database.lease(MEMORY_MB) for _ in range(4)]
    for instance in lent:
        database.give_back(instance, reusable=True)
    again = database.lease(MEMORY_MB)
    database.give_back(again, reusable=True)
    assert again in lent
    assert len(made) == 4


def test_instances_that_nobody_needs_are_closed(tmp_path: Path, made: list[Instance]) -> None:
    """What many long queries took together is kept for the next such time, and for a quiet minute behind it."""
    clock = VirtualClock()
    database = LockedDatabase([tmp_path], QuerySettings(), clock_s=clock)

    def lend(number: int) -> None:
        for instance in [database.lease(MEMORY_MB) for _ in range(number)]:
            database.give_back(instance, reusable=True)

    many = IDLE_KEPT + 4
    lend(many)
    lend(many)
    assert many == len(made)
    steps = ((many, many), (many - 2, many - 2), (many, many), (3, IDLE_KEPT), (0, IDLE_KEPT))
    for needed, left in steps:
        lend(needed)
        clock.now_s += SPARE_INTERVAL_S
        database._tend_idle()
        assert left == len(database._idle), (needed, left)
    database.close()
