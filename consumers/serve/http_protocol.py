"""HTTP/1.1 of the surface: uvicorn on llhttp, with a limit on what comes before a body.

llhttp is the parser of Node.js, and compiled. To read and write one short request in Python takes longer than the
query in it.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
"""Request line and header fields together, beyond the first part of them that arrives. llhttp has no limit."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A head that does not end is refused, and its connection closed."""
        was_in_head = self._in_head
        super().data_received(data)
        # The part in which a head begins may have the body of the request before it.
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._in_head = False
                self.send_400_response(f"The head of the request is larger than {HEAD_BYTES_MAX} bytes.")

    def on_message_begin(self) -> None:
        """See httptools.HttpRequestParser."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """See httptools.HttpRequestParser."""
        self._in_head = False
        super().on_headers_complete()
