"""What operators see of a change that runs."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.membership_records import ChangeKind, PreDone
from tests.unit.statuses import STATUS


def test_a_member_that_waits_names_its_cause() -> None:
    """By its status: an operator reads in one place who is waited for, and why. A silent member names none."""
    base = SlotTable.create(("n1", "n2", "n3"), 2, 12)
    done = tuple(PreDone(1, header, header, 1, 1) for header in base.headers)
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", base, base.add_node("n4"), formal=True, pre_done=done)
    first, second = change.table.group("n4")
    detector = FailureDetector()
    detector.observe(1_000, replace(STATUS, group="n4", node=first, reason="the disk is full"))
    report = ClusterReport(MembershipState(records=1, table=change.table, changes=1, change=change), detector)
    slots = len(change.table.moved)
    assert [
        f"node {first}: {slots} slots of group n4, the disk is full",
        f"node {second}: {slots} slots of group n4",
    ] == report.cluster()["change"]["waiting_for"]
