"""Which slots move when a node joins or leaves, or when nobody does. Pure and deterministic.

A balancer sees the owner of each slot as an index into the ring, and answers slot → new owner. Only what moves
is in the answer. `SlotCountBalancer` gives every group the same number of slots. `ByteBalancer` is for slots of
unequal size: it gives every group about the same number of bytes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Owners = npt.NDArray[np.int32]
Moves = dict[int, int]

BYTE_TOLERANCE = 0.05
"""A spread below this share of the mean is left as it is: each move copies files."""


class Balancer(Protocol):
    """Chooses what moves."""

    def join(self, owners: Owners, nodes: int, joiner: int) -> Moves:
        """The slots that `joiner`, which owns none, takes over from the other `nodes - 1`."""
        ...

    def leave(self, owners: Owners, nodes: int, leaver: int, previous: Mapping[int, int]) -> Moves:
        """A new owner for every slot of `leaver`; `previous` are those that it got in the last change."""
        ...

    def level(self, owners: Owners, nodes: int) -> Moves:
        """What moves between nodes that stay."""
        ...


class SlotCountBalancer:
    """The same number of slots for every group, with as few moves as that takes."""

    def join(self, owners: Owners, nodes: int, joiner: int) -> Moves:
        """Each donor gives its last slots, the one with the most of them first."""
        given = _shares(owners, nodes)
        counts = [len(slots) for slots in given]
        # Fewer slots would leave the joiner two below another node; more would be moves without need.
        heap = [(-counts[node], _steps(joiner, node, nodes), node) for node in range(nodes) if node != joiner]
        heapq.heapify(heap)
        moves: Moves = {}
        for _ in range(len(owners) // nodes):
            count, steps, donor = heap[0]
            if count == 0:
                break
            moves[given[donor].pop()] = joiner
            heapq.heapreplace(heap, (count + 1, steps, donor))
        return moves

    def leave(self, owners: Owners, nodes: int, leaver: int, previous: Mapping[int, int]) -> Moves:
        """Round robin over the ring from the leaver on, where a node that has fewer slots comes first."""
        # Of equals the one that gave the leaver slots in the last change gets them back: to remove the node that
        # was added last restores the counts of every node.
        owed = [0] * nodes
        for owner in previous.values():
            owed[owner] += 1
        counts = np.bincount(owners, minlength=nodes).tolist()
        heap = [
            (counts[node], -owed[node], _steps(leaver, node, nodes), node) for node in range(nodes) if node != leaver
        ]
        heapq.heapify(heap)
        moves: Moves = {}
        for slot in np.flatnonzero(owners == leaver).tolist():
            count, due, steps, taker = heap[0]
            moves[slot] = taker
            heapq.heapreplace(heap, (count + 1, min(0, due + 1), steps, taker))
        return moves

    def level(self, owners: Owners, nodes: int) -> Moves:
        """Last slots of the nodes with the most to those with the fewest, until they differ by one at most."""
        shares = _shares(owners, nodes)
        counts = [len(slots) for slots in shares]
        moves: Moves = {}
        while True:
            # Of equals the first on the ring, so that every process moves the same.
            giver, taker = counts.index(max(counts)), counts.index(min(counts))
            if counts[giver] - counts[taker] <= 1:
                return moves
            moves[shares[giver].pop()] = taker
            counts[giver] -= 1
            counts[taker] += 1


class ByteBalancer:
    """About the same number of bytes for every group; an empty slot counts as one byte."""

    def __init__(self, slot_bytes: Sequence[int], tolerance: float = BYTE_TOLERANCE) -> None:
        """`slot_bytes` has the bytes of every slot; one that is not known is 0 or less."""
        self._weights = np.maximum(np.asarray(slot_bytes, np.int64), 1)
        self._tolerance = tolerance

    def join(self, owners: Owners, nodes: int, joiner: int) -> Moves:
        """The largest slots that fit, from the group with the most bytes, until the joiner has its share."""
        return self._even_out(owners, nodes, joiner)

    def leave(self, owners: Owners, nodes: int, leaver: int, previous: Mapping[int, int]) -> Moves:
        """The largest slot first, each to the group with the fewest bytes."""
        del previous
        loads = self._loads(owners, nodes)
        heap = [(loads[node], _steps(leaver, node, nodes), node) for node in range(nodes) if node != leaver]
        heapq.heapify(heap)
        moves: Moves = {}
        # By weight, and by number among equals.
        slots = np.flatnonzero(owners == leaver)
        for slot in slots[np.argsort(-self._weights[slots], kind="stable")].tolist():
            load, steps, taker = heap[0]
            moves[slot] = taker
            heapq.heapreplace(heap, (load + int(self._weights[slot]), steps, taker))
        return moves

    def level(self, owners: Owners, nodes: int) -> Moves:
        """The largest slots that fit, from the group with the most bytes to the one with the fewest."""
        return self._even_out(owners, nodes)

    def _loads(self, owners: Owners, nodes: int) -> list[int]:
        loads = [0] * nodes
        for node in range(nodes):
            loads[node] = int(self._weights[owners == node].sum())
        return loads

    def _even_out(self, owners: Owners, nodes: int, joiner: int | None = None) -> Moves:
        loads, moves, left = self._loads(owners, nodes), Moves(), self._by_weight(owners, nodes)
        mean, exhausted = sum(loads) / nodes, set[int]()
        # A group of data either gives or takes in one change: its log could not have both in one order.
        gave, took = set[int](), set[int]()
        while True:
            takers = [node for node in range(nodes) if node not in gave]
            taker = min(takers, key=lambda node: (loads[node], node)) if joiner is None else joiner
            # Donors of a joiner may differ among themselves: that is for a balance.
            most = max(loads) if joiner is None else mean
            givers = [node for node in range(nodes) if node != taker and node not in exhausted | took]
            if not givers or most - loads[taker] <= self._tolerance * mean:
                return moves
            giver = max(givers, key=lambda node: (loads[node], -node))
            place = _best(left[giver], loads[giver], loads[taker], mean)
            if place is None:
                exhausted.add(giver)
                continue
            gave.add(giver)
            took.add(taker)
            weight, slot = left[giver].pop(place)
            moves[slot] = taker
            loads[giver] -= weight
            loads[taker] += weight

    def _by_weight(self, owners: Owners, nodes: int) -> list[list[tuple[int, int]]]:
        """(weight, slot) of the slots of each node, ascending."""
        return [sorted(zip(self._weights[slots].tolist(), slots, strict=True)) for slots in _shares(owners, nodes)]


def _best(slots: Sequence[tuple[int, int]], giver: int, taker: int, mean: float) -> int | None:
    """The place of the largest slot that takes neither side across the mean, else of the smallest that evens them out.

    `slots` are (weight, slot), ascending. Of equal slots it is the last. None where no slot does either.
    """
    if not slots:
        return None
    fitting = bisect_right(slots, min(giver - mean, mean - taker), key=_weight)
    if fitting:
        return fitting - 1
    smallest, _ = slots[0]
    return bisect_right(slots, smallest, key=_weight) - 1 if taker + smallest < giver else None


def _weight(slot: tuple[int, int]) -> int:
    return slot[0]


def _shares(owners: Owners, nodes: int) -> list[list[int]]:
    """The slots of each node, ascending."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=nodes))[:-1]
    return [part.tolist() for part in np.split(order, ends)]


def _steps(start: int, node: int, nodes: int) -> int:
    """Steps from one place of the ring to another, clockwise."""
    return (node - start) % nodes
