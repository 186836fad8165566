"""What must go well during faults too: in some schedules these hit a minority only, and the others must serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.consumers.replication.failure_detector import OFFLINE_MS

if TYPE_CHECKING:
    from tests.sim.node import ClusterNode
    from tests.sim.simulation import Simulation

SHARE = 0.4
"""Of the schedules in which a majority is spared."""
START_MS = 8_000
SERVES_WITHIN_MS = 2 * OFFLINE_MS
COPIES_IN_A_ROW = 3
LED_WITHIN_MS = 3 * OFFLINE_MS
LOOK_MS = 250
EVERYBODY = ("no topics", "undeliverable", "clock step", "truncate", "recreate", "away", "too new", "retention")
"""Faults that no member is spared from."""


class Liveness:
    """The members in `spared` serve all the time, and one of the running members leads."""

    def __init__(self, simulation: Simulation) -> None:
        chance, members = simulation.world.random, simulation.members
        self._simulation = simulation
        self._world = simulation.world
        minority = (len(members) - 1) // 2
        self.victims = members
        if minority and chance.random() < SHARE:
            self.victims = tuple(chance.sample(members, minority))
        self.spared = tuple(each for each in members if each not in self.victims)
        self._served_ms: dict[str, int] = {}
        self._copied_ms: dict[str, int] = {}
        self._led_ms = 0

    def begin(self) -> None:
        """Look again and again."""
        if self.spared:
            self._world.after(START_MS, self._look)

    def _look(self) -> None:
        now_ms, nodes = self._world.now_ms, self._simulation.nodes
        for name in self.spared:
            if nodes[name].serves():
                self._served_ms[name] = now_ms
            silent_ms = now_ms - self._served_ms.get(name, START_MS)
            reason = "" if not nodes[name].started else nodes[name].readiness.ready()[1]
            # A copy begins again where its source is killed, and a shorter one may follow it.
            if nodes[name].started and nodes[name].group.health.conditions.recovery is not None:
                self._copied_ms[name] = now_ms
            read_ms = min(silent_ms, now_ms - self._copied_ms.get(name, 0))
            self._simulation.invariants.require(
                read_ms <= SERVES_WITHIN_MS and silent_ms <= COPIES_IN_A_ROW * SERVES_WITHIN_MS,
                f"{name} is healthy, as a majority is, and has not served for {silent_ms} ms: {reason}",
            )
        leader = self._simulation.truth.leader
        if leader is not None and self._leads(nodes[leader.node], leader.incarnation):
            self._led_ms = now_ms
        self._simulation.invariants.require(
            now_ms - max(self._led_ms, START_MS) <= LED_WITHIN_MS,
            f"a majority is healthy, and {leader} leads, which does not run",
        )
        self._world.after(LOOK_MS, self._look)

    @staticmethod
    def _leads(node: ClusterNode, incarnation: str) -> bool:
        # One that is cut off is as good as none; one that is not in sync is no leader either.
        return node.serves() and node.process.incarnation == incarnation
