"""A periodic task runs at its interval, and at once when it is woken."""

from __future__ import annotations

import threading

from headrace.connectors.periodic import PeriodicTask


def test_a_task_that_is_woken_does_not_wait_for_its_interval() -> None:
    """Also when that comes while it runs: what it has read before may be old."""
    runs, ran, go_on = [0], threading.Semaphore(0), threading.Semaphore(0)

    def run() -> None:
        runs[0] += 1
        ran.release()
        go_on.acquire()

    task = PeriodicTask("test", 3_600.0, run)
    task.start()
    task.wake()
    assert ran.acquire(timeout=60.0)
    task.wake()
    go_on.release()
    assert ran.acquire(timeout=60.0)
    task.request_stop()
    go_on.release()
    task.stop()
    assert not task.alive
    assert 2 == runs[0]


def test_a_task_that_waits_stops_at_once() -> None:
    """And runs no more, also when it is woken then."""
    runs: list[int] = []
    task = PeriodicTask("test", 3_600.0, lambda: runs.append(1))
    task.start()
    task.stop()
    task.wake()
    assert not task.alive
    assert [] == runs
