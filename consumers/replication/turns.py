"""A thread that does the same again and again until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

JOIN_S = 10.0
_log = structlog.get_logger(__name__)


class Turns:
    """Calls `turn` every `interval_s`. A turn that fails is logged, and the next one comes all the same: nobody else would do its work."""

    def __init__(self, name: str, interval_s: float, turn: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._turn = turn
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> threading.Event:
        """Set once it is to stop; a turn that takes long looks at it, or waits on it."""
        return self._stopping

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the turn in hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._turn()
            except Exception:
                _log.exception("turn failed", thread=self._thread.name)
