"""Threads for what a request waits for: a lock, a disk, the log.

Each kind of request has threads of its own. Requests that wait for Kafka would hold those of all others for minutes, and
whoever asks whether a node is alive would take it for dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

HEALTH_THREADS = 2
STATUS_THREADS = 2
LOG_THREADS = 8
OPERATION_THREADS = 4
LOAD_THREADS = 8
WRITE_THREADS = 4
LINE_THREADS = 4

P = ParamSpec("P")
R = TypeVar("R")


class RequestThreads:
    """The threads of one kind of request; further ones queue for them."""

    def __init__(self, kind: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=f"http-{kind}")

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """What a call returns or raises. A client that leaves does not end it."""
        return await asyncio.wrap_future(self._pool.submit(call, *arguments, **named))
