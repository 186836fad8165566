"""The route by which nodes read each other's groups: what it refuses before a scan begins, and askers that go."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pytest

from headrace.consumers.query.query_errors import QueryCancelled
from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.serve import scan_service
from headrace.consumers.serve.query_service import BODY_BYTES_MAX
from headrace.consumers.serve.scan_service import ScanService

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


class FailingScan:
    """A scan whose first step ends with an error, once it is asked to."""

    def __init__(self) -> None:
        self.schema = pa.schema([("pump", pa.string())])
        self.ending = threading.Event()

    def next(self) -> None:
        """See RunningScan."""
        assert self.ending.wait(30)
        raise QueryCancelled("the asker has gone")

    def close(self) -> None:
        """See RunningScan."""


def test_a_step_that_fails_after_its_asker_has_gone_is_no_trace_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stopped query of another node would write one."""
    monkeypatch.setattr(scan_service, "MARK_INTERVAL_S", 0.01)
    scan, reported = FailingScan(), list[object]()

    async def ask_and_go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
        service = ScanService(SimpleNamespace(scans_max=1))
        answer = service._stream(scan, SimpleNamespace(group="g"))
        await anext(answer)
        await answer.aclose()
        scan.ending.set()
        await asyncio.to_thread(service._threads.shutdown)
        await asyncio.sleep(0.05)
        gc.collect()

    asyncio.run(ask_and_go())
    assert [] == reported
