"""An event that a signal handler may set."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class SignalEvent:
    """Set once by any thread, also by a signal handler within `set` or `wait` of the same thread.

    `threading.Event` takes a lock in both. A handler that runs while its own thread has it waits for ever: so did
    nodes that got two signals to stop within a millisecond.
    """

    def __init__(self) -> None:
        # Its `put` is reentrant, see the documentation of `queue`.
        self._set: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake whoever waits."""
        self._set.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set; whether it is. One thread waits."""
        try:
            self._set.get(timeout=timeout_s)
        except Empty:
            return False
        self._set.put(None)
        return True
