"""Queries beside what a benchmark measures: one now and then, or many at the least cost to the client."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from headrace.connectors.http import request_node
from headrace.schemas.errors import HeadraceError

QUERY_EVERY_S = 0.5
QUERY_TIMEOUT_S = 60.0
RECEIVED_BYTES = 64 * 1024
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Queries:
    """The queries beside the writer: the moment at which each ended, and its milliseconds."""

    moments_s: list[float] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)
    failure: Exception | None = None

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """The times of queries that ran between two moments, also of those that ended later."""
        pairs = zip(self.moments_s, self.taken_ms, strict=True)
        return [taken for moment, taken in pairs if begin_s <= moment and moment - taken / 1_000 < end_s]


@contextmanager
def asking(url: str, sql: str, queries: Queries) -> Iterator[None]:
    """Ask a query now and then, while the body runs."""
    stopping = threading.Event()

    def ask() -> None:
        try:
            while not stopping.wait(QUERY_EVERY_S):
                begun = time.perf_counter()
                document = {"sql": sql, "format": "json"}
                with request_node(
                    f"{url}/api/v1/query", method="POST", document=document, timeout_s=QUERY_TIMEOUT_S
                ) as answer:
                    answer.json()
                queries.taken_ms.append((time.perf_counter() - begun) * 1_000)
                queries.moments_s.append(time.monotonic())
        except Exception as error:
            queries.failure = error

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class AnswerUnexpected(HeadraceError):
    """A node has answered in a way that a benchmark's client does not understand."""


class LeanClient:
    """Asks a node with little work, for small answers: a process that measures must not load the machine.

    One connection for each question, as `request_node` has it. Any thread may use it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._head = (
            f"POST /api/v1/query HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
            "content-type: application/json\r\n"
        )

    def ask(self, document: dict[str, Any], timeout_s: float = QUERY_TIMEOUT_S) -> tuple[int, Any]:
        """The status and the document of an answer. Raises AnswerUnexpected, or OSError."""
        body = json.dumps(document)
        with socket.create_connection(self._address, timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(f"{self._head}content-length: {len(body)}\r\n\r\n{body}".encode())
            received = b"".join(iter(partial(connection.recv, RECEIVED_BYTES), b""))
        head, _, content = received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None or len(content) != int(length[1]):
            raise AnswerUnexpected(f"an answer of another length: {head[:200]!r}", action="look into the node's log")
        return int(head.split(b" ", 2)[1]), json.loads(content)
