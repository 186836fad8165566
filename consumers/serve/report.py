"""What a node says of itself to people and to monitoring: one status document, and the metrics of Prometheus.

Lag is shown in records and in seconds. Offsets have gaps, so the records are an upper bound; what is not known is -1, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from consumers.membership.slots import SlotTable
from consumers.replication.broadcast import Broadcast
from consumers.replication.group import Group
from consumers.replication.journal import Journal
from consumers.replication.limits import ReplicationLimits
from consumers.replication.progress import Progress
from consumers.replication.runner import Runner
from consumers.replication.scrub import Scrubber
from schemas.records import Role


class Reported(Protocol):
    """The parts of a node that reports are made of."""

    incarnation: str
    http_address: str
    software: str
    started_at: str
    slot_table: SlotTable
    groups: dict[str, Group]
    runner: Runner
    journal: Journal
    broadcast: Broadcast

    @property
    def scrubber(self) -> Scrubber:
        """Reads its files again."""
        ...

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    @property
    def name(self) -> str:
        """Name of the node."""
        ...

    @property
    def limits(self) -> ReplicationLimits:
        """Its limits."""
        ...

    def role(self, topic: str) -> Role:
        """Role in the group of a forward topic."""
        ...

    def end(self, topic: str) -> int:
        """End of a forward topic when last looked at."""
        ...

    def progress(self, topic: str) -> Progress | None:
        """How a recovery of the group goes, None while there is none."""
        ...

    def held_back(self, topic: str) -> int:
        """Offsets of a forward topic that nobody can read because of an open transaction."""
        ...

    def reason(self, topic: str) -> str:
        """Why the group does not serve here, empty when it does."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether all groups serve, and why not."""
        ...


def status_report(node: Reported) -> dict[str, Any]:
    """Everything an operator wants to know first, as JSON values."""
    ready, reasons = node.ready()
    return {
        "cluster": node.cluster,
        "node": node.name,
        "incarnation": node.incarnation,
        "software": node.software,
        "started_at": node.started_at,
        "http": node.http_address,
        "ready": ready,
        "reasons": reasons,
        "warnings": [_open_transaction(topic, node.held_back(topic)) for topic in node.groups if node.held_back(topic)],
        "replication": node.slot_table.replication,
        "nodes": list(node.slot_table.nodes),
        "slot_table_version": node.slot_table.version,
        "slots": node.slot_table.slots,
        "journal_fault": node.runner.journal_fault,
        "log_fault": node.runner.log_fault,
        "groups": [group_report(node, topic, group) for topic, group in node.groups.items()],
        "members": [_member(node, group, member) for group in node.groups.values() for member in group.members],
    }


def group_report(node: Reported, topic: str, group: Group) -> dict[str, Any]:
    """One group at this node."""
    applied, segments, memtable = group.applied, group.store.segments(), group.store.unsealed()
    lag_records = max(0, node.end(topic) - 1 - applied.offset)
    progress = node.progress(topic)
    return {
        "group": group.name,
        "topic": topic,
        "role": str(node.role(topic)),
        "reason": node.reason(topic),
        "recovery": asdict(progress) if progress is not None else None,
        "held_back": node.held_back(topic),
        "epoch": applied.epoch,
        "leader": applied.leader.node if applied.leader else "",
        "version": applied.version,
        "offset": applied.offset,
        "chain": applied.chain.hex(),
        "log_end": node.end(topic),
        "durable_offset": node.runner.durable_offset(topic),
        "lag_records": lag_records,
        "lag_seconds": lag_seconds(node, applied.timestamp_ms, lag_records),
        "sealed_version": group.files.sealed_version,
        "frontier": applied.frontier,
        "live_rows": memtable.rows,
        "live_bytes": memtable.bytes,
        "segments": len(segments),
        "segment_rows": sum(entry.rows for entry in segments),
        "segment_bytes": sum(entry.size_bytes for entry in segments),
        "ignored": {str(why): count for why, count in sorted(group.replica.ignored.items())},
        "members": list(group.members),
        "slots": len(node.slot_table.slots_of(group.name)),
    }


def _open_transaction(topic: str, offsets: int) -> str:
    return (
        f"a transaction left open in topic {topic} keeps {offsets} offsets from being read, by anybody; nothing of Headrace writes in transactions: "
        "find the producer (kafka-transactions.sh find-hanging) and abort it"
    )


def lag_seconds(node: Reported, applied_ms: int, lag_records: int) -> float:
    """How old the newest applied record is by the broker's clock while there are newer ones; -1 when nothing was applied yet."""
    if lag_records == 0:
        return 0.0
    newest_ms = node.broadcast.board.newest_ms
    return max(0, newest_ms - applied_ms) / 1_000 if applied_ms and newest_ms else -1.0


def _member(node: Reported, group: Group, member: str) -> dict[str, Any]:
    board = node.broadcast.board
    status = board.status(group.name, member)
    alive = board.alive(group.name, member)
    return {
        "node": member,
        "group": group.name,
        "online": alive,
        "role": str(status.role) if status is not None and alive else "offline",
        "version": status.version if status else -1,
        "durable_offset": status.durable_offset if status else -1,
        "sealed_version": status.sealed_version if status else -1,
        "http": status.http if status else "",
        "silent_ms": board.silent_ms(group.name, member),
        "reason": status.reason if status else "",
    }


def metrics_text(node: Reported) -> str:
    """The metrics in the text form of Prometheus; documented in docs/operating/monitoring.md."""
    registry = CollectorRegistry()
    ready, _ = node.ready()
    _gauge(registry, "headrace_ready", "1 when every group here serves", {(): float(ready)}, ())
    reports = {group.name: group_report(node, topic, group) for topic, group in node.groups.items()}
    for name, (key, help_text) in _GROUP_METRICS.items():
        _gauge(
            registry, name, help_text, {(group,): float(report[key]) for group, report in reports.items()}, ("group",)
        )
    for name, (key, help_text) in _RECOVERY_METRICS.items():
        moving = {(group,): float(report["recovery"][key]) for group, report in reports.items() if report["recovery"]}
        _gauge(registry, name, help_text, moving, ("group",))
    scrubber = node.scrubber
    scrubbed = {("checked",): float(scrubber.files_checked), ("rotted",): float(scrubber.files_rotted)}
    _gauge(registry, "headrace_scrub_files", "Segments read again and compared with their digest", scrubbed, ("found",))
    roles = {(group, str(role)): float(report["role"] == role) for group, report in reports.items() for role in Role}
    _gauge(registry, "headrace_role", "1 for the role this node has in a group", roles, ("group", "role"))
    ignored = {
        (group, why): float(count) for group, report in reports.items() for why, count in report["ignored"].items()
    }
    _gauge(
        registry, "headrace_records_ignored", "Records that changed nothing but the version", ignored, ("group", "why")
    )
    queues = {(group.name,): float(group.queue_bytes) for group in node.groups.values()}
    _gauge(registry, "headrace_apply_queue_bytes", "Bytes journaled and not yet applied", queues, ("group",))
    journal = {(name,): float(value) for name, value in asdict(node.journal.metrics()).items()}
    _gauge(registry, "headrace_journal", "Figures of the write-ahead log", journal, ("figure",))
    _gauge(
        registry, "headrace_consumed_bytes", "Bytes read from forward logs", {(): float(node.runner.bytes_consumed)}, ()
    )
    limits = {(name,): float(value) for name, value in asdict(node.limits).items()}
    _gauge(registry, "headrace_limit", "Every limit by name", limits, ("name",))
    return generate_latest(registry).decode()


_RECOVERY_METRICS = {
    "headrace_recovery_files_done": ("files_done", "Files that are here and verified, while a group copies files"),
    "headrace_recovery_files_total": ("files_total", "Files of the copy"),
    "headrace_recovery_bytes_done": ("bytes_done", "Bytes that are here, while a group copies files"),
    "headrace_recovery_bytes_total": ("bytes_total", "Bytes of the copy"),
    "headrace_recovery_offsets_done": ("offsets_done", "Next offset to be read, while a group reads its log"),
    "headrace_recovery_offsets_total": ("offsets_total", "End of that log"),
    "headrace_recovery_seconds_left": ("seconds_left", "Seconds that a recovery still takes at its pace; -1 unknown"),
    "headrace_recovery_still_seconds": ("still_s", "Seconds since a recovery last moved"),
}
_GROUP_METRICS = {
    "headrace_version": ("version", "Newest record applied"),
    "headrace_epoch": ("epoch", "Epoch of the newest accepted claim"),
    "headrace_held_back_records": ("held_back", "Offsets that an open transaction keeps from being read"),
    "headrace_lag_records": ("lag_records", "Offsets between the end of the log and the newest record applied"),
    "headrace_lag_seconds": ("lag_seconds", "Age of the newest record applied while there are newer ones; -1 unknown"),
    "headrace_durable_offset": ("durable_offset", "Newest offset that survives a crash of this node"),
    "headrace_sealed_version": ("sealed_version", "Newest version whose rows are in segments"),
    "headrace_live_rows": ("live_rows", "Rows in memory, not yet in segments"),
    "headrace_live_bytes": ("live_bytes", "Bytes of rows in memory"),
    "headrace_segments": ("segments", "Segments"),
    "headrace_segment_rows": ("segment_rows", "Rows in segments"),
    "headrace_segment_bytes": ("segment_bytes", "Bytes of segments"),
}


def _gauge(
    registry: CollectorRegistry, name: str, text: str, values: Mapping[Any, float], labels: tuple[str, ...]
) -> None:
    gauge = Gauge(name, text, labels, registry=registry)
    for label_values, value in values.items():
        (gauge.labels(*label_values) if labels else gauge).set(value)
