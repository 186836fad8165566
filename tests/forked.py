"""Processes of `headrace` as forks of a process that has imported everything.

A node spends most of its start on imports, and the tests start hundreds of nodes. From outside a fork is like a process
of its own: its session, arguments, environment, streams, signals and exit code are those of `python -m headrace`.
Tests of what begins with the start of Python, and the ones that follow the README, start real ones.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from headrace.local_cluster import LocalCluster

PARENT = Path(__file__).with_name("fork_parent.py")
ARGUMENT_BYTES_MAX = 4_096
HASH_SEEDS = 2
"""Neighbouring nodes have different ones, so that no copy depends on the order of a set."""
REQUEST_BYTES_MAX = 200_000
FORK_TIMEOUT_S = 300.0


class Forked:
    """A process that a parent has forked; as much of `subprocess.Popen` as the tests need."""

    def __init__(self, pid: int, report: int) -> None:
        self.pid = pid
        self._report = report
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        if self._code is None:
            try:
                self._code = int(os.read(self._report, 100))
            except BlockingIOError:
                return None
            os.close(self._report)
        return self._code

    def wait(self, timeout_s: float) -> int:
        """The exit code; a process that does not end in time is killed. Raises TimeoutExpired."""
        if self._code is None:
            # Not `select`, which knows no descriptor above 1,023.
            waiting = select.poll()
            waiting.register(self._report, select.POLLIN)
            waiting.poll(1_000 * timeout_s)
        if (code := self.poll()) is None:
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("headrace", timeout_s)
        return code


class Parent:
    """A process to fork from, which ends with this one."""

    def __init__(self, hash_seed: int) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_request = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PARENT), str(theirs.fileno()), "." * ARGUMENT_BYTES_MAX],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def fork(
        self,
        arguments: Sequence[str],
        streams: Sequence[IO[bytes]],
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> Forked:
        """Start `headrace` in a session of its own, with these arguments, streams 0 to 2 and environment."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(directory or Path.cwd()),
        }
        report, theirs = os.pipe()
        os.set_blocking(report, False)
        descriptors = [*(stream.fileno() for stream in streams), theirs]
        try:
            with self._one_request:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                pid = int(self._control.recv(100))
        finally:
            os.close(theirs)
        return Forked(pid, report)

    def close(self) -> None:
        """End the parent; its forks run on."""
        self._control.close()
        self._process.wait()


def parent(number: int = 0) -> Parent:
    """The parent of the node of a number, started when it is first needed."""
    return _parent_of(number % HASH_SEEDS)


@cache
def _parent_of(hash_seed: int) -> Parent:
    return Parent(hash_seed)


class ForkedCluster(LocalCluster):
    """A cluster whose nodes are forks."""

    def launch(self, command: Sequence[str], log: IO[bytes]) -> Forked:
        """Fork a node instead of starting Python."""
        arguments = command[command.index("headrace") + 1 :]
        number = int(arguments[arguments.index("--id") + 1].removeprefix("n"))
        with Path(os.devnull).open("rb") as nothing:
            return parent(number).fork(arguments, [nothing, log, log], self.node_environment())


class ForkService:
    """Forks for processes that are not Python's: `first_hour/bin/headrace` sends its request to a socket.

    A request is a message as those of `Parent.fork`, with streams 0 to 2; the answer is the exit code.
    """

    def __init__(self, path: Path) -> None:
        """`path`: of the socket."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, name="fork-service", daemon=True).start()

    def close(self) -> None:
        """Accept no more requests; what was forked runs on."""
        # It wakes the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="fork-request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, ExitStack() as streams:
            message, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
            request = json.loads(message)
            opened = [streams.enter_context(os.fdopen(each, "rb", closefd=True)) for each in descriptors]
            forked = parent().fork(request["arguments"], opened, request["environment"], Path(request["directory"]))
            # Else whoever reads the output to its end would wait for this process.
            streams.close()
            connection.send(str(forked.wait(FORK_TIMEOUT_S)).encode())


def run_forked(*arguments: str, timeout_s: float = 120.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of `headrace` to its end, without standard input.

    `environment` is added to the one of this process, `cwd` is the working directory.
    """
    environment = {**os.environ, **options.get("environment", {})}
    with (
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        forked = parent().fork(arguments, [nothing, output, errors], environment, options.get("cwd"))
        code = forked.wait(timeout_s)
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess(["headrace", *arguments], code, *texts)
