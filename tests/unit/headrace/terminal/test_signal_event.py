"""An event that signal handlers set, wherever they interrupt it."""

from __future__ import annotations

import sys
import threading
from queue import Empty
from types import FrameType
from typing import Any

import pytest

from headrace.terminal.signal_event import LOOK_INTERVAL_S, SignalEvent

HANG_S = 5.0


def is_done(event: SignalEvent | threading.Event, timeout_s: float) -> bool:
    """Whether a thread gets through `set` and `wait` of an event if a handler sets it before each of their lines."""

    def interrupt(_frame: FrameType, _event: str, _argument: Any) -> Any:
        event.set()
        return interrupt

    def use() -> None:
        sys.settrace(interrupt)
        try:
            event.wait(0.001)
            event.set()
            event.wait(0.001)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def test_a_signal_within_another_one_does_not_stop_the_thread() -> None:
    """A node that got two signals to stop within a millisecond hung until it was killed."""
    assert is_done(SignalEvent(), 60)


def test_a_signal_right_before_the_thread_sleeps_is_not_missed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler runs only when the sleep ends: a node that waited for a minute served on for as long."""
    event, slept = SignalEvent(), list[float]()

    class Sleeping:
        """A queue in whose wait nothing arrives, and after which the handler runs at last."""

        put = event._set.put

        def get(self, timeout: float) -> None:
            """See SimpleQueue."""
            slept.append(timeout)
            if len(slept) > 1:
                return
            raise Empty

    monkeypatch.setattr(event, "_set", Sleeping())
    assert event.wait(60)
    assert [LOOK_INTERVAL_S] * 2 == slept


@pytest.mark.soak
def test_an_event_of_threading_hangs() -> None:
    """Else the test above could not fail."""
    assert not is_done(threading.Event(), HANG_S)


def test_a_wait_ends_with_its_time_and_is_true_for_good_once_it_is_set() -> None:
    """As that for an event of threading."""
    event = SignalEvent()
    assert not event.wait(0.001)
    event.set()
    event.set()
    assert [True] * 3 == [event.wait(1) for _ in range(3)]
