"""The process of one node as the operating system sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.kafka.broker_process import free_port, port_is_free


@dataclass(slots=True)
class NodeProcess:
    """One node: its process (0 = not running) and the addresses it serves on.

    `removed`: it ended by itself, because it was removed from its cluster.
    """

    name: str
    http: str
    pid: int = 0
    removed: bool = False
    flight: str = ""

    @property
    def running(self) -> bool:
        """Whether the process exists and is ours."""
        return self.pid > 0 and _is_node(self.pid, self.name, self.http)


def free_address(before: str, name: str, on_progress: Callable[[str], None]) -> str:
    """The address that a node had, if no other program uses it; else a free one."""
    if before and port_is_free(port_of(before)):
        return before
    address = f"127.0.0.1:{free_port()}"
    if before:
        on_progress(f"another program uses {before}: node {name} serves on {address} from now on")
    return address


def port_of(address: str) -> int:
    """The port of `HOST:PORT`."""
    return int(address.rpartition(":")[2])


def ask_to_end(node: NodeProcess) -> None:
    """Send SIGTERM, also to a process that is stopped."""
    # A process that SIGSTOP stopped handles SIGTERM only after it is continued.
    for number in (signal.SIGCONT, signal.SIGTERM):
        send_signal(node, number)


def send_signal(node: NodeProcess, number: int) -> None:
    """Send a signal to a process, which may have ended since it was looked at."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(node.pid, number)


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped, or it has ended."""
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return {thread.rpartition(")")[2].split()[0] for thread in threads} <= {"T", "Z"}


def _is_node(pid: int, name: str, http: str) -> bool:
    # The system reuses pids, at the latest after a reboot: signals must not reach a stranger's process, or the node of
    # that name of another cluster.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and {b"node", b"--id", name.encode(), http.encode()} <= set(words)
