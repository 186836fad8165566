"""How far a query has come, added up over its finished micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.records import COUNT_COLUMNS, Counts

UNKNOWN = -1
METRICS_NAME = "headrace"


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """What finished micro-batches wrote, and how far the query is behind its topic: `lag_*` are -1 while unknown."""

    counts: Counts
    batches: int
    lag_records: int
    lag_seconds: float


@dataclass(slots=True)
class ProgressTally:
    """Adds up the progress reports of one or several runs of a query; each micro-batch counts once, however often it is reported."""

    _batches: dict[int, Counts] = field(default_factory=dict)
    _summed: Counts = field(default_factory=Counts)
    _forgotten: int = 0
    _lag_records: int = UNKNOWN

    def take(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Progress reports as Spark writes them, in any order, repeated or not."""
        for report in reports:
            if report["numInputRows"] > 0:
                self._batches.setdefault(report["batchId"], counts_of(report))
            self._lag_records = lag_records(report["sources"])
        while len(self._batches) > 1_000:
            # Reports come in order of batch, and only the newest few are ever repeated.
            self._summed += self._batches.pop(min(self._batches))
            self._forgotten += 1

    def at(self, now_ms: int) -> IngestProgress:
        """The sums so far; seconds behind are counted to `now_ms`, 0 when nothing is left to read."""
        total = sum(self._batches.values(), self._summed)
        behind_s: float = UNKNOWN
        if self._lag_records == 0:
            behind_s = 0.0
        elif self._lag_records > 0 and total.newest_ms >= 0:
            behind_s = max(0.0, (now_ms - total.newest_ms) / 1_000)
        return IngestProgress(total, len(self._batches) + self._forgotten, self._lag_records, behind_s)


def counts_of(report: Mapping[str, Any]) -> Counts:
    """The counts of one micro-batch, as the observed sums of its records."""
    observed = report.get("observedMetrics", {}).get(METRICS_NAME) or {}
    present = {name: int(observed[name]) for name in COUNT_COLUMNS if observed.get(name) is not None}
    return Counts(**present)


def lag_records(sources: Iterable[Mapping[str, Any]]) -> int:
    """Records between the end of the last micro-batch and the end of the topic, over all partitions; -1 when the report does not say."""
    lag = 0
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if not latest:
            return UNKNOWN
        lag += sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())
    return lag


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    document = json.loads(value) if isinstance(value, str) else value or {}
    return {(topic, partition): int(offset) for topic, parts in document.items() for partition, offset in parts.items()}
