"""Which groups a node holds, by what the membership log has decided. Pure.

docs/internals/membership.md has the rules as a table. A node holds more groups than the table gives it while a
change runs: its files are fetched, and late records of its groups are handed over.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.consumers.membership.changes import MembershipState, foundings_by
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.founding import Founding
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import ChangeKind

NONE_GONE: frozenset[GroupKey] = frozenset()


def wanted_groups(
    state: MembershipState, node: str, gone: Collection[GroupKey] = NONE_GONE
) -> dict[GroupKey, Founding]:
    """The groups that a node opens and keeps, each with its founding; those of the table come first, in ring order.

    `gone` are groups that ended and whose topics were deleted.
    """
    if state.table is None:
        return {}
    found = groups_of_table(state.table, node)
    if state.change is not None:
        found += _groups_of_change(state.change, node)
    found += sorted(key for key, members in state.ended.items() if node in members and key not in gone)
    ended = set(gone).intersection(state.ended)
    return {key: state.founders[key] for key in dict.fromkeys(found) if key not in ended}


def early_groups(state: MembershipState, node: str) -> dict[GroupKey, Founding]:
    """The groups that a running change will bring, which a node opens before: nobody waits for them then.

    They have no leader, and so no record, before the new table counts. A cancelled change takes them away again.
    """
    change = state.change
    if change is None or change.formal:
        return {}
    table = change.table
    born = (each for each in foundings_by(table).items() if each[0].birth == table.version)
    return {key: founding for key, founding in born if node in founding.members}


def groups_of_table(table: SlotTable, node: str) -> list[GroupKey]:
    """The groups of which a node is a member by a table, in ring order."""
    headers = table.groups_of(node) if node in table.nodes else ()
    return [GroupKey(header, table.birth(header)) for header in headers]


def _groups_of_change(change: RunningChange, node: str) -> list[GroupKey]:
    """The groups of the old table that a node has, or gets in the first phase: until the change ends, it keeps them."""
    base = change.base
    return [
        GroupKey(header, base.birth(header))
        for header in base.headers
        # The members of the first phase contain those of before.
        if node in change.pre_members(header)
    ]


def closable_ends(state: MembershipState) -> list[GroupKey]:
    """The groups that ended and hand over nothing but late records any more, in the order of their ends."""
    running = state.change.table.ended if state.change is not None else ()
    return [key for key in state.ended if (key.group, key.birth) not in running]


def joining_reason(state: MembershipState, node: str) -> str:
    """Why a node that is not in the slot table serves nothing, empty for one that is."""
    table, change = state.table, state.change
    if table is None or node in table.nodes:
        return ""
    if change is not None and change.kind is ChangeKind.ADD and change.node == node:
        return f"joining: change {change.number} adds node {node}, which serves from the new table on"
    if leaving_reason(state, node):
        return ""
    return (
        f"joining: node {node} is not among the nodes of the cluster, {', '.join(table.nodes)}, and holds no group; "
        f"headrace cluster add {node} adds it"
    )


def leaving_reason(state: MembershipState, node: str) -> str:
    """Why a node that was removed is not ready, empty for any other. It still answers for its former groups."""
    if node in state.removed and node not in state.exiles:
        return f"leaving: node {node} was removed from the cluster and hands over what is left"
    return ""


def is_exiled(state: MembershipState, node: str, born: int) -> bool:
    """Whether a node was removed for good; `born` is how many membership records were read when its data began.

    An empty data directory under the id of a removed node is another one, which may join.
    """
    return state.exiles.get(node, 0) > born
