"""What other threads see of a group's members and slots, and what leaders and nodes conclude from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.replication.actions import ApplyHandedDelete, ApplyRows, Ignored
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.election import GroupView, MemberView, decide
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.leader_tasks import LogTrimmer
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import Slots, Store
from headrace.schemas.group_changes import BarrierPhase, HandedOver, HandOverPosition, Rank, Takeover
from headrace.schemas.records import Role
from tests.golden_values import STATUS
from tests.unit.replication.slot_logs import SLOTS_TOTAL, SlotLog, rows_write
from tests.unit.replication.slot_rows import OneTable, payload_delete, payload_write
from tests.unit.replication.slot_stores import StoredLog

PRE, FORMAL, REVERT = BarrierPhase.PRE, BarrierPhase.FORMAL, BarrierPhase.REVERT
OLD, BOTH, NEW = ("n1", "n2", "n3"), ("n1", "n2", "n6", "n3"), ("n1", "n2", "n6")


@pytest.fixture
def donor() -> SlotLog:
    """A group with a leader; it has all slots."""
    log = SlotLog("n1", OLD)
    log.claim("n1")
    return log


@pytest.fixture
def taker() -> SlotLog:
    """The group of a node that joins, born with table 2."""
    log = SlotLog("n6", ("n6", "n1", "n2"), era=2, birth=2, gains=(3, 4))
    log.claim("n6")
    return log


def view_of(log: SlotLog) -> ChangeView:
    """The view of a log's state."""
    return ChangeView.of(log.replica.state.changes)


def test_a_view_is_built_only_when_a_record_changed_it(donor: SlotLog, taker: SlotLog) -> None:
    """And the one before stays as it is, whatever comes: other threads still read it."""
    donor.barrier(PRE, members=BOTH, moves={taker: (3, 4)})
    state = donor.replica.state
    before = AppliedState.of(state, 0)
    donor.append(rows_write({"1a": 1}))
    after = AppliedState.of(state, 0, before)
    assert after.changes is before.changes
    donor.barrier(FORMAL, members=NEW, moves={taker: (3, 4)})
    donor.append(rows_write({"3a": 1}))
    newest = AppliedState.of(state, 0, after).changes
    assert (BOTH, {}, {}) == (after.changes.members, dict(after.changes.given), dict(after.changes.due))
    assert (NEW, {3, 4}, 2, FORMAL) == (newest.members, set(newest.given), newest.table_version, newest.phase)
    late = newest.due[taker.key][-1]
    assert (len(donor.values) - 1, Rank(1, 5)) == (late.transfer.offset, late.transfer.rank)
    donor.hand_over(taker)
    assert late is newest.due[taker.key][-1]
    assert not AppliedState.of(state, 0, after).changes.due[taker.key]
    assert {donor.key: late.position} == dict(view_of(taker).accepted)


def test_the_settled_table_is_that_of_the_newest_second_phase(donor: SlotLog, taker: SlotLog) -> None:
    """Or of the birth; a first phase proves the table before its own."""
    settled = [view_of(donor).settled_version, view_of(taker).settled_version]
    for phase, change, table in ((PRE, 1, 2), (REVERT, 1, 2), (PRE, 2, 2), (FORMAL, 2, 2), (PRE, 3, 3)):
        donor.barrier(phase, change, table)
        settled.append(view_of(donor).settled_version)
    assert [1, 2, 1, 1, 1, 2, 2] == settled


def test_members_that_a_first_phase_adds_count_for_no_majority(donor: SlotLog) -> None:
    """Until the second; a later change proves the one before, and a cancelled one adds nobody."""
    voters = []
    for phase, change, table, members in (
        (PRE, 1, 2, BOTH),
        (REVERT, 1, 2, OLD),
        (PRE, 2, 2, BOTH),
        (PRE, 3, 2, (*OLD, "n7")),
        (FORMAL, 3, 2, ("n1", "n2", "n7")),
        (PRE, 4, 3, ("n1", "n2", "n7", "n8")),
        (PRE, 5, 4, ("n1", "n2", "n7", "n8", "n9")),
    ):
        donor.barrier(phase, change, table, members)
        donor.replica.state = GroupState.from_bytes(donor.replica.state.to_bytes())
        voters.append(view_of(donor).voters)
    joined = ("n1", "n2", "n7")
    assert [OLD, OLD, OLD, OLD, joined, joined, (*joined, "n8")] == voters


def member(node: str, alive: bool = True, votes: bool = True) -> MemberView:
    """A member in sync."""
    return MemberView(node, "now", alive, True, 4, votes)


def test_a_majority_is_one_of_the_members_that_count() -> None:
    """Two of three old members are down: the one that a change adds replaces none of them."""
    members = (member("n1"), member("n2", False), member("n6", votes=False), member("n3", False))
    assert Role.UNSYNCED is decide(GroupView(members, "n1", None, 60_000, True, False, 0)).role
    members = (member("n1", False), member("n2"), member("n6", votes=False), member("n3"))
    assert [False, True] == [
        decide(GroupView(members, node, None, 60_000, True, False, 0)).claim for node in ("n6", "n2")
    ]


def test_a_node_that_is_no_member_follows_and_does_not_claim() -> None:
    """It has not read the barrier that makes it one, or it was one until its slots are elsewhere."""
    ineligible = tuple(replace(member(node), eligible=False) for node in OLD)
    guest = member("n9", votes=False)
    decision = decide(GroupView(ineligible, "n9", None, 60_000, True, False, 0, guest=guest))
    assert (Role.FOLLOWER, False) == (decision.role, decision.claim)


def hand_made(log: SlotLog, table_version: int, *slots: int) -> HandedOver:
    """A takeover that no donor has made."""
    body = Takeover(table_version, SLOTS_TOTAL, slots)
    return HandedOver(log.key, HandOverPosition(9, 0), HandOverPosition(0, 0), body)


def test_a_takeover_that_nothing_expects_is_ignored(donor: SlotLog, taker: SlotLog) -> None:
    """By barrier or founding; its position does not count, so the true one still follows."""
    stranger = SlotLog("n9", ("n9",))
    for table_version, slots in ((2, (5,)), (3, (3,)), (2, (3, 5))):
        taker.append(hand_made(donor, table_version, *slots))
    donor.append(hand_made(stranger, 2, 3))
    assert {Ignored.UNEXPECTED: 3} == dict(taker.replica.ignored)
    assert {Ignored.UNEXPECTED: 1} == dict(donor.replica.ignored)
    assert {} == donor.replica.state.changes.origins == taker.replica.state.changes.origins
    donor.barrier(FORMAL, moves={taker: (3, 4)})
    donor.hand_over(taker)
    assert {donor.key} == set(taker.replica.state.changes.origins)


def test_a_takeover_of_a_cancelled_change_is_not_expected(donor: SlotLog) -> None:
    """Its first phase named the slots, and its end took that back, also for a replica that was restored."""
    stranger = SlotLog("n9", ("n9",))
    donor.barrier(PRE, gains=(3,))
    donor.barrier(REVERT)
    donor.replica.state = GroupState.from_bytes(donor.replica.state.to_bytes())
    donor.append(hand_made(stranger, 2, 3))
    assert {Ignored.UNEXPECTED: 1} == dict(donor.replica.ignored)
    donor.barrier(PRE, 2, 2, gains=(3,))
    donor.append(hand_made(stranger, 2, 3))
    assert {stranger.key} == set(donor.replica.state.changes.origins)


def test_nothing_is_trimmed_that_another_group_must_still_accept(donor: SlotLog, taker: SlotLog) -> None:
    """Its record is read from this log; members that a first phase adds make no majority of those with files."""
    donor.barrier(FORMAL, moves={taker: (3, 4)})
    donor.hand_over(taker)
    for _ in range(20):
        donor.append(rows_write({"1a": 1}))
    donor.append(rows_write({"3a": 1}))
    due = len(donor.values) - 1
    log, topic = MemoryLog(), "c.forward.n1.1"
    log.create_topic(topic, {})
    for _ in range(100):
        log.store(topic, b"", None, ())

    def trimmed(changes: ChangeView, nodes: tuple[str, ...]) -> int:
        statuses = [replace(STATUS, node=node, sealed_offset=90) for node in nodes]
        heartbeat: Any = type("Beat", (), {"live": lambda *_: statuses})()
        jobs: Any = type("Jobs", (), {"sealed_offset": 90})()
        applied = AppliedState(offset=99, changes=changes)
        group: Any = type("Group", (), {"name": "n1", "applied": applied, "store_jobs": jobs})()
        LogTrimmer(log, heartbeat, 5).trim(topic, group)
        return log.describe(topic).begin

    view = view_of(donor)
    assert 0 == trimmed(replace(view, members=BOTH, added=("n6",)), ("n1", "n6"))
    assert due == trimmed(view, OLD)
    donor.hand_over(taker)
    assert 91 == trimmed(view_of(donor), OLD)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Founding], Group]:
    """Opens groups without threads over stores of their own."""

    def opened(founding: Founding) -> Group:
        tables: Any = OneTable()
        store = Store.open(tmp_path / str(len(list(tmp_path.iterdir()))), "n6")
        return Group("n6", founding, store, tables, ReplicationLimits(), lambda *_: None)

    return opened


def test_a_released_slot_that_came_back_keeps_its_new_rows(tmp_path: Path) -> None:
    """The request comes from another thread, and may come late."""
    log = StoredLog(tmp_path, tmp_path, "n1", OLD)
    other = SlotLog("n6", ("n6",), era=2, birth=2, gains=(3,))
    log.claim("n1")
    log.append(payload_write({"3x": 1}))
    log.barrier(FORMAL, moves={other: (3,)})
    log.pool.run(9)
    assert log.group is not None
    given = set(log.group.applied.changes.given)
    assert ({}, 1) == (log.rows(log.group.store), len(log.group.store.cut(3, Slots(frozenset((3,)), 8)).files))
    log.barrier(PRE, 2, 3, gains=(3,))
    log.append(payload_write({"3x": 2}, 3))
    log.group.release(given)
    log.group.turn()
    log.pool.run(9)
    assert {"3x": 2} == log.rows(log.group.store)
    assert [] == log.group.store._components.view.cut_entries()
    log.group.store.close()


def test_members_that_released_files_and_those_that_did_not_agree(tmp_path: Path) -> None:
    """By the digest of their content, at every version from the cut on."""
    other = SlotLog("n6", ("n6",), era=2, birth=2, gains=(3,))
    logs = [StoredLog(tmp_path / name, tmp_path, "n1", OLD) for name in "ab"]
    for log in logs:
        log.claim("n1")
        log.append(payload_write({"3x": 1, "2x": 5}))
        log.append(payload_delete("2y"))
        log.barrier(FORMAL, moves={other: (3,)})
        log.pool.run(9)
        if log is logs[1]:
            assert log.group is not None
            log.group.release([3])
            log.group.turn()
            log.pool.run(9)
        log.open()
    contents = [log.group.store_jobs.content() for log in logs if log.group is not None]
    assert contents[0] == contents[1]
    assert contents[0][0] == 4
    assert [2, 1] == [len(list((log.directory / "segments").rglob("*.parquet"))) for log in logs]
    assert [{"2x": 5}] * 2 == [log.rows(log.group.store) for log in logs if log.group is not None]
    for log in logs:
        assert log.group is not None
        log.group.store.close()


def test_handed_rows_and_deletes_are_actions_of_a_real_group(stored: Callable[[Founding], Group]) -> None:
    """Their rank is that of the first log, and a group shows its birth."""
    group = stored(Founding(("n6",), 2, (3,)))
    changes = group.replica.state.changes
    changes.slots_total = SLOTS_TOTAL
    group._act(ApplyRows(5, Rank(1, 9), (3,), payload_write({"3x": 1, "2x": 1, "3y": 2})))
    group._act(ApplyHandedDelete(6, Rank(1, 8), (3,), payload_delete("3x")))
    assert 2 == group.store.unsealed().rows
    group._act(ApplyHandedDelete(7, Rank(1, 10), (2,), payload_delete("3y")))
    group._act(ApplyHandedDelete(8, Rank(1, 10), (3,), payload_delete("3x")))
    assert 1 == group.store.unsealed().rows
    group._act(ApplyRows(9, Rank(1, 9), (3,), payload_write({"3x": 1})))
    assert 1 == group.store.unsealed().rows
    assert ("n6", 2) == (group.birth_key.group, group.birth_key.birth)
    assert (2, ("n6",)) == (group.applied.changes.settled_version, group.members)
    group.stop()
    group.store.close()
