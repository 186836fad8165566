"""Which drivers whose steps cannot stop may run at a time. Pure."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class SlotTask(Protocol):
    """What the slots know of a driver. Tasks are compared by identity."""

    @property
    def unbounded(self) -> bool:
        """Whether it may have steps that cannot stop, such as a sort."""
        ...


TaskT = TypeVar("TaskT", bound=SlotTask)


class UnboundedSlots(Generic[TaskT]):
    """The slots of such drivers, and those that were polled when none was free. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._running: set[TaskT] = set()
        self._held: list[TaskT] = []

    def __len__(self) -> int:
        return len(self._running)

    def take(self, task: TaskT) -> bool:
        """Whether a driver may run now; otherwise it is held until `free` gives it out."""
        if not task.unbounded:
            return True
        if len(self._running) < self.limit:
            self._running.add(task)
            return True
        self._held.append(task)
        return False

    def free(self, task: TaskT) -> list[TaskT]:
        """A driver runs no more; those that were held for the sake of others, to be polled again."""
        if task not in self._running:
            return []
        self._running.remove(task)
        held, self._held = self._held, []
        return held
