"""The simulated world: one seed, one virtual clock, events in order, and processes that stop inside a step."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

EVENTS_BETWEEN_LOOKS = 50
PAUSES_NESTED_MAX = 3
"""Processes that may be stopped inside a step at the same time: each holds a part of this thread's stack."""


class Crash(BaseException):
    """The process of a node ended inside a step. Not an `Exception`: no code under test may handle it."""


class InvariantBroken(AssertionError):
    """A schedule violated an invariant; the message holds the last events."""


class World:
    """Clock, randomness and events. `now_ms` is the true time, which no node and no broker has."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ms = 0
        self.verbose = verbose
        self.lines: list[str] = []
        self.sends_cut: set[str] = set()
        self.reads_cut: set[str] = set()
        self.links_cut: set[tuple[str, str]] = set()
        self.broken: InvariantBroken | None = None
        self.events_run = 0
        self._nested = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def note(self, line: str) -> None:
        """One readable line for an event."""
        self.lines.append(f"{self.now_ms / 1000:9.3f}s {line}")
        if self.verbose:
            print(self.lines[-1])

    def after(self, delay_ms: float, action: Callable[[], object]) -> None:
        """Run an action after a delay."""
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + (int(delay_ms) or 1), self._count, action))

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Run every event up to a time, or until `done`; whether it was done."""
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= end_ms:
            self.now_ms, _, action = pop(events)
            self.events_run += 1
            action()
            if self.broken is not None:
                raise self.broken
            # From time to time only: it asks every node for its readiness.
            if done is not None and self.events_run % EVENTS_BETWEEN_LOOKS == 0 and done():
                return True
        self.now_ms = max(self.now_ms, end_ms)
        return False

    @property
    def may_stop(self) -> bool:
        """Whether one more process may be stopped inside a step."""
        return self._nested < PAUSES_NESTED_MAX

    def stand_still(self, duration_ms: float) -> None:
        """Let everything else continue for a while, as the process that is now in a step does when it is stopped."""
        self._nested += 1
        try:
            self.run_until(self.now_ms + int(duration_ms))
        finally:
            self._nested -= 1

    def delay_ms(self) -> float:
        """A delay of the network: mostly short."""
        chance = self.random
        return chance.choice((1, 2, 3, 5, 8)) if chance.random() < 0.95 else chance.uniform(20, 1_500)


class NodeClock:
    """The clocks of one machine: boot time is exact, the date may be wrong. A `Clock`."""

    def __init__(self, world: World, wall_error_ms: int) -> None:
        self._world = world
        self._boot_ms = world.random.randint(0, 10_000_000)
        self._wall_error_ms = wall_error_ms

    def monotonic_s(self) -> float:
        """See Clock."""
        return (self._boot_ms + self._world.now_ms) / 1_000

    def boot_ns(self) -> int:
        """See Clock."""
        return (self._boot_ms + self._world.now_ms) * 1_000_000

    def wall_ns(self) -> int:
        """See Clock."""
        return (EPOCH_MS + self._world.now_ms + self._wall_error_ms) * 1_000_000


EPOCH_MS = 1_700_000_000_000
