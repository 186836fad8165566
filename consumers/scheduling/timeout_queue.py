"""The queries by the time at which they must have ended, the earliest first. Pure.

A query has one entry, from its submission to its end. An entry that was removed leaves its place in the heap, so the
heap is made again before such places outnumber the entries.
"""

from __future__ import annotations

import heapq

SLEEP_S_MAX = 5.0
"""The sentinel looks at the queue at least this often, whatever its deadlines are."""
STALE_MIN = 64
"""Removed entries that may remain in any case."""


class TimeoutQueue:
    """Deadlines by query. Not thread-safe."""

    def __init__(self) -> None:
        self._deadlines_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._wakes_s = 0.0

    def __len__(self) -> int:
        return len(self._deadlines_s)

    @property
    def places(self) -> int:
        """Places of the heap, those of removed entries among them."""
        return len(self._heap)

    def add(self, query: str, deadline_s: float) -> bool:
        """A query must end by `deadline_s`. It has no entry yet. True: that is before whoever sleeps will look again.

        To wake the sentinel for each query, which ends long before, would cost a short one a tenth of its time.
        """
        assert query not in self._deadlines_s, query
        self._deadlines_s[query] = deadline_s
        heapq.heappush(self._heap, (deadline_s, query))
        return deadline_s < self._wakes_s

    def remove(self, query: str) -> None:
        """A query has ended; nothing happens if it has no entry."""
        self._deadlines_s.pop(query, None)
        if len(self._heap) > 2 * len(self._deadlines_s) + STALE_MIN:
            self._heap = [(deadline_s, name) for name, deadline_s in self._deadlines_s.items()]
            heapq.heapify(self._heap)

    def expired(self, now_s: float) -> list[str]:
        """Take out the queries whose time is over, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            deadline_s, query = heapq.heappop(self._heap)
            if self._deadlines_s.get(query) == deadline_s:
                del self._deadlines_s[query]
                found.append(query)
        return found

    def sleep_s(self, now_s: float) -> float:
        """How long the sentinel may sleep, which it does now; `add` knows until when."""
        earliest_s = self._heap[0][0] if self._heap else now_s + SLEEP_S_MAX
        slept_s = min(SLEEP_S_MAX, max(0.0, earliest_s - now_s))
        self._wakes_s = now_s + slept_s
        return slept_s
