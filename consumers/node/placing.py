"""Lets a node hold the groups that the membership log gives it: opening, closing, and the end of groups."""

from __future__ import annotations

from typing import Protocol

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.node.group_ending import GroupEnding
from headrace.consumers.node.group_lifecycle import GroupLifecycle
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.log_monitor import LogMonitor
from headrace.consumers.node.placement_task import PlacementTask
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer


class PlacingParts(Protocol):
    """The parts of a node that its placement needs."""

    log: Log
    topics: Topics
    cluster_topics: ClusterTopics
    groups: GroupRegistry
    log_consumer: LogConsumer
    log_monitor: LogMonitor
    readiness: Readiness
    leader_tasks: LeaderTasks
    supervisor: RecoverySupervisor
    heartbeat: Heartbeat
    settings: ServerSettings


def placement_task(node: PlacingParts, local: LocalGroups, follower: MembershipFollower) -> PlacementTask:
    """The placement of a node, not started."""
    lifecycle = GroupLifecycle(
        node.log,
        node.cluster_topics,
        local,
        node.log_consumer,
        node.readiness,
        node.leader_tasks,
        node.supervisor.coordinator,
        node.heartbeat,
    )
    ending = GroupEnding(
        node.log,
        node.topics,
        node.groups,
        node.log_consumer,
        node.leader_tasks,
        node.heartbeat,
        node.settings.cluster.ended_log_kept_s,
    )
    ended = EndedTopics(node.log, node.topics)
    placement = PlacementTask(follower, lifecycle, local, node.readiness, ended, node.cluster_topics, ending)
    node.log_monitor.may_be_gone = placement.may_be_gone
    return placement
