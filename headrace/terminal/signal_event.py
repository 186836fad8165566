"""An event that a signal handler may set."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

LOOK_INTERVAL_S = 0.5
"""A handler runs between two steps of the main thread. A signal that comes right before that thread sleeps does not
wake it, and Python has no wait that closes this gap: so it sleeps for this long at most.
"""


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
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            try:
                self._set.get(timeout=min(left_s, LOOK_INTERVAL_S))
            except Empty:
                if left_s <= LOOK_INTERVAL_S:
                    return False
            else:
                self._set.put(None)
                return True
