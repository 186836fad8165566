"""What the signals to stop do to a command that works."""

from __future__ import annotations

import io
import os
import signal

import pytest

from headrace.terminal.stop_signals import STOPPING, StopSignals, stop_signals


def test_the_first_signal_asks_and_the_second_one_interrupts() -> None:
    """With one line for people; before there is work the first one interrupts."""
    notes: list[str] = []
    with stop_signals(notes.append) as signals:
        signals.begin_work()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop()
        assert (signal.SIGTERM, [STOPPING]) == (signals.received, notes)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    with stop_signals(notes.append) as signals, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_within_a_print_does_not_end_the_command() -> None:
    """A stream of bytes refuses to be written to within a write of the same thread."""

    class Interrupted(io.RawIOBase):
        """A stream that a signal interrupts at each write."""

        def writable(self) -> bool:
            """See RawIOBase."""
            return True

        def write(self, data: object) -> int:
            """See RawIOBase."""
            signals.handle(signal.SIGTERM, None)
            return len(bytes(data))  # type: ignore[call-overload, no-any-return]

    stream = io.BufferedWriter(Interrupted(), 1)
    refused: list[Exception] = []

    def note(line: str) -> None:
        try:
            stream.write(line.encode())
        except RuntimeError as error:
            refused.append(error)
            raise

    signals = StopSignals(note)
    signals.begin_work()
    stream.write(b"a bar moves")
    assert 1 == len(refused)
    assert signals.stop()
