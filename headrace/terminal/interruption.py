"""Ctrl-C ends a command within a second, also while it waits inside of a library.

Python runs its signal handler between two of its own instructions. A call of librdkafka to a broker that does
not answer returns after 10 seconds or more, and so would the handler.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

GRACE_S = 0.5
"""Time in which a command may close what it opened."""

# Each command has its own: a Ctrl-C that a patient one had is read by a thread, perhaps when the next one has begun.
_patience: ContextVar[threading.Event] = ContextVar("patience")


def be_patient() -> None:
    """From now on the command ends by itself: it finishes work, or stops processes that it started."""
    if patience := _patience.get(None):
        patience.set()


@contextmanager
def prompt_interruption(report: Callable[[], None], exit_code: int) -> Iterator[None]:
    """End the process GRACE_S after a Ctrl-C; `report` prints what people and programs read then.

    Not after `be_patient`.
    """
    # Signals arrive in the main thread alone; elsewhere, as in a program that embeds a command, they are its own.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    patience = threading.Event()
    token = _patience.set(patience)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # The handler in C writes the number of the signal here at once, whatever the main thread does.
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    arguments = (read_end, patience, report, exit_code)
    threading.Thread(target=_watch, args=arguments, name="interruption", daemon=True).start()
    try:
        yield
    finally:
        _patience.reset(token)
        signal.set_wakeup_fd(previous)
        os.close(write_end)


def _watch(read_end: int, patience: threading.Event, report: Callable[[], None], exit_code: int) -> None:
    interrupted = threading.Event()
    while received := os.read(read_end, 64):
        if signal.SIGINT in received and not patience.is_set() and not interrupted.is_set():
            interrupted.set()
            # On a thread of its own: the end of the pipe, when the command has ended, must not stop the count.
            # What is closed at the end of the process may wait for the broker as well.
            threading.Thread(target=_end, args=(report, exit_code), name="interrupted", daemon=True).start()
    os.close(read_end)


def _end(report: Callable[[], None], exit_code: int) -> None:
    threading.Event().wait(GRACE_S)
    report()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(exit_code)
