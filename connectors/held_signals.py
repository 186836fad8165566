"""Signals that wait while a process is started: who is interrupted must know what to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """Call the handlers of signals that arrive meanwhile at the end, in their order; those that end the process, at once."""
    # `Popen` waits until its child runs the program. An exception of a handler within loses the object, and nobody
    # knows of the child. A mask does not help: the child would inherit it.
    # Handlers run in the main thread alone, and only there they may be set.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    found = {number: signal.getsignal(number) for number in HELD}
    handlers = {int(number): handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in received:
        handlers[number](number, frame)
