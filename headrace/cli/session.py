"""Where a command finds its cluster (log, topics, slot table), and a node of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import EXIT_USAGE, UsageInvalid

if TYPE_CHECKING:
    from headrace._member_views import LogView
    from headrace.admin_client import AdminClient
    from headrace.cli.options import ClusterOptions
    from headrace.connectors.log.kafka import KafkaLog
    from headrace.connectors.log.topics import Topics
    from headrace.consumers.membership.changes import MembershipState
    from headrace.consumers.membership.slot_table import SlotTable
    from headrace.settings import Settings

FIND_NODE_TIMEOUT_S = 4.0
PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ClusterSession:
    """A cluster that exists, its log, and what its membership log has decided."""

    log: KafkaLog
    topics: Topics
    slot_table: SlotTable
    membership: MembershipState

    @contextmanager
    def admin_client(self) -> Iterator[AdminClient]:
        """The client for commands to the running cluster."""
        from headrace.admin_client import AdminClient

        with self.member_view() as view:
            yield AdminClient(view)

    @contextmanager
    def member_view(self) -> Iterator[LogView]:
        """Its members by their newest statuses."""
        from headrace._member_views import LogView

        with contextlib.closing(LogView(self.log, self.topics, self.slot_table)) as view:
            yield view


@contextmanager
def cluster_session(cluster: ClusterOptions) -> Iterator[ClusterSession]:
    """Connect to a cluster by flags, environment and file.

    Raises ClusterUnnamed, NoCluster, LogUnavailable, SettingsInvalid.
    """
    from headrace.connectors.log.kafka import KafkaLog
    from headrace.connectors.log.topics import Topics
    from headrace.consumers.membership.bootstrap import read_membership
    from headrace.settings import load_settings

    loaded = load_settings(cluster.flags())
    require_cluster(loaded)
    topics = Topics(loaded.cluster.name)
    log = KafkaLog(loaded.cluster.bootstrap, loaded.kafka)
    try:
        yield ClusterSession(log, topics, *read_membership(log, topics))
    finally:
        log.close()


@contextmanager
def admin_session(node: str | None, cluster: ClusterOptions) -> Iterator[AdminClient]:
    """The client for commands to a running cluster: over Kafka, or through the node that was named.

    Raises UsageInvalid, NodeAddressInvalid, NodeUnreachable, and as `cluster_session`.
    """
    url = named_node(node, cluster)
    if url is None:
        with cluster_session(cluster) as session, session.admin_client() as admin:
            yield admin
        return
    from headrace._member_views import NodeView
    from headrace.admin_client import AdminClient

    yield AdminClient(NodeView(url))


def named_node(node: str | None, cluster: ClusterOptions) -> str | None:
    """The URL of the node that a command works through, None for Kafka.

    That of the flag, else of the setting `node.url` where no cluster is set. Raises UsageInvalid, NodeAddressInvalid,
    and ClusterUnnamed when there is neither.
    """
    from headrace.settings import load_settings

    if node is not None:
        flags = (("--bootstrap", cluster.bootstrap), ("--cluster", cluster.cluster_name), ("-X", cluster.kafka))
        for name in (name for name, value in flags if value):
            raise UsageInvalid(
                f"--node and {name} contradict each other", action="give --node to work through a node, without Kafka"
            )
    loaded = load_settings({"node.url": node, **cluster.flags()})
    configured = {loaded.origin("cluster.bootstrap"), loaded.origin("cluster.name")} != {"default"}
    if node is None and (configured or not loaded.node.url):
        require_cluster(loaded, action="or name a node: --node HOST:PORT")
        return None
    from headrace.node_client import NodeClient

    return NodeClient(loaded.node.url).url


class NodeUnknown(HeadraceError):
    """No node to ask: no node of the cluster is ready."""


class ClusterUnnamed(HeadraceError):
    """No flag, variable or file names a cluster."""

    exit_code = EXIT_USAGE


def require_cluster(settings: Settings, *, action: str = "") -> None:
    """Refuse settings that name no cluster. Raises ClusterUnnamed."""
    # The defaults name a cluster on this machine. Nobody asked for it: name what to set instead of waiting
    # for Kafka.
    if settings.origin("cluster.bootstrap") == settings.origin("cluster.name") == "default":
        raise ClusterUnnamed("no cluster configured: run `headrace up`, or set cluster.bootstrap", action=action)


@dataclass(frozen=True, slots=True)
class FoundNode:
    """The node that a command asks. Where none is ready, `unready` has the first reason of each other, by address."""

    url: str
    unready: Mapping[str, str] = field(default_factory=dict)


def node_url(node: str | None, cluster: ClusterOptions, *, unready: bool = False) -> str:
    """The address of the node that flags, environment and file name; else see `node_of`. Raises UsageInvalid too."""
    return found_node(node, cluster, unready=unready).url


def found_node(node: str | None, cluster: ClusterOptions, *, unready: bool = False) -> FoundNode:
    """The same, with what keeps others from being ready."""
    from headrace.settings import load_settings

    if node is not None and cluster.kafka:
        raise UsageInvalid("--node and -X contradict each other", action="give --node alone: a node needs no Kafka")
    return _found(load_settings({"node.url": node, **cluster.flags()}), unready=unready)


def node_of(settings: Settings, *, unready: bool = False) -> str:
    """The address of the node that the settings name, else of a ready one of the cluster they name.

    With `unready` one that is not ready is taken where no other answers. Raises NoCluster, NodeUnknown, LogUnavailable.
    """
    return _found(settings, unready=unready).url


def _found(settings: Settings, *, unready: bool) -> FoundNode:
    if settings.node.url:
        return FoundNode(settings.node.url)
    # Here and not above: with the address of a node a command would spend half of its time on these.
    from headrace.connectors.log.port import LogUnavailable, TopicMissing
    from headrace.consumers.membership.bootstrap import no_cluster

    require_cluster(settings, action="or name a node: --node HOST:PORT")
    try:
        return _ready_node(settings, unready=unready or settings.query.stale_max_s > 0)
    except TopicMissing as error:
        raise no_cluster(settings.cluster.name) from error
    except LogUnavailable as error:
        # The nodes may answer although Kafka does not, but only Kafka knows where they are.
        error.action = f"{error.action or 'check the broker'}; or name a node with --node URL: it needs no Kafka"
        raise


def ready_node(cluster: ClusterOptions) -> str:
    """The address of a ready node of a cluster, never the one that the setting `node.url` names.

    Raises ClusterUnnamed, NodeUnknown, LogUnavailable, TopicMissing.
    """
    from headrace.settings import load_settings

    named = load_settings(cluster.flags())
    require_cluster(named)
    return _ready_node(named, unready=False).url


def _ready_node(settings: Settings, *, unready: bool) -> FoundNode:
    """A node that reports itself ready, found through the cluster's status topic; see `node_of`."""
    from headrace.connectors.deadline import Deadline
    from headrace.connectors.http import NodeRefused, NodeUnreachable, call_node
    from headrace.connectors.log.kafka import KafkaLog
    from headrace.connectors.log.topics import Topics
    from headrace.consumers.replication.heartbeat import StatusReader
    from headrace.node_probe import first_reason

    log = KafkaLog(settings.cluster.bootstrap, settings.kafka)
    try:
        reader = StatusReader(log, Topics(settings.cluster.name).status)
        deadline, probed, others = Deadline(FIND_NODE_TIMEOUT_S), set[str](), dict[str, str]()
        while not deadline.passed():
            found = {status.http for status in reader.follow(deadline.left_s()) if status.http}
            for address in sorted(found - probed):
                # The node of a status may have died since, or not be ready to serve: the next one.
                with contextlib.suppress(NodeUnreachable):
                    try:
                        call_node(f"{address}/health/ready", timeout_s=PROBE_TIMEOUT_S)
                    except NodeRefused as refused:
                        others[address] = first_reason(refused.body)
                    else:
                        return FoundNode(address)
            probed |= found
    finally:
        log.close()
    if unready and others:
        first, *more = others
        return FoundNode(first, {each: others[each] for each in more})
    unread = reader.detector.unread_fault("this client")
    raise NodeUnknown(
        f"no node of cluster {settings.cluster.name} is ready ({len(probed)} were found){unread and f'; {unread}'}",
        action=f"{'see headrace status' if others else 'start its nodes'}, or name one with --node",
        retriable=True,
    )
