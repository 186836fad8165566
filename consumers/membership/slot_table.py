"""The slot table: which data group owns which slot, as an immutable value. Pure.

A slot is `xxh3_64(f"{database}/{bucket}/{slice}") % slots`. Slots belong to data groups; a data group is
named after its header node and consists of the `replication` consecutive nodes on the ring from there. The
design is that of SlotPartitionTable in Apache IoTDB's cluster module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.consumers.membership import SLOTS_DEFAULT, SLOTS_MAX
from headrace.consumers.membership.balancer import Balancer, Moves, Owners, SlotCountBalancer
from headrace.consumers.membership.ring import (
    ClusterInvalid,
    ClusterTooSmall,
    NodeExists,
    RingNode,
    UnknownNode,
    check_node_id,
    in_ring_order,
    successors,
)
from headrace.consumers.membership.slot_table_bytes import TableContent, decode_table, encode_table
from headrace.schemas.errors import HeadraceError
from headrace.schemas.series import slot_of
from headrace.schemas.tables import DatabaseSchema


class UnknownSlot(HeadraceError):
    """A slot that the table does not have."""


@dataclass(frozen=True)
class SlotTable:
    """Nodes in ring order, and for each slot the index of its header in them.

    `positions` and `births` belong to `nodes`: the place on the ring, and the version of the table in which the
    group of that header was new. `moved` has (slot, former header) of what the last change moved, by slot.
    `ended` has (header, birth) of the groups that it ended. The same input gives the same table in every process.
    """

    nodes: tuple[str, ...]
    replication: int
    # Not an array of numpy: a tuple is immutable, compares and hashes. `numpy.asarray` reads it at once.
    slot_headers: tuple[int, ...]
    version: int
    positions: tuple[int, ...]
    births: tuple[int, ...]
    moved: tuple[tuple[int, str], ...] = ()
    ended: tuple[tuple[str, int], ...] = ()

    @classmethod
    def create(
        cls, nodes: Iterable[str | RingNode], replication: int, slots: int = SLOTS_DEFAULT, version: int = 1
    ) -> SlotTable:
        """The first table of a cluster: contiguous ranges of slots, as equal as they can be, in ring order.

        Raises ClusterInvalid.
        """
        placed = [RingNode.of(node) for node in nodes]
        _check(tuple(node.id for node in placed), replication, slots)
        # Multiplied before it is divided: ranges differ by at most one slot, and the last one gets no
        # remainder.
        headers = tuple(slot * len(placed) // slots for slot in range(slots))
        return _table(in_ring_order(placed), replication, headers, version, dict.fromkeys(_ids(placed), version))

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.slot_headers)

    @property
    def headers(self) -> tuple[str, ...]:
        """The data groups, by the name of their header, in ring order."""
        return self.nodes

    @cached_property
    def ring(self) -> tuple[RingNode, ...]:
        """The nodes with their positions, in ring order."""
        return tuple(map(RingNode, self.nodes, self.positions))

    def holder(self, slot: int) -> str:
        """The group that owns a slot. Raises UnknownSlot."""
        self._check_slot(slot)
        return self.nodes[self.slot_headers[slot]]

    def previous_holder(self, slot: int) -> str | None:
        """The group that owned a slot before the last change; None where it did not move. Raises UnknownSlot."""
        self._check_slot(slot)
        return self._previous.get(slot)

    def donors(self, header: str) -> frozenset[str]:
        """The groups that gave slots to a group in the last change. Raises UnknownNode."""
        self._check_node(header)
        place = self.nodes.index(header)
        return frozenset(former for slot, former in self.moved if self.slot_headers[slot] == place)

    def group(self, header: str) -> tuple[str, ...]:
        """The members of a group in list order, its header first. Raises UnknownNode."""
        self._check_node(header)
        return successors(self.nodes, header, self.replication)

    def groups_of(self, node: str) -> tuple[str, ...]:
        """The groups a node is a member of, in ring order. Raises UnknownNode."""
        self._check_node(node)
        return tuple(header for header in self.nodes if node in self.group(header))

    def slots_of(self, header: str) -> tuple[int, ...]:
        """The slots a group owns, ascending. Raises UnknownNode."""
        self._check_node(header)
        return tuple(np.flatnonzero(self._owners == self.nodes.index(header)).tolist())

    def slot_counts(self) -> dict[str, int]:
        """The number of slots of each group, in ring order."""
        return dict(zip(self.nodes, np.bincount(self._owners, minlength=len(self.nodes)).tolist(), strict=True))

    def holds(self, node: str, slot: int) -> bool:
        """Whether a node is a member of the group that owns a slot. Raises UnknownSlot."""
        return node in self.group(self.holder(slot))

    def birth(self, header: str) -> int:
        """The version of the table in which a group was new; also of one that the last change ended.

        Raises UnknownNode.
        """
        ended = dict(self.ended)
        if header in ended:
            return ended[header]
        self._check_node(header)
        return self.births[self.nodes.index(header)]

    def route(self, database: DatabaseSchema, time_ns: int, bucket: int) -> str:
        """The group that takes a row of this bucket at this time."""
        return self.holder(slot_of(database.database, bucket, time_ns // database.slice_ns, self.slots))

    def add_node(self, node: str | RingNode, balancer: Balancer | None = None) -> SlotTable:
        """The table after a node has joined. Raises NodeExists, ClusterInvalid."""
        joiner = RingNode.of(node)
        if joiner.id in self.nodes:
            raise NodeExists(f"node {joiner.id!r} is a member already", action="choose another id")
        _check((*self.nodes, joiner.id), self.replication, self.slots)
        check_node_id(joiner.id)
        ring = in_ring_order((*self.ring, joiner))
        place = ring.index(joiner)
        owners = self._owners + (self._owners >= place)
        moves = (balancer or SlotCountBalancer()).join(owners, len(ring), place)
        version = self.version + 1
        births = {**dict(zip(self.nodes, self.births, strict=True)), joiner.id: version}
        return _table(ring, self.replication, _moved(owners, moves), version, births, self._previous_of(moves))

    def remove_node(self, node: str, balancer: Balancer | None = None) -> SlotTable:
        """The table after a node has left. Raises UnknownNode, ClusterTooSmall."""
        self._check_node(node)
        if len(self.nodes) - 1 < self.replication:
            raise ClusterTooSmall(
                f"without node {node} {len(self.nodes) - 1} of {len(self.nodes)} nodes would be left, and replication is "
                f"{self.replication}",
                action="add another node first: headrace cluster add",
            )
        place = self.nodes.index(node)
        came_from = {
            slot: self.nodes.index(header)
            for slot, header in self.moved
            if self.slot_headers[slot] == place and header in self.nodes
        }
        moves = (balancer or SlotCountBalancer()).leave(self._owners, len(self.nodes), place, came_from)
        owners = np.asarray(_moved(self._owners, moves), np.int32)
        owners -= owners > place
        births = dict(zip(self.nodes, self.births, strict=True))
        ended = ((node, births.pop(node)),)
        ring = tuple(each for each in self.ring if each.id != node)
        return _table(
            ring,
            self.replication,
            tuple(owners.tolist()),
            self.version + 1,
            births,
            self._previous_of(moves),
            ended,
        )

    def balance(self, balancer: Balancer | None = None) -> SlotTable:
        """The table after slots have moved between the nodes there are; none may have."""
        moves = (balancer or SlotCountBalancer()).level(self._owners, len(self.nodes))
        births = dict(zip(self.nodes, self.births, strict=True))
        headers = _moved(self._owners, moves)
        return _table(self.ring, self.replication, headers, self.version + 1, births, self._previous_of(moves))

    def to_bytes(self) -> bytes:
        """The table as bytes (`slot_table.avsc`); equal tables give equal bytes in every process."""
        return encode_table(
            TableContent(
                self.version,
                self.replication,
                tuple(zip(self.nodes, self.positions, self.births, strict=True)),
                self.slot_headers,
                self.moved,
                self.ended,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> SlotTable:
        """The inverse of `to_bytes`. Raises FrameInvalid, ClusterInvalid."""
        content = decode_table(data, SLOTS_MAX)
        nodes = [RingNode(node, position) for node, position, _ in content.nodes]
        _check(_ids(nodes), content.replication, len(content.slot_headers))
        if in_ring_order(nodes) != tuple(nodes):
            raise ClusterInvalid("a slot table has nodes out of order")
        births = {node: birth for node, _, birth in content.nodes}
        headers, moved = content.slot_headers, dict(content.moved)
        return _table(nodes, content.replication, headers, content.version, births, moved, content.ended)

    @cached_property
    def _owners(self) -> Owners:
        return np.asarray(self.slot_headers, np.int32)

    @cached_property
    def _previous(self) -> dict[int, str]:
        return dict(self.moved)

    def _previous_of(self, moves: Moves) -> dict[int, str]:
        return {slot: self.nodes[self.slot_headers[slot]] for slot in moves}

    def _check_node(self, node: str) -> None:
        if node not in self.nodes:
            raise UnknownNode(
                f"node {node!r} is not a member; the members are {', '.join(self.nodes)}",
                action="see headrace cluster show",
            )

    def _check_slot(self, slot: int) -> None:
        # Python would take a negative number for one from the end.
        if not 0 <= slot < self.slots:
            raise UnknownSlot(f"there is no slot {slot}", action=f"use 0 up to {self.slots - 1}")


def _table(
    ring: Iterable[RingNode],
    replication: int,
    slot_headers: tuple[int, ...],
    version: int,
    births: Mapping[str, int],
    moved: Mapping[int, str] | None = None,
    ended: tuple[tuple[str, int], ...] = (),
) -> SlotTable:
    nodes = tuple(ring)
    ids = _ids(nodes)
    return SlotTable(
        ids,
        replication,
        slot_headers,
        version,
        tuple(node.position for node in nodes),
        tuple(births[node] for node in ids),
        tuple(sorted((moved or {}).items())),
        ended,
    )


def _ids(nodes: Iterable[RingNode]) -> tuple[str, ...]:
    return tuple(node.id for node in nodes)


def _moved(owners: Owners, moves: Moves) -> tuple[int, ...]:
    """The owners after some moves."""
    after = owners.copy()
    after[list(moves)] = list(moves.values())
    return tuple(after.tolist())


def _check(nodes: tuple[str, ...], replication: int, slots: int) -> None:
    if len(set(nodes)) != len(nodes):
        raise ClusterInvalid(f"nodes names a node twice: {', '.join(nodes)}", action="name each node once")
    if not nodes or any(not node for node in nodes):
        raise ClusterInvalid("nodes is empty or has an empty name", action="name every node of the cluster")
    if not 1 <= replication <= len(nodes):
        raise ClusterInvalid(
            f"replication {replication} does not fit {len(nodes)} nodes", action="use 1 up to the number of nodes"
        )
    if not len(nodes) <= slots <= SLOTS_MAX:
        raise ClusterInvalid(
            f"slots {slots} is not between the number of nodes, {len(nodes)}, and {SLOTS_MAX}",
            action=f"use {SLOTS_DEFAULT}",
        )
