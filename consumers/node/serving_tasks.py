"""What the tasks of a node tell its readiness."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.node.placement_task import PlacementTask
from headrace.consumers.replication.election import Decision
from headrace.consumers.replication.leader_tasks import LeaderTasks


@dataclass(frozen=True, slots=True)
class NodeTasks:
    """The ServingTasks of a node."""

    leader: LeaderTasks
    metadata: MetadataGroup
    placement: PlacementTask
    puller: SlotPuller

    def decision(self, topic: str) -> Decision:
        """See ServingTasks."""
        return self.leader.decision(topic)

    def membership_failure(self) -> str:
        """See ServingTasks."""
        return self.metadata.failure

    def placement_fault(self) -> str:
        """See ServingTasks."""
        return self.placement.fault

    def pulling_reason(self, group: str) -> str:
        """See ServingTasks."""
        return self.puller.reason(group)
