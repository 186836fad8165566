"""Keeps other people's web pages away from a node on loopback.

A page in a browser of this machine can send requests here. It must neither reach the API under a name of its own that resolves to loopback (DNS
rebinding: the Host header gives it away) nor send requests in the user's name (Origin and Sec-Fetch-Site give it away). Programs send none of
these headers but Host.
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
    """Why a request is not answered, empty when it is. `loopback` says that only this machine is meant to reach the node."""
    host = headers.get("host", "")
    if loopback and _hostname(host) not in LOOPBACK_NAMES:
        return f"host {host!r} is not this machine"
    origin = headers.get("origin", "")
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        return f"a page of {origin} may not ask here"
    if (
        headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        return "a page of another site may not ask here"
    return ""


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Fence:
    """ASGI middleware around everything: refuses what `objection` objects to, and adds the headers that fence a page in."""

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

        async def send_fenced(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_fenced)
