"""Refuses requests that web pages of other sites send to a node.

Any page in a browser of this machine can send requests to a node on loopback. It may use a name of its own
that resolves to loopback (DNS rebinding), which the Host header shows. It may also send requests in the
user's name, which Origin and Sec-Fetch-Site show. Programs send none of these headers but Host.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
}


def objection(headers: Mapping[str, str], *, loopback: bool) -> str:
    """Why a request is refused, empty when it is not. With `loopback` only this machine may reach the node."""
    host = headers.get("host", "")
    if loopback and _hostname(host) not in LOOPBACK_NAMES:
        return f"host {host!r} is not this machine"
    # Browsers send Origin with every request that changes something, and no page can forge it.
    origin = headers.get("origin", "")
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        return f"a page of {origin} may not send requests here"
    # A user may follow a link of another site to the node's page; the other site cannot read the answer.
    if (
        headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        return "a page of another site may not send requests here"
    return ""


def _hostname(host: str) -> str:
    # `urlsplit` raises on malformed IPv6 addresses, which come from outside.
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class OriginCheck:
    """ASGI middleware: refuses requests with an `objection`, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, loopback: bool) -> None:
        self._app = app
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = objection(Headers(scope=scope), loopback=self._loopback)
        if reason:
            error = {"kind": "Forbidden", "message": reason, "action": "use the address that the node was started with"}
            await JSONResponse({"error": error}, 403)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)
