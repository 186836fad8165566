"""The metrics of one ingest query as Prometheus text; docs/operating/monitoring.md explains each one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.pipeline.ingest_progress import UNKNOWN, Counts, IngestProgress
from headrace.pipeline.job import IngestJob


class IngestMetrics:
    """Keeps the newest progress of a query. `note` and `text` may be called by different threads."""

    def __init__(self, job: IngestJob) -> None:
        self._labels = (job.cluster, job.topic)
        # From the start and not from the first report: a counter that begins with its first event has no increase.
        self._progress = IngestProgress(Counts(), 0, UNKNOWN, UNKNOWN)

    def note(self, progress: IngestProgress) -> None:
        """Take the newest progress."""
        self._progress = progress

    def text(self) -> str:
        """All metrics at this moment."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        progress = self._progress
        counts = progress.counts
        yield self._counter("headrace_ingest_rows", "Rows written to forward logs", counts.rows)
        yield self._counter("headrace_ingest_points", "Field values of those rows", counts.points)
        yield self._counter("headrace_ingest_bytes", "Bytes of raw messages read", counts.bytes)
        yield self._counter(
            "headrace_ingest_rejected_lines", "Lines not taken; their messages are dead letters", counts.rejected
        )
        yield self._counter("headrace_ingest_batches", "Micro-batches", progress.batches)
        yield self._gauge("headrace_ingest_lag_records", "Raw messages not read yet; -1 unknown", progress.lag_records)
        yield self._gauge(
            "headrace_ingest_lag_seconds",
            "Age of the newest message read while there are newer ones; -1 unknown",
            progress.lag_seconds,
        )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=("cluster", "topic"))
        family.add_metric(self._labels, value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("cluster", "topic"))
        family.add_metric(self._labels, value)
        return family
