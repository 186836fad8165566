"""Progress of an ingest query: what Spark's reports say of its micro-batches, and its lag behind the raw topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

UNKNOWN = -1
OBSERVED = "headrace"
OBSERVED_READING = "reading"
"""The names of what a query observes of its micro-batches: counts, and what its reading was like."""
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
    """Messages read, rows and points in forward messages, bad lines, bytes read, and the newest Kafka timestamp
    read (-1 before any). `reasons` has the bad lines by reason, of the first REASONS_MAX reasons.
    """

    messages: int = 0
    rows: int = 0
    points: int = 0
    rejected: int = 0
    bytes: int = 0
    newest_ms: int = -1
    reasons: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.messages + other.messages,
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


class RunCounts:
    """Counts of the micro-batches of one run, by the reports of its queries."""

    # Spark reports a micro-batch once, behind its commit. What a failed attempt had written is not in any report.
    def __init__(self) -> None:
        self.counts = Counts()
        self.batches = 0
        self.newest_batch = -1

    def add(self, report: Mapping[str, Any]) -> None:
        """Count a report, unless it is of a batch that was counted before."""
        batch = int(report["batchId"])
        if batch <= self.newest_batch:
            return
        self.newest_batch = batch
        counts = observed_counts(report)
        self.counts += counts
        self.batches += counts.messages > 0


def observed_counts(report: Mapping[str, Any]) -> Counts:
    """The counts in a report of Spark; none in a report of a batch without tasks."""
    observed = report.get("observedMetrics") or {}
    seen, reading = observed.get(OBSERVED) or {}, observed.get(OBSERVED_READING) or {}
    newest_ms = reading.get("newest_ms")
    counts = Counts(
        messages=int(seen.get("messages") or 0),
        rows=int(seen.get("rows") or 0),
        points=int(seen.get("points") or 0),
        rejected=int(seen.get("rejected") or 0),
        bytes=int(reading.get("bytes") or 0),
        newest_ms=UNKNOWN if newest_ms is None else int(newest_ms),
    )
    for text in reading.get("reasons") or ():
        counts += Counts(reasons=json.loads(text))
    return counts


def progress_of(run: RunCounts, lag: int, now_ms: int) -> IngestProgress:
    """Counts so far; the lag in seconds is the age of the newest message read, 0 without unread messages."""
    counts = run.counts
    lag_seconds: float = UNKNOWN
    if lag == 0:
        lag_seconds = 0.0
    elif lag > 0 and counts.newest_ms >= 0:
        lag_seconds = max(0.0, (now_ms - counts.newest_ms) / 1_000)
    return IngestProgress(counts, run.batches, lag, lag_seconds)


def position_of(report: Mapping[str, Any]) -> dict[int, int]:
    """The offsets that a reported micro-batch ended with, by partition."""
    # Spark gives offsets as an object or as its JSON text, depending on how the report was made.
    [source] = report["sources"]
    end = source.get("endOffset")
    document = json.loads(end) if isinstance(end, str) else end or {}
    return {int(partition): int(offset) for parts in document.values() for partition, offset in parts.items()}


def batch_seconds(report: Mapping[str, Any]) -> float:
    """How long the micro-batch of a report of Spark took; -1 while unknown."""
    duration_ms = report.get("batchDuration")
    return UNKNOWN if duration_ms is None else float(duration_ms) / 1_000
