"""Forks of a warm process are, from outside, what `python -m headrace` is: tests/forked.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.local_cluster import free_port
from headrace.node_process import NodeProcess, is_stopped
from tests.forked import Forked, parent, run_forked
from tests.waiting import WAIT_S, eventually

WAITING = "waiting for Kafka"


@pytest.mark.parametrize("arguments", [["--version"], ["nonsense"], ["status"], ["config", "show"]])
def test_a_command_has_the_same_output_and_exit_code(tmp_path: Path, arguments: list[str]) -> None:
    """Answers, usage errors with the program's name, and expected errors, in a directory and environment of its own."""
    environment = {"HEADRACE__NODE__ID": "n7", "HEADRACE__CLUSTER__BOOTSTRAP": "127.0.0.1:9", "COLUMNS": "100"}
    real = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    forked = run_forked(*arguments, cwd=tmp_path, environment=environment)
    assert (real.returncode, real.stdout, real.stderr) == (forked.returncode, forked.stdout, forked.stderr)


def forked_node(directory: Path, number: int) -> tuple[Forked, NodeProcess]:
    """A node that waits for a Kafka which is not there."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        *("node", "run", "--cluster", "nowhere", "--id", f"n{number}", "--nodes", f"n{number}"),
        *("--bootstrap", address, "--data-dir", str(directory / "data"), "--http", "127.0.0.1:0"),
    ]
    directory.mkdir(exist_ok=True)
    log_path = directory / "log"
    with Path(os.devnull).open("rb") as nothing, log_path.open("ab") as log:
        forked = parent(number).fork(arguments, [nothing, log, log], os.environ)
    eventually(lambda: WAITING in log_path.read_text(), "a node that waits for Kafka")
    return forked, NodeProcess(f"n{number}", address, forked.pid)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_node_is_found_and_ends_by_signals(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """It leads a session, /proc shows its arguments, signals stop and end it, and its parent reports the exit code."""
    forked, node = forked_node(tmp_path, 1)
    assert forked.pid == os.getsid(forked.pid) == os.getpgid(forked.pid)
    assert node.running
    assert not NodeProcess("n2", node.http, forked.pid).running
    assert forked.poll() is None
    os.kill(forked.pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(forked.pid), "stopped threads")
    os.kill(forked.pid, signal.SIGCONT)
    os.kill(forked.pid, number)
    assert code == forked.wait(WAIT_S)
    assert code == forked.poll()
    assert not node.running
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_fork_has_no_files_of_others(tmp_path: Path) -> None:
    """It opens what a real one does: no pipe or socket of its parent, nor of another fork, whose end would be hidden."""
    first, _ = forked_node(tmp_path / "first", 1)
    try:
        second, _ = forked_node(tmp_path / "second", 1)
        second.poll()
        os.kill(second.pid, signal.SIGKILL)
        second.wait(WAIT_S)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        assert -signal.SIGKILL == first.wait(WAIT_S)


def test_neighbours_have_different_orders_of_sets() -> None:
    """Nodes with the same order would hide a copy that depends on it."""
    assert parent(1) is not parent(2)
    assert parent(1) is parent(3)
