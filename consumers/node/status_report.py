"""Builds the status document and the figures of a node from its parts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.flight_surface import FlightSurface
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.node.slot_pulls import SlotMigration
from headrace.consumers.query.cluster_source import ClusterSource
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere, GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import Journal
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.serve.node_api import UNKNOWN, GroupStatus, MemberStatus, NodeFigures, NodeStatus, RemoteGroup
from headrace.consumers.sync.edge_store import EdgeStore
from headrace.schemas.records import Role


class ReportedParts(Protocol):
    """The parts of a node that its status and its figures are read from."""

    incarnation: str
    http_address: str
    flight: FlightSurface
    software: str
    started_at: str
    slot_table: SlotTable
    groups: GroupRegistry
    positions: LogPositions
    log_consumer: LogConsumer
    journal: Journal
    heartbeat: Heartbeat
    metadata: MetadataGroup
    migration: SlotMigration
    edge: EdgeStore

    @property
    def source(self) -> ClusterSource:
        """What its queries read."""
        ...

    @property
    def scrubber(self) -> Scrubber:
        """Reads its segments again and compares their digests."""
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

    @property
    def warnings(self) -> list[str]:
        """What happened at the start that an operator should know."""
        ...

    def role(self, topic: str) -> Role:
        """Role in the group of a forward topic."""
        ...

    def topic_warnings(self) -> Sequence[str]:
        """What is wrong with the cluster's topics."""
        ...

    def reason(self, topic: str) -> str:
        """Why the group does not serve here, empty when it does."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether all groups serve, and why not."""
        ...

    @property
    def directory(self) -> Path:
        """The data directory."""
        ...


def node_status(node: ReportedParts) -> NodeStatus:
    """The status document: what an operator needs to know first."""
    ready, reasons = node.ready()
    as_of = node.positions.data_age.as_of()
    return {
        "cluster": node.cluster,
        "node": node.name,
        "incarnation": node.incarnation,
        "software": node.software,
        "started_at": node.started_at,
        "http": node.http_address,
        "flight": node.flight.url,
        "ready": ready,
        "joining": node.name not in node.slot_table.nodes,
        "reasons": reasons,
        "data_age_s": round(as_of.age_s, 3) if as_of is not None else float(UNKNOWN),
        "warnings": [
            *node.warnings,
            *(
                _open_transaction(topic, offsets)
                for topic in node.groups
                if (offsets := node.positions.held_back(topic))
            ),
            *node.topic_warnings(),
            *([unread] if (unread := node.heartbeat.detector.unread_fault()) else []),
        ],
        "replication": node.slot_table.replication,
        "nodes": list(node.slot_table.nodes),
        "slot_table_version": node.slot_table.version,
        "slots": node.slot_table.slots,
        "journal_fault": node.log_consumer.journal_fault,
        "log_fault": node.log_consumer.log_fault,
        "groups": list(_group_statuses(node)),
        "members": list(_member_statuses(node)),
        "remote_groups": _remote_groups(node),
    }


def _group_statuses(node: ReportedParts) -> Iterator[GroupStatus]:
    for topic, group in node.groups.items():
        # It may go while its status is made.
        with suppress(GroupNotHere):
            yield group_status(node, topic, group)


def _member_statuses(node: ReportedParts) -> Iterator[MemberStatus]:
    for topic, group in node.groups.items():
        with suppress(GroupNotHere):
            yield from [_member_status(node, topic, group, member) for member in group.members]


def _remote_groups(node: ReportedParts) -> list[RemoteGroup]:
    table, here = node.slot_table, {group.name for group in node.groups.values()}
    serving = {name: node.source.remote.serving(name) for name in table.headers if name not in here}
    return [
        {
            "group": name,
            "members": list(table.group(name)),
            "in_sync": [each.node for each in found],
            "http": [each.http for each in found],
            "slots": len(table.slots_of(name)),
        }
        for name, found in serving.items()
    ]


def node_figures(node: ReportedParts) -> NodeFigures:
    """Figures that the metrics show beyond the status."""
    free_bytes = size_bytes = UNKNOWN
    with suppress(OSError):
        size_bytes, _, free_bytes = shutil.disk_usage(node.directory)
    return NodeFigures(
        consumed_bytes=node.log_consumer.bytes_consumed,
        apply_queue_bytes={group.name: group.queue_bytes for group in node.groups.values()},
        files_checked=node.scrubber.files_checked,
        files_rotted=node.scrubber.files_rotted,
        journal=asdict(node.journal.metrics()),
        limits=node.limits.figures(),
        disk_free_bytes=free_bytes,
        disk_size_bytes=size_bytes,
        remote=replace(node.source.remote.statistics),
        metadata_leads=node.metadata.leads,
        metadata_epoch=node.metadata.state.epoch,
        migration=node.migration.puller.figures,
        cluster=_cluster(node),
        flight_calls=node.flight.open_calls,
        centres=node.edge.figures(),
        hand_over_due={group.key: sum(map(len, group.applied.changes.due.values())) for group in node.groups.values()},
    )


def _cluster(node: ReportedParts) -> dict[str, Any]:
    metadata = node.metadata
    return {} if metadata.state.table is None else metadata.report().cluster()


def group_status(node: ReportedParts, topic: str, group: Group) -> GroupStatus:
    """One group at this node."""
    # Each is read once for all fields below, because other threads apply and seal meanwhile.
    applied, segments, memtable = group.applied, group.store.segments(), group.store.unsealed()
    lag_records = known_lag(node.positions.end(topic) - 1 - applied.offset, log_answers=node.positions.log_answers)
    progress = node.positions.progress(topic)
    return {
        "group": group.name,
        "topic": topic,
        "role": str(node.role(topic)),
        "reason": node.reason(topic),
        "recovery": asdict(progress) if progress is not None else None,
        "held_back": node.positions.held_back(topic),
        "epoch": applied.epoch,
        "leader": applied.leader.node if applied.leader else "",
        "version": applied.version,
        "offset": applied.offset,
        "chain": applied.chain.hex(),
        "log_end": node.positions.end(topic),
        "durable_offset": node.log_consumer.durable_offset(topic),
        "lag_records": lag_records,
        "lag_seconds": lag_seconds(node, applied.timestamp_ms, lag_records),
        "sealed_version": group.store_jobs.sealed_version,
        "frontier": applied.frontier,
        "live_rows": memtable.rows,
        "live_bytes": memtable.bytes,
        "segments": len(segments),
        "segment_rows": sum(entry.rows for entry in segments),
        "segment_bytes": sum(entry.size_bytes for entry in segments),
        "block_bytes": group.store.block_bytes,
        "last_row_bytes": group.store.last_row_bytes,
        "ignored": {str(why): count for why, count in sorted(group.replica.ignored.items())},
        "members": list(group.members),
        "slots": node.slot_table.slot_counts().get(group.name, 0),
    }


def _open_transaction(topic: str, offsets: int) -> str:
    return (
        f"a transaction left open in topic {topic} keeps {offsets} offsets from being read, by anybody; "
        "nothing of Headrace writes in transactions: "
        "find the producer (kafka-transactions.sh find-hanging) and abort it"
    )


def known_lag(offsets: int, *, log_answers: bool) -> int:
    """How many offsets a group is behind the end of its log that was read last; UNKNOWN where the log may have more."""
    # The end was looked up a moment ago, so the group may be beyond it by now.
    return max(0, offsets) if log_answers or offsets > 0 else UNKNOWN


def lag_seconds(node: ReportedParts, applied_ms: int, lag_records: int) -> float:
    """Age of the newest applied record while there are newer ones; UNKNOWN before the first one is applied, and while
    it is unknown whether there are.
    """
    # A group with nothing to read has no lag, however old its newest record is.
    if lag_records <= 0:
        return float(lag_records)
    # Both times are the broker's, so a wrong clock of this machine does not look like lag.
    newest_ms = node.heartbeat.detector.newest_ms
    return max(0, newest_ms - applied_ms) / 1_000 if applied_ms and newest_ms else float(UNKNOWN)


def _member_status(node: ReportedParts, topic: str, group: Group, member: str) -> MemberStatus:
    detector = node.heartbeat.detector
    status = detector.status(group.name, member)
    alive = detector.alive(group.name, member)
    # A node that receives nothing knows nothing of the others. Itself it knows, better than its last status does.
    cut_off = node.heartbeat.fenced and member != node.name
    role = str(status.role) if status is not None and alive else "offline"
    if member == node.name:
        role = str(node.role(topic))
    return {
        "node": member,
        "group": group.name,
        "online": alive and not cut_off,
        "role": "unknown" if cut_off else role,
        "version": status.version if status else UNKNOWN,
        "durable_offset": status.durable_offset if status else UNKNOWN,
        "sealed_version": status.sealed_version if status else UNKNOWN,
        "http": status.http if status else "",
        "silent_ms": detector.silent_ms(group.name, member) + (node.heartbeat.silence_ms if status else 0),
        "reason": status.reason if status else "",
    }
