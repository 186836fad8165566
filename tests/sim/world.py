"""The simulated world: one seed, one virtual clock, a log, a network that delays, cuts and repeats."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.schemas.records import Status

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SimRecord(Generic[Value]):
    """One record of a simulated topic; `timestamp_ms` is the broker's clock."""

    offset: int
    timestamp_ms: int
    value: Value


@dataclass(slots=True)
class SimTopic(Generic[Value]):
    """One topic: records in order, offsets with gaps, a beginning that trimming moves."""

    records: list[SimRecord[Value]] = field(default_factory=list)
    begin: int = 0
    end: int = 0

    def read(self, offset: int, limit: int) -> list[SimRecord[Value]]:
        """Up to `limit` records from an offset on; never called for an offset below `begin`."""
        assert offset >= self.begin, "a read below the beginning of the log"
        low = self._index(offset)
        return self.records[low : low + limit]

    def trim(self, before: int) -> None:
        """Remove every record below an offset."""
        self.begin = max(self.begin, min(before, self.end))

    def _index(self, offset: int) -> int:
        low, high = 0, len(self.records)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.records[middle].offset < offset else (low, middle)
        return low


class World:
    """Clock, randomness, topics and the reachability of each node; `broker_ms` is the error of the broker's clock.

    Every event prints as one line when `verbose`.
    """

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.broker_ms = 0
        self.trims = self.random.random() < 0.6
        self.forward: SimTopic[bytes] = SimTopic()
        self.status: SimTopic[Status] = SimTopic()
        self.verbose = verbose
        self.lines: list[str] = []
        self.sends_cut: set[str] = set()
        self.reads_cut: set[str] = set()
        self.links_cut: set[tuple[str, str]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._arrivals_ms: dict[tuple[str, int], float] = {}

    def note(self, line: str) -> None:
        """One readable line for an event."""
        self.lines.append(f"{self.now_ms / 1000:9.3f}s {line}")
        if self.verbose:
            print(self.lines[-1])

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run an action after a delay."""
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + max(1, int(delay_ms)), self._count, action))

    def run_until(self, end_ms: int, after_each: Callable[[], None]) -> None:
        """Run every event up to a time; `after_each` is called after each one."""
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
            after_each()
        self.now_ms = end_ms

    def send(self, sender: str, topic: SimTopic[Value], value: Value) -> None:
        """Append a record after a delay, in the order of the sender's calls.

        The record of a sender that is cut off may be lost, and a copy may arrive again later. Neither is
        reported.
        """
        # One record in ten of a sender that is cut off arrives, as one that was in flight at the cut does.
        if sender in self.sends_cut and self.random.random() < 0.9:
            return
        arrival_ms = max(self._arrivals_ms.get((sender, id(topic)), 0), self.now_ms + self._delay_ms())
        self._arrivals_ms[sender, id(topic)] = arrival_ms
        self.after(arrival_ms - self.now_ms, lambda: self._append(topic, value))
        # A duplicate, as of a producer that retries because the acknowledgement was lost.
        if self.random.random() < 0.02:
            self.after(arrival_ms - self.now_ms + self._delay_ms(), lambda: self._append(topic, value))

    def _append(self, topic: SimTopic[Value], value: Value) -> None:
        # Gaps in the offsets, as Kafka's transaction markers leave them: no version follows from an offset.
        if self.random.random() < 0.05:
            topic.end += self.random.randint(1, 3)
        topic.records.append(SimRecord(topic.end, self.now_ms + self.broker_ms, value))
        topic.end += 1

    def _delay_ms(self) -> float:
        return self.random.choice((1, 2, 3, 5, 8)) if self.random.random() < 0.95 else self.random.uniform(20, 1_500)
