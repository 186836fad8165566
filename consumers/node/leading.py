"""Makes a node a leader of its groups: claims and upkeep, and what a leader does for a change of members."""

from __future__ import annotations

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.migration.change_tasks import ChangeTasks
from headrace.consumers.migration.copies_ahead import CopiesAhead
from headrace.consumers.node.group_statuses import GroupStatuses
from headrace.consumers.node.settings import StoreSection
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks, LogTrimmer


def leader_tasks(
    log: Log,
    topics: Topics,
    groups: GroupRegistry,
    settings: StoreSection,
    statuses: GroupStatuses,
    heartbeat: Heartbeat,
    schemas: SchemaLog,
    metadata: MetadataGroup,
    copies: CopiesAhead,
) -> LeaderTasks:
    """The leader's tasks of a node, not started."""
    trimmer = LogTrimmer(log, heartbeat, settings.log_keep_records)
    tasks = LeaderTasks(log, groups, settings, statuses, heartbeat, schemas, trimmer)
    tasks.change_tasks = ChangeTasks(log, topics, metadata, heartbeat, tasks, copies=copies)
    return tasks
