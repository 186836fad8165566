"""Progress of an ingest query: the counts of its tasks, added up exactly, and its lag behind the raw topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from pyspark.accumulators import AccumulatorParam

BATCHES_KEPT = 64
UNKNOWN = -1
REASONS_MAX = 20
"""Reasons of refusal that are counted apart; a reason may hold a value of its line, so there is no end to them."""


class IngestState(StrEnum):
    """What an ingest run does."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows and points in forward messages, bad lines, bytes read, and the newest Kafka timestamp read (-1
    before any). `reasons` has the bad lines by reason, of the first REASONS_MAX reasons.
    """

    rows: int = 0
    points: int = 0
    rejected: int = 0
    bytes: int = 0
    newest_ms: int = -1
    reasons: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.rows + other.rows,
            self.points + other.points,
            self.rejected + other.rejected,
            self.bytes + other.bytes,
            max(self.newest_ms, other.newest_ms),
            _added(self.reasons, other.reasons),
        )


def _added(left: Mapping[str, int], right: Mapping[str, int]) -> Mapping[str, int]:
    if not right:
        return left
    names = islice({**left, **right}, REASONS_MAX)
    return {name: left.get(name, 0) + right.get(name, 0) for name in names}


# A plain sum would count the rows of a task again each time Spark runs it again: its accumulators are exact
# only in actions.
@dataclass(slots=True)
class TaskCounts:
    """Counts by (micro-batch, partition): a task that runs again replaces its counts.

    Old batches are folded into one sum.
    """

    tasks: dict[tuple[int, int], Counts] = field(default_factory=dict)
    folded: Counts = field(default_factory=Counts)
    folded_batches: int = 0

    def merge(self, other: TaskCounts) -> None:
        """Add or replace the counts of other tasks."""
        self.tasks.update(other.tasks)
        batches = {batch for batch, _ in self.tasks}
        if len(batches) > BATCHES_KEPT:
            # Spark runs only the newest batch again, so the older ones are final.
            self._fold(sorted(batches)[: BATCHES_KEPT // 2])

    def _fold(self, batches: list[int]) -> None:
        for key in [key for key in self.tasks if key[0] in set(batches)]:
            self.folded += self.tasks.pop(key)
        self.folded_batches += len(batches)

    def total(self) -> tuple[Counts, int]:
        """(sum over all tasks, number of micro-batches)."""
        # A copy: Spark's accumulator server merges in a thread of its own while the driver adds up.
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


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """Counts of finished tasks, their micro-batches, and the lag behind the raw topic (`lag_*` are -1 while
    unknown).

    `batch_seconds` is what the newest micro-batch took, -1 before the first one. `ended`: the query has reached
    the end of its topic and stopped by itself.
    """

    counts: Counts
    batches: int
    lag_records: int
    lag_seconds: float
    ended: bool = False
    batch_seconds: float = UNKNOWN
    state: IngestState = IngestState.RUNNING


def progress_of(tasks: TaskCounts, lag: int, now_ms: int) -> IngestProgress:
    """Counts so far; the lag in seconds is the age of the newest message read, 0 without unread messages."""
    counts, batches = tasks.total()
    lag_seconds: float = UNKNOWN
    if lag == 0:
        lag_seconds = 0.0
    elif lag > 0 and counts.newest_ms >= 0:
        lag_seconds = max(0.0, (now_ms - counts.newest_ms) / 1_000)
    return IngestProgress(counts, batches, lag, lag_seconds)


def lag_records(report: Mapping[str, Any]) -> int:
    """Records between the last micro-batch and the end of the topic, by a report of Spark; -1 while unknown."""
    lag = 0
    for source in report["sources"]:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        # Spark's first reports have no latest offset: unknown must not look like "no lag".
        if not latest:
            return UNKNOWN
        lag += sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())
    return lag


def batch_seconds(report: Mapping[str, Any]) -> float:
    """How long the micro-batch of a report of Spark took; -1 while unknown."""
    duration_ms = report.get("batchDuration")
    return UNKNOWN if duration_ms is None else float(duration_ms) / 1_000


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    # Spark gives offsets as an object or as its JSON text, depending on how the report was made.
    document = json.loads(value) if isinstance(value, str) else value or {}
    pairs: Iterable[tuple[str, Mapping[str, int]]] = document.items()
    return {(topic, partition): int(offset) for topic, parts in pairs for partition, offset in parts.items()}
