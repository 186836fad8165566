"""The metrics of the driver scheduler: what queries hold, wait for and use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.scheduler_statistics import STEP_BOUNDS_S
from headrace.consumers.scheduling.task_states import LIVE

ABORT_REASONS = ("QueryCancelled", "QueryTimeout", "QueryMemory", "QueryFailed", "QueryInvalid")
"""Reasons that are there from 0 on; others begin with their first query."""


def scheduler_metrics(scheduler: DriverScheduler) -> Iterator[Metric]:
    """Everything that a scheduler shows."""
    figures, statistics = scheduler.figures(), scheduler.statistics
    tasks = GaugeMetricFamily("headrace_query_tasks", "Drivers of queries by state", labels=["state"])
    for state in sorted(LIVE):
        tasks.add_metric([str(state)], figures.tasks[state])
    yield tasks
    yield GaugeMetricFamily(
        "headrace_query_reserved",
        "Places of drivers that run or are blocked: they may always come back",
        figures.reserved,
    )
    yield GaugeMetricFamily("headrace_query_memory_bytes", "Memory that queries have reserved", figures.memory_bytes)
    yield CounterMetricFamily(
        "headrace_query_ready_seconds", "Seconds for which drivers waited for a worker", statistics.ready_seconds
    )
    blocked = CounterMetricFamily(
        "headrace_query_blocked_seconds",
        "Seconds for which drivers were blocked, by what they waited for",
        labels=["on"],
    )
    for on, seconds in statistics.blocked_seconds.items():
        blocked.add_metric([str(on)], seconds)
    yield blocked
    slices = CounterMetricFamily("headrace_query_slices", "Time slices by level of the ready queue", labels=["level"])
    used = CounterMetricFamily("headrace_query_level_seconds", "Processor seconds by level", labels=["level"])
    for level, each in figures.levels.items():
        slices.add_metric([level], each.slices)
        used.add_metric([level], each.seconds)
    yield from (slices, used)
    yield _steps(scheduler)
    yield CounterMetricFamily(
        "headrace_query_long_steps", "Steps that were longer than their whole slice", statistics.long_steps
    )
    aborts = CounterMetricFamily("headrace_query_aborts", "Queries that ended early, by error", labels=["reason"])
    for reason, count in (dict.fromkeys(ABORT_REASONS, 0) | dict(statistics.aborts)).items():
        aborts.add_metric([reason], count)
    yield aborts


def _steps(scheduler: DriverScheduler) -> HistogramMetricFamily:
    steps = scheduler.statistics.steps
    bounds = [*map(str, STEP_BOUNDS_S), "+Inf"]
    family = HistogramMetricFamily("headrace_query_step_seconds", "How long steps of drivers took")
    family.add_metric([], list(zip(bounds, accumulate(steps.counts), strict=True)), steps.seconds)
    return family
