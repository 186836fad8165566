"""The slot table: which data group owns which slot, as an immutable value.

A slot is `xxh3_64(f"{database}/{bucket}/{slice}") % slots`. Slots belong to data groups; a data group is
named after its header node and consists of the `replication` consecutive nodes on the ring from there. The
design is that of SlotPartitionTable in Apache IoTDB's cluster module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import xxhash

from headrace.consumers.membership import SLOTS_DEFAULT
from headrace.schemas.errors import HeadraceError
from headrace.schemas.series import slot_of
from headrace.schemas.tables import DatabaseSchema


class ClusterInvalid(HeadraceError):
    """Settings that no cluster can have; names the setting."""


class UnknownNode(HeadraceError):
    """A node that is not a member of the cluster."""


@dataclass(frozen=True)
class SlotTable:
    """Nodes in ring order, and for each slot the index of its header in them.

    The same input gives the same table in every process.
    """

    nodes: tuple[str, ...]
    replication: int
    slot_headers: tuple[int, ...]
    version: int

    @classmethod
    def create(
        cls, nodes: tuple[str, ...], replication: int, slots: int = SLOTS_DEFAULT, version: int = 1
    ) -> SlotTable:
        """The first table of a cluster: contiguous ranges of slots, as equal as they can be, in ring order."""
        # Multiplied before it is divided: ranges differ by at most one slot, and the last one gets no
        # remainder.
        _check(nodes, replication, slots)
        ring = in_ring_order(nodes)
        headers = tuple(slot * len(ring) // slots for slot in range(slots))
        return cls(ring, replication, headers, version)

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.slot_headers)

    @cached_property
    def headers(self) -> tuple[str, ...]:
        """The data groups, by the name of their header, in ring order."""
        return self.nodes

    def holder(self, slot: int) -> str:
        """The group that owns a slot."""
        return self.nodes[self.slot_headers[slot]]

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
        index = self.nodes.index(header)
        return tuple(slot for slot, owner in enumerate(self.slot_headers) if owner == index)

    def route(self, database: DatabaseSchema, time_ns: int, bucket: int) -> str:
        """The group that takes a row of this bucket at this time."""
        return self.holder(slot_of(database.database, bucket, time_ns // database.slice_ns, self.slots))

    def to_bytes(self) -> bytes:
        """The table as bytes; equal tables give equal bytes in every process."""
        # Runs instead of 10,000 single slots: the first table has as many runs as nodes.
        runs: list[list[int]] = []
        for header in self.slot_headers:
            if runs and runs[-1][0] == header:
                runs[-1][1] += 1
            else:
                runs.append([header, 1])
        content = {"nodes": self.nodes, "replication": self.replication, "runs": runs, "version": self.version}
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SlotTable:
        """The inverse of `to_bytes`."""
        content = json.loads(data)
        headers = tuple(header for header, count in content["runs"] for _ in range(count))
        return cls(tuple(content["nodes"]), content["replication"], headers, content["version"])

    def _check_node(self, node: str) -> None:
        if node not in self.nodes:
            raise UnknownNode(f"node {node!r} is not a member; the members are {', '.join(self.nodes)}")


def _check(nodes: tuple[str, ...], replication: int, slots: int) -> None:
    if len(set(nodes)) != len(nodes):
        raise ClusterInvalid(f"nodes names a node twice: {', '.join(nodes)}", action="name each node once")
    if not nodes or any(not node for node in nodes):
        raise ClusterInvalid("nodes is empty or has an empty name", action="name every node of the cluster")
    if not 1 <= replication <= len(nodes):
        raise ClusterInvalid(
            f"replication {replication} does not fit {len(nodes)} nodes", action="use 1 up to the number of nodes"
        )
    if slots < len(nodes):
        raise ClusterInvalid(f"slots {slots} is less than the number of nodes", action=f"use {SLOTS_DEFAULT}")


def position(node: str) -> int:
    """A node's place on the ring, 64 bits: `xxh3_64(id)`."""
    return int(xxhash.xxh3_64_intdigest(node.encode()))


def in_ring_order(nodes: Iterable[str]) -> tuple[str, ...]:
    """Nodes by position; equal positions (improbable, but possible) by name, so that every process agrees."""
    return tuple(sorted(nodes, key=lambda node: (position(node), node)))


def successors(ring: tuple[str, ...], header: str, count: int) -> tuple[str, ...]:
    """`count` consecutive nodes of the ring, from `header` on."""
    start = ring.index(header)
    return tuple(ring[(start + step) % len(ring)] for step in range(count))
