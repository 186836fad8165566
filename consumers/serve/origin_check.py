"""Refuses requests that web pages of other sites send to a node.

Any page in a browser of this machine can send requests to a node on loopback. It may use a name of its own
that resolves to loopback (DNS rebinding), which the Host header shows. It may also send requests in the
user's name, which Origin and Sec-Fetch-Site show. Programs send none of these headers but Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
HOSTS_KNOWN_MAX = 64
"""Host headers whose names are remembered."""
ACTION = "use the address that the node was started with; node.allowed_hosts has further names"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
}


def objection(headers: Mapping[str, str], *, loopback: bool, names: frozenset[str] = frozenset()) -> str:
    """Why a request is refused, empty when it is not. With `loopback` only this machine may reach the node.

    `names` are those of the node itself, in lower case. A node beyond loopback that has none accepts any name.
    """
    host = headers.get("host", "")
    name = _hostname(host)
    # Browsers always send a name. Probes of HAProxy send none, in HTTP/1.0, which alone may have none.
    if "host" in headers and name not in LOOPBACK_NAMES | names:
        if loopback:
            return f"host {host!r} is not this machine"
        # A name can be made to resolve to this node by anyone, an address cannot: those of probes are accepted.
        if names and not _is_address(name):
            return f"host {host!r} is not a name of this node"
    # Browsers send Origin with every request that changes something, and no page can forge it.
    origin = headers.get("origin", "")
    if origin and (not host or _split(origin).netloc.lower() != host.lower()):
        return f"a page of {origin} may not send requests here"
    # A user may follow a link of another site to the node's page; the other site cannot read the answer.
    if (
        headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        return "a page of another site may not send requests here"
    return ""


# To parse it takes longer than all else here, and clients send the same one.
@lru_cache(HOSTS_KNOWN_MAX)
def _hostname(host: str) -> str:
    return (_split(f"//{host}").hostname or "").lower()


def _split(url: str) -> SplitResult:
    # `urlsplit` raises on malformed IPv6 addresses, which come from outside.
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class OriginCheck:
    """ASGI middleware: refuses requests with an `objection`, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, loopback: bool, names: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._loopback = loopback
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = objection(Headers(scope=scope), loopback=self._loopback, names=self._names)
        if reason:
            error = {"kind": "Forbidden", "message": reason, "action": ACTION}
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
