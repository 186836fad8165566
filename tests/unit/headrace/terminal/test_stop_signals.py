"""What the signals to stop do to a command that works."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

import pytest
import typer

from headrace.terminal.command import run_command
from headrace.terminal.output import Output
from headrace.terminal.stop_signals import STOPPING, StopSignals, interrupting_signals, stop_signals


def test_the_first_signal_asks_and_the_second_one_interrupts() -> None:
    """With one line for people; before there is work the first one interrupts."""
    notes: list[str] = []
    with stop_signals(notes.append) as signals:
        signals.begin_work()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop()
        assert (signal.SIGTERM, [STOPPING], False) == (signals.received, notes, signals.cut_off)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.cut_off, "work that has begun is not finished"
    with stop_signals(notes.append) as signals, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not signals.cut_off


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
            return len(bytes(data))  # type: ignore[call-overload]

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_owns_processes_is_interrupted_by_every_signal_to_end(number: int) -> None:
    """A supervisor and a closed terminal end it as Ctrl-C does. Further ones leave it the time to stop its processes.

    Ctrl-C still ends that. Afterwards the signals are as they were.
    """
    before = signal.getsignal(number)

    def command() -> None:
        with run_command(patient=True):
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGTERM)
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(typer.Exit) as caught:
        command()
    assert (130, before) == (caught.value.exit_code, signal.getsignal(number))


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """Under `nohup` a command outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_remark_that_nobody_can_read_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed terminal refuses what a command prints while it stops its processes."""

    class Gone(io.StringIO):
        """The stderr of a terminal that is gone."""

        def write(self, text: str) -> int:
            """See StringIO."""
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    Output().note("stopping n1")
