"""Commands at an address where another service answers than a node: an error with what to do, and no answer of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from headrace.cli.main import build_app

COMMANDS = (
    ("status",),
    ("query", "SELECT 1"),
    ("query", "--running"),
    ("query", "--kill", "q1"),
    ("seal",),
    ("verify",),
    ("accept-gap", "--group", "n1"),
    ("table", "drop", "plant.pumps", "--yes"),
)


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """The address of a service that answers everything with 200 and one body."""

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "body", [b"<html>", b"17", b"\xff\xfe\x00", b"{}", b"[{}]"], ids=["page", "number", "bytes", "object", "list"]
)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_another_service_answers_is_no_answer_of_a_node(command: tuple[str, ...], body: bytes) -> None:
    """One JSON error. It was a traceback, or the page itself and exit code 0, or a query that was "killed"."""
    with answering(body) as address:
        ended = CliRunner().invoke(build_app(command), [*command, "--node", address, "--json"])
    assert (1, "") == (ended.exit_code, ended.stdout)
    error = json.loads(ended.stderr)["error"]
    assert f"http://{address} answers, and not as a node of this build does" == error["message"]
    assert "is this the address of a node?" == error["action"]


def test_the_address_of_a_node_with_https_is_refused_by_name() -> None:
    """Nodes have no TLS. The message was that the address is none."""
    ended = CliRunner().invoke(build_app(["status"]), ["status", "--node", "https://127.0.0.1:1"])
    assert 2 == ended.exit_code
    assert "https://127.0.0.1:1 has https, which nodes do not serve" in ended.stderr
