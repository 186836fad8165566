"""Short queries beside long ones, simulated: no clock of the machine has a part in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from headrace.consumers.scheduling.multilevel_queue import NS_PER_S
from tests.unit.scheduling.parts import Task
from tests.unit.scheduling.simulation import (
    Work,
    by_the_queue,
    first_come_first_served,
    ideal_sharing,
    percentile,
)

WORKERS = 2
LONG = 8
LONG_S = 15.0
SHORT_S = 0.007
SHORT_PER_S = 50
FROM_S, TO_S = 2.0, 50.0


def works(apart_s: float = 0.0) -> tuple[list[Work], list[Work]]:
    """Eight long queries, `apart_s` between them, and fifty short ones of 7 ms a second while they run."""
    chance = random.Random(11)
    short, at_s = [], FROM_S
    while (at_s := at_s + chance.expovariate(SHORT_PER_S)) < TO_S:
        short.append(Work(at_s, SHORT_S))
    return [Work(number * apart_s, LONG_S) for number in range(LONG)], short


def short_p99_ms(run: Callable[[Sequence[Work]], None], apart_s: float = 0.0) -> tuple[float, float]:
    """The 99th percentile of short queries, and when the last long one ended, in seconds."""
    long, short = works(apart_s)
    run([*long, *short])
    assert all(work.end_s > 0 for work in (*long, *short))
    return 1_000 * percentile([work.latency_s for work in short], 0.99), max(work.end_s for work in long)


def slices_of(unit_s: float) -> Callable[[Sequence[Work]], None]:
    """Slices as the scheduler gives them."""

    def slice_s(task: Task) -> float:
        return max((task.usage.level + 1) * unit_s, task.usage.short_left_ns / NS_PER_S)

    return lambda each: by_the_queue(each, WORKERS, slice_s)


def test_short_queries_do_not_wait_for_long_ones() -> None:
    """With slices of 2 ms their p99 is below twice what it is alone; in a FIFO pool they wait for the long ones."""
    _, alone = works()
    first_come_first_served(alone, WORKERS)
    alone_ms = 1_000 * percentile([work.latency_s for work in alone], 0.99)
    sliced_ms, sliced_end_s = short_p99_ms(slices_of(0.002))
    fifo_ms, _ = short_p99_ms(lambda each: first_come_first_served(each, WORKERS))
    print(f"alone {alone_ms:.1f} ms, slices {sliced_ms:.1f} ms, FIFO {fifo_ms:.0f} ms")
    assert sliced_ms <= 2 * alone_ms
    assert fifo_ms > 1_000 * sliced_ms
    # The processors are never idle, so the long queries lose what the short ones use and no more.
    _, short = works()
    total_s = (LONG * LONG_S + len(short) * SHORT_S) / WORKERS
    assert sliced_end_s == pytest.approx(total_s, rel=0.01)


def test_long_queries_of_different_levels_cost_short_ones_no_more() -> None:
    """A short query waits for no level that is behind another one, and its first slice ends with it."""
    together_ms, _ = short_p99_ms(slices_of(0.002))
    apart_ms, _ = short_p99_ms(slices_of(0.002), apart_s=1.5)
    print(f"in one level {together_ms:.1f} ms, in several {apart_ms:.1f} ms")
    assert apart_ms <= 1.1 * together_ms


def test_sharing_equally_is_worse_for_short_queries() -> None:
    """Levels and not only slices keep short queries short: with equal shares each would have a quarter of a worker."""
    sliced_ms, _ = short_p99_ms(slices_of(0.002))
    equal_ms, _ = short_p99_ms(lambda each: ideal_sharing(each, WORKERS))
    print(f"slices {sliced_ms:.1f} ms, equal sharing {equal_ms:.1f} ms")
    assert sliced_ms < equal_ms


def test_long_queries_are_not_starved() -> None:
    """Where short ones want more than there is, level 0 gets its share of 16 to 8 and no more."""
    long = Work(0.0, 3.0)
    crowd = [Work(1.5 + 0.001 * number, SHORT_S) for number in range(1_000)]
    by_the_queue([long, *crowd], 1, lambda task: (task.usage.level + 1) * 0.002)
    # Behind the first second the long query has at least a third of the worker.
    assert long.end_s <= 1.5 + 3 * 1.5 + 0.1
    assert max(work.end_s for work in crowd) > long.end_s
