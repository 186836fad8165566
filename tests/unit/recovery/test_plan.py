"""The recovery plan: the log, files of another member, or waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.consumers.recovery.plan import Costs, RecoveryMethod, ReplicaPosition, plan_recovery
from tests.unit.statuses import STATUS


def position_of(next_offset: int, log_begin: int, **others: Any) -> ReplicaPosition:
    """The replica position of n1, after 1 KB of records."""
    return ReplicaPosition("n1", next_offset, log_begin, **{"log_bytes": 1_000, "whole": log_begin == 0, **others})


def test_recovery_follows_the_log_where_it_reaches() -> None:
    """Own journal and log first; files below the trim point, from the eligible member whose files reach furthest; else waiting."""
    near, far = replace(STATUS, node="n2", sealed_offset=30), replace(STATUS, node="n3", sealed_offset=40)
    assert plan_recovery(position_of(20, 20), []).method is RecoveryMethod.LOG
    assert plan_recovery(position_of(19, 20), [near, far]).source == "n3"
    assert plan_recovery(position_of(19, 20), [near, replace(far, eligible=False)]).source == "n2"
    stuck = plan_recovery(position_of(19, 50), [near, far, replace(STATUS, node="n1", sealed_offset=99)])
    assert (RecoveryMethod.WAIT, True) == (stuck.method, "offset 50" in stuck.reason)


def test_recovery_copies_files_where_they_are_cheaper() -> None:
    """A long log to read against few bytes of files: files.

    A short one, or files that reach no further than own data: the log.
    """
    costs = Costs(log_bytes_per_second=100.0, file_bytes_per_second=1_000.0, worth_s=10.0)
    far = replace(STATUS, node="n2", sealed_log_bytes=1_000 + 3_000, segment_bytes=10_000)
    assert plan_recovery(position_of(4, 0), [far], costs).method is RecoveryMethod.FILES
    assert (
        plan_recovery(position_of(4, 0), [replace(far, sealed_log_bytes=1_000 + 1_900)], costs).method
        is RecoveryMethod.LOG
    )
    assert plan_recovery(position_of(4, 0), [replace(far, segment_bytes=30_000)], costs).method is RecoveryMethod.LOG
    assert plan_recovery(position_of(far.sealed_offset + 1, 0), [far], costs).method is RecoveryMethod.LOG
    assert plan_recovery(position_of(4, 0), [replace(far, sealed_version=0)], costs).method is RecoveryMethod.LOG


def test_wrong_data_is_replaced_only_by_what_is_trusted() -> None:
    """Files of a member that was found right, else the log from offset 0, else an operator."""
    one, two = replace(STATUS, node="n2"), replace(STATUS, node="n3", sealed_offset=9)
    assert plan_recovery(position_of(20, 0, wrong=True), [one, two]).source == "n3"
    assert plan_recovery(position_of(20, 0, wrong=True, trusted=frozenset({"n2"})), [one, two]).source == "n2"
    assert (
        plan_recovery(position_of(20, 0, wrong=True, trusted=frozenset()), [one, two]).method is RecoveryMethod.REBUILD
    )
    assert plan_recovery(position_of(20, 0, wrong=True), []).method is RecoveryMethod.REBUILD
    assert plan_recovery(position_of(20, 5, wrong=True), []).method is RecoveryMethod.WAIT


def test_the_files_of_a_source_reach_the_log() -> None:
    """One record between both would be missing for ever."""
    position = ReplicaPosition("n1", next_offset=3, log_begin=10, log_bytes=0)
    status = replace(STATUS, node="n2", eligible=True, sealed_version=5)
    assert RecoveryMethod.WAIT is plan_recovery(position, [replace(status, sealed_offset=8)]).method
    assert RecoveryMethod.FILES is plan_recovery(position, [replace(status, sealed_offset=9)]).method


def test_members_that_have_not_sealed_yet_are_named() -> None:
    """They have every row, and give their files behind the next seal: nothing is lost, and nothing to be accepted."""
    late = replace(STATUS, node="n2", sealed_offset=20)
    position, behind = position_of(10, 30), [late, replace(late, node="n3", eligible=False)]
    plan = plan_recovery(position, behind)
    assert (RecoveryMethod.WAIT, True) == (plan.method, "n2 must seal, as its leader does" in plan.reason)
    assert "seal" not in plan_recovery(position, behind[1:]).reason
