"""Places, memory and deadlines of queries."""

from __future__ import annotations

import pytest

from headrace.consumers.scheduling.capacity import Capacity, CapacityLimits
from headrace.consumers.scheduling.memory_pool import MemoryPool
from headrace.consumers.scheduling.scheduling_errors import QueryMemory, QueryTooLarge, TooManyQueries
from headrace.consumers.scheduling.timeout_queue import SLEEP_S_MAX, STALE_MIN, TimeoutQueue


def test_places_of_drivers_are_limited() -> None:
    """A query gets places for all its drivers or none; a driver that ends frees one, once."""
    capacity = Capacity(CapacityLimits(drivers_max=3))
    capacity.admit("a", "", ["a/0", "a/1"])
    with pytest.raises(TooManyQueries) as refused:
        capacity.admit("b", "", ["b/0", "b/1"])
    assert refused.value.retriable
    assert "retry after" in refused.value.action
    assert (2, 1) == (capacity.drivers, capacity.queries)
    capacity.end_driver("a/0")
    capacity.end_driver("a/0")
    capacity.admit("b", "", ["b/0", "b/1"])
    assert 3 == capacity.drivers


def test_queries_are_limited() -> None:
    """Together, and those of each user; a query that ends twice frees one place."""
    capacity = Capacity(CapacityLimits(queries_max=3, queries_per_user_max=2))
    capacity.admit("a", "ann", ["a/0"])
    capacity.admit("b", "ann", ["b/0"])
    with pytest.raises(TooManyQueries, match="2 queries of user ann"):
        capacity.admit("c", "ann", ["c/0"])
    capacity.admit("c", "", ["c/0"])
    with pytest.raises(TooManyQueries, match="3 queries"):
        capacity.admit("d", "ben", ["d/0"])
    capacity.end_query("a")
    capacity.end_query("a")
    assert (1, 2) == (capacity.of_user("ann"), capacity.queries)
    capacity.admit("d", "ann", ["d/0"])


def test_drivers_of_one_query_are_limited() -> None:
    """That is no matter of waiting, so it is not retriable."""
    capacity = Capacity(CapacityLimits(drivers_per_query_max=2))
    with pytest.raises(QueryTooLarge) as refused:
        capacity.admit("a", "", ["a/0", "a/1", "a/2"])
    assert not refused.value.retriable
    assert (0, 0) == (capacity.drivers, capacity.queries)


def test_memory_is_served_in_order() -> None:
    """A query that must wait is not passed by smaller ones, and waits without holding any."""
    pool = MemoryPool(100, 100)
    assert pool.reserve("a", 60)
    assert not pool.reserve("large", 50)
    assert not pool.reserve("small", 10)
    assert (60, 0, 2) == (pool.held_bytes, pool.held_by("large"), pool.waiting)
    assert ["large", "small"] == pool.release("a")
    assert (60, 0) == (pool.held_bytes, pool.waiting)
    assert not pool.reserve("b", 41)
    assert [] == pool.release("unknown")
    assert ["b"] == pool.release("small")


def test_memory_that_is_free_waits_for_a_large_query() -> None:
    """What would be enough for a later query does not go to it, or small ones could keep a large one out for ever."""
    pool = MemoryPool(100, 100)
    assert pool.reserve("a", 60)
    assert pool.reserve("b", 40)
    assert not pool.reserve("large", 80)
    assert not pool.reserve("small", 10)
    assert [] == pool.release("b")
    assert ["large", "small"] == pool.release("a")


def test_queries_without_memory_wait_for_nobody() -> None:
    """One that reserves nothing runs at once, also beside those that wait."""
    pool = MemoryPool(100, 100)
    assert pool.reserve("a", 100)
    assert not pool.reserve("b", 1)
    assert pool.reserve("c", 0)


def test_a_query_that_leaves_lets_others_in() -> None:
    """One that waited may have been the only one that was too large."""
    pool = MemoryPool(100, 100)
    assert pool.reserve("a", 60)
    assert not pool.reserve("large", 50)
    assert not pool.reserve("small", 40)
    assert ["small"] == pool.release("large")
    assert [] == pool.release("large")
    assert (100, 0) == (pool.held_bytes, pool.waiting)


@pytest.mark.parametrize("limit", [(100, 50), (50, 100)])
def test_one_query_has_a_limit(limit: tuple[int, int]) -> None:
    """It would wait for ever, so it is refused."""
    pool = MemoryPool(*limit)
    with pytest.raises(QueryMemory):
        pool.reserve("a", 51)
    assert (0, 0) == (pool.held_bytes, pool.waiting)
    assert pool.reserve("a", 50)


def test_deadlines_come_in_order() -> None:
    """Only those that have passed and were not removed, each once."""
    queue = TimeoutQueue()
    for name, deadline_s in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        queue.add(name, deadline_s)
    queue.remove("b")
    queue.remove("unknown")
    assert [] == queue.expired(0.9)
    assert ["a", "c"] == queue.expired(3.0)
    assert [] == queue.expired(3.0)
    assert 1 == len(queue)


def test_the_sentinel_sleeps_a_bounded_time() -> None:
    """Whatever the deadlines are, and not at all behind one."""
    queue = TimeoutQueue()
    assert SLEEP_S_MAX == queue.sleep_s(7.0)
    queue.add("far", 1e12)
    assert SLEEP_S_MAX == queue.sleep_s(7.0)
    queue.add("near", 8.0)
    assert 1.0 == queue.sleep_s(7.0)
    assert 0.0 == queue.sleep_s(8.5)


def test_the_sentinel_is_woken_for_an_earlier_deadline_only() -> None:
    """A query that ends behind the moment at which it looks again anyway wakes nobody."""
    queue = TimeoutQueue()
    assert not queue.add("before it sleeps", 8.0)
    assert 1.0 == queue.sleep_s(7.0)
    assert not queue.add("later", 9.0)
    assert not queue.add("at that moment", 8.0)
    assert queue.add("earlier", 7.5)
    assert 0.5 == queue.sleep_s(7.0)
    assert not queue.add("later than that", 7.75)


def test_ended_queries_leave_no_places() -> None:
    """Many short queries with far deadlines do not let the heap grow."""
    queue = TimeoutQueue()
    for number in range(10_000):
        queue.add(str(number), 60.0 + number)
        queue.remove(str(number))
    assert 0 == len(queue)
    assert queue.places <= STALE_MIN


def test_a_name_may_come_back() -> None:
    """The deadline of an earlier query of the same name ends nobody."""
    queue = TimeoutQueue()
    queue.add("a", 1.0)
    queue.remove("a")
    queue.add("a", 5.0)
    assert [] == queue.expired(4.0)
    assert ["a"] == queue.expired(5.0)
