"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0
# Each look at a node costs it and the test some milliseconds of CPU time: others run beside this one.
POLL_S = 0.05


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition holds; fails with `what` after a timeout that only a broken system reaches."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"in {timeout_s:g} s there was never: {what}"
        time.sleep(POLL_S)
