"""What the scheduler knows of a driver: steps, and nothing of SQL, files or threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.consumers.scheduling.work_threads import ThreadPriority


class BlockedOn(StrEnum):
    """What a driver waits for."""

    MEMORY = "memory"
    DRIVER = "driver"
    OUTPUT = "output"
    REMOTE = "remote"
    FILE = "file"
    LOG = "log"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class Again:
    """The driver wants another step. `cpu_s`: the processor time of its step, where the driver has measured it.

    `unbounded`: whether from now on it may have steps that cannot stop, see DriverSpec; None: as before.
    """

    cpu_s: float | None = None
    unbounded: bool | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """The driver can do nothing before `future` is done. A future with an error ends the query with that error.

    `keeps_bytes` is the memory that it holds meanwhile; others may have the rest. None: all that it has reserved.
    """

    future: Future[Any]
    on: BlockedOn
    cpu_s: float | None = None
    keeps_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The driver has finished."""

    cpu_s: float | None = None


Step = Again | Blocked | Done


class Worker(Protocol):
    """The worker that has called a step, as its driver sees it. Used by the thread of that call alone."""

    @property
    def priority(self) -> ThreadPriority:
        """That of the thread."""
        ...

    def end_step(self) -> None:
        """One of several steps of the call has ended, and the next one begins within the slice."""
        ...

    def gave_way(self, seconds: float) -> None:
        """The call could have stopped, and let threads that were ready have its processor for so long.

        That is no part of a step, and it is part of the slice.
        """
        ...

    def next_slice_s(self, cpu_s: float) -> float | None:
        """The length of the next slice, behind one of `cpu_s`; None: the call has to end, and says what it used."""
        ...

    def hand_over(self, step: Step) -> None:
        """End the last step of a call that continues: from here on another thread is the worker.

        What the call returns later counts for nothing, and it must not raise.
        """
        ...


class Driver(Protocol):
    """A part of a query that runs in bounded steps, on any thread but one step at a time."""

    def step(self, slice_s: float, worker: Worker) -> Step:
        """One bounded step of about a millisecond. It may do several, up to `slice_s` of wall time.

        Behind that it may ask the worker for more. An error ends the whole query.
        """
        ...

    def running_cpu_s(self) -> float:
        """The processor time of the step that runs, so far; zero when none does. Any thread, at any time; no lock."""
        ...

    def cancel(self) -> None:
        """End the step that runs, if one does, soon. Any thread, at any time; called for aborted drivers only."""
        ...

    def close(self) -> None:
        """Release everything. Called once, when no step runs and none will."""
        ...


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """A driver to submit.

    `needs` are the places of earlier drivers in the submission that must have finished. `unbounded`: it has steps
    that cannot stop, such as a sort; these never hold every worker.
    """

    driver: Driver
    needs: Sequence[int] = field(default=())
    unbounded: bool = False
