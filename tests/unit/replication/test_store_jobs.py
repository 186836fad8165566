"""Steps of jobs on files: a pool repeats them, and a full disk is a pause and not a loop."""

from __future__ import annotations

import threading

from headrace.consumers.replication.store_jobs import JobThread


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
