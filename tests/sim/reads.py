"""Clients that read: an answer takes a while, and its node may be stopped, cut off or recover meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.query_errors import AnswerStale, NotReady
from tests.sim.stubs import GROUP

if TYPE_CHECKING:
    from tests.sim.invariants import Promise
    from tests.sim.node import ClusterNode
    from tests.sim.simulation import Simulation

ATTEMPTS_MAX = 10
"""How often an answer is looked at again that waits for records which its node has confirmed."""


class Reads:
    """Asks nodes as a query does (see LocalSource): a fence, the confirmed records, the rows, the fence again."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world

    def begin(self) -> None:
        """A query, and the next one a little later."""
        node = self._simulation.nodes[self._world.random.choice(self._simulation.members)]
        self._simulation.invariants.read_stale(node)
        if node.started and not node.process.paused:
            with suppress(NotReady):
                fence = LocalFence(node.groups, node.readiness)
                self._simulation.invariants.answer_begins(node)
                self._wait(node, fence, self._simulation.invariants.due(node), ATTEMPTS_MAX)
        self._world.after(self._world.random.uniform(20, 350), self.begin)

    def _wait(self, node: ClusterNode, fence: LocalFence, due: tuple[int, Promise], attempts: int) -> None:
        group = node.group
        if group.applied.offset < fence.confirmed[GROUP]:
            if attempts:
                self._later(node, lambda: self._wait(node, fence, due, attempts - 1))
            return
        applied = group.applied
        self._later(node, lambda: self._end(node, fence, (applied.version, applied.offset), due))

    def _later(self, node: ClusterNode, action: Callable[[], None]) -> None:
        # A task of the process: one that is stopped continues here, and one that is killed never answers.
        node.process.once(self._world.random.choice((1, 5, 30, 300)), action)

    def _end(self, node: ClusterNode, fence: LocalFence, found: tuple[int, int], due: tuple[int, Promise]) -> None:
        with suppress(AnswerStale):
            fence.check()
            self._simulation.invariants.answered(node, found, due)
