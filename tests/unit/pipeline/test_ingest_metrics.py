"""The metrics of an ingest: there from the start, with cluster and topic."""

from __future__ import annotations

import re

from headrace.pipeline.ingest_metrics import IngestMetrics
from headrace.pipeline.ingest_progress import Counts, IngestProgress
from headrace.pipeline.job import IngestJob


def series(text: str) -> dict[str, float]:
    """Values by name; each series must have the labels of the job."""
    found = re.findall(r'^(\w+)\{cluster="c",topic="plant.raw"\} (\S+)$', text, re.MULTILINE)
    assert len(found) == len([line for line in text.splitlines() if not line.startswith("#")])
    return {name: float(value) for name, value in found}


def test_counters_begin_at_zero_and_lag_as_unknown() -> None:
    """Before the first micro-batch nothing is written, and nobody knows how much there is to read."""
    metrics = IngestMetrics(IngestJob("c", "kafka:9092", "plant.raw", "plant", "json"))
    before = series(metrics.text())
    assert {0.0, -1.0} == set(before.values())
    assert {"headrace_ingest_lag_records", "headrace_ingest_lag_seconds"} == {
        name for name, value in before.items() if value == -1
    }
    metrics.note(IngestProgress(Counts(rows=5, points=9, rejected=2, bytes=70, newest_ms=1), 3, 11, 2.5))
    assert {
        "headrace_ingest_rows_total": 5,
        "headrace_ingest_points_total": 9,
        "headrace_ingest_bytes_total": 70,
        "headrace_ingest_rejected_lines_total": 2,
        "headrace_ingest_batches_total": 3,
        "headrace_ingest_lag_records": 11,
        "headrace_ingest_lag_seconds": 2.5,
    } == series(metrics.text())
