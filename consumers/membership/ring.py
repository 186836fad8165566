"""The hash ring of nodes, and the errors of nodes that do not fit a cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from headrace.schemas.errors import HeadraceError

POSITION_MAX = (1 << 64) - 1
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ClusterInvalid(HeadraceError):
    """Settings that no cluster can have; names the setting."""

    exit_code = 2


class UnknownNode(HeadraceError):
    """A node that is not a member of the cluster."""


class NodeExists(HeadraceError):
    """A node that would join is a member already, or another store has its id."""


class ClusterTooSmall(HeadraceError):
    """A cluster that would have fewer nodes than copies of a row."""


@dataclass(frozen=True, slots=True)
class RingNode:
    """A node and its place on the ring, an unsigned number of 64 bits."""

    id: str
    position: int

    @classmethod
    def of(cls, node: str | RingNode) -> RingNode:
        """A node at its default place, `xxh3_64(id)`, or as it is."""
        return node if isinstance(node, RingNode) else cls(node, default_position(node))


def is_node_id(text: str) -> bool:
    """Whether a topic's name may have it as a part; every group is named after a node."""
    return _NODE_ID.fullmatch(text) is not None


def check_node_id(text: str) -> None:
    """Refuse a name that no node can have. Raises ClusterInvalid."""
    if not is_node_id(text):
        raise ClusterInvalid(
            f"node id {text!r} cannot be a part of a topic's name",
            action="use at most 100 letters, digits, '.', '_' and '-', a letter or digit first",
        )


def default_position(node: str) -> int:
    """Where a node is placed whose position nobody sets."""
    return int(xxhash.xxh3_64_intdigest(node.encode()))


def in_ring_order(nodes: Iterable[RingNode]) -> tuple[RingNode, ...]:
    """Nodes by position; equal positions (improbable, but possible) by id, so that every process agrees."""
    return tuple(sorted(nodes, key=lambda node: (node.position, node.id)))


def successors(ring: tuple[str, ...], header: str, count: int) -> tuple[str, ...]:
    """`count` consecutive nodes of the ring, from `header` on."""
    start = ring.index(header)
    return tuple(ring[(start + step) % len(ring)] for step in range(count))


def distance(ring: tuple[str, ...], start: str, node: str) -> int:
    """Steps from one node of the ring to another, clockwise."""
    return (ring.index(node) - ring.index(start)) % len(ring)
