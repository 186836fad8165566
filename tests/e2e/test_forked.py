"""Forks of a warm process are, from outside, what `python -m headrace` is: tests/forked.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker_process import free_port
from headrace.node_process import NodeProcess, is_stopped
from tests.forked import Forked, ForkService, parent, run_forked
from tests.waiting import WAIT_S, eventually

pytestmark = pytest.mark.slow(2)
WAITING = "waiting for Kafka"
NODES = 5
"""As many as the tests take: one for each signal, and two to compare."""
SHELL_COMMAND = Path(__file__).with_name("first_hour") / "bin" / "headrace"


WITHOUT_CLUSTER = "no cluster configured"
ADDRESS = {"HEADRACE__NODE__ID": "n7", "HEADRACE__CLUSTER__BOOTSTRAP": "127.0.0.1:9", "COLUMNS": "100"}


def assert_alike(directory: Path, arguments: list[str], environment: dict[str, str]) -> str:
    """A real process and a fork have the same exit code and output; its standard error."""
    # At the same time: some of them wait ten seconds for a Kafka.
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, **environment},
    ) as real:
        forked = run_forked(*arguments, cwd=directory, environment=environment)
        output, errors = real.communicate(timeout=WAIT_S)
    assert (real.returncode, output, errors) == (forked.returncode, forked.stdout, forked.stderr)
    return errors


@pytest.mark.parametrize("arguments", [["--version"], ["nonsense"], ["status"], ["config", "show"]])
def test_a_command_has_the_same_output_and_exit_code(tmp_path: Path, arguments: list[str]) -> None:
    """Answers, usage errors with the program's name, and expected errors, in a directory and environment of its own."""
    assert_alike(tmp_path, arguments, ADDRESS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["cluster", "show"],
        ["delete", "--database", "d", "--table", "t", "--tag", "pump=p1"],
        ["retention", "set", "d.t", "30d"],
        ["seal"],
        ["table", "drop", "d.t", "--yes"],
        ["verify"],
        ["write", "a.lp", "--database", "d"],
    ],
)
def test_a_command_imports_what_it_needs_when_it_is_alone(tmp_path: Path, arguments: list[str]) -> None:
    """Commands that the first hour starts as forks only, up to the cluster that is not there."""
    (tmp_path / "a.lp").write_text("pumps,pump=p1 flow=1 1767225600000000000\n")
    assert WITHOUT_CLUSTER in assert_alike(tmp_path, arguments, {"COLUMNS": "100"})


def test_a_service_forks_for_other_programs(tmp_path: Path) -> None:
    """A shell's `headrace` has the streams, directory, environment and exit code of the shell's command."""
    with closing(ForkService(tmp_path / "forks")):
        environment = {**os.environ, "HEADRACE_FORKS": str(tmp_path / "forks"), "HEADRACE__NODE__ID": "n7"}
        command = f"{SHELL_COMMAND} config show | grep n7; {SHELL_COMMAND} nonsense 2>&1; echo code $?"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
    assert re.search(r"node\.id +. n7 ", done.stdout), done
    assert "No such command 'nonsense'" in done.stdout
    assert done.stdout.endswith("code 2\n")
    assert "" == done.stderr


ForkedNode = tuple[Forked, NodeProcess, Path]


@pytest.fixture(scope="module")
def waiting_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ForkedNode]]:
    """Nodes that wait for a Kafka which is not there, each with its log; every test takes its own out of the list.

    A node reports after ten seconds that it waits. They wait at the same time.
    """
    nodes = [forked_node(tmp_path_factory.mktemp("node"), 1) for _ in range(NODES)]
    try:
        for _, _, log in nodes:
            eventually(lambda log=log: WAITING in log.read_text(), "a node that waits for Kafka")
        yield list(nodes)
    finally:
        for forked, _, _ in nodes:
            if forked.poll() is None:
                os.kill(forked.pid, signal.SIGKILL)
                assert -signal.SIGKILL == forked.wait(WAIT_S)


def forked_node(directory: Path, number: int) -> ForkedNode:
    """A node that looks for a Kafka which is not there."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        *("node", "run", "--cluster", "nowhere", "--id", f"n{number}", "--nodes", f"n{number}"),
        *("--bootstrap", address, "--data-dir", str(directory / "data"), "--http", "127.0.0.1:0"),
    ]
    log_path = directory / "log"
    with Path(os.devnull).open("rb") as nothing, log_path.open("ab") as log:
        forked = parent(number).fork(arguments, [nothing, log, log], os.environ)
    return forked, NodeProcess(f"n{number}", address, forked.pid), log_path


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_node_is_found_and_ends_by_signals(
    waiting_nodes: list[ForkedNode], number: signal.Signals, code: int
) -> None:
    """It leads a session, /proc shows its arguments, signals stop and end it, and its parent reports the exit code."""
    forked, node, log = waiting_nodes.pop()
    assert forked.pid == os.getsid(forked.pid) == os.getpgid(forked.pid)
    assert (True, False) == (node.running, NodeProcess("n2", node.http, forked.pid).running)
    assert forked.poll() is None
    os.kill(forked.pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(forked.pid), "stopped threads")
    os.kill(forked.pid, signal.SIGCONT)
    os.kill(forked.pid, number)
    assert code == forked.wait(WAIT_S)
    assert code == forked.poll()
    assert not node.running
    assert "Traceback" not in log.read_text()


def channels(pid: int) -> set[str]:
    """The pipes and sockets that a process has open."""
    names = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A connection to a broker that is not there is soon gone.
        with suppress(FileNotFoundError):
            names.add(os.readlink(link))
    return {name for name in names if name.startswith(("pipe:", "socket:"))}


def test_a_fork_has_no_pipe_of_its_parent_nor_of_another_fork(waiting_nodes: list[ForkedNode]) -> None:
    """An end that another process holds open would keep its reader waiting for ever."""
    (first, _, _), (second, _, _) = waiting_nodes.pop(), waiting_nodes.pop()
    shared = parent(1).pid
    assert channels(shared)
    assert channels(first.pid)
    assert set() == channels(second.pid) & (channels(shared) | channels(first.pid))


def test_neighbours_have_different_orders_of_sets() -> None:
    """Nodes with the same order would hide a copy that depends on it."""
    assert parent(1) is not parent(2)
    assert parent(1) is parent(3)
