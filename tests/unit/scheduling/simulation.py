"""Queries on simulated processors: the ready queue, first come first served, and ideal sharing. A virtual clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.consumers.scheduling.multilevel_queue import MultilevelQueue
from tests.unit.scheduling.parts import Task


@dataclass(eq=False)
class Work:
    """A query of one driver that needs some processor time."""

    arrival_s: float
    need_s: float
    task: Task = field(default_factory=Task)
    end_s: float = -1.0

    @property
    def latency_s(self) -> float:
        """From its arrival to its end."""
        return self.end_s - self.arrival_s


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def by_the_queue(works: Sequence[Work], workers: int, slice_of: Callable[[Task], float]) -> None:
    """Give each query its end under the multilevel queue."""
    queue = MultilevelQueue[Task]()
    owners = {work.task: work for work in works}
    left_s = {work.task: work.need_s for work in works}
    arrivals = deque(sorted(works, key=lambda work: work.arrival_s))
    free = workers
    # The end of a slice, a number to break ties, the driver, and how long it ran.
    running: list[tuple[float, int, Task, float]] = []
    number, now_s = 0, 0.0
    while arrivals or running or len(queue):
        while free and (task := queue.poll()) is not None:
            ran_s = min(slice_of(task), left_s[task])
            number += 1
            heapq.heappush(running, (now_s + ran_s, number, task, ran_s))
            free -= 1
        next_end_s = running[0][0] if running else float("inf")
        if arrivals and arrivals[0].arrival_s <= next_end_s:
            work = arrivals.popleft()
            now_s = max(now_s, work.arrival_s)
            queue.offer(work.task)
            continue
        now_s, _, task, ran_s = heapq.heappop(running)
        free += 1
        left_s[task] -= ran_s
        queue.charge(task, ran_s)
        if left_s[task] > 1e-12:
            queue.offer(task)
        else:
            queue.remove(task)
            owners[task].end_s = now_s


def first_come_first_served(works: Sequence[Work], workers: int) -> None:
    """Give each query its end in a pool that runs each to its end."""
    free_s = [0.0] * workers
    for work in sorted(works, key=lambda each: each.arrival_s):
        work.end_s = max(work.arrival_s, heapq.heappop(free_s)) + work.need_s
        heapq.heappush(free_s, work.end_s)


def ideal_sharing(works: Sequence[Work], workers: int) -> None:
    """Give each query its end where all that are there progress at once, none faster than one processor."""
    arrivals = deque(sorted(works, key=lambda work: work.arrival_s))
    left_s: dict[Work, float] = {}
    now_s = 0.0
    while arrivals or left_s:
        rate = min(1.0, workers / len(left_s)) if left_s else 1.0
        end_s = now_s + min(left_s.values()) / rate if left_s else float("inf")
        until_s = min(end_s, arrivals[0].arrival_s) if arrivals else end_s
        for work in left_s:
            left_s[work] -= (until_s - now_s) * rate
        now_s = until_s
        for work in [each for each, left in left_s.items() if left <= 1e-9]:
            work.end_s = now_s
            del left_s[work]
        if arrivals and arrivals[0].arrival_s <= now_s:
            work = arrivals.popleft()
            left_s[work] = work.need_s
