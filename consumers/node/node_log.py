"""The log that a node follows: Kafka, or a log of its own in its data directory."""

from __future__ import annotations

from headrace.connectors.log.port import Log
from headrace.consumers.local_log import LocalLog
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.node.data_directory import LOG_DIRECTORY, DataDirectoryDamaged, DataDirectoryForeign, Identity
from headrace.consumers.node.settings import NodeSettings, ServerSettings


def node_log(settings: ServerSettings) -> Log:
    """The log of the settings; nothing is opened yet. Raises ClusterInvalid."""
    node = settings.node
    if not node.has_local_log:
        # A node without Kafka does not load its client: 13 MB.
        from headrace.connectors.log.kafka import KafkaLog

        return KafkaLog(settings.cluster.bootstrap, settings.kafka)
    if node.members != (node.id,) or node.replication_factor != 1:
        raise ClusterInvalid(
            f"a node with a local log is alone, and {node.id!r} was started with the nodes "
            f"{','.join(node.members)} and {node.replication_factor} replicas",
            action="leave --nodes and --replication out, or use Kafka",
        )
    return LocalLog(node.data_directory / LOG_DIRECTORY)


def check_log_kind(node: NodeSettings, identity: Identity) -> None:
    """Refuse a directory whose rows came from the other kind of log.

    Raises DataDirectoryForeign, DataDirectoryDamaged.
    """
    # A node replaces rows of a topic that is not the one they came from, because Kafka has the truth. Here that would
    # remove the only copy.
    directory = node.data_directory
    has_log = (directory / LOG_DIRECTORY).is_dir()
    if has_log and not node.has_local_log:
        raise DataDirectoryForeign(
            f"data directory {directory} has a local log", action="start this node with --log local"
        )
    if identity.topics and node.has_local_log and not has_log:
        raise DataDirectoryDamaged(
            f"data directory {directory} has rows and no local log",
            action=f"put {LOG_DIRECTORY}/ back; without --log local if the rows came from Kafka",
        )
