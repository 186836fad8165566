"""The hash ring: where each node stands, and which nodes follow it (source: iotdb-cluster-expansion)."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash


def position(node: str) -> int:
    """A node's place on the ring, 64 bits: `xxh3_64(id)`."""
    return int(xxhash.xxh3_64_intdigest(node.encode()))


def in_ring_order(nodes: Iterable[str]) -> tuple[str, ...]:
    """Nodes by position; equal positions (never seen, but possible) by name, so that every process agrees."""
    return tuple(sorted(nodes, key=lambda node: (position(node), node)))


def successors(ring: tuple[str, ...], header: str, count: int) -> tuple[str, ...]:
    """`count` consecutive nodes of the ring, from `header` on."""
    start = ring.index(header)
    return tuple(ring[(start + step) % len(ring)] for step in range(count))
