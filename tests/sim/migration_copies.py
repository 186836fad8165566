"""Copies ahead in a simulation of changes: who copies, how many files it has left, and whom it tells.

Files themselves are not simulated. A copier counts down, in the steps of its node. It may fall silent, as one whose
requests do not arrive, and its notes may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.migration.copies_ahead import CopiesAhead, CopyNote
from headrace.consumers.migration.slot_pull import Pair, donors_of, moved_pairs

if TYPE_CHECKING:
    from tests.sim.migration_node import MigrationNode

FILES_MAX = 6
COPIED_MAX = 3
"""Files that a copier finishes in a step."""
SILENT = 0.05
"""The chance, in a step, that a copier sends no note of this change any more."""
LOST = 0.1


class SimCopies:
    """What one process copies ahead, and what it knows of those that copy from it."""

    def __init__(self, node: MigrationNode) -> None:
        self.notes = CopiesAhead(node.clock)
        self._node = node
        self._change = 0
        self._left: dict[Pair, int] = {}
        self._silent: set[Pair] = set()

    def step(self) -> None:
        """Copy some files, and tell every node that may lead a donor how many are left."""
        change, chance = self._node.state.change, self._node.world.random
        if change is None or change.formal:
            return
        if change.number != self._change:
            self._change, self._silent = change.number, set()
            self._left = {pair: chance.randint(0, FILES_MAX) for pair in self._pairs(change)}
        for pair, left in self._left.items():
            if chance.random() < SILENT:
                self._silent.add(pair)
            if pair in self._silent:
                continue
            self._left[pair] = max(0, left - chance.randint(0, COPIED_MAX))
            note = CopyNote(change.number, self._node.name, self._left[pair])
            for donor in donors_of(change, pair, self._node.name):
                other = self._node.simulation.nodes[donor]
                if other.alive and not other.log.cut and chance.random() >= LOST:
                    other.copies.notes.take(pair.donor, note)

    def _pairs(self, change: RunningChange) -> list[Pair]:
        name = self._node.name
        return [pair for pair in moved_pairs(change, name) if name not in donors_of(change, pair, name)]
