"""The ready queue of the driver scheduler: which of the drivers that can run runs next. Pure.

The rule is that of Trino's MultilevelSplitQueue, with queries in the place of tasks. A query is in the level that its
time so far gives it, and all its drivers share that time. Levels share the workers: each gets `multiplier` times the
time of the next one. In a level the query that has used least there goes first.

Four rules differ, the first two since queues are shallow here. A level is raised to its share when it was *idle*, so
that it does not catch up on time that it had no use for. A level whose only driver is running is not idle. A level is
also raised when a running query comes into it: otherwise queries that cross a threshold together would run alone until
their new level has caught up. It is raised to the share of the level that is served now, as in start-time fair
queueing, and not to that of the one furthest ahead: a short query would wait until all others have as much. And
queries that have used next to nothing run in the order in which they came. If the one that has used least went first,
each new one would overtake those that are almost done, and many would be open at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

NS_PER_S = 1_000_000_000
THRESHOLDS_S = (0, 1, 10, 60, 300)
"""The time of a query from which on it is in each level."""
CONTRIBUTION_CAP_S = 30
"""The most that one slice adds to the counters of levels, and the most that a level may catch up at once."""
MULTIPLIER = 2
SHORT_S = 0.008
"""Within this time of level 0 queries run in the order in which they came: it is enough for most short ones."""
SHORT_NS = round(SHORT_S * NS_PER_S)
STALE_MIN = 64
"""Entries of a level's heap that may be out of date in any case."""


def level_of(used_s: float, thresholds_s: Sequence[float] = THRESHOLDS_S) -> int:
    """The level of a query that has used so much."""
    return bisect_right(thresholds_s, used_s) - 1


class Usage:
    """The time that the drivers of one query have used together. Made with the query, changed by the queue alone.

    `urgent` queries run before all levels.
    """

    __slots__ = ("age", "is_long", "level", "level_ns", "running", "urgent", "used_ns")

    def __init__(self, *, urgent: bool = False) -> None:
        self.urgent = urgent
        self.is_long = False
        self.used_ns = 0
        self.level = 0
        self.level_ns = 0
        self.running = 0
        self.age = 0

    @property
    def short_left_ns(self) -> int:
        """How much of the time is left for which it counts as short."""
        return 0 if self.level or self.is_long else max(0, SHORT_NS - self.level_ns)

    @property
    def order(self) -> tuple[int, int]:
        """The least goes first in its level: by the time used there, then by age."""
        # Behind all that are short, also where it is known to take long and has used nothing.
        least_ns = 0 if self.level else SHORT_NS
        return 0 if self.short_left_ns else max(self.level_ns, least_ns), self.age


class QueuedTask(Protocol):
    """What the queue knows of a driver. Tasks are compared by identity."""

    @property
    def usage(self) -> Usage:
        """The time of the query that it belongs to."""
        ...


TaskT = TypeVar("TaskT", bound=QueuedTask)


@dataclass(slots=True)
class LevelFigures:
    """What a level shows: drivers that are ready, slices and seconds since the start."""

    ready: int
    slices: int
    seconds: float


@dataclass(slots=True)
class _Level(Generic[TaskT]):
    """One level. `counter_ns` decides; `used_ns` is the time that was really used there.

    `heap` orders the queries in `ready`; it also has entries of those that have left, or used more since. `present` are
    the queries with a driver that is ready or running. `idle_from_ns` is the time of all levels at which the last of
    them left, and `floor_ns` the level time that it had.
    """

    counter_ns: int = 0
    used_ns: int = 0
    slices: int = 0
    ready: dict[Usage, dict[TaskT, None]] = field(default_factory=dict)
    heap: list[tuple[int, int, Usage]] = field(default_factory=list)
    present: set[Usage] = field(default_factory=set)
    idle_from_ns: int = 0
    floor_ns: int = 0


class MultilevelQueue(Generic[TaskT]):
    """Drivers that are ready, and those that `poll` gave out. Not thread-safe.

    `offer` brings a new driver, or one that ran. `wake` brings one that was blocked. `charge` comes after each slice,
    and before `offer`. `remove` takes one out, whether it is ready or running: it has blocked or ended.
    """

    def __init__(
        self,
        thresholds_s: Sequence[int] = THRESHOLDS_S,
        contribution_cap_s: float = CONTRIBUTION_CAP_S,
        multiplier: int = MULTIPLIER,
    ) -> None:
        """`thresholds_s` ascend from 0."""
        if not thresholds_s or thresholds_s[0] != 0 or list(thresholds_s) != sorted(set(thresholds_s)):
            raise ValueError(f"thresholds must ascend from 0: {thresholds_s}")
        if multiplier < 1:
            raise ValueError(f"the multiplier is less than 1: {multiplier}")
        self._thresholds_ns = tuple(threshold * NS_PER_S for threshold in thresholds_s)
        self._cap_ns = _ns(contribution_cap_s)
        self._weights = tuple(int(multiplier**level) for level in range(len(thresholds_s)))
        self._levels: list[_Level[TaskT]] = [_Level() for _ in thresholds_s]
        self._urgent: _Level[TaskT] = _Level()
        self._running: set[TaskT] = set()
        self._counted_ns = 0
        self._queries = 0

    def __len__(self) -> int:
        """Drivers that are ready."""
        return sum(len(tasks) for level in (self._urgent, *self._levels) for tasks in level.ready.values())

    def figures(self) -> Mapping[str, LevelFigures]:
        """What each level shows, by its number, or `urgent`."""
        named = {"urgent": self._urgent} | {str(number): level for number, level in enumerate(self._levels)}
        return {
            name: LevelFigures(sum(map(len, level.ready.values())), level.slices, level.used_ns / NS_PER_S)
            for name, level in named.items()
        }

    def is_running(self, task: TaskT) -> bool:
        """Whether `poll` gave out a driver that has not come back."""
        return task in self._running

    def offer(self, task: TaskT) -> None:
        """A driver is ready: a new one, or one that has run and wants to run on."""
        usage = task.usage
        if not usage.age:
            self._queries += 1
            usage.age = self._queries
        # Ready before it is no longer running: its level is not idle in between.
        self._add(task)
        self._stop(task)

    def wake(self, task: TaskT) -> None:
        """A driver that was blocked is ready. It goes ahead of nobody who waited meanwhile."""
        usage = task.usage
        usage.level_ns = max(usage.level_ns, _minimum(self._level_of(usage)))
        self.offer(task)

    def poll(self) -> TaskT | None:
        """The driver that runs next; None when no driver is ready."""
        level = self._urgent if self._urgent.ready else self._furthest_behind()
        return None if level is None else self._polled(level)

    def poll_short(self) -> TaskT | None:
        """The next driver of a query that has used less than SHORT_S, whatever the shares of levels; None if none is ready."""
        level = self._level_with_short()
        return None if level is None else self._polled(level)

    @property
    def has_short(self) -> bool:
        """Whether `poll_short` has a driver to give out."""
        return self._level_with_short() is not None

    def _level_with_short(self) -> _Level[TaskT] | None:
        for level in (self._urgent, self._levels[0]):
            usage = _peeked(level)
            if usage is not None and usage.short_left_ns:
                return level
        return None

    def _polled(self, level: _Level[TaskT]) -> TaskT:
        """The first driver of a level that has one, as running."""
        usage = _first(level)
        task = next(iter(level.ready[usage]))
        self._running.add(task)
        usage.running += 1
        level.slices += 1
        self._discard_ready(level, task)
        if usage in level.ready:
            _rank(level, usage)
        return task

    def charge(self, task: TaskT, seconds: float) -> None:
        """A driver has used time. It counts for its query, which may be in a higher level from now on."""
        usage, used_ns = task.usage, _ns(seconds)
        before_ns, usage.used_ns = usage.used_ns, usage.used_ns + used_ns
        if usage.urgent:
            self._urgent.used_ns += used_ns
            usage.level_ns += used_ns
        else:
            self._charge_levels(usage, self._parts(before_ns, used_ns))
        level = self._level_of(usage)
        if usage in level.ready:
            _rank(level, usage)

    def mark_long(self, task: TaskT) -> None:
        """A query is known to take long, whatever it has used so far: it counts as short no more."""
        usage = task.usage
        if not usage.is_long:
            usage.is_long = True
            level = self._level_of(usage)
            if usage in level.ready:
                _rank(level, usage)

    def remove(self, task: TaskT) -> None:
        """Take out a driver that is ready or running. Nothing happens to one that is neither."""
        self._discard_ready(self._level_of(task.usage), task)
        self._stop(task)

    def _charge_levels(self, usage: Usage, parts: Mapping[int, int]) -> None:
        """Count the parts of a slice in their levels, the last of which is that of the query now."""
        left_ns, now = self._cap_ns, max(parts)
        for level in range(usage.level, now):
            left_ns -= self._count(level, parts[level], left_ns)
        if now != usage.level:
            self._move(usage, now)
        usage.level_ns += parts[now]
        self._count(now, parts[now], left_ns)

    def _level_of(self, usage: Usage) -> _Level[TaskT]:
        return self._urgent if usage.urgent else self._levels[usage.level]

    def _furthest_behind(self) -> _Level[TaskT] | None:
        """The level with ready drivers that has least of its share; of equal ones the lowest."""
        behind = self._shares_ns()
        return self._levels[min(behind)[1]] if behind else None

    def _shares_ns(self) -> list[tuple[int, int]]:
        """What the levels with ready drivers have, in time of level 0, and their numbers."""
        # target / counter is largest where counter × weight is least, and no counter of 0 divides anything.
        return [
            (level.counter_ns * weight, number)
            for number, (level, weight) in enumerate(zip(self._levels, self._weights, strict=True))
            if level.ready
        ]

    def _target_ns(self) -> int:
        """What the counter of level 0 would be if it had its share of what the level that is furthest ahead has."""
        return max(level.counter_ns * weight for level, weight in zip(self._levels, self._weights, strict=True))

    def _add(self, task: TaskT) -> None:
        """Make a driver ready."""
        usage = task.usage
        level = self._level_of(usage)
        self._enter(usage)
        if not level.ready and not usage.urgent:
            # Its drivers all ran while others got more than their share: what it could not use it is not owed.
            self._raise(usage.level, self._target_ns() - self._cap_ns)
        if usage not in level.ready:
            level.ready[usage] = {}
            _rank(level, usage)
        level.ready[usage][task] = None

    def _enter(self, usage: Usage) -> None:
        """A query has something to run in its level, which is raised if it was idle while others ran."""
        level = self._level_of(usage)
        if not level.present and not usage.urgent and self._counted_ns > level.idle_from_ns:
            # Those that are ahead do not wait for it, so it need not wait for those that are behind.
            behind = self._shares_ns()
            self._raise(usage.level, min(behind)[0] if behind else self._target_ns())
        level.present.add(usage)

    def _raise(self, number: int, share_ns: int) -> None:
        """Let a level have at least so much of its share, in time of level 0."""
        level, weight = self._levels[number], self._weights[number]
        # Rounded up: of two levels that are level the lower one goes first.
        level.counter_ns = max(level.counter_ns, -(-share_ns // weight))

    def _move(self, usage: Usage, number: int) -> None:
        """A query goes to another level, with all its drivers."""
        old = self._levels[usage.level]
        new, was_present, ready = self._levels[number], usage in old.present, old.ready.pop(usage, None)
        self._leave(usage)
        usage.level = number
        usage.level_ns = _minimum(new)
        if was_present:
            self._enter(usage)
        if ready:
            new.ready[usage] = ready

    def _leave(self, usage: Usage) -> None:
        """A query has nothing to run in its level."""
        level = self._level_of(usage)
        if usage not in level.present:
            return
        level.present.remove(usage)
        if not level.present:
            level.idle_from_ns = self._counted_ns
            # Level 0 begins at 0 for every new query, so nobody there can be ahead of one that sleeps.
            level.floor_ns = usage.level_ns if usage.level else 0

    def _discard_ready(self, level: _Level[TaskT], task: TaskT) -> None:
        usage = task.usage
        tasks = level.ready.get(usage)
        if tasks is None or task not in tasks:
            return
        del tasks[task]
        if not tasks:
            del level.ready[usage]
            self._leave_if_idle(usage)

    def _stop(self, task: TaskT) -> None:
        """A driver runs no more."""
        if task in self._running:
            self._running.remove(task)
            task.usage.running -= 1
            self._leave_if_idle(task.usage)

    def _leave_if_idle(self, usage: Usage) -> None:
        if not usage.running and usage not in self._level_of(usage).ready:
            self._leave(usage)

    def _count(self, number: int, used_ns: int, left_ns: int) -> int:
        """Add the time of a slice to a level, to its counter at most `left_ns`; what was added there."""
        level, counted_ns = self._levels[number], min(used_ns, left_ns)
        level.used_ns += used_ns
        level.counter_ns += counted_ns
        self._counted_ns += counted_ns
        return counted_ns

    def _parts(self, before_ns: int, used_ns: int) -> dict[int, int]:
        """How much of a slice was in each level, for a query that had used `before_ns`."""
        bounds = self._thresholds_ns
        first, last = bisect_right(bounds, before_ns) - 1, bisect_right(bounds, before_ns + used_ns) - 1
        edges_ns = [before_ns, *bounds[first + 1 : last + 1], before_ns + used_ns]
        return {first + step: end - begin for step, (begin, end) in enumerate(pairwise(edges_ns))}


def _rank(level: _Level[TaskT], usage: Usage) -> None:
    """Note the place of a ready query in its level."""
    if len(level.heap) > 2 * len(level.ready) + STALE_MIN:
        level.heap = [(*each.order, each) for each in level.ready if each is not usage]
        heapify(level.heap)
    heappush(level.heap, (*usage.order, usage))


def _first(level: _Level[TaskT]) -> Usage:
    """The query whose turn it is in a level that has one; its entry is gone."""
    usage = _peeked(level)
    assert usage is not None
    heappop(level.heap)
    return usage


def _peeked(level: _Level[TaskT]) -> Usage | None:
    """The query whose turn it is in a level; entries before its own are gone."""
    while level.heap:
        *order, usage = level.heap[0]
        if usage in level.ready and tuple(order) == usage.order:
            return usage
        heappop(level.heap)
    return None


def _minimum(level: _Level[TaskT]) -> int:
    """The least level time of the queries of a level; of an idle one that of the query that left it last."""
    return min((usage.level_ns for usage in level.present), default=level.floor_ns)


def _ns(seconds: float) -> int:
    if not seconds >= 0:
        raise ValueError(f"a time is negative: {seconds}")
    return round(seconds * NS_PER_S)
