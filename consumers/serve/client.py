"""The other end of the HTTP surface: asks a node, gives back bytes or raises what the node raised."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from connectors.http import NodeRefused, NodeUnreachable
from consumers.query import errors
from schemas.errors import HeadraceError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 600.0
PIECE_BYTES = 256 * 1024


class NodeAddressInvalid(HeadraceError):
    """A node's address that is not an http URL."""


class AnswerCut(HeadraceError):
    """An answer that ended before its end: what came of it is not all."""


class NodeClient:
    """Asks one node. A connection a request; safe for any thread."""

    def __init__(self, url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """`url` is like `http://127.0.0.1:8080`. Raises NodeAddressInvalid."""
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/"):
            raise NodeAddressInvalid(
                f"{url!r} is not the address of a node", action="write it like http://127.0.0.1:8080"
            )
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._answer_timeout_s = answer_timeout_s

    def status(self) -> dict[str, Any]:
        """What the node says of itself (see `view.NodeStatus`)."""
        found: dict[str, Any] = json.loads(b"".join(self._request("GET", "/api/v1/status")))
        return found

    def tables(self) -> list[dict[str, Any]]:
        """Every table with its columns."""
        found: list[dict[str, Any]] = json.loads(b"".join(self._request("GET", "/api/v1/tables")))
        return found

    def query(
        self,
        sql: str,
        *,
        format: str = "json",
        after: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        limit: int | None = None,
    ) -> Iterator[bytes]:
        """The answer to a query, in pieces as they come. Raises NodeUnreachable, NodeRefused, a QueryError, AnswerCut (from the iterator)."""
        asked = {"sql": sql, "format": format, "after": dict(after or {}), "timeout_ms": timeout_ms, "limit": limit}
        return self._request("POST", "/api/v1/query", {name: value for name, value in asked.items() if value})

    def _request(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(self._answer_timeout_s)
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, path, body, {"content-type": "application/json"} if body else {})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NodeUnreachable(
                f"no node answers at {self.url}: {_cause(error)}",
                action="is it running there? headrace node run starts one",
                retriable=True,
            ) from error
        if response.status != http.client.OK:
            try:
                raise _refusal(response)
            finally:
                connection.close()
        return self._pieces(connection, response)

    def _pieces(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := response.read1(PIECE_BYTES):
                yield piece
            if not response.isclosed():
                response.read()
        except (OSError, http.client.HTTPException) as error:
            raise AnswerCut(
                "the node ended the answer before its end: the rows so far are not all",
                action="its log says why",
                retriable=True,
            ) from error
        finally:
            connection.close()


def _refusal(response: http.client.HTTPResponse) -> HeadraceError:
    """The error of an answer: of the class that was raised at the node where it is a query's, else NodeRefused."""
    try:
        error = json.loads(response.read())["error"]
        message, action, kind = str(error["message"]), str(error.get("action", "")), str(error["kind"])
        retriable = bool(error.get("retriable", False))
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        message, action, kind, retriable = (
            f"the node answered HTTP {response.status}",
            "is this the address of a node?",
            "Http",
            False,
        )
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.QueryError):
        return known(message, action=action, retriable=retriable)
    return NodeRefused(message, action=action, retriable=retriable)


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(getattr(error, "strerror", None) or error)
