"""Threads that are kept for the next work, and their priority."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from headrace.connectors.processor import lower_priority
from headrace.consumers.scheduling.driver import Again, Done
from headrace.consumers.scheduling.threaded_driver import ThreadedDriver, Turn
from headrace.consumers.scheduling.work_threads import LONG_FROM_S, NICE_LONG, ThreadPriority, WorkThreads
from tests.unit.scheduling.parts import Steps, VirtualClock
from tests.waiting import eventually

WAIT_S = 60.0


def ran_on(threads: WorkThreads, work: Callable[[ThreadPriority], None] = lambda _priority: None) -> threading.Thread:
    """Run work, and wait until its thread waits for more or has ended; which thread it was."""
    found: SimpleQueue[threading.Thread] = SimpleQueue()

    def noted(priority: ThreadPriority) -> None:
        found.put(threading.current_thread())
        work(priority)

    before = threads.idle
    threads.run(noted, "query a/0")
    thread = found.get(timeout=WAIT_S)
    eventually(lambda: not thread.is_alive() or threads.idle >= max(1, before), "the work ended")
    return thread


def test_a_thread_is_used_again() -> None:
    """The next work runs on it, and has a name of its own."""
    threads = WorkThreads()
    first = ran_on(threads)
    assert first is ran_on(threads)
    assert "query a/0" != first.name
    threads.close()
    assert not first.is_alive()


def test_few_threads_wait() -> None:
    """Those above the limit end, and behind the close every thread ends with its work."""
    threads, gate = WorkThreads(idle_max=2), threading.Event()
    found: SimpleQueue[threading.Thread] = SimpleQueue()

    def waits(_priority: ThreadPriority) -> None:
        found.put(threading.current_thread())
        gate.wait(WAIT_S)

    for _ in range(5):
        threads.run(waits, "query")
    started = [found.get(timeout=WAIT_S) for _ in range(5)]
    gate.set()
    eventually(lambda: sum(thread.is_alive() for thread in started) == 2, "two wait")
    assert 2 == threads.idle
    gate.clear()
    threads.run(waits, "query")
    late = found.get(timeout=WAIT_S)
    threads.close()
    gate.set()
    late.join(WAIT_S)
    assert not any(thread.is_alive() for thread in started)


def test_priority_is_lowered_once() -> None:
    """When work has used more than a short query does, and never again."""
    added = list[int]()
    priority = ThreadPriority(added.append)
    for used_s in (0.0, 0.99 * LONG_FROM_S):
        priority.used(used_s)
    assert ([], False) == (added, priority.is_low)
    for used_s in (LONG_FROM_S, 5.0, 0.0, 10_000.0):
        priority.used(used_s)
    assert ([NICE_LONG], True) == (added, priority.is_low)


def test_a_thread_of_lower_priority_is_not_used_again() -> None:
    """No right can be needed to raise it, so that short work never has it."""
    threads = WorkThreads(lower=lambda _more: None)
    slow = ran_on(threads, lambda priority: priority.used(1.5))
    slow.join(WAIT_S)
    assert not slow.is_alive()
    assert 0 == threads.idle
    assert slow is not ran_on(threads)
    threads.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own elsewhere")
def test_only_the_thread_itself_is_lowered() -> None:
    """The rest of the process keeps its priority."""
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()

    def lowered() -> None:
        lower_priority(3)
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=lowered)
    thread.start()
    thread.join(WAIT_S)
    assert [min(19, before + 3)] == found
    assert before == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize("unbounded", [False, True])
def test_work_that_takes_long_has_lower_priority(unbounded: bool) -> None:
    """A driver lowers its thread when it has used much, or before steps that cannot stop."""
    added = list[int]()
    clock, cpu = VirtualClock(), VirtualClock(0.0)

    def work(turn: Turn) -> None:
        if unbounded:
            turn.set_unbounded()
            assert [NICE_LONG] == added
        cpu.now_s += 10.0
        clock.now_s += 5.0
        turn.pause()
        assert [NICE_LONG] == added

    driver = Steps(ThreadedDriver(work, lambda: None, clock, cpu), lower=added.append)
    if unbounded:
        assert Again(0.0, unbounded=True) == driver.step(1.0)
    assert Again(10.0) == driver.step(1.0)
    assert Done(0.0) == driver.step(1.0)
    driver.close()
