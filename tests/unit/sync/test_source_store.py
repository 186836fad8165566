"""A store over the HTTP of its node, as far as its refusals go."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.connectors.http import NodeRefused, NodeUnreachable
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.sender_ports import CentreForgotten, FileDamaged, SnapshotLost
from headrace.consumers.sync.source_store import NodeStore, forget_centre
from headrace.schemas.errors import HeadraceError
from tests.sync_sender import DAY_NS, sealed_file

TAKEN = {
    "kind": "CentreTaken",
    "message": "sender u sends from this store",
    "action": "use the state directory of that sender",
    "retriable": False,
}


FILE = sealed_file({"a": [(DAY_NS, 1.0)]}, version=3)
UNKNOWN = {"kind": "CentreUnknown", "message": "no centre is registered here", "retriable": True}
REGISTERED = {"node": "e1", "members": {}, "groups": [], "store": "s", "cluster": "edge", "format": 3}


class Handler(BaseHTTPRequestHandler):
    """Refuses every request."""

    def refuse(self) -> None:
        """As a node does."""
        self.answer(409, {"error": TAKEN})

    def answer(self, status: int, document: object) -> None:
        """Send a document."""
        body = json.dumps(document).encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = refuse  # noqa: N815 - as the library calls them

    def log_message(self, *_given: object) -> None:
        """Nothing."""


class Forgetful(Handler):
    """Knows no centre a moment after it was registered."""

    def forget(self) -> None:
        """As a node behind `sync forget`."""
        registers = self.path.endswith("/register")
        self.answer(*((200, REGISTERED) if registers else (404, {"error": UNKNOWN})))

    do_POST = forget  # noqa: N815 - as the library calls it


class Member(Handler):
    """Takes everything."""

    node = "e1"
    others: Mapping[str, str] = {}

    def take(self) -> None:
        """As a node does."""
        self.answer(200, REGISTERED | {"node": self.node, "members": self.others})

    do_POST = take  # noqa: N815 - as the library calls it


class BadDisk(Handler):
    """Lists a file that it cannot read beyond its first bytes. `cuts`: how often; `restarted`: snapshots are gone."""

    cuts = 1_000
    restarted = False

    def post(self) -> None:
        """A description, a listing, or the answer to who still needs it."""
        if self.path.endswith("/register"):
            groups = [{"group": "e1", "progress": 0, "leads": True, "reason": ""}]
            self.answer(200, REGISTERED | {"groups": groups})
        elif self.path.endswith("/snapshot"):
            listed = ListedFile(FILE.body, 3, "000000.parquet", "000000.series")
            self.answer(200, Listing("7", "/nowhere", "e1", "e1/1", 0, 3, (listed,), ()).document())
        else:
            self.answer(404 if self.restarted else 200, {"error": {"message": "there is no snapshot"}})

    def file(self) -> None:
        """The end of an answer is missing."""
        query = parse_qs(urlsplit(self.path).query)
        split = FILE.body.segment_bytes
        part = FILE.data[:split] if query["name"] == ["000000.parquet"] else FILE.data[split:]
        part = part[int(query["offset"][0]) :]
        self.send_response(200)
        self.send_header("content-length", str(len(part)))
        self.end_headers()
        type(self).cuts -= 1
        self.wfile.write(part[: len(part) // 2] if self.cuts >= 0 else part)

    do_POST, do_GET = post, file  # noqa: N815 - as the library calls them


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a node that is there while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A node that refuses, or the one that a test names."""
    with served(getattr(request, "param", Handler)) as url:
        yield url


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


@pytest.mark.parametrize(
    "ask", [lambda url: NodeStore(url, "id", "c", "v", "").identity(), lambda url: forget_centre(url, "c")]
)
@pytest.mark.parametrize("body", [b"{}", b"17", b"[]"])
def test_another_service_than_a_node_is_named(body: bytes, ask: Callable[[str], object]) -> None:
    """`sync forget` and `sync send` at an address with a letter wrong ended with a traceback."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Other) as url, pytest.raises(NodeRefused, match=f"{url} answers, and not as a node"):
        ask(url)


@pytest.mark.parametrize("url", [Forgetful], indirect=True)
def test_a_centre_that_is_no_longer_known_has_an_error_of_its_own(url: str) -> None:
    """A sender makes it known again, and does not wait for what no waiting brings."""
    store = NodeStore(url, "id", "c", "v", "")
    store.describe()
    with pytest.raises(CentreForgotten, match="no centre is registered here"):
        store.set_progress({"g": 1}, lower=False)


@pytest.mark.parametrize("url", [Member], indirect=True)
def test_a_member_that_does_not_take_a_lower_progress_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for files, it would leave out those that are to come again. A higher one it learns later."""
    with served(type("Other", (Member,), {"node": "e2"})) as other:
        monkeypatch.setattr(Member, "others", {"e2": other})
        store = NodeStore(url, "id", "c", "v", "")
        store.describe()
    store.set_progress({"g": 1}, lower=False)
    with pytest.raises(NodeUnreachable):
        store.set_progress({"g": 1}, lower=True)


@pytest.mark.parametrize(("restarted", "error"), [(False, FileDamaged), (True, SnapshotLost)])
def test_a_file_that_a_node_cannot_read_is_damaged(restarted: bool, error: type[HeadraceError]) -> None:
    """It is left, and others are sent. Taken for a lost snapshot it was listed again and again, and nothing else went."""
    with served(type("Node", (BadDisk,), {"restarted": restarted})) as node:
        store = NodeStore(node, "id", "c", "v", "")
        store.describe()
        listing = store.list("e1", 0)
        with pytest.raises(error):
            store.check(listing, listing.files[0], md5=False)


def test_an_answer_that_is_cut_once_is_asked_for_again() -> None:
    """Nothing is listed again for a line that failed for a moment."""
    with served(type("Node", (BadDisk,), {"cuts": 1})) as node:
        store = NodeStore(node, "id", "c", "v", "")
        store.describe()
        listing = store.list("e1", 0)
        assert b"" == store.check(listing, listing.files[0], md5=False)
