"""What a driver must know of a cluster to plan: the table, the nodes that answer, and where the logs end.

From Kafka where its address is given, else from a node. Opened and closed by each planning: Spark plans in a process
that it may keep for anything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Log, TopicMissing
from headrace.consumers.membership.bootstrap import read_membership
from headrace.consumers.membership.routing import route_of
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.pipeline.node_answers import Nodes, online_urls, spread
from headrace.pipeline.source_options import Target
from headrace.producers.cluster import Route, groups_of
from headrace.producers.live_nodes import live_nodes
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.near_names import near_tables
from headrace.schemas.tables import FieldType, TableSchema

FIND_NODES_S = 10.0
ALL_NODES_S = 1.0
"""How long the nodes that have not shown themselves yet are waited for, once one is known."""


class TableUnknown(HeadraceError):
    """A table that the cluster does not have."""


@dataclass(slots=True)
class ClusterView:
    """A cluster on Kafka, open for one planning."""

    target: Target
    log: Log
    tables: SchemaLog

    def table(self) -> TableSchema:
        """The newest schema of the table. Raises TableUnknown."""
        found = self.tables.catalogue.newest(self.target.database, self.target.table)
        if found.version == 0:
            raise table_unknown(self.target, list(self.tables.catalogue.tables))
        return found

    def slice_ns(self) -> int:
        """The length of a time slice of the database."""
        return self.tables.catalogue.databases[self.target.database].slice_ns

    def route(self) -> Route:
        """Where rows are written now."""
        _, state = read_membership(self.log, self.target.topics)
        return route_of(state, self._has_topic)

    def newest_offsets(self) -> dict[str, int]:
        """The newest offset of each forward log that has records, by its topic."""
        topics = self.target.topics
        names = [topics.forward(group.group, group.birth) for group in groups_of(self.route().table)]
        ends = {name: self.log.describe(name).end for name in names}
        return {name: end - 1 for name, end in ends.items() if end > 0}

    def nodes(self) -> Nodes:
        """The nodes that are alive, those first that serve most groups."""
        # It imports half a node, and most plans are made without it.
        from headrace.consumers.replication.heartbeat import StatusWatch

        wanted = len(self.route().table.headers)
        with contextlib.closing(StatusWatch(self.log, self.target.topics)) as watch:
            watch.wait_for(lambda statuses: bool(live_nodes(statuses)), FIND_NODES_S)
            watch.wait_for(lambda statuses: len(live_nodes(statuses)) >= wanted, ALL_NODES_S)
            urls, unread = live_nodes(watch.statuses), watch.statuses.unread_fault("this client")
        if not urls:
            raise HeadraceError(
                f"no live node of cluster {self.target.cluster!r} is known{unread and f'; {unread}'}",
                action="start its nodes, or name one with option node",
                retriable=True,
            )
        return Nodes(tuple(url.rstrip("/") for url in urls), self.target.token)

    def _has_topic(self, group: GroupKey) -> bool:
        try:
            self.log.describe(self.target.topics.forward(group.group, group.birth))
        except TopicMissing:
            return False
        return True


@contextlib.contextmanager
def open_view(target: Target) -> Iterator[ClusterView]:
    """The cluster of a target, with its table log read to the end. Raises LogUnavailable, NoCluster."""
    with contextlib.closing(KafkaLog(target.bootstrap, dict(target.kafka))) as log:
        # A missing cluster is named before its missing table log.
        read_membership(log, target.topics)
        with contextlib.closing(SchemaLog(log, target.topics)) as tables:
            tables.refresh()
            yield ClusterView(target, log, tables)


def table_of(target: Target, node: str = "") -> TableSchema:
    """The newest schema of a table, from the node at a URL or from Kafka. Raises TableUnknown, NodesSilent."""
    if not node:
        with open_view(target) as view:
            return view.table()
    listed = Nodes((node,), target.token).document("/api/v1/tables")
    for each in listed:
        if (each["database"], each["table"]) == (target.database, target.table):
            fields = tuple((item["name"], FieldType(item["type"])) for item in each["fields"])
            return TableSchema(target.database, target.table, each["version"], tuple(each["tags"]), fields)
    raise table_unknown(target, [(each["database"], each["table"]) for each in listed])


def nodes_beside(node: str, token: str) -> Nodes:
    """A node and the others that it shows as online. Raises NodesSilent."""
    return Nodes(spread(online_urls(Nodes((node,), token).document("/api/v1/cluster")), node), token)


def table_unknown(target: Target, tables: list[tuple[str, str]]) -> TableUnknown:
    """The error for a table that the cluster does not have, with those that are named alike."""
    found = near_tables((target.database, target.table), tables)
    return TableUnknown(
        f"cluster {target.cluster!r} has no table {target.name!r}",
        action=f"did you mean {' or '.join(found)}?" if found else "nothing was written into it yet",
    )
