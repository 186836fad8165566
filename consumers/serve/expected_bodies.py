"""Requests with `Expect`: their clients send no body before they are asked for it."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.consumers.serve.error_documents import document

CONTINUE = "100-continue"


class ExpectedBodies:
    """ASGI middleware: an answer to such a client that asks for no body ends its connection, which says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        expected = next((value for name, value in scope.get("headers", ()) if name == b"expect"), b"").decode("latin-1")
        if not expected:
            await self._app(scope, receive, send)
            return
        is_asked = False

        async def receive_asked() -> Message:
            nonlocal is_asked
            is_asked = True
            return await receive()

        async def send_with_end(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_asked:
                # The next bytes of the client may be that body, or its next request.
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if expected.lower() == CONTINUE:
            await self._app(scope, receive_asked, send_with_end)
            return
        error = document("ExpectationUnknown", f"expect {expected!r} is unknown", f"send {CONTINUE}, or none")
        await JSONResponse({"error": error}, 417)(scope, receive, send_with_end)
