"""A query that is asked now and then beside what a benchmark measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.connectors.http import request_node

QUERY_EVERY_S = 0.5
QUERY_TIMEOUT_S = 60.0


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
