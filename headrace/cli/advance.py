"""How a command moves its progress display on."""

from __future__ import annotations

from typing import Protocol


class Advance(Protocol):
    """Moves a progress display on by `count`; `total` replaces the expected end when it becomes known."""

    def __call__(self, count: int, total: int | None = None) -> None: ...
