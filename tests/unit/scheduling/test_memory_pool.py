"""Small queries beside large ones, and what queries lend while they wait for their readers."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from headrace.consumers.scheduling.driver import Blocked, BlockedOn
from headrace.consumers.scheduling.memory_pool import MemoryPool
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.task_states import TaskState
from tests.unit.scheduling.parts import Bench, ScriptedDriver, blocked

LIMIT, LARGE, SMALL = 100, 25, 3


def pool() -> MemoryPool:
    """A pool with a quarter for small queries."""
    return MemoryPool(LIMIT, LARGE, SMALL)


def lending(kept_bytes: int) -> tuple[Blocked, Future[None]]:
    """A step that waits for its reader, and keeps so much."""
    step, future = blocked(BlockedOn.OUTPUT)
    return Blocked(step.future, step.on, keeps_bytes=kept_bytes), future


def test_small_queries_do_not_wait_for_large_ones() -> None:
    """Large ones never hold the share of the small ones, who pass a large one that waits as far as it reaches."""
    memory = pool()
    assert [memory.reserve(name, LARGE) for name in "abcd"] == [True, True, True, False]
    assert [memory.reserve(f"s{number}", SMALL) for number in range(9)] == [True] * 8 + [False]
    assert 99 == memory.held_bytes
    assert ["d"] == memory.release("a")
    assert ["s8"] == memory.release("s0")


def test_small_queries_use_what_no_large_one_waits_for() -> None:
    """Their share is not their limit; once a large one waits, they keep it out no longer than those that run take."""
    memory = pool()
    names = [f"s{number}" for number in range(33)]
    assert all(memory.reserve(name, SMALL) for name in names)
    assert not memory.reserve("large", LARGE)
    assert not memory.reserve("late", SMALL)
    granted = [memory.release(name) for name in names]
    assert ["large"] == granted[7]
    assert "late" in {name for each in granted[8:] for name in each}


def test_without_a_share_all_wait_in_order() -> None:
    """Where one large query may have everything, nothing is set aside, and small ones wait behind it."""
    memory = MemoryPool(LIMIT, LIMIT, SMALL)
    assert memory.reserve("a", LIMIT)
    assert not memory.reserve("small", SMALL)
    assert not memory.reserve("large", LIMIT)
    assert ["small"] == memory.release("a")
    assert ["large"] == memory.release("small")


def test_what_is_lent_is_taken_back_first() -> None:
    """A query that lends holds what it keeps; it comes before those that wait, and waits if too little is left."""
    memory = pool()
    assert all(memory.reserve(name, LARGE) for name in "abc")
    assert [False, False] == [memory.reserve(name, LARGE) for name in "de"]
    assert [] == memory.lend("a", 10)
    assert ["d"] == memory.lend("b", 5)
    assert (10, 5, 25) == (memory.held_by("a"), memory.held_by("b"), memory.held_by("d"))
    assert not memory.take_back("b")
    assert memory.reserve("s", SMALL)
    assert ["b"] == memory.release("c")
    assert memory.take_back("a")
    assert ["e"] == memory.release("d")
    assert 3 * LARGE + SMALL == memory.held_bytes


def test_nobody_keeps_more_than_it_has() -> None:
    """A statement that holds more than its query reserved is counted with that; lending twice is fine."""
    memory = pool()
    assert memory.reserve("a", LARGE)
    memory.lend("a", 1_000)
    assert LARGE == memory.held_by("a")
    memory.lend("a", 1)
    memory.lend("unknown", 1)
    assert (1, True, True) == (memory.held_bytes, memory.take_back("a"), memory.take_back("unknown"))
    assert LARGE == memory.held_bytes


@pytest.mark.parametrize("seed", range(20))
def test_queries_that_lend_do_not_wait_for_each_other(seed: int) -> None:
    """Whatever they reserve, keep and take back: as long as somebody waits, somebody else can run on or has ended."""
    chance, memory = random.Random(seed), pool()
    running, lent, waiting, number = set[str](), set[str](), set[str](), 0
    for _ in range(2_000):
        granted: list[str] = []
        match chance.randrange(4):
            case 0 if len(running | lent | waiting) < 40:
                number += 1
                wanted = chance.choice([SMALL, LARGE, chance.randint(1, LARGE)])
                (running if memory.reserve(str(number), wanted) else waiting).add(str(number))
            case 1 if running:
                name = chance.choice(sorted(running))
                running.remove(name)
                lent.add(name)
                granted = memory.lend(name, chance.randint(0, LARGE))
            case 2 if lent:
                name = chance.choice(sorted(lent))
                lent.remove(name)
                (running if memory.take_back(name) else waiting).add(name)
            case 3 if running:
                name = chance.choice(sorted(running))
                running.remove(name)
                granted = memory.release(name)
        waiting -= set(granted)
        running |= set(granted)
        assert memory.held_bytes <= LIMIT
        # Every reader comes: then somebody must have memory, or nobody wants any.
        assert running or lent or not waiting
    while running or lent or waiting:
        if lent:
            name = lent.pop()
            (running if memory.take_back(name) else waiting).add(name)
            continue
        assert running, "all wait for each other"
        granted = memory.release(name := running.pop())
        waiting -= set(granted)
        running |= set(granted)
    assert (0, 0) == (memory.held_bytes, memory.waiting)


def test_a_driver_that_waits_for_its_reader_lends_its_memory() -> None:
    """Another query runs meanwhile; behind the wait it runs on once it has all of its memory again."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=100))
    (lends, reader), (holds, done) = lending(30), blocked()
    first = bench.submit(ScriptedDriver([lends]), memory_bytes=100)
    second = bench.submit(ScriptedDriver([holds]), memory_bytes=70)
    bench.run()
    assert [30, 70] == [report.memory_bytes for report in bench.scheduler.reports()]
    reader.set_result(None)
    bench.run()
    report = bench.scheduler.reports()[0]
    assert (TaskState.BLOCKED, BlockedOn.MEMORY, 30) == (report.state, report.blocked_on, report.memory_bytes)
    done.set_result(None)
    bench.run()
    assert (True, True) == (first.wait(0), second.wait(0))
    figures = bench.scheduler.figures()
    assert (0, 0, 0) == (figures.memory_bytes, figures.reserved, figures.queries)


def test_a_query_that_lends_can_be_killed() -> None:
    """While it waits for its reader, and while it waits for its memory; nothing is left of it."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=100))
    (lends, reader), (holds, done) = lending(30), blocked()
    first = bench.submit(ScriptedDriver([lends]), memory_bytes=100)
    bench.submit(ScriptedDriver([holds]), memory_bytes=70)
    bench.run()
    reader.set_result(None)
    bench.run()
    bench.scheduler.kill(first.id)
    bench.run()
    assert [70] == [report.memory_bytes for report in bench.scheduler.reports()]
    done.set_result(None)
    bench.run()
    assert 0 == bench.scheduler.figures().memory_bytes


def test_drivers_of_a_query_of_several_lend_nothing() -> None:
    """The others still run with its memory."""
    bench = Bench(SchedulerLimits(memory_bytes=100, memory_per_query_bytes=100))
    lends, reader = lending(30)
    bench.submit(ScriptedDriver([lends]), ScriptedDriver(), memory_bytes=100)
    bench.run()
    assert 100 == bench.scheduler.figures().memory_bytes
    reader.set_result(None)
    bench.run()
    assert 0 == bench.scheduler.figures().memory_bytes


def test_a_query_grows_at_once_or_not_at_all() -> None:
    """As far as a large one may, never past somebody who waits, and never to less than it has."""
    memory = MemoryPool(LIMIT, 60, SMALL)
    assert memory.reserve("a", SMALL)
    assert memory.reserve("b", 40)
    assert not memory.grow("a", 36)
    assert memory.grow("a", 35)
    assert memory.grow("a", 1)
    assert 75 == memory.held_bytes
    assert not memory.reserve("c", 5)
    assert not memory.grow("b", 41)
    assert ["c"] == memory.release("b")
    assert memory.grow("a", 60)
    assert not memory.grow("a", 61)
    assert [] == memory.release("a")
    assert 5 == memory.held_bytes
    passed = MemoryPool(LIMIT, 60)
    assert [passed.reserve("a", 30), passed.reserve("b", 20), passed.reserve("c", 60)] == [True, True, False]
    assert not passed.grow("a", 40)
