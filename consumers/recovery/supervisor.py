"""Supervises the recovery of a node's groups: replaces data that is missing or wrong.

Detectors report what they find to a group's health and to nobody else: the log begins too late, a file has
changed on the disk, a job cannot be done, the log continues behind a gap. The threads here read it, and act. Calls
go one way: from here to the environment and to the health of groups.
"""

from __future__ import annotations

from concurrent.futures import Executor

from headrace.connectors.clock import Clock
from headrace.connectors.log.port import Log
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.environment import RecoveryEnvironment
from headrace.consumers.recovery.gap_search import GapSearch
from headrace.consumers.recovery.plan import Costs
from headrace.consumers.recovery.wrong_data import WrongData
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.settings import ReplicationLimits

TURN_S = 0.5


class RecoverySupervisor:
    """Owns the threads of recovery. `pool` runs the copies; it is shut down with the rest."""

    def __init__(
        self,
        log: Log,
        environment: RecoveryEnvironment,
        limits: ReplicationLimits,
        pool: Executor,
        clock: Clock,
        costs: Costs | None = None,
    ) -> None:
        self._wrong_data = WrongData(environment)
        self.coordinator = RecoveryCoordinator(log, environment, limits, pool, clock, costs)
        self.gap_search = GapSearch(log, environment, self.coordinator, self._wrong_data, clock)
        self._task = PeriodicTask("recovery-supervisor", TURN_S, self.turn)

    def start(self) -> None:
        """Begin; data that was found wrong before the last stop is still wrong."""
        self._task.start()
        self.coordinator.start()
        self.gap_search.start()

    def stop(self) -> None:
        """Stop; an unfinished copy continues at the next start."""
        self.gap_search.stop()
        self._task.stop()
        self.coordinator.stop()

    def turn(self) -> None:
        """One step: see WrongData. The steps of coordinator and gap search have their own threads."""
        # Both may wait for Kafka for long, and a mark that is not durable yet keeps a group from recovering.
        self._wrong_data.turn()

    def mark_wrong(self, topic: str, why: str, trusted: frozenset[str] | None = None) -> None:
        """A group's data is not that of its log: it takes no role until its data was replaced.

        `trusted`: the members that were found to be right, None = all members. Never fails: where the disk
        refuses the mark, it is repeated.
        """
        self._wrong_data.mark(topic, why, trusted)

    def replace_data(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """A group's data is replaced by that of `trusted` members: as `mark_wrong`, without a fault of this node."""
        self._wrong_data.replace(topic, why, trusted)

    def accept_gap(self, topic: str, resume_offset: int | None) -> LogBase:
        """Accept that a log lost records. Raises GapRefused, and the errors of `append_one`."""
        return self.gap_search.accept(topic, resume_offset)
