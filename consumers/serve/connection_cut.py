"""Cuts the connections of a port of this process, which gRPC itself cannot do while a call waits for its client."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def cut_connections(port: int) -> int:
    """Shut down every connection that was accepted on a local port; how many there were."""
    cut = 0
    for name in os.listdir(_DESCRIPTORS):
        # Others are opened and closed meanwhile, and most of them are no sockets.
        with suppress(OSError):
            cut += _cut(int(name), port)
    return cut


def _cut(descriptor: int, port: int) -> bool:
    # A copy, so that closing it here closes none of gRPC's.
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return False
        # A socket that listens has no peer.
        connection.getpeername()
        connection.shutdown(socket.SHUT_RDWR)
        return True
