"""What readers of a log in this process have in common: positions, and which topics are paused."""

from __future__ import annotations

from collections.abc import Iterable


class ReaderPositions:
    """The part of a Reader that no log service takes part in. Its owner moves `_positions` as it reads."""

    def __init__(self, positions: dict[str, int]) -> None:
        self._positions = positions
        self._paused: set[str] = set()
        self._answered: set[str] = set()

    def answered(self, topic: str) -> bool:
        """See Reader."""
        return topic in self._answered

    def position(self, topic: str) -> int:
        """See Reader."""
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        """See Reader."""
        self._positions[topic] = offset

    def pause(self, topics: Iterable[str]) -> None:
        """See Reader."""
        self._paused.update(topics)

    def resume(self, topics: Iterable[str]) -> None:
        """See Reader."""
        self._paused.difference_update(topics)

    def close(self) -> None:
        """See Reader; there is nothing to release."""
