"""How far a query has come: what its tasks counted, and how far it is behind its topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.counts import Counts, TaskCounts

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """What finished tasks wrote, in how many micro-batches, and how far the query is behind its topic: `lag_*` are -1 while unknown.

    `ended` tells that the query ended by itself, with nothing left to do.
    """

    counts: Counts
    batches: int
    lag_records: int
    lag_seconds: float
    ended: bool = False


def progress_of(tasks: TaskCounts, lag: int, now_ms: int) -> IngestProgress:
    """Counts so far; seconds behind are counted from the newest message read to `now_ms`, 0 when nothing is left to read."""
    counts, batches = tasks.total()
    behind_s: float = UNKNOWN
    if lag == 0:
        behind_s = 0.0
    elif lag > 0 and counts.newest_ms >= 0:
        behind_s = max(0.0, (now_ms - counts.newest_ms) / 1_000)
    return IngestProgress(counts, batches, lag, behind_s)


def lag_records(report: Mapping[str, Any]) -> int:
    """Records from the end of the last micro-batch to the end of the topic, by a progress report of Spark; -1 when it does not say."""
    lag = 0
    for source in report["sources"]:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if not latest:
            return UNKNOWN
        lag += sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())
    return lag


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    document = json.loads(value) if isinstance(value, str) else value or {}
    pairs: Iterable[tuple[str, Mapping[str, int]]] = document.items()
    return {(topic, partition): int(offset) for topic, parts in pairs for partition, offset in parts.items()}
