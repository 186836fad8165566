"""HTTP/1.1 of the surface: uvicorn on llhttp, with a limit on what comes before a body.

llhttp is the parser of Node.js, and compiled. To read and write one short request in Python takes longer than the
query in it.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
"""Bytes on end that are no body and end no head: request line and header fields, or the fields behind a body.

llhttp has no limit. Those that arrive together with the end before them do not count.
"""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _has_progress = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. A head that does not end is refused, and its connection closed."""
        self._has_progress = False
        super().data_received(data)
        self._head_bytes = 0 if self._has_progress else self._head_bytes + len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {HEAD_BYTES_MAX} bytes.")

    def on_headers_complete(self) -> None:
        """See httptools.HttpRequestParser."""
        self._has_progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See httptools.HttpRequestParser."""
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools.HttpRequestParser."""
        self._has_progress = True
        super().on_message_complete()
