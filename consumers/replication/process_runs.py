"""Which processes send statuses under the name of one node, and which of two must end.

Two copies of one data directory have the same node and the same store: only the incarnations differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ProcessRun:
    """The statuses of one process without a gap, in ms along the status topic; `order` counts the runs of all."""

    order: int
    began_ms: int
    newest_ms: int
    http: str


@dataclass(slots=True)
class ProcessRuns:
    """The runs of all processes by (node, incarnation). Pure: fed in log order.

    A process whose statuses stop for `gap_ms` begins a new run with its next one.
    """

    gap_ms: int
    _runs: dict[tuple[str, str], ProcessRun] = field(default_factory=dict)
    _begun: int = 0

    def observe(self, node: str, incarnation: str, http: str, elapsed_ms: int) -> None:
        """Take one status or presence."""
        run = self._runs.get((node, incarnation))
        if run is None or elapsed_ms - run.newest_ms >= self.gap_ms:
            self._begin(node, incarnation, elapsed_ms)
            run = self._runs[node, incarnation]
        run.newest_ms, run.http = elapsed_ms, http or run.http

    def _begin(self, node: str, incarnation: str, elapsed_ms: int) -> None:
        for key, run in list(self._runs.items()):
            if key[0] == node and elapsed_ms - run.newest_ms >= self.gap_ms:
                del self._runs[key]
        self._begun += 1
        self._runs[node, incarnation] = ProcessRun(self._begun, elapsed_ms, elapsed_ms, "")

    def elder(self, node: str, incarnation: str) -> ProcessRun | None:
        """The run of another process of this node before which this one must give way, None in most cases."""
        # Each rule answers a schedule.
        # - The run that began first stays, since a supervisor may start the other one again and again. If the
        #   newest stayed, each of two supervised copies would end the other for ever.
        # - A run, and not a process: one that was stopped for long and goes on has been replaced meanwhile.
        # - Both have sent for `gap_ms` side by side: a node that was killed and started again at once still reads
        #   statuses of its former self behind its own first, those that were on their way.
        own = self._runs.get((node, incarnation))
        if own is None:
            return None
        earlier = [run for (name, _), run in self._runs.items() if name == node and run.order < own.order]
        return next((run for run in earlier if run.newest_ms - own.began_ms >= self.gap_ms), None)
