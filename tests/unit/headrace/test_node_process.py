"""The process of a node, as commands find it by what `cluster.json` remembers of it."""

from __future__ import annotations

import signal
import subprocess
import sys

from headrace.node_process import NodeProcess, ask_to_end, send_signal

NAME, HTTP = "n2", "127.0.0.1:1"


def test_a_process_is_that_of_a_node_by_name_and_address() -> None:
    """Pids are used again: one may belong to the node of this name of another cluster, which no signal must reach."""
    words = ("node", "run", "--id", NAME, "--http", HTTP)
    command, pipe = [sys.executable, "-c", "print(flush=True); input()", *words], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        try:
            # Popen may return a moment before the system has the words.
            assert child.stdout is not None
            child.stdout.readline()
            assert NodeProcess(NAME, HTTP, child.pid).running
            assert not NodeProcess(NAME, "127.0.0.1:2", child.pid).running
            assert not NodeProcess("n3", HTTP, child.pid).running
        finally:
            child.kill()


def test_a_process_may_end_before_a_signal_reaches_it() -> None:
    """Then there is nothing left to do."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    node = NodeProcess(NAME, HTTP, child.pid)
    assert not node.running
    ask_to_end(node)
    send_signal(node, signal.SIGKILL)
