"""The metrics of a node as Prometheus text; docs/operating/monitoring.md explains each one.

Every series has the label `cluster`. Every counter of a group and a cause exists from 0: a series that begins with
its first event has no increase, so no alert would see that event.

All are collected at the moment of the request from counters that exist anyway. No second set of counters can
then disagree with the status document, and nothing is counted on the way of a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.consumers.membership.running_change import Phase
from headrace.consumers.migration.pull_figures import PullFigures
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import ScanStatistics
from headrace.consumers.query.remote_rows import RemoteStatistics
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.serve.flight_calls import FLIGHT_CALLS_MAX
from headrace.consumers.serve.node_api import NodeApi, NodeStatus
from headrace.consumers.serve.scheduler_metrics import scheduler_metrics
from headrace.consumers.serve.sync_uploads import Uploads
from headrace.consumers.serve.write_api import WriteApi
from headrace.consumers.sync.edge_store import CentreFigures
from headrace.schemas.records import Role


def metrics_text(node: NodeApi) -> str:
    """All metrics of a node at this moment."""
    # A registry per request: the global one of prometheus_client adds figures of the process under names that
    # are not ours, and would mix two nodes in one process.
    registry = CollectorRegistry()
    registry.register(MetricsCollector(node))
    return generate_latest(registry).decode()


class MetricsCollector:
    """Collects the metrics of one node, its groups and its queries."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        status = self._node.status()
        for family in self._families(status):
            # Here and not in each family: none can be without it.
            labelled = [
                sample._replace(labels={"cluster": status["cluster"], **sample.labels}) for sample in family.samples
            ]
            family.samples = labelled
            yield family

    def _families(self, status: NodeStatus) -> Iterator[Metric]:
        figures = self._node.figures()
        groups: dict[str, Mapping[str, Any]] = {group["group"]: group for group in status["groups"]}
        yield _gauge("headrace_ready", "1 when every group here serves", (), {(): status["ready"]})
        yield from _group_metrics(groups)
        yield from _recovery_metrics(groups)
        scrubbed = {"checked": figures.files_checked, "rotted": figures.files_rotted}
        yield _gauge_by("headrace_scrub_files", "Segments read again and compared with their digest", "found", scrubbed)
        roles = {(name, str(role)): group["role"] == role for name, group in groups.items() for role in Role}
        yield _gauge("headrace_role", "1 for the role this node has in a group", ("group", "role"), roles)
        ignored = {
            (name, why): count
            for name, group in groups.items()
            for why, count in {**dict.fromkeys(map(str, Ignored), 0), **group["ignored"]}.items()
        }
        yield _gauge(
            "headrace_records_ignored", "Records that changed nothing but the version", ("group", "why"), ignored
        )
        yield _gauge_by(
            "headrace_apply_queue_bytes", "Bytes journaled and not yet applied", "group", figures.apply_queue_bytes
        )
        yield _gauge_by("headrace_journal", "Figures of the write-ahead log", "figure", figures.journal)
        yield _gauge("headrace_consumed_bytes", "Bytes read from forward logs", (), {(): figures.consumed_bytes})
        yield _gauge_by("headrace_limit", "Every limit by name", "name", figures.limits)
        disk = {"free": figures.disk_free_bytes, "size": figures.disk_size_bytes}
        yield _gauge_by("headrace_disk_bytes", "The disk of the data directory; -1 unknown", "of", disk)
        age = "Seconds since this node knew that it was at the end of every log; -1 unknown"
        yield GaugeMetricFamily("headrace_data_age_seconds", age, status["data_age_s"])
        leads = "1 when this node leads the metadata group"
        yield GaugeMetricFamily("headrace_metadata_leader", leads, figures.metadata_leads)
        epoch = "Epoch of the newest accepted claim of the metadata group"
        yield GaugeMetricFamily("headrace_metadata_epoch", epoch, figures.metadata_epoch)
        yield from _cluster_metrics(figures.cluster)
        due = "Records that other groups must still accept from this one, since they got slots of it"
        yield _gauge_by("headrace_hand_over_records", due, "group", figures.hand_over_due)
        yield from _migration_metrics(figures.migration)
        yield from _centre_metrics(figures.centres)
        yield from _query_metrics(self._node.engine)
        yield from _write_metrics(self._node.writes)
        yield from _sync_metrics(self._node.migration.synced.uploads)
        yield _gauge("headrace_flight_calls", "Calls of Arrow Flight that are open", (), {(): figures.flight_calls})
        yield from scheduler_metrics(self._node.engine.scheduler)
        yield from _scan_metrics(figures.remote, self._node.scanner.statistics)


def _group_metrics(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for name, (key, text) in _GROUP_METRICS.items():
        yield _gauge_by(name, text, "group", {group: float(status[key]) for group, status in groups.items()})


def _recovery_metrics(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    # A group that recovers nothing has no value. A 0 would read as a recovery that has just begun.
    recoveries = {group: status["recovery"] for group, status in groups.items() if status["recovery"]}
    for name, (key, text) in _RECOVERY_METRICS.items():
        yield _gauge_by(name, text, "group", {group: recovery[key] for group, recovery in recoveries.items()})


def _cluster_metrics(cluster: Mapping[str, Any]) -> Iterator[Metric]:
    """The slot table and the change that runs, as this node knows them; nothing before it knows the table."""
    if not cluster:
        return
    change, nodes = cluster["change"] or {}, cluster["nodes"]
    yield GaugeMetricFamily("headrace_slot_table_version", "Version of the slot table", cluster["version"])
    found = {"online": sum(node["online"] for node in nodes), "total": len(nodes)}
    yield _gauge_by("headrace_nodes", "Nodes of the slot table, and those that are online", "of", found)
    slots = {group["group"]: group["slots"] for group in cluster["groups"]}
    yield _gauge_by("headrace_slots", "Slots of each group of the cluster", "group", slots)
    phases = {str(phase): float(phase == change.get("phase")) for phase in (Phase.PRE, Phase.FORMAL, Phase.MIGRATING)}
    yield _gauge_by("headrace_change_phase", "1 for the phase of the change that runs", "phase", phases)
    for name, (key, text) in _CHANGE_METRICS.items():
        yield _gauge_by(name, text, "of", {of: float(change.get(f"{key}_{of}", 0)) for of in ("done", "total")})


def _centre_metrics(centres: Sequence[CentreFigures]) -> Iterator[Metric]:
    undecided = {(each.cluster,): each for each in centres}
    files = {key: each.files for key, each in undecided.items()}
    yield _gauge("headrace_sync_undecided_files", "Files that a centre has not decided about", ("centre",), files)
    size = {key: each.bytes for key, each in undecided.items()}
    yield _gauge("headrace_sync_undecided_bytes", "Bytes of those files", ("centre",), size)
    oldest = {key: each.oldest_s for key, each in undecided.items()}
    yield _gauge("headrace_sync_oldest_unsent_seconds", "Age of the oldest of those files", ("centre",), oldest)


def _migration_metrics(pulls: PullFigures) -> Iterator[Metric]:
    """Slots that moved to groups of this node, while a change runs."""
    slots = {"done": float(pulls.slots_done), "total": float(pulls.slots_total)}
    yield _gauge_by("headrace_migration_slots", "Slots that moved here, and those reported as done", "of", slots)
    size = {"done": float(pulls.bytes_done), "total": float(pulls.bytes_total)}
    yield _gauge_by("headrace_migration_bytes", "Bytes of the files of these slots, and those attached", "of", size)
    yield GaugeMetricFamily(
        "headrace_migration_bytes_per_second", "Bytes fetched per second, of the newest 10 s", pulls.bytes_per_second
    )
    yield CounterMetricFamily("headrace_migration_files", "Files of moved slots that were attached", pulls.files)
    yield CounterMetricFamily("headrace_migration_errors", "Attempts to get such a file that failed", pulls.errors)


def _query_metrics(engine: QueryEngine) -> Iterator[Metric]:
    statistics, limits = engine.statistics, engine.settings
    yield GaugeMetricFamily("headrace_queries_running", "Queries that run now", statistics.running)
    outcomes = {
        "answered": statistics.succeeded,
        "failed": statistics.failed - statistics.timed_out,
        "timed_out": statistics.timed_out,
        "refused": statistics.refused_busy,
    }
    yield _counters("headrace_queries", "Queries by outcome", "outcome", outcomes)
    yield CounterMetricFamily(
        "headrace_queries_stale", "Queries that were answered by a node that did not serve", statistics.stale
    )
    seconds = {"first_rows": statistics.planning_seconds, "whole": statistics.running_seconds}
    yield _counters("headrace_query_seconds", "Seconds spent on queries", "phase", seconds)
    yield CounterMetricFamily(
        "headrace_query_files_scanned", "Segment files handed to queries", statistics.files_scanned
    )
    yield CounterMetricFamily(
        "headrace_query_live_rows_scanned", "Rows out of segments handed to queries", statistics.live_rows_scanned
    )
    yield CounterMetricFamily(
        "headrace_query_rollups_used", "Segment files that rollups answered for", statistics.rollups_used
    )
    names = (
        *("queries_max", "queries_per_user_max", "queue_max", "memory_limit_mb", "memory_per_query_mb"),
        *("threads", "short_threads", "slice_ms", "timeout_ms", "spill_mb_max"),
        *("scans_max", "remote_mb_max"),
    )
    known = {name: float(getattr(limits, name)) for name in names} | {"flight_calls_max": float(FLIGHT_CALLS_MAX)}
    yield _gauge_by("headrace_query_limit", "Limits of queries", "name", known)


def _write_metrics(writes: WriteApi) -> Iterator[Metric]:
    """Writes over HTTP."""
    counts, figures, limits = writes.statistics, writes.figures, writes.settings
    waiting = {"requests": float(counts.waiting_requests), "bytes": float(counts.waiting_bytes)}
    yield _gauge_by("headrace_http_writes_waiting", "Line protocol that waits to be written", "of", waiting)
    yield GaugeMetricFamily("headrace_http_writes_open", "Requests to write that are open", figures.open_requests)
    bodies = "Bytes of bodies that arrive, or are written as Arrow"
    yield GaugeMetricFamily("headrace_http_write_body_bytes", bodies, figures.bodies.held_bytes)
    yield CounterMetricFamily("headrace_http_write_rows", "Rows of line protocol that were written", counts.rows)
    yield CounterMetricFamily("headrace_http_write_batches", "Batches of requests that were synced", counts.batches)
    outcomes = {
        "taken": counts.requests,
        "failed": counts.failed,
        "refused": counts.refused_busy + figures.refused_requests,
    }
    yield _counters("headrace_http_write_requests", "Requests to write lines by outcome", "outcome", outcomes)
    yield CounterMetricFamily("headrace_http_write_refused_lines", "Lines that were not written", counts.refused_lines)
    names = ("http_body_mb_max", "http_requests_max", "http_waiting_mb_max")
    yield _gauge_by(
        "headrace_write_limit", "Limits of writes over HTTP", "name", {name: getattr(limits, name) for name in names}
    )


def _sync_metrics(uploads: Uploads) -> Iterator[Metric]:
    """Files of senders that receivers bring."""
    yield GaugeMetricFamily("headrace_sync_uploads_open", "Files of senders that are being taken", uploads.open_uploads)
    staged = "Bytes of files of senders that are taken, or wait for their load"
    yield GaugeMetricFamily("headrace_sync_staged_bytes", staged, uploads.staged_bytes)
    outcomes = {"taken": uploads.taken, "refused": uploads.refused}
    yield _counters("headrace_sync_uploads", "Files of senders by outcome", "outcome", outcomes)
    limits = {name: float(getattr(uploads.settings, name)) for name in ("uploads_max", "upload_mb_max", "staged_age_s")}
    yield _gauge_by("headrace_sync_limit", "Limits of files of senders", "name", limits)


def _scan_metrics(asked: RemoteStatistics, served: ScanStatistics) -> Iterator[Metric]:
    """Scans of other nodes' groups, and scans for other nodes."""
    of_others = {"answered": asked.answered, "tried_again": asked.tried_again, "failed": asked.failed}
    yield _counters("headrace_remote_scans", "Scans that queries asked other nodes for", "outcome", of_others)
    yield CounterMetricFamily("headrace_remote_rows", "Rows that queries got from other nodes", asked.rows)
    yield GaugeMetricFamily(
        "headrace_remote_bytes", "Bytes of rows of other nodes that running queries hold", asked.bytes_held
    )
    for_others = {"answered": served.answered, "failed": served.failed, "refused": served.refused}
    yield _counters("headrace_served_scans", "Scans for queries of other nodes", "outcome", for_others)
    yield GaugeMetricFamily("headrace_served_scans_running", "Scans for other nodes that run now", served.running)
    yield CounterMetricFamily("headrace_served_rows", "Rows sent to other nodes", served.rows)


_CHANGE_METRICS = {
    "headrace_change_groups": ("groups", "Groups of the change that runs, and those that have done its first phase"),
    "headrace_change_slots": ("slots", "Slots that it moves, and those that all members of their new groups have"),
    "headrace_change_bytes": ("bytes", "Bytes of these slots, an estimate; -1 unknown"),
}
_RECOVERY_METRICS = {
    "headrace_recovery_files_done": ("files_done", "Files that are here and verified, while a group copies files"),
    "headrace_recovery_files": ("files_total", "Files of the copy"),
    "headrace_recovery_bytes_done": ("bytes_done", "Bytes that are here, while a group copies files"),
    "headrace_recovery_bytes": ("bytes_total", "Bytes of the copy"),
    "headrace_recovery_offsets_done": ("offsets_done", "Next offset to be read, while a group reads its log"),
    "headrace_recovery_end_offset": ("offsets_total", "End of that log"),
    "headrace_recovery_seconds_left": ("seconds_left", "Seconds that a recovery still takes at its pace; -1 unknown"),
    "headrace_recovery_still_seconds": ("still_s", "Seconds since a recovery last moved"),
}
_GROUP_METRICS = {
    "headrace_version": ("version", "Newest record applied"),
    "headrace_epoch": ("epoch", "Epoch of the newest accepted claim"),
    "headrace_held_back_records": ("held_back", "Offsets that an open transaction keeps from being read"),
    "headrace_lag_records": (
        "lag_records",
        "Offsets between the end of the log and the newest record applied; -1 unknown",
    ),
    "headrace_lag_seconds": ("lag_seconds", "Age of the newest record applied while there are newer ones; -1 unknown"),
    "headrace_durable_offset": ("durable_offset", "Newest offset that survives a crash of this node"),
    "headrace_sealed_version": ("sealed_version", "Newest version whose rows are in segments"),
    "headrace_live_rows": ("live_rows", "Rows in memory, not yet in segments"),
    "headrace_live_bytes": ("live_bytes", "Bytes of rows in memory"),
    "headrace_segments": ("segments", "Segments"),
    "headrace_segment_rows": ("segment_rows", "Rows in segments"),
    "headrace_segment_bytes": ("segment_bytes", "Bytes of segments"),
    "headrace_block_bytes": (
        "block_bytes",
        "Bytes of decoded columns of segments kept for queries of few series and of small files",
    ),
    "headrace_last_row_bytes": ("last_row_bytes", "Bytes of the newest rows of series kept as query results"),
}


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, float(value))
    return family


def _gauge_by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    return _gauge(name, text, (label,), {(label_value,): value for label_value, value in values.items()})


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family
