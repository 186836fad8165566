"""What the pulling of slots asks of its node, and what it orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.cut_source import CutSource
from headrace.consumers.replication.group import Group
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.messages import Load


class PullEnvironment(Protocol):
    """A node, or a test. Every method may be called by any thread."""

    # What it asks.

    @property
    def node(self) -> str:
        """Name of the node."""
        ...

    @property
    def state(self) -> MembershipState:
        """What the membership log has decided, as far as this node has read it."""
        ...

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by forward topic; one gets another value when a recovery has replaced its data."""
        ...

    def topic(self, key: GroupKey) -> str:
        """The forward topic of a group."""
        ...

    def source(self, node: str, key: GroupKey) -> CutSource | None:
        """A node's copy of a group; None for one that is not online, or for this node without the group."""
        ...

    def leads(self, topic: str) -> bool:
        """Whether this node leads a group of its own."""
        ...

    # What it orders.

    def append_loads(self, topic: str, loads: Sequence[Load]) -> None:
        """Append loads under this node's leadership. Raises NotLeader, and the errors of the log."""
        ...

    def replace_data(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """Replace the data of a group by the files of one of its other members, which were found to be right."""
        ...

    def report(self, done: SlotDone) -> None:
        """Append a report to the membership log. Raises the errors of the log."""
        ...
