"""SIGTERM, SIGINT and SIGHUP in commands that run for long, or that own processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.terminal.interruption import be_patient

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a supervisor, and a terminal that was closed."""
STOPPING = "stopping: what has begun is finished first, once more ends it at once"


class StopSignals:
    """The first signal received.

    Before `begin_work` a signal interrupts; after it the first one asks the work to end, a second one
    interrupts: then the work is `cut_off`.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._working = False
        self.received: int = 0
        self.cut_off = False

    def begin_work(self) -> None:
        """From now on there is work to finish."""
        self._working = True
        be_patient()

    def stop(self) -> bool:
        """Whether the work is to end."""
        return self.received != 0

    def handle(self, number: int, _frame: object) -> None:
        """The signal handler."""
        first, self.received = not self.received, self.received or number
        if not first or not self._working:
            self.cut_off = self._working
            raise KeyboardInterrupt
        # It may have interrupted a print to the same stream, which refuses another one within it.
        with suppress(RuntimeError):
            self._note(STOPPING)


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[StopSignals]:
    """Handle both signals while the context lasts; `note` prints a line for people."""
    signals = StopSignals(note)
    previous = {number: signal.signal(number, signals.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does, for a body that then stops its processes.

    Only the first signal does: a closed terminal sends SIGHUP twice, which would end what stops the processes.
    Ctrl-C always does. A signal that was ignored before, as under `nohup`, stays ignored.
    """
    # Signals arrive in the main thread alone; elsewhere, as in a program that embeds a command, they are its own.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        if number == signal.SIGINT or len(received) == 1:
            raise KeyboardInterrupt

    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None is a handler that is not Python's: nothing can set it again.
            if handler is not None:
                signal.signal(number, handler)
