"""What the leader tasks ask of other parts of a node, and what others append through them."""

from __future__ import annotations

from typing import Protocol

from headrace.consumers.replication.election import GroupView
from headrace.consumers.replication.group import Group
from headrace.schemas.group_changes import Barrier, HandOverAccepted
from headrace.schemas.messages import Claim, Compact, Drop, Leadership, Load, Seal

LeaderRecord = Seal | Drop | Compact | Claim | Load | Barrier | HandOverAccepted
"""The records that name a leadership."""


class GroupViews(Protocol):
    """What this node knows of its groups; see `consumers.node.group_statuses`."""

    def view(self, topic: str, steady_ms: int) -> GroupView:
        """The view of a group for the role decision."""
        ...


class TableRetention(Protocol):
    """The retention of tables; see `consumers.membership.schema_log`."""

    def retention_ns(self, database: str, table: str) -> int | None:
        """How long a table keeps its rows, None when it keeps everything."""
        ...


class GroupChangeTasks(Protocol):
    """What a leader does for a change of members; see `consumers.migration.change_tasks`."""

    def turn(self, topic: str, group: Group, leadership: Leadership) -> bool:
        """One step for a group that this node leads; whether it waits for a record of its own in the group's log."""
        ...

    def forget(self, topic: str) -> None:
        """This node does not lead the group, or does not hold it any more."""
        ...

    def close(self) -> None:
        """Release what `turn` has opened."""
        ...


class NoChangeTasks:
    """No change of members ever: for parts that are built without the membership log."""

    def turn(self, _topic: str, _group: Group, _leadership: Leadership) -> bool:
        """See GroupChangeTasks."""
        return False

    def forget(self, _topic: str) -> None:
        """See GroupChangeTasks."""

    def close(self) -> None:
        """See GroupChangeTasks."""
