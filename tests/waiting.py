"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0
# Each look at a node costs it and the test some milliseconds of CPU time, and others run beside this one: what does not
# hold soon is looked at more and more rarely.
FIRST_POLL_S = 0.005
POLL_S = 0.05
POLL_GROWTH = 1.5


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition holds; fails with `what` after a timeout that only a broken system reaches."""
    deadline, pause_s = time.monotonic() + timeout_s, FIRST_POLL_S
    while not condition():
        assert time.monotonic() < deadline, f"in {timeout_s:g} s there was never: {what}"
        time.sleep(pause_s)
        pause_s = min(POLL_S, pause_s * POLL_GROWTH)
