"""The route by which nodes read each other's groups: what it refuses before a scan begins."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.query_errors import AnswerStale, QueryCancelled, QueryError, SlotsMoved
from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.replication.group_registry import ByTopic
from headrace.consumers.serve import scan_service
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.query_service import BODY_BYTES_MAX
from headrace.consumers.serve.scan_service import ScanService
from headrace.consumers.serve.server import Server
from tests.unit.serve.conftest import FakeNode

REQUEST = RemoteScanRequest("g", "plant", "pumps", 1, ("time",), None, None).document()


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        ({"json": REQUEST}, 409, "SlotNotHeld"),
        ({"json": REQUEST | {"columns": []}}, 400, "ScanInvalid"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 400, "RequestInvalid"),
        (
            {"content": b" " * (BODY_BYTES_MAX + 1), "headers": {"content-type": "application/json"}},
            413,
            "RequestTooLarge",
        ),
        ({"json": REQUEST, "headers": {"host": "evil.example"}}, 403, "Forbidden"),
        ({"json": REQUEST, "headers": {"origin": "http://evil.example"}}, 403, "Forbidden"),
    ],
)
def test_a_request_is_refused_by_its_kind(
    client: httpx.Client, sent: dict[str, object], status: int, kind: str
) -> None:
    """A group that is not here, a request that is wrong or too large, and pages of other sites."""
    answer = client.post(SCAN_ROUTE, **sent)  # type: ignore[arg-type]
    assert (status, kind) == (answer.status_code, answer.json()["error"]["kind"])


def test_a_scan_is_never_a_link(client: httpx.Client) -> None:
    """A browser follows links of other sites, so only POST begins a scan."""
    assert 405 == client.get(SCAN_ROUTE).status_code


class ScanThatIsCancelled:
    """A scan that computes until it is closed, and then ends with an error, as DuckDB's do."""

    schema = pa.schema([("time", pa.int64())])
    hand_overs = HandOvers()

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.ended = threading.Event()

    def next(self) -> pa.RecordBatch | None:
        """No row, ever."""
        self.closed.wait(30)
        self.ended.set()
        raise QueryCancelled("the asker is gone")

    def close(self) -> None:
        """Ends `next`."""
        self.closed.set()


def test_an_asker_that_leaves_ends_its_scan_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that was under way ends with an error that nobody waits for. asyncio has nothing to complain of."""
    monkeypatch.setattr(scan_service, "MARK_INTERVAL_S", 0.01)
    scan = ScanThatIsCancelled()
    service = ScanService(cast(Any, SimpleNamespace(scans_max=1)))
    complaints: list[dict[str, Any]] = []

    async def leave_early() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        answer = service._stream(cast(Any, scan), cast(Any, None))
        assert b"" != await anext(answer)
        await answer.aclose()
        assert await loop.run_in_executor(None, scan.ended.wait, 10)
        # The result reaches the future by a callback of the loop.
        for _ in range(10):
            await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(leave_early())
    gc.collect()
    assert scan.closed.is_set()
    assert [] == complaints


class ScanWithoutEnd(ScanThatIsCancelled):
    """A scan whose rows never end, and whose time does."""

    timer = SimpleNamespace(left_s=0.2)

    def next(self) -> pa.RecordBatch | None:
        """Rows that fill the buffers of any connection."""
        return pa.record_batch([pa.array(range(100_000))], self.schema)


def test_an_asker_that_stops_reading_holds_nothing_behind_the_time_of_its_scan(node: FakeNode) -> None:
    """A node that is stopped keeps its connections. The scan's place, memory and files are free for others."""
    scan = ScanWithoutEnd()
    node.scanner = cast(Any, SimpleNamespace(scans_max=1, open=lambda _: scan))
    server = Server(create_app(node))
    host, port = server.start().removeprefix("http://").split(":")
    body = json.dumps(REQUEST).encode()
    head = f"POST {SCAN_ROUTE} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(15).startswith(b"HTTP/1.1 200")
        assert scan.closed.wait(10)
    server.stop()


def stale_answer(*, is_removed: bool) -> QueryError:
    """The error of an answer whose group has left the node, or whose node was stopped."""
    group: Any = SimpleNamespace(name="g", key="g", refusal="", health=SimpleNamespace(leaves_sound=False))
    groups, state = ByTopic({"t": group}), SimpleNamespace(fencings=0, confirmed_offset=lambda _topic: 0)
    state.refusals, state.refusal = list, lambda topic: groups[topic].refusal
    fence = LocalFence(groups, cast(Any, state))
    if is_removed:
        groups.clear()
    else:
        state.fencings = 1
    with pytest.raises(AnswerStale) as raised:
        fence.check()
    return raised.value


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (SlotsMoved.to("g", 3, 2), "info"),
        (stale_answer(is_removed=True), "info"),
        (stale_answer(is_removed=False), "warning"),
        (QueryCancelled("the asker is gone"), "warning"),
    ],
)
def test_a_faultless_change_warns_nobody(error: QueryError, level: str) -> None:
    """A scan that meets the switch of a table is planned again. What nobody has planned stays a warning."""

    def fails() -> None:
        raise error

    scan = SimpleNamespace(schema=ScanThatIsCancelled.schema, next=fails, close=lambda: None)
    service = ScanService(cast(Any, SimpleNamespace(scans_max=1)))

    async def read() -> None:
        async for _ in service._stream(cast(Any, scan), RemoteScanRequest.parse(REQUEST)):
            pass

    with capture_logs() as logs:
        asyncio.run(read())
    assert [("scan ended early", level)] == [(each["event"], each["log_level"]) for each in logs]
