"""Memory that queries reserve before they run. Pure.

A query reserves once, all that it may use, and waits without holding any. So no two queries can wait for each other.
They are served in the order in which they came: a large one is not passed by small ones for ever.
"""

from __future__ import annotations

from headrace.consumers.scheduling.scheduling_errors import QueryMemory

BYTES_PER_MB = 1_000_000


class MemoryPool:
    """The memory of all queries of a node. Not thread-safe."""

    def __init__(self, limit_bytes: int, per_query_bytes: int) -> None:
        """`per_query_bytes` is the most that one query may reserve."""
        self.limit_bytes = limit_bytes
        self.per_query_bytes = min(per_query_bytes, limit_bytes)
        self._held: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """What is reserved."""
        return sum(self._held.values())

    @property
    def waiting(self) -> int:
        """Queries that wait for memory."""
        return len(self._waiting)

    def held_by(self, query: str) -> int:
        """What a query has reserved."""
        return self._held.get(query, 0)

    def check(self, wanted_bytes: int) -> None:
        """Raises QueryMemory for more than one query may have."""
        if wanted_bytes > self.per_query_bytes:
            raise QueryMemory.above(self.per_query_bytes // BYTES_PER_MB)

    def reserve(self, query: str, wanted_bytes: int) -> bool:
        """Whether a query has its memory at once; otherwise it waits for `release`. Raises QueryMemory."""
        self.check(wanted_bytes)
        if wanted_bytes and (self._waiting or self.held_bytes + wanted_bytes > self.limit_bytes):
            self._waiting[query] = wanted_bytes
            return False
        self._held[query] = wanted_bytes
        return True

    def release(self, query: str) -> list[str]:
        """A query has ended, or waits no more; the queries that have their memory now."""
        self._held.pop(query, None)
        self._waiting.pop(query, None)
        granted = []
        free_bytes = self.limit_bytes - self.held_bytes
        for name, wanted_bytes in tuple(self._waiting.items()):
            if wanted_bytes > free_bytes:
                break
            free_bytes -= wanted_bytes
            self._held[name] = self._waiting.pop(name)
            granted.append(name)
        return granted
