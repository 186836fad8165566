"""Threads of background work have a niceness of their own, and a thread knows how long it waited for a processor."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from headrace.connectors.periodic import PeriodicTask
from headrace.connectors.processor import NICE_MAX, background_threads, lower_priority, processor_time
from headrace.consumers.replication.store_jobs import JobThread
from headrace.consumers.store import StoreSettings, encoding_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="niceness of a thread is Linux's")


def niceness() -> int:
    """That of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_threads_of_background_work_are_nicer() -> None:
    """Relative to the process as it is: whoever runs all of it with a niceness keeps that for the others."""
    before, wanted = niceness(), min(NICE_MAX, niceness() + 3)
    for threads in (background_threads(1, "test", 3), encoding_threads(StoreSettings(), 3)):
        with threads:
            assert wanted == threads.submit(niceness).result()
    found, urgent = list[int](), list[int]()
    jobs = JobThread("test", 3)
    jobs.submit(lambda: found.append(niceness())).result()
    jobs.shutdown()
    jobs = JobThread("test", 3)
    jobs.submit(lambda: urgent.append(niceness()), urgent=lambda: True).result()
    jobs.shutdown()
    task = PeriodicTask("test", 0.01, lambda: found.append(niceness()), nice=3)
    task.start()
    task.wake()
    while len(found) < 2:
        time.sleep(0.01)
    task.stop()
    assert {wanted} == set(found)
    assert [before] == urgent
    with background_threads(1, "test", 0) as threads:
        assert before == threads.submit(niceness).result() == niceness()


def test_threads_that_a_nicer_one_starts_are_no_nicer_for_it() -> None:
    """A pool starts its threads when they are needed: those that encode, from the thread of the store's jobs."""
    wanted = min(NICE_MAX, niceness() + 3)
    with background_threads(1, "outer", 3) as outer, background_threads(1, "inner", 3) as inner:
        assert wanted == outer.submit(lambda: inner.submit(niceness).result()).result()


def test_a_niceness_that_the_system_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done all the same."""

    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    before = niceness()
    lower_priority(19)
    assert before == niceness()


def test_a_thread_knows_what_it_ran() -> None:
    """Its own work counts, and never goes back; where the system counts nothing it is zero."""
    before = processor_time()
    while time.thread_time() < 0.05 or processor_time() == before:
        sum(range(1_000))
        if before == (0.0, 0.0):
            return
    now = processor_time()
    assert now.ran_s > before.ran_s
    assert now.waited_s >= before.waited_s
