"""Joins the cluster at the start of a node, and waits for a broker that knows only some of its topics yet."""

from __future__ import annotations

import threading

from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.membership.schema_history import lost_error
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.kafka_wait import RETRY_S
from headrace.consumers.node.settings import ServerSettings
from headrace.schemas.records import Create


def join(
    log: Log, cluster_topics: ClusterTopics, settings: ServerSettings, stopping: threading.Event, *, has_data: bool
) -> SlotTable:
    """The slot table of the cluster that the settings name; see `join_cluster`. Ends early when the node stops."""
    node, cluster = settings.node, settings.cluster
    topics, absence = Topics(cluster.name), GracePeriod()
    create = Create(node.members, node.replication_factor, cluster.slots)
    while True:
        try:
            return join_cluster(
                log,
                topics,
                create,
                cluster_topics=cluster_topics,
                node=node.id,
                any_replication=not node.replication,
            )
        except ClusterInvalid:
            # A node with data knows that there is a cluster.
            if not has_data or absence.missing(topics.membership) or stopping.is_set():
                raise
        except TopicMissing as error:
            if absence.missing(topics.table) or stopping.is_set():
                raise lost_error(topics.table, "does not exist any more") from error
        stopping.wait(RETRY_S)
