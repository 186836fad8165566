"""Memory that queries reserve before they run. Pure.

A query reserves all that it may use at once, and waits without holding any. So no two queries can wait for each other.
They are served in the order in which they came: a large one is not passed by small ones for ever. But small ones have
a share that large ones never hold, so a short query does not wait for the end of long ones.

A query that waits for its reader lends what it does not hold, and takes it back before it runs on. Those that take back
come first, in any order. The query that was granted memory last can then always have it again: what it needs beyond
its own was free when the others held no less than they do now. So queries that lend cannot wait for each other either.
"""

from __future__ import annotations

from headrace.consumers.scheduling.scheduling_errors import QueryMemory

BYTES_PER_MB = 1_000_000
SMALL_SHARE = 0.25
"""The part of all memory that is for small queries alone, if a large one can still have all that one may have."""


class MemoryPool:
    """The memory of all queries of a node. Not thread-safe."""

    def __init__(self, limit_bytes: int, per_query_bytes: int, small_bytes: int = 0) -> None:
        """`per_query_bytes` is the most that one query may reserve; one of up to `small_bytes` is small."""
        self.limit_bytes = limit_bytes
        self.per_query_bytes = min(per_query_bytes, limit_bytes)
        self.small_bytes = small_bytes
        self.small_share_bytes = min(int(limit_bytes * SMALL_SHARE), limit_bytes - self.per_query_bytes)
        if not small_bytes:
            self.small_share_bytes = 0
        self._held: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._returning: dict[str, None] = {}
        self._waiting: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return sum(self._held.values())

    @property
    def waiting(self) -> int:
        """Queries that wait for memory."""
        return len(self._waiting) + len(self._returning)

    def held_by(self, query: str) -> int:
        """What a query holds now."""
        return self._held.get(query, 0)

    def check(self, wanted_bytes: int) -> None:
        """Raises QueryMemory for more than one query may have."""
        if wanted_bytes > self.per_query_bytes:
            raise QueryMemory.above(self.per_query_bytes // BYTES_PER_MB)

    def reserve(self, query: str, wanted_bytes: int) -> bool:
        """Whether a query has its memory at once; otherwise it waits for `release`. Raises QueryMemory."""
        self.check(wanted_bytes)
        if not wanted_bytes:
            self._hold(query, 0)
            return True
        self._waiting[query] = wanted_bytes
        return query in self._granted()

    def grow(self, query: str, wanted_bytes: int) -> bool:
        """Whether a query that holds memory has more of it at once. It never waits, and passes nobody that does."""
        wanted_bytes = max(wanted_bytes, self.held_by(query))
        if self.waiting or wanted_bytes > self.per_query_bytes:
            return False
        others = {name: held for name, held in self._held.items() if name != query}
        large_bytes = sum(held for name, held in others.items() if not self._is_small(self._reserved[name]))
        has_share = (
            self._is_small(wanted_bytes) or large_bytes + wanted_bytes <= self.limit_bytes - self.small_share_bytes
        )
        if not has_share or sum(others.values()) + wanted_bytes > self.limit_bytes:
            return False
        self._hold(query, wanted_bytes)
        return True

    def lend(self, query: str, kept_bytes: int) -> list[str]:
        """A query does nothing for a while, and holds no more than this; the queries that have their memory now."""
        if query in self._reserved:
            self._held[query] = min(self._reserved[query], kept_bytes)
        return self._granted()

    def take_back(self, query: str) -> bool:
        """Whether a query has at once what it lent; otherwise it waits, as for `reserve`."""
        if query not in self._reserved:
            return True
        self._returning[query] = None
        return query in self._granted()

    def release(self, query: str) -> list[str]:
        """A query has ended, or waits no more; the queries that have their memory now."""
        for known in (self._held, self._reserved, self._returning, self._waiting):
            known.pop(query, None)
        return self._granted()

    def _hold(self, query: str, wanted_bytes: int) -> None:
        self._held[query] = self._reserved[query] = wanted_bytes

    def _granted(self) -> list[str]:
        """Give memory to those that wait, as far as there is some; who has it now."""
        granted = []
        for query in tuple(self._returning):
            if self._has_room(self._reserved[query], self._held[query]):
                del self._returning[query]
                self._hold(query, self._reserved[query])
                granted.append(query)
        # Whoever waits first is passed by none, but a large one by small ones within their share.
        large_waits, small_waits = bool(self._returning), False
        for query, wanted_bytes in tuple(self._waiting.items()):
            if self._is_small(wanted_bytes):
                if small_waits or not self._has_room(wanted_bytes, in_share=large_waits):
                    small_waits = True
                    continue
            elif large_waits or small_waits or not self._has_room(wanted_bytes):
                large_waits = True
                continue
            self._hold(query, self._waiting.pop(query))
            granted.append(query)
        return granted

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= self.small_bytes

    def _has_room(self, wanted_bytes: int, has_bytes: int = 0, *, in_share: bool = False) -> bool:
        more_bytes = wanted_bytes - has_bytes
        if more_bytes > self.limit_bytes - self.held_bytes:
            return False
        if not self._is_small(wanted_bytes):
            return self._held_of(small=False) + more_bytes <= self.limit_bytes - self.small_share_bytes
        return not in_share or self._held_of(small=True) + more_bytes <= self.small_share_bytes

    def _held_of(self, *, small: bool) -> int:
        return sum(held for query, held in self._held.items() if self._is_small(self._reserved[query]) is small)
