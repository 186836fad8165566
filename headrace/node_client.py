"""A node's HTTP surface as Python calls: answers as bytes, and errors of the class that the node raised.

A node that is silent has to show that it lives, see `headrace._silence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from headrace._node_errors import not_a_node, raised_by_node
from headrace._silence import SilentNode
from headrace.connectors.http import (
    AS_OF_HEADER,
    QUERY_ID_HEADER,
    NodeAnswer,
    NodeRefused,
    NodeUnreachable,
    base_url,
    request_node,
)
from headrace.schemas.addresses import USER_IN_ADDRESS, has_user
from headrace.schemas.errors import HeadraceError

CONNECT_TIMEOUT_S = 5.0
# Ten times what a node lets a query take by default: it ends the wait for a node that hangs, never a query.
ANSWER_TIMEOUT_S = 600.0
_Document = TypeVar("_Document", dict[str, Any], list[dict[str, Any]])
NOBODY_THERE = "is it running there? headrace node run starts one"


class NodeAddressInvalid(HeadraceError):
    """A node's address that is neither HOST:PORT nor an http URL."""

    exit_code = 2


class NodeClient:
    """Calls one node. Safe for any thread: each call has its own connection."""

    def __init__(
        self,
        url: str,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        newest_status: Callable[[str], int] = lambda _url: -1,
    ) -> None:
        """`url` is like `http://127.0.0.1:8080` or `127.0.0.1:8080`. `newest_status`: see SilentNode.

        Raises NodeAddressInvalid.
        """
        # First, so that no message repeats the password.
        if has_user(url):
            raise NodeAddressInvalid(f"the address of a node {USER_IN_ADDRESS}", action="nodes take none: leave it out")
        if url.lower().startswith("https:"):
            raise NodeAddressInvalid(f"{url} has https, which nodes do not serve", action="write it with http://")
        try:
            self.url = base_url(url)
        except ValueError:
            raise NodeAddressInvalid(
                f"{url!r} is not the address of a node, HOST:PORT or a URL",
                action="write it like 127.0.0.1:8080 or http://127.0.0.1:8080",
            ) from None
        self._answer_timeout_s = answer_timeout_s
        self._newest_status = newest_status

    def status(self) -> dict[str, Any]:
        """The node's status (see `headrace.consumers.serve.node_api.NodeStatus`)."""
        return self._document(dict, "GET", "/api/v1/status", having="node")

    def cluster(self) -> dict[str, Any]:
        """Nodes, groups and the running change, as `headrace cluster show --json` has them."""
        return self._document(dict, "GET", "/api/v1/cluster")

    def tables(self) -> list[dict[str, Any]]:
        """Every table with its columns."""
        return self._document(list, "GET", "/api/v1/tables")

    def files(self, database: str, table: str) -> dict[str, Any]:
        """The segments of a table (see `headrace.consumers.serve.node_api.NodeApi.files`)."""
        return self._document(dict, "GET", f"/api/v1/files?database={quote(database)}&table={quote(table)}")

    def query(
        self,
        sql: str,
        *,
        format: str = "json",
        after: Mapping[str, int] | None = None,
        timeout_ms: int | None = None,
        limit: int | None = None,
        stale_s: float | None = None,
        on_as_of: Callable[[datetime], None] = lambda _moment: None,
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> Iterator[bytes]:
        """The answer to a query, in chunks as they arrive. `parameters` are the values of `$name` in the SQL.

        A node that does not serve may answer from what it has if that is at most `stale_s` old (None: as the node
        is set); `on_as_of` is then called with the moment up to which the answer contains everything. Raises
        NodeUnreachable, NodeRefused or a QueryError, and AnswerCut from the iterator.
        """
        given = {
            "sql": sql,
            "format": format,
            "after": dict(after or {}),
            "timeout_ms": timeout_ms,
            "limit": limit,
            "parameters": dict(parameters or {}),
            "user": user,
        }
        document: dict[str, Any] = {name: value for name, value in given.items() if value}
        # 0 is not the node's own setting: it is never.
        if stale_s is not None:
            document["stale"] = stale_s
        answer = self._request("POST", "/api/v1/query", document)
        if answer.stream.getheader(QUERY_ID_HEADER) is None:
            with answer:
                raise not_a_node(self.url)
        if as_of := answer.stream.getheader(AS_OF_HEADER):
            on_as_of(datetime.fromisoformat(as_of))
        return answer.chunks()

    def running_queries(self) -> list[dict[str, Any]]:
        """The queries that run at the node."""
        return self._document(list, "GET", "/api/v1/queries", having="sql")

    def kill(self, query_id: str) -> None:
        """End a query. Raises QueryUnknown."""
        path = f"/api/v1/queries/{quote(query_id, safe='', errors='surrogateescape')}"
        self._document(dict, "DELETE", path, having="killed")

    def schemas(self) -> dict[str, Any]:
        """Every database and table that the cluster knows (see `headrace.schemas.table_documents`)."""
        return self._document(dict, "GET", "/api/v1/schemas")

    def write(self, parameters: Mapping[str, str | Sequence[str]], stream: bytes | memoryview) -> dict[str, Any]:
        """Write an Arrow IPC stream; `parameters` are those of the URL. Returns rows, points and offsets.

        Raises NodeUnreachable, AnswerCut, NodeRefused, and the typed errors of a writer.
        """
        return self._document(dict, "POST", f"/api/v1/write?{urlencode(parameters, doseq=True)}", content=stream)

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command as JSON (`/api/v1/delete`, `/api/v1/drop`, `/api/v1/retention`). Raises as `write`."""
        return self._document(dict, "POST", path, document)

    def sync_centres(self) -> dict[str, Any]:
        """The centres that the store sends to, and its members (see `headrace.consumers.sync.edge_store`)."""
        return self._document(dict, "GET", "/api/v1/sync/centres")

    def members(self) -> dict[str, Any]:
        """Groups with their members and logs, and the statuses of the nodes that are online."""
        return self._document(dict, "GET", "/api/v1/members")

    def _document(
        self,
        kind: type[_Document],
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        content: bytes | memoryview | None = None,
        having: str = "",
    ) -> _Document:
        """The JSON of an answer, or of each entry, with a field. Raises NodeRefused where no node answers."""
        with self._request(method, path, document, content=content) as answer:
            try:
                found = answer.json()
            except ValueError as error:
                raise not_a_node(self.url) from error
        entries = found if isinstance(found, list) else [found]
        if not isinstance(found, kind) or (having and not all(having in each for each in entries)):
            raise not_a_node(self.url)
        return found

    def _request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        content: bytes | memoryview | None = None,
    ) -> NodeAnswer:
        try:
            return request_node(
                f"{self.url}{path}",
                method=method,
                document=document,
                content=content,
                timeout_s=self._answer_timeout_s,
                connect_timeout_s=min(CONNECT_TIMEOUT_S, self._answer_timeout_s),
                on_silence=SilentNode(self.url, self._newest_status).look,
            )
        # The reader of this message types an address, so it names the address and not the route.
        except NodeUnreachable as error:
            raise self._silent(error) from error
        except NodeRefused as error:
            raise raised_by_node(self.url, error) from error

    def _silent(self, error: NodeUnreachable) -> NodeUnreachable:
        message, action = f"no node answers at {self.url}: {error.reason}", NOBODY_THERE
        if error.is_late:
            # A node that is gone gives no sign of life, which is another error.
            message = f"the node at {self.url} has not answered within {self._answer_timeout_s:.3g} s"
            action = "it may be busy: ask again, or look at its log"
        return NodeUnreachable(message, action=action, reason=error.reason, sent=error.sent)
