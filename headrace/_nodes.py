"""The nodes that a client asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headrace.connectors.deadline import Deadline
from headrace.node_client import NodeClient
from headrace.producers.cluster import Cluster
from headrace.producers.live_nodes import live_nodes
from headrace.schemas.errors import HeadraceError

LIST_TIMEOUT_S = 3.0
LEARN_INTERVAL_S = 10.0
"""A client without Kafka asks this often, while it queries, which nodes its cluster has."""


class StatusConnection(Protocol):
    """The way to the status topic, see `ClusterConnection`."""

    @property
    def is_open(self) -> bool:
        """Whether it is there already."""
        ...

    @property
    def cluster(self) -> Cluster:
        """The cluster, connected to if it was not."""
        ...


class NodeDirectory:
    """The nodes of a cluster: those that the user named, and those that its nodes or its status topic show."""

    def __init__(
        self, connection: StatusConnection, named: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._named = tuple(named)
        self._clock = clock
        self._answered = ""
        self._failed: set[str] = set()
        self._learned: tuple[str, ...] = ()
        self._learn_due_s = 0.0

    def note_answer(self, url: str) -> None:
        """This node answered: it is asked first from now on, and now and then for the nodes of its cluster."""
        self._answered = url
        self._failed.discard(url)
        # Members change. Of those that were named none may be left one day.
        if self._clock() >= self._learn_due_s and not self._connection.is_open:
            self._learn_due_s = self._clock() + LEARN_INTERVAL_S
            self._learned = member_urls(url) or self._learned

    def note_failure(self, url: str) -> None:
        """This node gave no answer: it may have left the cluster, and is asked last until it answers."""
        if self._answered == url:
            self._answered = ""
        # Also one that the user named first: a query may have time for one node that is stopped, and not for another.
        self._failed.add(url)

    def urls(self, deadline: Deadline) -> list[str]:
        """URLs of nodes to ask: the one that answered last, those that were named, those that serve most groups.

        Behind them are those that gave no answer when they were asked last.

        The status topic is read only over a connection that is open: named nodes, and those that a node has shown,
        are found without Kafka.
        """
        first = [self._answered, *self._named] if self._answered else list(self._named)
        if first and not self._connection.is_open:
            return self._failed_last([*first, *self._learned])
        watch = self._connection.cluster.watch
        # Here and not in `connect`: a client that only writes consumes no status topic.
        watch.start()
        if not first:
            watch.wait_for(lambda statuses: bool(live_nodes(statuses)), deadline.left_s())
        return self._failed_last([*first, *live_nodes(watch.statuses)])

    def _failed_last(self, urls: Iterable[str]) -> list[str]:
        return sorted(dict.fromkeys(urls), key=self._failed.__contains__)

    def unread_fault(self) -> str:
        """Which nodes send statuses that this build cannot read, as far as the status topic is followed."""
        if not self._connection.is_open:
            return ""
        return self._connection.cluster.watch.statuses.unread_fault("this client")

    def newest_status(self, url: str) -> int:
        """A number that is another one with every status of a node; -1 for one that no status shows online."""
        if not self._connection.is_open:
            return -1
        online = self._connection.cluster.watch.statuses.online()
        return max((status.sent_boot_ns for status in online if status.http == url), default=-1)


def member_urls(url: str) -> tuple[str, ...]:
    """The URLs of the nodes of a cluster that are online, as one of them shows; none when it does not answer."""
    try:
        shown = NodeClient(url, answer_timeout_s=LIST_TIMEOUT_S).cluster()
        return tuple(NodeClient(each["http"]).url for each in shown["nodes"] if each["online"] and each["http"])
    # A node of an earlier build has no such route. The answer to the query counts all the same.
    except (HeadraceError, LookupError, TypeError, ValueError):
        return ()


def node_addresses(given: Sequence[str], setting: str) -> list[str]:
    """The URLs of nodes that were named, else that of the setting. Raises NodeAddressInvalid."""
    return [NodeClient(address).url for address in given or ([setting] if setting else [])]
