"""An operator's request for a change: the checks before anything is appended, and the record that begins it. Pure.

A refusal changes nothing. The same checks answer `--dry-run`, which needs no live joiner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.connectors.http import NodeUnreachable
from headrace.consumers.membership.balancer import Balancer
from headrace.consumers.membership.changes import MembershipState, unfinished_ends
from headrace.consumers.membership.ring import NodeExists, RingNode
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector
from headrace.schemas.durations import age_text
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import MEMBERSHIP_CHANGE_FORMAT, Change, ChangeKind
from headrace.schemas.messages import Leadership
from headrace.schemas.presence import Presence
from headrace.schemas.records import HASH_NAME


class SettingsDiffer(HeadraceError):
    """A node that would join was started with other settings than the cluster's; names each of them."""


class ChangeRunning(HeadraceError):
    """Another change is in its first phase."""


class MigrationUnfinished(HeadraceError):
    """Slots of the last change are still on their way; names what is left."""


class OnlyCopy(HeadraceError):
    """A node that would be removed is offline and has the only copy of its rows."""


class NoMajority(HeadraceError):
    """A group without a majority of its members; names it."""


class NodesTooOld(HeadraceError):
    """Nodes whose build cannot read the records of a change; names them."""


class ChangesUnsupported(HeadraceError):
    """Nodes whose build plans changes and does not carry them out; names them."""


class CancelTooLate(HeadraceError):
    """A change whose table counts already."""


class NoChange(HeadraceError):
    """There is no change to cancel."""


class NothingToMove(HeadraceError):
    """A balance of groups that have equal shares already."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """A node that waits to join, by its own report."""

    node: str
    store: str
    replication: int
    slots: int
    hash: str = HASH_NAME


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """What an operator wants; `id` is new for each request and equal for its repeats.

    `node` is empty for `ChangeKind.BALANCE`. `rate` is how many bytes a second each node fetches at most, 0 = no limit.
    """

    id: str
    kind: ChangeKind
    node: RingNode | str = ""
    rate: int = 0

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.node.id if isinstance(self.node, RingNode) else self.node


@dataclass(frozen=True, slots=True)
class NodesView:
    """What statuses show: who is online, the format that each of them reads, and every store that waits to join.

    `carriers` are the nodes that carry out changes. `silent_ms` has nodes that have sent statuses and do so no more.
    """

    online: frozenset[str]
    formats: Mapping[str, int] = field(default_factory=dict)
    joiners: Sequence[Joiner] = ()
    carriers: frozenset[str] = frozenset()
    silent_ms: Mapping[str, int] = field(default_factory=dict)


def nodes_view(table: SlotTable, statuses: FailureDetector, present: Sequence[Presence] | None = None) -> NodesView:
    """The nodes by their newest statuses; `present` are their presences where these are known already."""
    formats: dict[str, int] = {}
    # Of two runs of a node the one with the older format decides: its process may still read the log.
    present = statuses.presences() if present is None else present
    shown = [(each.node, each.format) for each in statuses.online()]
    for node, found in (*shown, *((each.node, each.format) for each in present)):
        formats[node] = min(found, formats.get(node, found))
    joiners = [
        Joiner(each.node, each.store, each.replication, each.slots, each.hash)
        for each in present
        if each.node not in table.nodes
    ]
    carriers = {each.node for each in present if each.changes} - {each.node for each in present if not each.changes}
    return NodesView(frozenset(formats), formats, joiners, frozenset(carriers), statuses.absences())


def plan_change(
    state: MembershipState, request: ChangeRequest, nodes: NodesView, balancer: Balancer | None = None
) -> RunningChange:
    """The change that a request would begin, for `--dry-run` and as the base of `change_record`.

    Raises ChangeRunning, MigrationUnfinished, UnknownNode, NodeExists, ClusterInvalid, ClusterTooSmall, OnlyCopy,
    NoMajority, NodesTooOld.
    """
    table = state.table
    assert table is not None, "a request for a change of no cluster"
    _check_idle(state, nodes)
    node = request.node_id
    _check_ended(state, request)
    if request.kind is ChangeKind.ADD:
        after = table.add_node(request.node, balancer)
    elif request.kind is ChangeKind.REMOVE:
        after = table.remove_node(node, balancer)
        _check_other_copies(table, node, nodes)
    else:
        after = table.balance(balancer)
    _check_majorities(table, nodes)
    _check_formats(nodes)
    return RunningChange(state.changes + 1, request.id, request.kind, node, "", table, after, rate=request.rate)


def change_record(
    planned: RunningChange, nodes: NodesView, leadership: Leadership, removed: Collection[str] = ()
) -> Change:
    """The record that begins a planned change; the leader appends it. `removed`: former nodes, see MembershipState.

    Raises NodeUnreachable, NodeExists, SettingsDiffer, NothingToMove.
    """
    # No reader accepts a change without an effect: its sender would append it again and again.
    if planned.kind is ChangeKind.BALANCE and not planned.table.moved:
        raise NothingToMove("the groups have equal shares, and no slot moves", action="nothing is to be done")
    store = _check_joiner(planned, nodes, removed) if planned.kind is ChangeKind.ADD else ""
    return Change(
        leadership, planned.request, planned.kind, planned.node, store, planned.table.to_bytes(), planned.rate
    )


def check_carriers(planned: RunningChange, nodes: NodesView) -> None:
    """Whether all nodes that a change concerns carry it out. Raises ChangesUnsupported."""
    concerned = {*planned.base.nodes, *planned.table.nodes} & nodes.online
    if unable := sorted(concerned - nodes.carriers):
        raise ChangesUnsupported(
            f"nodes {', '.join(unable)} plan changes and do not carry them out",
            action="use --dry-run, or upgrade the nodes once a version can",
        )


def cancelled_change(state: MembershipState, nodes: NodesView) -> int:
    """The number of the change that a cancellation ends. Raises CancelTooLate, NoChange."""
    if state.change is None:
        raise NoChange("no change is running", action="see headrace cluster show")
    if state.change.formal:
        raise CancelTooLate(
            f"table {state.change.table.version} counts already: {_left(state.change)}",
            action=_wait_advice(state.change, nodes, "wait for the end of the migration"),
        )
    return state.change.number


def _check_idle(state: MembershipState, nodes: NodesView) -> None:
    change = state.change
    if change is None:
        return
    named = f"{change.kind} {change.node}".strip()
    if change.phase in (Phase.PRE, Phase.FORMAL):
        waiting = ", ".join(change.groups_waiting)
        raise ChangeRunning(
            f"a change is running: {named}, phase {change.phase}" + (f", groups {waiting} are due" if waiting else ""),
            action="wait for its end: headrace cluster show has its progress, headrace cluster cancel ends it",
        )
    raise MigrationUnfinished(
        f"the migration of the last change ({named}) has not ended: {_left(change)}",
        action=_wait_advice(change, nodes, "wait for its end: see headrace cluster show"),
        retriable=True,
    )


def _check_ended(state: MembershipState, request: ChangeRequest) -> None:
    if ended := unfinished_ends(state, request.kind, request.node_id):
        names = ", ".join(f"{key.group} (birth {key.birth})" for key in ended)
        raise MigrationUnfinished(
            f"groups that ended are not gone yet: {names}",
            action="wait until their topics are deleted; a majority of their members must be online",
            retriable=True,
        )


def _left(change: RunningChange) -> str:
    members = _missing_at(change)
    return f"{change.slots_done} of {change.slots_total} slots are done, missing at {', '.join(members)}"


def _missing_at(change: RunningChange) -> list[str]:
    return sorted({member for _, member, _ in change.members_waiting()})


def _wait_advice(change: RunningChange, nodes: NodesView, wait: str) -> str:
    """What ends a migration: time, unless a member that it waits for is offline."""
    offline = [member for member in _missing_at(change) if member not in nodes.online]
    if not offline:
        return wait
    are, them = ("is", "it") if len(offline) == 1 else ("are", "them")
    return (
        f"{', '.join(offline)} {are} offline: start {them} again; "
        f"if a disk is lost, an empty data directory under the same id will do; then {wait}"
    )


def _check_other_copies(table: SlotTable, node: str, nodes: NodesView) -> None:
    if table.replication == 1 and node not in nodes.online and table.slots_of(node):
        raise OnlyCopy(
            f"node {node} is offline, and with replication 1 nobody else has its rows", action="start the node"
        )


def _check_majorities(table: SlotTable, nodes: NodesView) -> None:
    for header in table.headers:
        members = table.group(header)
        online = sum(member in nodes.online for member in members)
        # With an even number the log counts as one more member, online since it was read: see election.py.
        even = 1 - len(members) % 2
        if 2 * (online + even) <= len(members) + even:
            offline = ", ".join(member for member in members if member not in nodes.online)
            raise NoMajority(
                f"group {header} has {online} of {len(members)} members online; {offline} are not",
                action="start its nodes",
                retriable=True,
            )


def _check_formats(nodes: NodesView) -> None:
    old = sorted(node for node, found in nodes.formats.items() if found < MEMBERSHIP_CHANGE_FORMAT)
    if old:
        raise NodesTooOld(
            f"nodes {', '.join(old)} cannot read the records of a change (format {MEMBERSHIP_CHANGE_FORMAT})",
            action="upgrade them",
        )


def _check_joiner(planned: RunningChange, nodes: NodesView, removed: Collection[str]) -> str:
    """The store of the node that joins."""
    found = {joiner.store: joiner for joiner in nodes.joiners if joiner.node == planned.node}
    if not found and planned.node in removed:
        raise NodeUnreachable(
            f"node {planned.node} was removed, and no other one with this id runs",
            action=f"start a new one: headrace node run --id {planned.node}, with an empty data directory; "
            "then repeat this command",
        )
    if not found:
        raise _unreachable(planned.node, nodes.silent_ms.get(planned.node))
    if len(found) > 1:
        # A node that stopped a moment ago still counts: its directory may have been deleted and created again since.
        raise NodeExists(
            f"{len(found)} data directories have the id {planned.node}",
            action=f"give each node an id of its own; if one was stopped, ask again after {OFFLINE_MS // 1_000} s",
            retriable=True,
        )
    joiner = next(iter(found.values()))
    table = planned.base
    differing = [
        f"{name} is {have}, node {joiner.node} was started with {want}"
        for name, have, want in (
            ("replication", table.replication, joiner.replication),
            ("slots", table.slots, joiner.slots),
            ("hash", HASH_NAME, joiner.hash),
        )
        if have != want
    ]
    if differing:
        raise SettingsDiffer(
            f"the settings of the cluster differ: {'; '.join(differing)}", action="start it with the cluster's settings"
        )
    return joiner.store


def _unreachable(node: str, silent_ms: int | None) -> NodeUnreachable:
    """Why a node that shall join cannot be reached, and what to do; `silent_ms` None: no status of it is known."""
    command = f"headrace node run --id {node}"
    if silent_ms is not None:
        return NodeUnreachable(
            f"node {node} is offline, its last status came {age_text(silent_ms / 1_000)} ago",
            action=f"if it has ended: {command}, with its data directory; if it runs, is its process stopped, or cut off "
            "from Kafka? Then repeat this command",
        )
    return NodeUnreachable(
        f"node {node} has sent no status",
        action=f"start it: {command}, with this cluster's name and bootstrap; if it runs, compare these two; "
        "then repeat this command",
    )
