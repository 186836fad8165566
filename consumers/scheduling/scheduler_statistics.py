"""What a driver scheduler counts, and what it holds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.multilevel_queue import LevelFigures
from headrace.consumers.scheduling.task_states import TaskState

STEP_BOUNDS_S = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(slots=True)
class StepHistogram:
    """How long steps took. `counts` has one more than STEP_BOUNDS_S, for longer ones; they are not cumulative."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))
    seconds: float = 0.0

    def add(self, step_s: float) -> None:
        """One step."""
        self.counts[bisect_left(STEP_BOUNDS_S, step_s)] += 1
        self.seconds += step_s


@dataclass(slots=True)
class SchedulerStatistics:
    """Counters since the start. `aborts` is by kind of error and counts queries; `refused` counts submissions."""

    finished: int = 0
    aborted: int = 0
    ready_seconds: float = 0.0
    blocked_seconds: dict[BlockedOn, float] = field(default_factory=lambda: dict.fromkeys(BlockedOn, 0.0))
    aborts: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    long_steps: int = 0
    """Steps that were longer than their whole slice."""
    steps: StepHistogram = field(default_factory=StepHistogram)

    def add_steps(self, steps_s: Sequence[float], slice_s: float) -> None:
        """The steps of one slice, by their wall time."""
        for step_s in steps_s:
            self.steps.add(step_s)
            self.long_steps += step_s > slice_s


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """What the scheduler holds at one moment. `reserved` are places of drivers that run or are blocked."""

    tasks: dict[TaskState, int]
    reserved: int
    queries: int
    timeouts: int
    memory_bytes: int
    levels: dict[str, LevelFigures]
