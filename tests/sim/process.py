"""One run of a node: its tasks, and where it is stopped or killed inside a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.broker import ANSWER
from tests.sim.parts import BUILDING, SteppedTask
from tests.sim.world import Crash, InvariantBroken

if TYPE_CHECKING:
    from tests.sim.node import ClusterNode


class ThreadEnded(AssertionError):
    """A step of a thread that must never end raised an error."""


class Process:
    """One run of a node: its incarnation, its tasks, and where it is stopped or killed."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.world = node.world
        self.random = node.world.random
        self.incarnation = f"{node.name}#{node.starts}"
        self.tasks: list[SteppedTask] = []
        self.tasks_failed = 0
        self.paused = False
        self.resumed_ms = -1_000
        self.alive = True
        self.kill_after: int | None = None
        self.pause_after: tuple[int, float] | None = None
        self.answers_slow_until_ms = 0

    def note(self, line: str) -> None:
        """One readable line for an event of this process."""
        self.world.note(f"{self.incarnation} {line}")

    # Steps.

    def step(self, name: str) -> None:
        """Called inside of steps: the process may be killed here, or stopped and continued."""
        if not self.alive:
            raise Crash
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                self.note(f"is killed at {name}")
                self.node.kill(power_loss=self.random.random() < 0.5)
                raise Crash
        if self.pause_after is not None and not self.paused:
            steps, duration_ms = self.pause_after
            self.pause_after = (steps - 1, duration_ms) if steps else None
            if not steps and self.world.may_stop:
                self.note(f"is stopped at {name} for {duration_ms:.0f} ms")
                self.paused = True
                self.world.stand_still(duration_ms)
                self.paused, self.resumed_ms = False, self.world.now_ms
                self._check_alive()
        if name == ANSWER and self.world.now_ms < self.answers_slow_until_ms:
            self.wait(self.random.uniform(0, self.answers_slow_until_ms - self.world.now_ms))

    def wait(self, duration_ms: float) -> None:
        """This step takes a while, and the other tasks of the process continue."""
        if self.world.may_stop:
            self.world.stand_still(duration_ms)
            self._check_alive()

    def _check_alive(self) -> None:
        if not self.alive:
            raise Crash

    # Tasks.

    def once(self, delay_ms: float, task: Callable[[], None]) -> None:
        """Run a task some time later, unless the process ends before; a stopped process runs it when it continues."""

        def run() -> None:
            if not self.alive:
                return
            if self.paused:
                self.world.after(20, run)
                return
            self._run(task)

        self.world.after(delay_ms, run)

    def call(self, task: Callable[[], object]) -> None:
        """A request from outside; nothing happens in a process that ends meanwhile."""
        try:
            task()
        except Crash:
            if self.alive:
                raise

    def every(self, low_ms: float, high_ms: float, task: Callable[[], float | None]) -> None:
        """Run a task again and again; one that returns seconds has its next turn after them."""

        world, uniform = self.world, self.random.uniform

        def turn() -> None:
            pause_s = task()
            delay_ms = uniform(low_ms, high_ms)
            # A thread that waits until something changes is woken by it: here it looks again from time to time.
            world.after(max(delay_ms, min(pause_s, 0.5) * 1_000) if pause_s else delay_ms, run)

        def run() -> None:
            if self.paused:
                world.after(20, run)
            elif self.alive:
                self._run(turn)

        world.after(uniform(1, high_ms), run)

    def _run(self, task: Callable[[], None]) -> None:
        BUILDING.append(self)
        try:
            task()
        except Crash:
            if self.alive:
                raise
        except InvariantBroken:
            raise
        except Exception as error:
            raise ThreadEnded(f"a thread of {self.incarnation} ended: {error!r}") from error
        finally:
            BUILDING.pop()
