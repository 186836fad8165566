"""Which groups a node opens and closes when its slot table changes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.replication.founding import Founding
from headrace.schemas.group_changes import GroupKey


class GroupPlacement(Protocol):
    """Which node is a member of which group; see SlotTable."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes."""
        ...

    def groups_of(self, node: str) -> tuple[str, ...]:
        """The groups a node is a member of."""
        ...

    def group(self, header: str) -> tuple[str, ...]:
        """The members of a group."""
        ...

    def birth(self, header: str) -> int:
        """The version of the table that had a group first."""
        ...


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What a node does to get from the groups that it has to those that it should have."""

    opened: tuple[GroupKey, ...] = ()
    closed: tuple[GroupKey, ...] = ()


def groups_at(table: GroupPlacement, node: str) -> dict[GroupKey, Founding]:
    """The groups of a node in a first table, in ring order; none for a node that is not in the table."""
    headers = table.groups_of(node) if node in table.nodes else ()
    keys = [GroupKey(header, table.birth(header)) for header in headers]
    return {key: Founding(table.group(key.group), key.birth) for key in keys}


def group_changes(present: Collection[GroupKey], wanted: Collection[GroupKey]) -> GroupChanges:
    """The changes from the groups that are present to those that are wanted.

    A group that was born again is another group: the old one is closed and the new one opened.
    """
    return GroupChanges(
        opened=tuple(group for group in wanted if group not in present),
        closed=tuple(sorted(group for group in present if group not in wanted)),
    )
