"""Steps of jobs on files: a pool repeats them, a full disk is a pause and not a loop, and few failures are damage."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.consumers.replication.group_health import Aspect, GroupHealth, State
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import JobThread, StoreJobQueue
from headrace.consumers.store import Store
from headrace.consumers.store import segment_reader as reader
from tests.unit.store.builders import Row, seal, write

ROWS: list[Row] = [({"host": "a"}, at, {"note": "x"}) for at in range(4)]


def test_a_step_is_repeated_until_it_ends_before_the_next_begins() -> None:
    """The order of submission holds, also for a step that asks for another attempt."""
    pool, attempts = JobThread("test"), list[str]()

    def twice() -> float | None:
        attempts.append("first")
        return 0.0 if len(attempts) < 2 else None

    def once() -> None:
        attempts.append("second")

    pool.submit(twice)
    pool.submit(once).result()
    pool.shutdown()
    assert ["first", "first", "second"] == attempts


def test_a_pause_ends_when_the_pool_is_hurried() -> None:
    """A stopping group does not wait for the end of the pause of a job that a full disk holds."""
    pool, tried, stopping = JobThread("test"), threading.Event(), threading.Event()

    def full_disk() -> float | None:
        tried.set()
        return None if stopping.is_set() else 3_600.0

    handle = pool.submit(full_disk)
    assert tried.wait(60.0)
    stopping.set()
    pool.hurry()
    handle.result()
    pool.shutdown()
    assert handle.done()


@pytest.mark.parametrize("changed", [False, True])
def test_a_merge_that_fails_on_unchanged_bytes_stops_the_group_and_condemns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Every replica would fail alike: one that called it damage would look for a copy that nobody could read."""
    store = Store.open(tmp_path, "n1")
    write(store, 1, ROWS)
    seal(store, 2)
    (entry,) = store.segments()
    path = store.segments_directory / entry.name
    if changed:
        path.write_bytes(path.read_bytes()[:-1] + b"?")

    def overflow(*_arguments: object) -> pa.RecordBatch:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(reader, "_read_open", overflow)
    health = GroupHealth(threading.Condition())
    queue = StoreJobQueue("n1", store, GroupState(), ReplicationLimits(), health, lambda _group, _version: None)
    queue.submit(store.compact(3, [entry.name]))
    queue.drain()
    assert health.holds(State.STOPPED)
    assert entry.name in health.cause(Aspect.RECORDS)
    assert changed is health.holds(State.DAMAGED)
    queue.stop()
    store.close()
