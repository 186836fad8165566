"""HTTP/1.1 of the surface: uvicorn on llhttp, with a limit on what comes before a body.

llhttp is the parser of Node.js, and compiled. To read and write one short request in Python takes longer than the
query in it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.consumers.serve.request_bodies import SILENCE_S

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEAD_BYTES_MAX = 64 * 1024
"""Bytes on end that are no body and end no head: request line and header fields, or the fields behind a body.

llhttp has no limit. Those that arrive together with the end before them do not count.
"""

_ONCE = (b"host", b"origin")
"""Fields that decide whether a request is taken."""
_INVALID = "Invalid HTTP request received."


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _has_progress = False
    _head_bytes = 0
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        # uvicorn knows the newest request alone. One that others were sent behind would run on for nobody.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        # Of one that was reset uvicorn would keep it, and with it the connection.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """See HttpToolsProtocol."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _await_request(self) -> None:
        """Close a connection that brings no request in time, or no rest of one: its client may be gone without a word."""
        if self.cycle is None or self.cycle.response_complete:
            self.timeout_keep_alive_task = self.loop.call_later(SILENCE_S, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A head that does not end is refused, and its connection closed."""
        self._unset_keepalive_if_required()
        self._has_progress = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
            return
        self._await_request()
        self._head_bytes = 0 if self._has_progress else self._head_bytes + len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {HEAD_BYTES_MAX} bytes.")

    def _parse(self, data: bytes) -> None:
        # llhttp takes a request that offers another protocol for one without a body: a write would be acknowledged
        # empty, and its body be the next request. Java's client offers h2c with its first request. So the head is
        # parsed again, without the offer.
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
            else:
                return

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        kept = (b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade")
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(kept))

    def _should_upgrade(self) -> bool:
        """See HttpToolsProtocol. A request with an offer is not answered before it is parsed again."""
        return True

    def on_headers_complete(self) -> None:
        """See httptools.HttpRequestParser. What is raised here is 400."""
        self._has_progress = True
        names = [name for name, _ in self.headers]
        if any(names.count(name) > 1 for name in _ONCE):
            raise ValueError("a proxy may have looked at the other one")
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            raise ValueError("no Host")
        if self.parser.should_upgrade() and b"upgrade" not in names:
            raise ValueError("CONNECT")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See httptools.HttpRequestParser."""
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools.HttpRequestParser."""
        self._has_progress = True
        super().on_message_complete()
