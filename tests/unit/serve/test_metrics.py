"""The metrics of a node: every name and label, as dashboards and alerts of users know them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.consumers.migration.pull_figures import PullFigures
from headrace.consumers.query.engine import QueryStatistics
from headrace.consumers.query.group_scanner import ScanStatistics
from headrace.consumers.query.remote_rows import RemoteStatistics
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.scheduling.driver_scheduler import DriverScheduler
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.serve.metrics import metrics_text
from headrace.consumers.serve.node_api import NodeFigures
from headrace.consumers.serve.request_bodies import BodyRoom
from headrace.consumers.serve.write_api import WriteFigures
from headrace.consumers.sync.settings import SyncSettings
from headrace.producers.group_writer import GroupWriterStatistics
from headrace.producers.settings import WriteSettings
from tests.unit.serve.part_of_node import PartOfNode

EXPECTED = Path(__file__).with_name("metrics.txt")
RECOVERY = {
    "way": "files",
    "source": "n1",
    "files_done": 1,
    "files_total": 4,
    "bytes_done": 1_000,
    "bytes_total": 9_000,
    "offsets_done": 0,
    "offsets_total": 0,
    "per_second": 12.5,
    "seconds_left": 3.25,
    "still_s": 0.5,
    "trouble": "",
}
JOURNAL = {
    "transactions": 12,
    "durable_transaction": 11,
    "bytes_written": 3_456,
    "syncs": 5,
    "sync_wait_p50_ms": 0.5,
    "sync_wait_p99_ms": 1.25,
    "group_size_mean": 2.0,
    "group_size_max": 3,
    "journals": 1,
    "records": 12,
    "failed": False,
}


def group(name: str, role: str, **values: Any) -> dict[str, Any]:
    """The status of a group as far as the metrics show it."""
    defaults: dict[str, Any] = {"recovery": None, "epoch": 3, "ignored": {}}
    defaults |= {"segments": 0, "segment_rows": 0, "segment_bytes": 0, "block_bytes": 512, "last_row_bytes": 256}
    return {"group": name, "role": role, "live_rows": 7, "live_bytes": 1_234, **defaults, **values}


CLUSTER = {
    "version": 3,
    "nodes": [{"id": "n1", "online": True}, {"id": "n2", "online": False}],
    "groups": [{"group": "n1", "slots": 6}, {"group": "n2", "slots": 6}],
    "change": {
        "phase": "migrating",
        "groups_done": 2,
        "groups_total": 2,
        "slots_done": 1,
        "slots_total": 3,
        "bytes_done": -1,
        "bytes_total": -1,
    },
}


class MeasuredNode(PartOfNode):
    """A node that leads one group and recovers another; its engine has counters only."""

    engine: Any = SimpleNamespace(
        statistics=QueryStatistics(1, 10, 5, 2, 3, 40, 500, 1.5, 2.75),
        settings=QuerySettings(memory_limit_mb=200, timeout_ms=20_000, queries_max=2),
        scheduler=DriverScheduler(SchedulerLimits(), lambda _call: None),
    )

    scanner: Any = SimpleNamespace(statistics=ScanStatistics(1, 6, 2, 3, 4_000))
    writes: Any = SimpleNamespace(
        statistics=GroupWriterStatistics(90, 4_500, 3, 2, 1, 20, 5, 2_000),
        figures=WriteFigures(7, 4, BodyRoom(9_000)),
        settings=WriteSettings(),
    )

    migration: Any = SimpleNamespace(
        synced=SimpleNamespace(
            uploads=SimpleNamespace(open_uploads=1, staged_bytes=2_000, taken=5, refused=1, settings=SyncSettings())
        )
    )

    def status(self) -> Any:
        """See NodeApi."""
        leader = group(
            "n1",
            "leader",
            version=12,
            held_back=0,
            lag_records=0,
            lag_seconds=0.0,
            durable_offset=19,
            sealed_version=9,
            segments=2,
            segment_rows=150,
            segment_bytes=7_500,
            ignored={"not_leader": 2, "undecodable": 1},
        )
        recovering = group(
            "n2",
            "unsynced",
            version=5,
            held_back=3,
            lag_records=21,
            lag_seconds=-1.0,
            durable_offset=7,
            sealed_version=2,
            recovery=RECOVERY,
        )
        return {"cluster": "c", "ready": False, "data_age_s": 4.5, "groups": [leader, recovering]}

    def figures(self) -> NodeFigures:
        """See NodeApi."""
        return NodeFigures(
            consumed_bytes=987_654,
            apply_queue_bytes={"n1": 4_096, "n2": 0},
            files_checked=6,
            files_rotted=1,
            journal=JOURNAL,
            limits={"queue_bytes": 1_024, "seal_rows": 5_000},
            disk_free_bytes=1_000,
            disk_size_bytes=4_000,
            remote=RemoteStatistics(8, 1, 2, 9_000, 512),
            metadata_leads=True,
            metadata_epoch=4,
            migration=PullFigures(3, 6, 1_000, 4_000, 250.5, 7, 2),
            cluster=CLUSTER,
            hand_over_due={"n1": 4, "n2": 0},
        )


def test_names_and_labels_are_pinned() -> None:
    """A changed name or label breaks rules and dashboards of users: it needs a change here and in the changelog."""
    assert EXPECTED.read_text("utf-8") == metrics_text(MeasuredNode())


def test_every_series_names_its_cluster() -> None:
    """One Prometheus may watch several clusters, whose groups have the same names."""
    series = [line for line in metrics_text(MeasuredNode()).splitlines() if not line.startswith("#")]
    assert series
    assert all('cluster="c"' in line for line in series)


def test_counters_exist_before_their_first_event() -> None:
    """Prometheus sees no increase in a series that begins with 1."""
    lines = set(metrics_text(MeasuredNode()).splitlines())
    for group in ("n1", "n2"):
        for why in Ignored:
            found = [line for line in lines if f'group="{group}",why="{why}"' in line]
            assert 1 == len(found)
