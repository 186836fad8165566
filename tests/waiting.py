"""Waits for a condition."""

from __future__ import annotations

import time
from typing import Protocol

WAIT_S = 120.0
# Each look at a node costs it and the test some milliseconds of CPU time, and others run beside this one: what does not
# hold soon is looked at more and more rarely, and seen a tenth of the waiting too late at most.
FIRST_POLL_S = 0.005
POLL_S = 0.2
POLL_SHARE = 0.1
BRIEF_POLL_S = 0.02


class Condition(Protocol):
    """What may hold. No `Callable`: for mypy a lambda that binds values of a loop (`name=name`) is none without arguments."""

    def __call__(self) -> bool:
        """If it holds now."""


def eventually(condition: Condition, what: str, timeout_s: float = WAIT_S, *, briefly: bool = False) -> None:
    """Wait until a condition holds; fails with `what` after a timeout that only a broken system reaches.

    `briefly`: it may hold for a moment only, so it is looked at all the time.
    """
    began_s, most_s = time.monotonic(), BRIEF_POLL_S if briefly else POLL_S
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"in {timeout_s:g} s there was never: {what}"
        time.sleep(min(most_s, max(FIRST_POLL_S, waited_s * POLL_SHARE)))
