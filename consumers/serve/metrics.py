"""The metrics of asking, as Prometheus text; a node adds them to its own.

| metric | meaning |
|---|---|
| `headrace_queries_running` | queries that hold one of the places now |
| `headrace_queries_total{outcome}` | queries by outcome: `answered`, `failed`, `timed_out`, `refused` (all places taken) |
| `headrace_query_seconds_total{phase}` | seconds until the first rows (`first_rows`) and until the result was closed (`whole`) |
| `headrace_query_files_scanned_total` | segment files handed to queries |
| `headrace_query_live_rows_scanned_total` | rows out of segments handed to queries |
| `headrace_query_limit{name}` | every limit of asking by name |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from consumers.query.engine import QueryEngine


def query_metrics(engine: QueryEngine) -> str:
    """The metrics of an engine at this moment."""
    registry = CollectorRegistry()
    registry.register(_QueryMetrics(engine))
    return generate_latest(registry).decode()


class _QueryMetrics:
    """Collects from the engine's own counters, which thereby stay the only ones."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        counted, limits = self._engine.statistics, self._engine.settings
        yield GaugeMetricFamily("headrace_queries_running", "Queries that hold a place", counted.running)
        outcomes = {
            "answered": counted.succeeded,
            "failed": counted.failed - counted.timed_out,
            "timed_out": counted.timed_out,
            "refused": counted.refused_busy,
        }
        yield _counters("headrace_queries", "Queries by outcome", "outcome", outcomes)
        seconds = {"first_rows": counted.planning_seconds, "whole": counted.running_seconds}
        yield _counters("headrace_query_seconds", "Seconds spent on queries", "phase", seconds)
        yield CounterMetricFamily(
            "headrace_query_files_scanned", "Segment files handed to queries", counted.files_scanned
        )
        yield CounterMetricFamily(
            "headrace_query_live_rows_scanned", "Rows out of segments handed to queries", counted.live_rows_scanned
        )
        family = GaugeMetricFamily("headrace_query_limit", "Limits of asking", labels=["name"])
        for name in ("queries_max", "memory_limit_mb", "threads", "timeout_ms", "spill_mb_max"):
            family.add_metric([name], getattr(limits, name))
        yield family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family
