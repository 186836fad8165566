"""A thread that runs a function periodically until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

JOIN_TIMEOUT_S = 10.0
_log = structlog.get_logger(__name__)


class PeriodicTask:
    """Calls `run_once` every `interval_s`.

    A run that fails is logged, and the next one starts all the same.
    """

    def __init__(self, name: str, interval_s: float, run_once: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._run_once = run_once
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> threading.Event:
        """Set by `stop`; a long run checks it, or waits on it."""
        return self._stopping

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; the first run comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current run."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._run_once()
            except Exception:
                # The thread has to survive: without it heartbeats, recoveries or scrubs would end in silence.
                _log.exception("periodic task failed", thread=self._thread.name)
