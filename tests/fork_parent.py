"""A process that has imported `headrace`, and forks into each process that it is asked for.

Runs as a file, with the descriptor of a socket and a long argument, whose memory is room for the arguments of the forks.
Each message of the socket is a request as JSON, with four descriptors: standard input, output and error, and a pipe to
which the exit code is written. The answer is a process id. The process ends when the other side closes the socket.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

MESSAGE_BYTES_MAX = 200_000
# Fields of /proc/PID/stat behind the name: where the arguments begin and end in memory.
ARGUMENTS_BEGIN, ARGUMENTS_END = 45, 46


def import_all() -> None:
    """Import what a node and most commands need, in the way of `headrace node run`."""
    from headrace.connectors.arrow_start import keep_pandas_out
    from headrace.consumers.node.allocator import keep_freed

    keep_freed()
    gc.disable()
    keep_pandas_out()
    import headrace.cli.main
    import headrace.consumers.node.node
    import headrace.consumers.serve.flight_server
    import headrace.settings  # noqa: F401

    # What lives now lives to the end: collections in the forks neither look at it nor copy its pages.
    gc.freeze()
    gc.enable()
    # DuckDB reports as leaked what is not collected at the end.
    atexit.register(gc.unfreeze)


def serve(control: socket.socket) -> None:
    """Fork until the socket is closed, and end then. Returns only in the forks."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake)
    reports: dict[int, int] = {}
    while True:
        watched: list[socket.socket | int] = [control, ended]
        readable, _, _ = select.select(watched, [], [])
        if ended in readable:
            os.read(ended, MESSAGE_BYTES_MAX)
            report_ended(reports)
        if control in readable:
            message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 4)
            if not message:
                sys.exit()
            child = os.fork()
            if child == 0:
                become(json.loads(message), descriptors[:3])
                control.close()
                for descriptor in (ended, wake, *descriptors, *reports.values()):
                    os.close(descriptor)
                return
            reports[child] = descriptors[3]
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            control.send(str(child).encode())


def report_ended(reports: dict[int, int]) -> None:
    """Write the exit code of each fork that has ended, as `Popen.returncode` has it."""
    for child in list(reports):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            report = reports.pop(child)
            # Whoever asked may no longer be interested.
            with contextlib.suppress(BrokenPipeError):
                os.write(report, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(report)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Make this fork the process of a request: what `subprocess.Popen` would give to it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    show([sys.executable, "-m", "headrace", *request["arguments"]])


def show(words: list[str]) -> None:
    """Let /proc show these arguments: by them others find the process of a node."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[ARGUMENTS_BEGIN]), int(stat[ARGUMENTS_END])
    text = "".join(f"{word}\0" for word in words).encode()
    assert len(text) <= end - begin, f"{len(text)} bytes of arguments, and room for {end - begin}"
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def leave(code: int) -> NoReturn:
    """End as the interpreter does, but without deleting each object, which would first copy its page."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import_all()
    serve(socket.socket(fileno=int(sys.argv[1])))
    # From here on this is `python -m headrace`.
    try:
        runpy.run_module("headrace", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise
