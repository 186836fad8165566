"""Signals while a process is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.connectors.held_signals import signals_held
from headrace.local_cluster import LocalCluster


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    """A signal to this process, handled before this returns unless it is held."""
    signal.raise_signal(number)


@pytest.fixture(autouse=True)
def handlers_stay() -> None:
    """Python's own handler of Ctrl-C, which raises, at the begin of each test."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_handled_at_the_end_of_the_block() -> None:
    """The block ends whole, then its handler runs; the handlers of before are there again."""
    done = []

    def hold() -> None:
        with signals_held():
            interrupt()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert ["all of it"] == done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_block_comes_before_a_signal() -> None:
    """It ends the block as ever, and the handlers of before are there again."""

    def fail() -> None:
        with signals_held():
            interrupt()
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        fail()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_or_ends_the_process_stays_as_it_is() -> None:
    """Under `nohup` SIGHUP stays ignored, and one without a handler of Python's keeps the system's."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_held():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            interrupt(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_hold_nothing() -> None:
    """Only the main thread may set handlers; in another one the block runs as it is."""
    done = []

    def hold() -> None:
        with signals_held():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert [signal.default_int_handler] == done


class InterruptedCluster(LocalCluster):
    """A cluster whose start of a node is interrupted after the process began and before `Popen` returned."""

    def launch(self, command: object, log: object) -> subprocess.Popen[bytes]:
        """A process that is no node, and lives for a minute."""
        # Named as a node, by which the cluster knows its own.
        words = [sys.executable, "-c", "import time; time.sleep(60)", "node", "--id", "n1"]
        child = subprocess.Popen(words)
        interrupt()
        return child


def test_a_node_whose_start_was_interrupted_is_stopped(tmp_path: Path) -> None:
    """Ctrl-C while its process is made: who started it knows of it, and ends it."""
    cluster = InterruptedCluster(tmp_path, nodes=1, bootstrap="127.0.0.1:1")
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert 0 == cluster.node("n1").pid
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "time.sleep(60)" not in children
