"""The metrics of `headrace ingest run` over HTTP, as Prometheus text."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.consumers.node.http_address import host_and_port
from headrace.consumers.serve.server import Server, reserve_address
from headrace.pipeline.ingest_progress import UNKNOWN, Counts, IngestProgress, IngestState

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from headrace.pipeline.job import IngestJob

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class IngestMetrics:
    """The newest progress of one run as metrics. Each has the labels cluster, topic and database."""

    def __init__(self, job: IngestJob) -> None:
        self._labels = {"cluster": job.cluster, "topic": job.topic, "database": job.database}
        self._progress = IngestProgress(Counts(), 0, UNKNOWN, UNKNOWN, state=IngestState.STARTING)

    def show(self, progress: IngestProgress) -> None:
        """Take the newest progress."""
        self._progress = progress

    def text(self) -> str:
        """All metrics at this moment."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        # Counters exist from zero: a rate over one that appears later would miss its first lines.
        progress, counts = self._progress, self._progress.counts
        yield self._counter("rows", "Rows written to the forward logs", counts.rows)
        yield self._counter("points", "Field values written to the forward logs", counts.points)
        yield self._counter("rejected", "Lines that were refused", counts.rejected)
        yield self._counter("bytes", "Bytes of raw messages read", counts.bytes)
        yield self._counter("batches", "Micro-batches", progress.batches)
        reasons = CounterMetricFamily(
            "headrace_ingest_rejected_by_reason", "Refused lines by reason", labels=[*self._labels, "reason"]
        )
        for reason, count in counts.reasons.items():
            reasons.add_metric([*self._labels.values(), reason], count)
        yield reasons
        yield self._gauge("lag_records", "Raw messages not read yet", _known(progress.lag_records))
        yield self._gauge(
            "lag_seconds",
            "Age of the newest message read while there are newer ones",
            _known(progress.lag_seconds),
        )
        yield self._gauge("batch_seconds", "What the newest micro-batch took", _known(progress.batch_seconds))
        yield self._by(
            "state", "1 for what the run does", "state", {str(each): each == progress.state for each in IngestState}
        )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"headrace_ingest_{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"headrace_ingest_{name}", f"{text}; NaN while unknown", labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"headrace_ingest_{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], float(value))
        return family


def _known(value: float) -> float:
    # NaN and never -1: a rule `lag > 60` and an average over time must not take unknown for a number.
    return math.nan if value < 0 else float(value)


def reserved_address(http: str | None) -> socket.socket | None:
    """The socket of `--http`, None without it. Raises AddressInvalid, AddressInUse."""
    if http is None:
        return None
    return reserve_address(*host_and_port(http, "--http", "--http 127.0.0.1:9100"))


def serving(metrics: IngestMetrics, reserved: socket.socket | None) -> AbstractContextManager[str]:
    """Serve `/metrics` while the context lasts; yields its URL, or nothing without an address."""
    return nullcontext("") if reserved is None else _serving(metrics, reserved)


@contextmanager
def _serving(metrics: IngestMetrics, reserved: socket.socket) -> Iterator[str]:
    async def answer(_request: Request) -> Response:
        return PlainTextResponse(metrics.text(), media_type=MEDIA_TYPE)

    server = Server(Starlette(routes=[Route("/metrics", answer)]), reserved=reserved)
    url = server.start()
    try:
        yield f"{url}/metrics"
    finally:
        server.stop()
