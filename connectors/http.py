"""The HTTP client of nodes, of the command line and of the library.

One request per connection, and no pool. A dead node then costs one timeout, and no request fails because the
node closed an idle connection a moment earlier. `http.client` also ignores `http_proxy` and its kin: a proxy
of the user's environment must never come between two nodes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

from headrace.connectors.patient_socket import PatientSocket
from headrace.schemas.errors import HeadraceError

CHUNK_BYTES = 256 * 1024
ERROR_BYTES_MAX = 1024 * 1024
AS_OF_HEADER = "x-headrace-as-of"
"""The header of an answer by a node that does not serve: the moment up to which the answer contains everything."""
QUERY_ID_HEADER = "x-headrace-query-id"
OFFSETS_HEADER = "x-headrace-offsets"
"""The header of an answer to line protocol: what `after` of a query takes, so that its answer has these lines."""
TOO_LONG = "it took too long"
CONNECT_TIMEOUT_S = 5.0
"""Longest wait for a connection by somebody who is asked whether to wait on: nobody is asked meanwhile."""
RETRIABLE_STATUSES = frozenset({http.client.CONFLICT, http.client.SERVICE_UNAVAILABLE})

_BINARY = "application/octet-stream"
# ValueError: addresses come from outside, and a node with an unusable one cannot be reached.
_FAILURES = (OSError, http.client.HTTPException, ValueError)


class NodeUnreachable(HeadraceError):
    """A node that does not answer. `reason` is the cause in a few words; `sent`: it may have got the request."""

    def __init__(
        self, message: str, *, action: str = "", retriable: bool = True, reason: str = "", sent: bool = False
    ) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.reason = reason
        self.sent = sent

    @property
    def is_late(self) -> bool:
        """Whether the node took the request, and its answer did not come in the time of the caller."""
        return self.sent and self.reason == TOO_LONG


class NodeRefused(HeadraceError):
    """A node that answered with an error, which the message repeats.

    `status` is the HTTP status and `body` the answer as text. `document` is its `error` object with
    `message`, and `kind`, `action` and `retriable` where the node sends them; it is empty where something
    other than a node answered. `retry_after_s` is when the node wants to be asked again, 0 where it does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        action: str = "",
        retriable: bool = False,
        status: int = 0,
        body: str = "",
        document: Mapping[str, Any] | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.status = status
        self.body = body
        self.document = document or {}
        self.retry_after_s = retry_after_s


class AnswerCut(HeadraceError):
    """An answer that ended before its end: the bytes received so far are not all."""


class Readable(Protocol):
    """What a body is read from."""

    def read(self, size_bytes: int, /) -> bytes:
        """The next bytes, empty at the end."""
        ...


@dataclass(frozen=True, slots=True)
class SizedContent:
    """The body of a request: a file at its begin, or bytes."""

    data: Readable | bytes
    size_bytes: int


class NodeAnswer:
    """The answer to one request, read once from front to back. A context manager that closes the connection."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, connected: socket.socket
    ) -> None:
        self.stream = response
        """The body as a file, for readers that take one."""
        self._connection = connection
        # The connection forgets its socket when the response closes it.
        self._socket = connected

    def abort(self) -> None:
        """End the answer now: a read that waits for more of it fails. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def chunks(self) -> Iterator[bytes]:
        """The body in chunks as they arrive. Closes the connection at the end. Raises AnswerCut."""
        with self:
            try:
                while chunk := self.stream.read1(CHUNK_BYTES):
                    yield chunk
                # http.client takes an early end of the connection for the end of a body with a known length.
                if self.stream.length:
                    raise http.client.IncompleteRead(b"", self.stream.length)
            except _FAILURES as error:
                raise _answer_cut() from error

    def read(self, size_bytes: int) -> bytes:
        """The next bytes of the body, as many as asked for. Raises AnswerCut."""
        try:
            data = self.stream.read(size_bytes)
        except _FAILURES as error:
            raise _answer_cut() from error
        if len(data) < size_bytes:
            raise _answer_cut()
        return data

    def views(self) -> Iterator[memoryview]:
        """The body in views of one buffer, each valid until the next one is taken. Raises AnswerCut.

        A copied file passes through here: one buffer for all of it costs neither an allocation nor a copy per
        chunk. An early end is not an error here, because the receiver compares the length and resumes from
        its own offset.
        """
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while received := self.stream.readinto(buffer):
                yield buffer[:received]
        except _FAILURES as error:
            raise _answer_cut() from error

    def json(self) -> Any:
        """The body as JSON, None for an answer that has no body. Raises AnswerCut, ValueError."""
        try:
            body = self.stream.read()
        except _FAILURES as error:
            raise _answer_cut() from error
        return json.loads(body) if self.stream.status != http.client.NO_CONTENT else None

    def __enter__(self) -> NodeAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a response that closes its connection, only the response still holds the socket.
        self.stream.close()
        self._connection.close()


def base_url(address: str) -> str:
    """`http://HOST:PORT` of a node's address, given as `HOST:PORT` or as a URL. Raises ValueError.

    Only a URL may have no port, which is that of a proxy then. Query and fragment are dropped: a link copied from the
    browser carries the page's own.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    # Reading a port that is no number raises ValueError.
    missing = parts.port == 0 or (parts.port is None and "://" not in address)
    if parts.scheme != "http" or not parts.hostname or missing or parts.path not in ("", "/"):
        raise ValueError(f"{address!r} is not the address of a node")
    return f"http://{parts.netloc}"


def request_node(
    url: str,
    *,
    method: str = "GET",
    document: Mapping[str, Any] | None = None,
    content: bytes | memoryview | SizedContent | None = None,
    timeout_s: float = 30.0,
    connect_timeout_s: float | None = None,
    token: str = "",
    on_silence: Callable[[float], None] | None = None,
) -> NodeAnswer:
    """The answer to one request; `document` is sent as JSON, `content` as it is. Raises NodeUnreachable, NodeRefused.

    `timeout_s` bounds each wait for the node, not the whole answer; `connect_timeout_s` replaces it while
    connecting. `token` is for a proxy in front of the node that authenticates. `on_silence` is called again and again
    while the node is silent, with the seconds that are left, and ends the wait by an error; see CONNECT_TIMEOUT_S.
    """
    body: Any = content if document is None else json.dumps(document).encode()
    headers = {"content-type": "application/json" if document is not None else _BINARY} if body is not None else {}
    if isinstance(body, SizedContent):
        headers["content-length"] = str(body.size_bytes)
        body = body.data
    if token:
        headers["authorization"] = f"Bearer {token}"
    connection, sent = None, False
    connect_s = connect_timeout_s or (timeout_s if on_silence is None else min(timeout_s, CONNECT_TIMEOUT_S))
    try:
        connection, target = _connection(url, connect_s)
        connection.connect()
        # Long queries compute in silence, but a connection that takes seconds means that nobody listens.
        connected = connection.sock = _waiting(connection.sock, timeout_s, on_silence)
        sent = True
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        failure = b"" if response.status < http.client.MULTIPLE_CHOICES else response.read(ERROR_BYTES_MAX)
    except _FAILURES as error:
        if connection is not None:
            connection.close()
        raise _unreachable(url, error, sent=sent) from error
    except BaseException:
        # Ctrl-C: the node ends a query whose client leaves, so the connection must not wait for the collector.
        if connection is not None:
            connection.close()
        raise
    answer = NodeAnswer(connection, response, connected)
    if response.status < http.client.MULTIPLE_CHOICES:
        return answer
    with answer:
        raise _refused(url, response, failure.decode(errors="replace"))


def call_node(
    url: str, *, method: str = "GET", timeout_s: float = 30.0, on_silence: Callable[[float], None] | None = None
) -> Any:
    """The JSON that a node answers. Raises NodeUnreachable, NodeRefused, and what `on_silence` raises."""
    with request_node(url, method=method, timeout_s=timeout_s, on_silence=on_silence) as answer:
        try:
            return answer.json()
        except (AnswerCut, ValueError) as error:
            raise _unreachable(url, error.__cause__ or error, sent=True) from error


def _connection(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection to the node of a URL, not open yet, and the path to request there."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r} is not an http URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return http.client.HTTPConnection(
        parts.hostname, parts.port or 80, timeout=timeout_s, blocksize=CHUNK_BYTES
    ), target


def _waiting(connected: socket.socket, timeout_s: float, on_silence: Callable[[float], None] | None) -> socket.socket:
    """A connection, or what takes its place, with the time that it waits for the node."""
    if on_silence is not None:
        connected = PatientSocket(connected, timeout_s, on_silence)
    connected.settimeout(timeout_s)
    return connected


def _unreachable(url: str, error: BaseException, *, sent: bool) -> NodeUnreachable:
    reason = TOO_LONG if isinstance(error, TimeoutError) else str(getattr(error, "strerror", "") or error)
    message = f"{url} does not answer: {reason}"
    return NodeUnreachable(message, action="check that the node runs", reason=reason, sent=sent)


def _refused(url: str, response: http.client.HTTPResponse, body: str) -> NodeRefused:
    status, retry_after = response.status, response.getheader("retry-after", "")
    document = _error_document(body)
    reason = str(document["message"]) if document else body[:200]
    if document.get("action"):
        reason = f"{reason} ({document['action']})"
    return NodeRefused(
        f"{url}: {reason}",
        retriable=status in RETRIABLE_STATUSES,
        status=status,
        body=body,
        document=document,
        retry_after_s=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0,
    )


def _answer_cut() -> AnswerCut:
    return AnswerCut(
        "the node ended the answer before its end: the rows so far are not all",
        action="its log has the cause",
        retriable=True,
    )


def _error_document(body: str) -> dict[str, Any]:
    """The `error` object of a refusal; empty where something other than a node answered."""
    try:
        document = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return document if isinstance(document, dict) and "message" in document else {}
