"""Figures of a recovery, for every room that shows them or decides by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of a recovery.

    `way` is files, log or wait; `per_second` counts bytes of files or offsets of the log.

    `seconds_left` is -1 while the rate is unknown; `still_s` counts since the last progress.
    """

    # The names are keys of `/api/v1/status`, where scripts read them.
    way: str
    source: str = ""
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    offsets_done: int = 0
    offsets_total: int = 0
    per_second: float = 0.0
    seconds_left: float = -1.0
    still_s: float = 0.0
    trouble: str = ""


class RecoveryInProgress(Protocol):
    """A recovery from another member's files."""

    bytes_done: int
    bytes_total: int

    def progress(self) -> Progress:
        """Its figures."""
        ...

    @property
    def reason(self) -> str:
        """Its progress, or what it waits for."""
        ...
