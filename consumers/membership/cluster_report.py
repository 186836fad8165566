"""What operators see of a cluster's members, slots and changes, as JSON documents. Pure.

Sizes come from the statuses of members. These have the bytes of a group, not of a slot, so the bytes of a slot
are its share of its group's: an estimate. -1 is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.requests import NodesView, nodes_view
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.records import Role, Status

UNKNOWN = -1
CURABLE = ("offline", "is full", "no space", "refused", "denied", "cannot be written", "journal:")
"""Words of causes that last until an operator ends them."""
Int64s = npt.NDArray[np.int64]


class ClusterReport:
    """The cluster after its membership log, with the newest statuses of its nodes."""

    def __init__(self, state: MembershipState, statuses: FailureDetector, formal_ms: int = 0) -> None:
        """`formal_ms` is the broker's time at which the running change became formal; 0 for none."""
        assert state.table is not None, "a report of no cluster"
        self._formal_ms = formal_ms
        self._state = state
        self._table: SlotTable = state.table
        self._statuses = statuses
        self._live = statuses.online()
        self._online = {each.node for each in self._live} | {each.node for each in statuses.presences()}

    def nodes_view(self) -> NodesView:
        """Who is online and what each reads, for the checks of a request."""
        return nodes_view(self._table, self._statuses)

    def cluster(self) -> dict[str, Any]:
        """Nodes, groups and the running change."""
        table, state = self._table, self._state
        return {
            "version": table.version,
            "replication": table.replication,
            "slots": table.slots,
            "nodes": [self._node(node, position) for node, position in zip(table.nodes, table.positions, strict=True)],
            "groups": [self._group(header, slots) for header, slots in table.slot_counts().items()],
            "metadata": {"leader": self._metadata_leader(), "epoch": state.epoch},
            "change": None if state.change is None else self._change(state.change),
        }

    def slots(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Some slots: owner, former owner, state and bytes. Raises UnknownSlot."""
        sizes, table = self.slot_bytes(), self._table
        return [
            {
                "slot": slot,
                "group": table.holder(slot),
                "previous": table.previous_holder(slot),
                "state": str(self._state.slot_state(slot)),
                "bytes": sizes[slot],
            }
            for slot in numbers
        ]

    def plan(self, change: RunningChange) -> dict[str, Any]:
        """What a change would move, and the members of every group before, between and after its phases."""
        sizes, moves = self.slot_bytes(), dict[tuple[str, str], list[int]]()
        for slot, previous in change.table.moved:
            moves.setdefault((previous, change.table.holder(slot)), []).append(sizes[slot])
        return {
            "moves": [
                {"from": giver, "to": taker, "slots": len(moved), "bytes": _total(moved)}
                for (giver, taker), moved in moves.items()
            ],
            "groups": [
                {"group": each.group, "before": each.before, "pre": each.pre, "after": each.after}
                for each in change.groups()
            ],
        }

    def slot_bytes(self) -> list[int]:
        """The bytes of every slot: those of its group, divided by the slots whose data that group has."""
        return list(map(int, self._slot_bytes()))

    def _slot_bytes(self) -> Int64s:
        change = self._state.change
        table = change.base if change is not None else self._table
        sizes = np.full(table.slots, UNKNOWN, np.int64)
        for header in table.headers:
            held, slots = self._group_bytes(header), np.array(table.slots_of(header), np.int64)
            if held != UNKNOWN and len(slots):
                # The first slots have the remainder, so that all of them together have the bytes of the group.
                sizes[slots] = held // len(slots) + (np.arange(len(slots)) < held % len(slots))
        return sizes

    def _metadata_leader(self) -> str | None:
        """The leader of the metadata group, None while the run of it that claimed is offline."""
        leader = self._state.leader
        runs = {(each.node, each.incarnation) for each in self._live}
        runs |= {(each.node, each.incarnation) for each in self._statuses.presences()}
        return leader.node if leader is not None and (leader.node, leader.incarnation) in runs else None

    def _node(self, node: str, position: int) -> dict[str, Any]:
        # A copy of the items: the receiving thread adds members meanwhile.
        statuses = [each.status for (_, name), each in list(self._statuses.received.items()) if name == node]
        online = [status for status in self._live if status.node == node]
        present = [each for each in self._statuses.presences() if each.node == node]
        addresses = [*(each.http for each in present), *(each.http for each in (*online, *statuses))]
        http = next((address for address in addresses if address), "")
        return {"id": node, "position": position, "http": http, "online": bool(online or present)}

    def _group(self, header: str, slots: int) -> dict[str, Any]:
        leader = self._leader(header)
        return {
            "group": header,
            "birth": self._table.birth(header),
            "members": self._state.members(header),
            "leader": None if leader is None else leader.node,
            "slots": slots,
            "bytes": self._group_bytes(header),
        }

    def _members(self, header: str) -> list[Status]:
        return [status for status in self._live if status.group == header]

    def _leader(self, header: str) -> Status | None:
        leaders = [status for status in self._members(header) if status.role is Role.LEADER]
        return max(leaders, key=lambda status: status.epoch, default=None)

    def _group_bytes(self, header: str) -> int:
        leader = self._leader(header)
        if leader is not None:
            return leader.segment_bytes
        return max((status.segment_bytes for status in self._members(header)), default=UNKNOWN)

    def _change(self, change: RunningChange) -> dict[str, Any]:
        # All slots at once: whoever waits for a change looks ten times a second.
        sizes, total = self._slot_bytes(), len(change.base.headers)
        moved = _marked(sum(change.gained.values()), len(sizes))
        done = _marked(change.done, len(sizes))
        return {
            "version": change.table.version,
            "kind": str(change.kind),
            "node": change.node,
            "phase": str(change.phase),
            "groups_done": total - len(change.groups_waiting),
            "groups_total": total,
            "slots_done": change.slots_done,
            "slots_total": change.slots_total,
            "bytes_done": _total(sizes[done].tolist()),
            "bytes_total": _total(sizes[moved].tolist()),
            "eta_s": self._eta_s(change, sizes),
            "waiting_for": self._waiting_for(change),
        }

    def _eta_s(self, change: RunningChange, sizes: Int64s) -> int:
        """Seconds until all data has arrived, by the bytes that members have and the time since it began to move."""
        # By members: a slot is done with the last of them. An empty slot counts as one byte, as for the balancers.
        received, weights = dict(change.received), np.maximum(sizes, 1)
        done = total = 0
        for header, gained in change.gained.items():
            members = change.table.group(header)
            total += int(weights[_marked(gained, len(sizes))].sum()) * len(members)
            for member in members:
                done += int(weights[_marked(gained & received.get(member, 0), len(sizes))].sum())
        since_ms = self._statuses.newest_ms - self._formal_ms
        if done == total:
            return 0
        if not done or not self._formal_ms or since_ms < 0:
            return UNKNOWN
        return math.ceil(since_ms * (total - done) / done / 1_000)

    def _waiting_for(self, change: RunningChange) -> Sequence[str]:
        if change.groups_waiting:
            causes = [(f"group {header}", self._unfit(change, header)) for header in change.groups_waiting]
        elif not change.formal:
            return ["leader of the metadata group"]
        else:
            causes = [
                (f"node {member}: {count} slots of group {header}", self._reason(header, member))
                for header, member, count in change.members_waiting()
            ]
        # A line with room for one of them names what does not end by itself.
        return [named + cause for named, cause in sorted(causes, key=lambda each: _urgency(each[1]))]

    def _unfit(self, change: RunningChange, header: str) -> str:
        """A member that keeps a group from its new members, such as one with a full disk, behind a colon."""
        new = [member for member in change.pre_members(header) if member not in change.base.group(header)]
        if offline := [member for member in new if member not in self._online]:
            return f": node {offline[0]} is offline"
        unfit = (each for each in self._members(header) if each.reason and not each.eligible)
        return min((f": node {each.node}, {each.reason}" for each in unfit), key=_urgency, default="")

    def _reason(self, header: str, member: str) -> str:
        """That a member is offline, or what it names as the cause, behind a comma; empty when it names none."""
        if member not in self._online:
            return ", it is offline"
        found = next((each.reason for each in self._members(header) if each.node == member), "")
        return f", {found}" if found else ""


def _urgency(cause: str) -> int:
    """The order of causes: members that are offline, then what lasts, what ends by itself, and none."""
    if cause.endswith("is offline"):
        return 0
    if any(word in cause.lower() for word in CURABLE):
        return 1
    return 2 if cause else 3


def _marked(slots: int, total: int) -> npt.NDArray[np.bool_]:
    """Slots that are the bits of a number, of `total` slots."""
    data = np.frombuffer(slots.to_bytes((total + 7) // 8, "little"), np.uint8)
    return np.unpackbits(data, bitorder="little")[:total].astype(np.bool_)


def _total(sizes: Iterable[int]) -> int:
    found = list(sizes)
    return UNKNOWN if UNKNOWN in found else sum(found)
