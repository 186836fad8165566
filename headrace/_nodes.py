"""The nodes that a client asks, and one query to one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace._answers import QueryResult
from headrace._connection import ClusterConnection
from headrace.connectors.deadline import Deadline
from headrace.node_client import NodeClient
from headrace.producers.cluster import MemberStatuses
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Role

ANSWER_TIMEOUT_S = 600.0
# The node ends a query at its timeout. The client waits longer, to get the error of that and not a
# closed socket.
GRACE_S = 15.0
LIST_TIMEOUT_S = 3.0


class NodeDirectory:
    """The nodes of a cluster: those that the user named, and those that its status topic shows."""

    def __init__(self, connection: ClusterConnection, named: Sequence[str] = ()) -> None:
        self._connection = connection
        self._named = tuple(named)
        self._answered = ""

    def note_answer(self, url: str) -> None:
        """This node answered: it is asked first from now on."""
        self._answered = url

    def note_failure(self, url: str) -> None:
        """This node gave no answer: it may have left the cluster, and is not asked first any more."""
        if self._answered == url:
            self._answered = ""

    def urls(self, deadline: Deadline) -> list[str]:
        """URLs of nodes to ask: the one that answered last, those that were named, those that serve most groups.

        The status topic is read only over a connection that is open: named nodes are found without Kafka.
        """
        first = [self._answered, *self._named] if self._answered else list(self._named)
        if first and not self._connection.is_open:
            return list(dict.fromkeys(first))
        watch = self._connection.cluster.watch
        # Here and not in `connect`: a client that only writes consumes no status topic.
        watch.start()
        if not first:
            watch.wait_for(lambda statuses: bool(live_nodes(statuses)), deadline.left_s())
        return list(dict.fromkeys([*first, *live_nodes(watch.statuses)]))

    def listed_tables(self) -> set[tuple[str, str]]:
        """(database, table) of each table that a node lists; none when no node answers."""
        for url in self.urls(Deadline(LIST_TIMEOUT_S)):
            try:
                return {(each["database"], each["table"]) for each in NodeClient(url).tables()}
            except HeadraceError:
                continue
        return set()


def node_addresses(given: str | Iterable[str] | None, setting: str) -> list[str]:
    """The URLs of nodes that were named, else that of the setting. Raises NodeAddressInvalid."""
    addresses = [given] if isinstance(given, str) else list(given or ())
    return [NodeClient(address).url for address in addresses or ([setting] if setting else [])]


def query_node(
    url: str,
    sql: str,
    parameters: Mapping[str, Any],
    after: Mapping[str, int],
    timeout_ms: int | None,
    stale_s: float | None,
) -> QueryResult:
    """The answer of one node. Raises QueryError, NodeRefused, NodeUnreachable and AnswerCut."""
    wait_s = ANSWER_TIMEOUT_S if timeout_ms is None else timeout_ms / 1_000 + GRACE_S
    as_of: list[datetime] = []
    chunks = NodeClient(url, answer_timeout_s=wait_s).query(
        sql,
        format="arrow",
        after=after,
        timeout_ms=timeout_ms,
        parameters=parameters,
        stale_s=stale_s,
        on_as_of=as_of.append,
    )
    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return QueryResult(reader.read_all(), next(iter(as_of), None))


def live_nodes(statuses: MemberStatuses) -> list[str]:
    """URLs of the nodes that are alive, those first that serve most groups."""
    # A group that is not in sync is behind its log: a query that waits for newer offsets fails there with
    # NotCaughtUp.
    serving: dict[str, int] = {}
    for status in statuses.online():
        if status.http:
            serving[status.http] = serving.get(status.http, 0) + int(status.role is not Role.UNSYNCED)
    return sorted(serving, key=lambda url: -serving[url])
