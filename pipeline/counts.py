"""What tasks count, and how the driver adds it up: exactly, whatever is run twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

BATCHES_KEPT = 64


@dataclass(frozen=True, slots=True)
class Counts:
    """What was read and written: rows and points in forward messages, bad lines, bytes read, the newest Kafka timestamp (-1 before any)."""

    rows: int = 0
    points: int = 0
    rejected: int = 0
    bytes: int = 0
    newest_ms: int = -1

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.rows + other.rows,
            self.points + other.points,
            self.rejected + other.rejected,
            self.bytes + other.bytes,
            max(self.newest_ms, other.newest_ms),
        )


@dataclass(slots=True)
class TaskCounts:
    """Counts by (micro-batch, partition): a task that is run again replaces what it counted. Old batches are folded into one sum."""

    tasks: dict[tuple[int, int], Counts] = field(default_factory=dict)
    folded: Counts = field(default_factory=Counts)
    folded_batches: int = 0

    def merge(self, other: TaskCounts) -> None:
        """Take over the counts of other tasks."""
        self.tasks.update(other.tasks)
        batches = {batch for batch, _ in self.tasks}
        if len(batches) > BATCHES_KEPT:
            # Only the newest batch is ever run again.
            self._fold(sorted(batches)[: BATCHES_KEPT // 2])

    def _fold(self, batches: list[int]) -> None:
        for key in [key for key in self.tasks if key[0] in set(batches)]:
            self.folded += self.tasks.pop(key)
        self.folded_batches += len(batches)

    def total(self) -> tuple[Counts, int]:
        """(sum over everything, micro-batches)."""
        tasks = dict(self.tasks)
        return sum(tasks.values(), self.folded), self.folded_batches + len({batch for batch, _ in tasks})


class TaskCountsParam(AccumulatorParam[TaskCounts]):
    """How Spark's accumulators merge `TaskCounts`."""

    def zero(self, value: TaskCounts) -> TaskCounts:
        """The counts before any task."""
        del value
        return TaskCounts()

    def addInPlace(self, value1: TaskCounts, value2: TaskCounts) -> TaskCounts:  # noqa: N802
        """See TaskCounts.merge."""
        value1.merge(value2)
        return value1
