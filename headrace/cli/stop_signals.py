"""How a command that runs for long takes SIGTERM and SIGINT."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = "stopping: what has begun is finished first, once more ends it at once"


class StopSignals:
    """The first signal that came. Before `begin_work` a signal interrupts at once, after it the work is asked to end and a second one interrupts."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._working = False
        self.received: int = 0

    def begin_work(self) -> None:
        """From now on there is something to finish."""
        self._working = True

    def stop(self) -> bool:
        """Whether the work is to end."""
        return self.received != 0

    def take(self, number: int, _frame: object) -> None:
        """The handler."""
        first, self.received = not self.received, self.received or number
        if not first or not self._working:
            raise KeyboardInterrupt
        self._say(STOPPING)


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[StopSignals]:
    """Take both signals while the context lasts; `say` prints a line for people."""
    signals = StopSignals(say)
    previous = {number: signal.signal(number, signals.take) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
