"""Which processes send statuses under the name of one node, and which of two must end.

Two copies of one data directory have the same node and the same store: only the incarnations differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RIVAL_MS = 1_000
"""For how long a process is silent behind a status of one that was there before it: two intervals of heartbeats."""


@dataclass(slots=True)
class ProcessRun:
    """The statuses of one process without a gap: the numbers of its first and its newest one among all statuses, and
    their times in ms along the status topic.
    """

    first: int
    newest: int
    first_ms: int
    newest_ms: int
    http: str


@dataclass(slots=True)
class ProcessRuns:
    """The runs of all processes by (node, incarnation). Pure: fed in log order.

    A process whose statuses stop for `gap_ms` begins a new run with its next one.
    """

    gap_ms: int
    _runs: dict[tuple[str, str], ProcessRun] = field(default_factory=dict)
    _number: int = 0

    def observe(self, node: str, incarnation: str, http: str, elapsed_ms: int) -> None:
        """Take one status or presence."""
        self._number += 1
        run = self._runs.get((node, incarnation))
        if run is None or elapsed_ms - run.newest_ms >= self.gap_ms:
            self._forget(node, elapsed_ms)
            run = self._runs[node, incarnation] = ProcessRun(self._number, 0, elapsed_ms, 0, "")
        run.newest, run.newest_ms, run.http = self._number, elapsed_ms, http or run.http

    def _forget(self, node: str, elapsed_ms: int) -> None:
        for key, run in list(self._runs.items()):
            if key[0] == node and elapsed_ms - run.newest_ms >= self.gap_ms:
                del self._runs[key]

    def elder(self, node: str, incarnation: str) -> ProcessRun | None:
        """The run of another process of this node before which this one must end, None in most cases."""
        # Each rule answers a schedule.
        # - The run that began first stays, since a supervisor may start the other one again and again. If the
        #   newest stayed, each of two supervised copies would end the other for ever.
        # - A run, and not a process: one that was stopped for long and continues has been replaced meanwhile.
        # - Both have sent for `gap_ms` side by side: a node that was killed and started again at once still reads
        #   statuses of its former self behind its own first, those that were on their way.
        own = self._runs.get((node, incarnation))
        if own is None:
            return None
        earlier = (run for run in self._others(node, incarnation) if run.first < own.first)
        return next((run for run in earlier if run.newest_ms - own.first_ms >= self.gap_ms), None)

    def rival(self, node: str, incarnation: str) -> int:
        """The number of the newest status of a run that began before this process's, and continues behind it; 0 for none."""
        own = self._runs.get((node, incarnation))
        others = () if own is None else self._others(node, incarnation)
        return max((run.newest for run in others if own and run.first < own.first < run.newest), default=0)

    def younger(self, node: str, incarnation: str) -> int:
        """The number of the first status of the newest run that began behind this process's; 0 for none."""
        own = self._runs.get((node, incarnation))
        others = () if own is None else self._others(node, incarnation)
        return max((run.first for run in others if own and run.first > own.first), default=0)

    def _others(self, node: str, incarnation: str) -> list[ProcessRun]:
        return [run for (name, other), run in list(self._runs.items()) if name == node and other != incarnation]


@dataclass(slots=True)
class OwnRun:
    """What one process does about others of its node. Pure: the clock is handed in."""

    node: str
    incarnation: str
    _rival: int = 0
    _rival_since_ms: int | None = None
    _younger: int = 0
    _elder: ProcessRun | None = None

    def look(self, runs: ProcessRuns, now_ms: int) -> bool:
        """Look at the newest statuses; whether to send now, so that a younger process learns of this one at once."""
        # Numbers begin anew with another reader, so any other one is a new one.
        before, self._rival = self._rival, runs.rival(self.node, self.incarnation)
        if self._rival not in (0, before):
            self._rival_since_ms = now_ms
        self._elder = self._elder or runs.elder(self.node, self.incarnation)
        before, self._younger = self._younger, runs.younger(self.node, self.incarnation)
        return self._younger not in (0, before)

    @property
    def elder(self) -> ProcessRun | None:
        """The run of the process before which this one must end, once there is one."""
        return self._elder

    def is_silent(self, now_ms: int) -> bool:
        """Whether the process sends nothing and acts on nothing.

        The schedule: others keep the newest status of a node. Two processes that both send would be the leader by
        turns, twice a second, and a quorum would count whichever was seen last.
        """
        if self._elder is not None:
            return True
        return self._rival_since_ms is not None and now_ms - self._rival_since_ms < RIVAL_MS
