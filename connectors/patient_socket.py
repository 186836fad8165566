"""A socket whose owner is asked, while the other side is silent or takes nothing, whether to wait on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from headrace.connectors.deadline import Deadline

SILENCE_S = 2.0
"""So long nothing comes before the owner is asked, and again each time."""


class PatientSocket(socket.socket):
    """A connected socket: after each silence it calls `on_silence` with the seconds that are left of the wait.

    It ends the wait by an error.
    """

    def __init__(self, connected: socket.socket, wait_s: float, on_silence: Callable[[float], None]) -> None:
        """Takes the connection over. Each read or send that moves nothing for `wait_s` raises TimeoutError."""
        super().__init__(fileno=connected.detach())
        self._wait_s = wait_s
        self._on_silence = on_silence

    # Files of this socket read through it. A timeout that such a file sees would end it for good, so it sees none
    # before the last one.
    def recv_into(self, *arguments: Any) -> int:
        """See socket.socket. Raises TimeoutError, and what `on_silence` raises."""
        deadline = Deadline(self._wait_s)
        while True:
            self.settimeout(max(0.001, min(SILENCE_S, deadline.left_s())))
            try:
                return super().recv_into(*arguments)
            except TimeoutError:
                if deadline.passed():
                    raise
                self._on_silence(deadline.left_s())

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See socket.socket. Raises TimeoutError, and what `on_silence` raises."""
        # A timeout of Python's own bounds the whole: on a slow link a large body needs minutes.
        left, deadline = memoryview(data).cast("B"), Deadline(self._wait_s)
        while left:
            self.settimeout(max(0.001, min(SILENCE_S, deadline.left_s())))
            try:
                left, deadline = left[super().send(left, flags) :], Deadline(self._wait_s)
            except TimeoutError:
                if deadline.passed():
                    raise
                self._on_silence(deadline.left_s())
