"""A thread that runs a function periodically until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from headrace.connectors.deadline import Deadline
from headrace.connectors.processor import lower_priority

JOIN_TIMEOUT_S = 10.0
LOG_JOIN_TIMEOUT_S = 5.0
"""For tasks that only wait for the log: nothing is lost when one is left waiting for a log that is gone."""
_log = structlog.get_logger(__name__)


class PeriodicTask:
    """Calls `run_once` every `interval_s`, which may be changed, and when it is woken.

    A run that fails is logged, and the next one starts all the same.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        run_once: Callable[[], None],
        join_timeout_s: float = JOIN_TIMEOUT_S,
        nice: int = 0,
    ) -> None:
        """`nice` is added to the niceness of the thread, see `lower_priority`."""
        self._nice = nice
        self.interval_s = interval_s
        self._run_once = run_once
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._join_timeout_s = join_timeout_s
        self._stop_by: Deadline | None = None

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

    def request_stop(self) -> None:
        """Ask the thread to stop after the current run, and return at once.

        A run that waits for a Kafka that is gone takes seconds. Tasks that are asked first and stopped later wait
        at the same time instead of one after another.
        """
        self._stopping.set()
        self._woken.set()
        self._stop_by = self._stop_by or Deadline(self._join_timeout_s)

    def wake(self) -> None:
        """Begin the next run now, or at once after the one that runs."""
        self._woken.set()

    def stop(self) -> None:
        """Stop after the current run, which gets `join_timeout_s` from the first request to stop."""
        self.request_stop()
        if self._thread.is_alive() and self._stop_by is not None:
            self._thread.join(self._stop_by.left_s())

    def _run(self) -> None:
        lower_priority(self._nice)
        while True:
            self._woken.wait(self.interval_s)
            self._woken.clear()
            # Behind the clearing, which may have taken the signal of a stop.
            if self._stopping.is_set():
                return
            try:
                self._run_once()
            except Exception:
                # The thread has to survive: without it heartbeats, recoveries or scrubs would end in silence.
                _log.exception("periodic task failed", thread=self._thread.name)
