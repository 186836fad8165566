"""The time of a query as several fetches see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.consumers.query.table_source import ReadTimer


class SharedTimer:
    """See ReadTimer: the timer of a query as its fetches see it. `abandon` ends them all, when one of them failed."""

    def __init__(self, timer: ReadTimer) -> None:
        self.timeout_ms = timer.timeout_ms
        self.awaited = timer.awaited
        self._timer = timer
        self._abandoned = False
        self._ends: list[Callable[[], None]] = []

    @property
    def left_s(self) -> float:
        return self._timer.left_s

    @property
    def expired(self) -> bool:
        return self._timer.expired

    @property
    def cancelled(self) -> bool:
        return self._abandoned or self._timer.cancelled

    @contextmanager
    def interrupts(self, end: Callable[[], None]) -> Iterator[None]:
        self._ends.append(end)
        # Both sides store before they look, so that no fetch misses the end.
        if self._abandoned:
            end()
        try:
            with self._timer.interrupts(end):
                yield
        finally:
            self._ends.remove(end)

    def abandon(self) -> None:
        self._abandoned = True
        # What a fetch still waits for concerns nobody: the query may be planned again meanwhile.
        self.awaited = {}
        for end in tuple(self._ends):
            end()
