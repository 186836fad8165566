"""A store over the HTTP of its node, as far as its refusals go."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.connectors.http import NodeRefused
from headrace.consumers.sync.source_store import NodeStore, forget_centre

TAKEN = {
    "kind": "CentreTaken",
    "message": "sender u sends from this store",
    "action": "use the state directory of that sender",
    "retriable": False,
}


class Handler(BaseHTTPRequestHandler):
    """Refuses every request."""

    def refuse(self) -> None:
        """As a node does."""
        body = json.dumps({"error": TAKEN}).encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(409)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = refuse  # noqa: N815 - as the library calls them

    def log_message(self, *_given: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """A node that refuses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "ask", [lambda url: NodeStore(url, "id", "c", "v", "").describe(), lambda url: forget_centre(url, "c")]
)
def test_the_action_of_a_refusal_is_its_own(url: str, ask: Callable[[str], object]) -> None:
    """A command shows what to do on a line of its own, and not in brackets behind the message."""
    with pytest.raises(NodeRefused) as raised:
        ask(url)
    error = raised.value
    assert error.message.endswith(": sender u sends from this store")
    assert (TAKEN["action"], "CentreTaken") == (error.action, error.document["kind"])
