"""The DuckDB instances that a node keeps for its queries."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.query import database as database_module
from headrace.consumers.query.database import IDLE_KEPT, SPARE_INTERVAL_S, Instance, LockedDatabase
from headrace.consumers.query.query_errors import QueryCancelled, QueryError
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


def test_moments_without_a_zone_are_utc_on_every_machine(tmp_path: Path) -> None:
    """Also where a node's process has another zone."""
    script = """
from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.settings import QuerySettings
database = LockedDatabase([], QuerySettings())
moments = "to_timestamp(0)::TIMESTAMP::VARCHAR, (TIMESTAMP '2026-01-01')::TIMESTAMPTZ::VARCHAR"
print(database.lease(32).connection.sql(f"SELECT {moments}").fetchall())
"""
    env = {**os.environ, "TZ": "America/New_York"}
    ended = subprocess.run([sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, check=True)
    assert "[('1970-01-01 00:00:00', '2026-01-01 00:00:00+00')]" == ended.stdout.decode().strip()


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


class Slow:
    """Makes instances when a test lets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()
        opens = database_module._open

        def slow(*given: Any) -> Any:
            self.begun.release()
            assert self.may_end.wait(60)
            return opens(*given)

        patch.setattr(database_module, "_open", slow)


def test_a_query_takes_what_comes_back_while_another_makes_one(
    tmp_path: Path, made: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of queries does not make an instance each: one at a time is made, and the others take what is sooner."""
    database = LockedDatabase([tmp_path], QuerySettings())
    first = database.lease(MEMORY_MB)
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(4) as threads:
        making = threads.submit(database.lease, MEMORY_MB)
        assert slow.begun.acquire(timeout=60)
        waiting = [threads.submit(database.lease, MEMORY_MB) for _ in range(2)]
        eventually(lambda: len(database._changed._waiters) == 2, "two wait")  # type: ignore[attr-defined]
        database.give_back(first, reusable=True)
        eventually(lambda: any(each.done() for each in waiting), "one has what came back")
        assert [True] == [each.result() is first for each in waiting if each.done()]
        slow.may_end.set()
        leased = {making.result(60), *(each.result(60) for each in waiting)}
    assert leased == {*made}
    assert 3 == len(made)
    for instance in leased:
        database.give_back(instance, reusable=True)
    database.close()


def test_a_query_waits_outside_for_what_is_made(tmp_path: Path) -> None:
    """It has no worker meanwhile; one that finds an idle instance keeps it."""
    database, waits = LockedDatabase([tmp_path], QuerySettings()), list[str]()

    @contextmanager
    def outside() -> Iterator[None]:
        waits.append("begins")
        yield
        waits.append("ends")

    for _ in range(2):
        database.give_back(database.lease(MEMORY_MB, outside), reusable=True)
    assert ["begins", "ends"] == waits
    database.close()


def test_a_query_that_ends_while_it_waits_leaves_the_instance(tmp_path: Path, made: list[Instance]) -> None:
    """What was made for it is for the next one."""
    database = LockedDatabase([tmp_path], QuerySettings())

    @contextmanager
    def outside() -> Iterator[None]:
        yield
        raise QueryCancelled("the query was cancelled before its end")

    with pytest.raises(QueryCancelled):
        database.lease(MEMORY_MB, outside)
    assert made == [database.lease(MEMORY_MB)]
    database.give_back(made[0], reusable=True)
    database.close()


def test_the_close_ends_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get an error at once, and who makes an instance gets it."""
    database, slow = LockedDatabase([tmp_path], QuerySettings()), Slow(monkeypatch)
    with ThreadPoolExecutor(2) as threads:
        making = threads.submit(database.lease, MEMORY_MB)
        assert slow.begun.acquire(timeout=60)
        waiting = threads.submit(database.lease, MEMORY_MB)
        eventually(lambda: bool(database._changed._waiters), "one waits")  # type: ignore[attr-defined]
        database.close()
        with pytest.raises(QueryError):
            waiting.result(60)
        slow.may_end.set()
        database.give_back(making.result(60), reusable=True)
    assert [] == database._idle
