"""The route by which nodes read each other's groups: what it refuses before a scan begins."""

from __future__ import annotations

import httpx
import pytest

from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.serve.query_service import BODY_BYTES_MAX

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
