"""A command in a pseudo-terminal of a given width, as a person sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

HEADRACE = (sys.executable, "-m", "headrace")
READ_TIMEOUT_S = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-B0-2]|\x1b[=>78]|\x1b\][^\x07]*\x07")


class Terminal:
    """A process whose input and output are a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self._raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        """Everything printed so far, without escape sequences."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Press keys."""
        self._seen = len(self.text)
        os.write(self._controller, text.encode())

    def interrupt(self) -> None:
        """What the terminal does at Ctrl-C while it is not in raw mode: SIGINT to the process."""
        self._seen = len(self.text)
        self.process.send_signal(signal.SIGINT)

    def expect(self, pattern: str) -> str:
        """Wait for a pattern in what was printed since the last keys; what was printed since then."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while not re.search(pattern, self.text[self._seen :]):
            if time.monotonic() > deadline or not self._read(deadline):
                lines = "\n".join(line for line in self.text[self._seen :].splitlines() if line.strip())
                raise AssertionError(f"{pattern!r} was not printed:\n{lines}")
        return self.text[self._seen :]

    def wait(self) -> tuple[int, str]:
        """The exit code and everything printed, when the process has ended."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while self._read(deadline):
            pass
        return self.process.wait(READ_TIMEOUT_S), self.text

    def _read(self, deadline: float) -> bool:
        if not select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._controller, 65_536)
        except OSError:
            # Linux reports the end of the other side as an input error.
            return False
        self._raw += data
        # A line editor asks where the cursor is, and waits for the answer.
        if b"\x1b[6n" in data:
            os.write(self._controller, b"\x1b[1;1R")
        return bool(data)


@contextmanager
def terminal(
    *command: str, columns: int = 80, environment: Mapping[str, str] | None = None, stdin: int | None = None
) -> Iterator[Terminal]:
    """Run a command in a terminal of so many columns; it is killed at the end if it still runs."""
    controller, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=side if stdin is None else stdin,
        stdout=side,
        stderr=side,
        env={**inherited, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **(environment or {})},
        start_new_session=True,
    )
    os.close(side)
    try:
        yield Terminal(process, controller)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(controller)
