"""The states of a driver task and the transitions between them. Pure.

docs/internals/scheduling.md has them as a table, which a test reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class TaskState(StrEnum):
    """Where a driver is."""

    READY = "ready"
    RUNNING = "running"
    BLOCKED = "blocked"
    FINISHED = "finished"
    ABORTED = "aborted"


class Transition(StrEnum):
    """What happens to a driver."""

    START = "start"
    YIELD = "yield"
    BLOCK = "block"
    WAKE = "wake"
    FINISH = "finish"
    ABORT = "abort"


ENDED = frozenset({TaskState.FINISHED, TaskState.ABORTED})
LIVE = frozenset(TaskState) - ENDED

TRANSITIONS: Mapping[Transition, tuple[frozenset[TaskState], TaskState]] = {
    Transition.START: (frozenset({TaskState.READY}), TaskState.RUNNING),
    Transition.YIELD: (frozenset({TaskState.RUNNING}), TaskState.READY),
    Transition.BLOCK: (frozenset({TaskState.RUNNING}), TaskState.BLOCKED),
    Transition.WAKE: (frozenset({TaskState.BLOCKED}), TaskState.READY),
    Transition.FINISH: (frozenset({TaskState.RUNNING}), TaskState.FINISHED),
    Transition.ABORT: (LIVE, TaskState.ABORTED),
}


def after(state: TaskState, transition: Transition) -> TaskState | None:
    """The state behind a transition; None where it is not legal, and nothing happens."""
    legal, following = TRANSITIONS[transition]
    return following if state in legal else None
