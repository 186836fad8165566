"""Which groups a node opens and closes when its slot table changes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.replication.founding import Founding
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import FIRST_BIRTH, group_name


@dataclass(frozen=True, slots=True, order=True)
class GroupBirth:
    """A data group by its header and its birth: the version of the slot table that had it first."""

    header: str
    birth: int = FIRST_BIRTH

    @property
    def key(self) -> str:
        """Its name at a node: for its directories and in the journal."""
        return group_name(GroupKey(self.header, self.birth))


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

    opened: tuple[GroupBirth, ...] = ()
    closed: tuple[GroupBirth, ...] = ()


def groups_at(table: GroupPlacement, node: str) -> dict[GroupBirth, Founding]:
    """The groups of a node in a first table, in ring order; none for a node that is not in the table."""
    headers = table.groups_of(node) if node in table.nodes else ()
    births = [GroupBirth(header, table.birth(header)) for header in headers]
    return {each: Founding(table.group(each.header), each.birth) for each in births}


def group_changes(present: Collection[GroupBirth], wanted: Collection[GroupBirth]) -> GroupChanges:
    """The changes from the groups that are present to those that are wanted.

    A group that was born again is another group: the old one is closed and the new one opened.
    """
    return GroupChanges(
        opened=tuple(group for group in wanted if group not in present),
        closed=tuple(sorted(group for group in present if group not in wanted)),
    )
