"""Requests that wait for Kafka, and those beside them."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.unit.serve.conftest import FakeNode

REQUESTS = 40
LINE = b"m,host=a v=1 1700000000"


def arrow_stream() -> bytes:
    """One row."""
    rows, stream = pa.table({"time": [1_700_000_000_000_000_000], "v": [1.0]}), io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return stream.getvalue()


@contextmanager
def requests_that_wait(
    client: httpx.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch, name: str, method: str, url: str
) -> Iterator[None]:
    """Many requests of one kind, all of which wait for the log."""
    may_end, waiting = threading.Event(), threading.Semaphore(0)

    def waits(*_given: Any, **_named: Any) -> None:
        waiting.release()
        may_end.wait(30)
        raise OSError("no broker")

    monkeypatch.setattr(node.writes, name, waits)
    content = arrow_stream() if method == "POST" else None
    with ThreadPoolExecutor(REQUESTS) as pool, httpx.Client(base_url=client.base_url, timeout=60) as others:
        pending = [pool.submit(others.request, method, url, content=content) for _ in range(REQUESTS)]
        try:
            assert waiting.acquire(timeout=20)
            assert waiting.acquire(timeout=20)
            yield
        finally:
            may_end.set()
            assert {500} == {each.result().status_code for each in pending}


@pytest.mark.parametrize(
    ("name", "method", "url"),
    [
        ("schemas", "GET", "/api/v1/schemas"),
        ("create_database", "GET", "/query?q=CREATE DATABASE d"),
        ("write", "POST", "/api/v1/write?database=d&table=t"),
    ],
)
def test_requests_that_wait_for_the_log_delay_no_others(
    client: httpx.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch, name: str, method: str, url: str
) -> None:
    """Health, status and metrics are answered; lines are written, or would be refused when too many wait."""
    client.timeout = httpx.Timeout(20)
    assert 204 == client.post("/write?db=d&precision=s", content=LINE).status_code
    with requests_that_wait(client, node, monkeypatch, name, method, url):
        for path in ("/health/live", "/health/ready", "/health/startup", "/metrics", "/api/v1/status"):
            assert 200 == client.get(path).status_code
        if name != "schemas":
            assert 204 == client.post("/write?db=d&precision=s", content=LINE).status_code
