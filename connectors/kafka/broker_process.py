"""The broker's process as the operating system sees it: find it, record its pid, end it; and the ports and
logs around it.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from headrace.connectors.kafka.broker_settings import HOST, PID_FILE, directory_mark, replace_file

# Below the kernel's range for outgoing connections, so that a stopped broker finds its port free again.
PORT_RANGE = range(20_000, 32_000)
PORT_ATTEMPTS_MAX = 200


def find_broker(directory: Path) -> psutil.Process | None:
    """The live broker process of `directory`, None when none runs: by its pid file, else among all processes
    (the file may be lost).
    """
    recorded = read_pid(directory)
    if recorded is not None:
        process = _as_broker(recorded, directory)
        if process is not None:
            return process
    for pid in psutil.pids():
        process = _as_broker(pid, directory)
        if process is not None:
            return process
    return None


def _as_broker(pid: int, directory: Path) -> psutil.Process | None:
    """The process when it is alive and carries the mark of `directory`."""
    try:
        process = psutil.Process(pid)
        # A pid file outlives its broker: the pid may be that of a zombie, or reused by an unrelated process.
        alive = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return process if alive and directory_mark(directory) in process.cmdline() else None
    except (psutil.Error, OSError):
        return None


def read_pid(directory: Path) -> int | None:
    """The pid in the pid file, None without one or when it is damaged."""
    try:
        return int(json.loads((directory / PID_FILE).read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pid(directory: Path, pid: int) -> None:
    """Record the pid of the broker of `directory`."""
    replace_file(directory / PID_FILE, json.dumps({"pid": pid}) + "\n")


def end_process(process: psutil.Process, timeout_s: float) -> bool:
    """SIGTERM, and SIGKILL after `timeout_s`. True when the process ended cleanly within the time."""
    try:
        process.terminate()
        process.wait(timeout_s)
        return True
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)
        return False


def port_is_free(port: int) -> bool:
    """Whether a server can listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka binds: connections in TIME_WAIT of a broker that just stopped do not occupy its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(taken: Iterable[int] = ()) -> int:
    """A loopback port without a listener, not one of `taken`.

    It is below those that systems give to outgoing connections, which would take it while its server is down. Another
    server may still take it first: callers retry.
    """
    excluded = set(taken)
    # The system's own generator: tests seed the shared one, and parallel workers would draw the same ports.
    generator = random.SystemRandom()
    for _ in range(PORT_ATTEMPTS_MAX):
        port = generator.choice(PORT_RANGE)
        if port not in excluded and port_is_free(port):
            return port
    raise OSError(f"no free port found between {PORT_RANGE.start} and {PORT_RANGE.stop}")


def port_answers(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def file_bytes(path: Path) -> int:
    """Size of a file, 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def text_after(path: Path, offset: int, bytes_max: int = 256 * 1024) -> str:
    """What was appended to a log file since it had `offset` bytes; all of it when it was rolled since.

    Empty when there is no file.
    """
    try:
        with path.open("rb") as handle:
            handle.seek(offset if offset <= path.stat().st_size else 0)
            return handle.read(bytes_max).decode("utf-8", "replace")
    except OSError:
        return ""
