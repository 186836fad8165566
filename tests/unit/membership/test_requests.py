"""Requests for a change: each refusal by its type, before anything is appended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.connectors.http import NodeUnreachable
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.requests import (
    CancelTooLate,
    ChangeRequest,
    ChangeRunning,
    Joiner,
    MigrationUnfinished,
    NoChange,
    NodesTooOld,
    NodesView,
    NoMajority,
    OnlyCopy,
    SettingsDiffer,
    cancelled_change,
    change_record,
    plan_change,
)
from headrace.consumers.membership.ring import ClusterInvalid, ClusterTooSmall, NodeExists, RingNode, UnknownNode
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import ChangeKind, Formal, MetadataClaim, PreDone
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Create, MembershipRecord

NODES = tuple(f"plant-{number}" for number in range(1, 6))
LEADERSHIP = Leadership(1, "plant-1", "a")
ALL = NodesView(frozenset(NODES), dict.fromkeys(NODES, 3))
ADD = ChangeRequest("r1", ChangeKind.ADD, "plant-6")
REMOVE = ChangeRequest("r1", ChangeKind.REMOVE, "plant-3")
JOINER = Joiner("plant-6", "store", 3, 60)


def state_of(nodes: tuple[str, ...] = NODES, replication: int = 3) -> MembershipState:
    """A cluster with a leader of its metadata group."""
    state, _ = MembershipState().apply(Create(nodes, replication, 60))
    return state.apply(MetadataClaim(Leadership(1, nodes[0], "a")))[0]


def running(phase: Phase) -> MembershipState:
    """A cluster where a node joins."""
    state = state_of()
    record = change_record(plan_change(state, ADD, ALL), replace(ALL, joiners=[JOINER]), LEADERSHIP)
    records: list[MembershipRecord] = [record, *(PreDone(1, node, node, 1, 1) for node in NODES), Formal(LEADERSHIP, 1)]
    for each in records:
        if phase is not Phase.PRE or each is record:
            state, verdict = state.apply(each)
            assert verdict is Verdict.ACCEPTED
    assert state.change is not None
    assert phase is state.change.phase
    return state


def test_a_plan_has_the_groups_of_the_figure() -> None:
    """Before, in the first phase and after it, and the slots that move."""
    planned = plan_change(state_of(), ADD, ALL)
    found = {
        each.group[-1]: tuple("".join(name[-1] for name in names) for names in (each.before, each.pre, each.after))
        for each in planned.groups()
    }
    assert {
        "1": ("123", "1263", "126"),
        "2": ("234", "2634", "263"),
        "6": ("", "", "634"),
        "3": ("345", "345", "345"),
        "4": ("451", "451", "451"),
        "5": ("512", "512", "512"),
    } == found
    assert 10 == len(planned.table.moved)


@pytest.mark.parametrize(
    ("state", "request_", "nodes", "expected", "named"),
    [
        (state_of(), replace(REMOVE, node="plant-9"), ALL, UnknownNode, "plant-9"),
        (state_of(), replace(ADD, node="plant-3"), ALL, NodeExists, "plant-3"),
        (state_of(), replace(ADD, node="a/b"), ALL, ClusterInvalid, "a/b"),
        (state_of(NODES[:3]), REMOVE, ALL, ClusterTooSmall, "3 nodes"),
        (running(Phase.PRE), REMOVE, ALL, ChangeRunning, "add plant-6, phase pre, groups plant-2, plant-3"),
        (
            running(Phase.MIGRATING),
            REMOVE,
            ALL,
            MigrationUnfinished,
            "0 of 10 slots are done, missing at plant-3, plant-4",
        ),
        (state_of(NODES, 1), REMOVE, replace(ALL, online=ALL.online - {"plant-3"}), OnlyCopy, "plant-3"),
        (
            state_of(),
            ADD,
            replace(ALL, online=ALL.online - {"plant-3", "plant-4"}),
            NoMajority,
            "group plant-2 has 1 of 3",
        ),
        (state_of(NODES, 2), ADD, replace(ALL, online=ALL.online - {"plant-3", "plant-4"}), NoMajority, "plant-3"),
        (state_of(), ADD, replace(ALL, formats={"plant-2": 2, "plant-1": 3}), NodesTooOld, "plant-2"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_refusal_has_a_type_and_names_what_is_wrong(
    state: MembershipState, request_: ChangeRequest, nodes: NodesView, expected: type[HeadraceError], named: str
) -> None:
    """And what to do about it."""
    with pytest.raises(expected, match=named) as caught:
        plan_change(state, request_, nodes)
    assert caught.value.action


def test_a_dead_node_can_be_removed() -> None:
    """One member of three offline leaves every group a majority; of two, Kafka is the third vote."""
    for replication in (2, 3):
        assert plan_change(state_of(NODES, replication), REMOVE, replace(ALL, online=ALL.online - {"plant-3"}))


def planned() -> RunningChange:
    """The join of a node."""
    return plan_change(state_of(), ADD, ALL)


@pytest.mark.parametrize(
    ("joiners", "expected", "named"),
    [
        ([], NodeUnreachable, "plant-6 has sent no status"),
        ([replace(JOINER, node="plant-7")], NodeUnreachable, "plant-6 has sent no status"),
        ([JOINER, replace(JOINER, store="another")], NodeExists, "2 data directories"),
        ([replace(JOINER, replication=2)], SettingsDiffer, "replication is 3, node plant-6 was started with 2"),
        ([replace(JOINER, slots=1, hash="md5")], SettingsDiffer, "slots is 60.*hash is xxh3_64"),
    ],
)
def test_a_joiner_is_checked_before_the_record(
    joiners: list[Joiner], expected: type[HeadraceError], named: str
) -> None:
    """It runs, is the only one of its id, and has the settings of the cluster."""
    with pytest.raises(expected, match=named):
        change_record(planned(), replace(ALL, joiners=joiners), LEADERSHIP)


def test_who_asks_for_a_node_that_is_not_there_reads_what_to_do() -> None:
    """One that never was here may follow another cluster; one that was stopped only has to run again."""
    for silent_ms, wanted in (
        ({}, "this cluster's name and bootstrap"),
        ({"plant-6": 90_000}, "if it has ended: headrace node run"),
    ):
        with pytest.raises(NodeUnreachable) as raised:
            change_record(planned(), replace(ALL, joiners=[], silent_ms=silent_ms), LEADERSHIP)
        assert wanted in raised.value.action
        assert "headrace node run --id plant-6" in raised.value.action
        assert "repeat this command" in raised.value.action


def test_a_node_that_was_removed_needs_an_empty_directory() -> None:
    """With the one that it had it ends at once, however often it is started."""
    nodes = replace(ALL, joiners=[], silent_ms={"plant-6": 90_000})
    with pytest.raises(NodeUnreachable, match="was removed") as raised:
        change_record(planned(), nodes, LEADERSHIP, ("plant-6",))
    assert "an empty data directory" in raised.value.action


def test_the_record_of_a_change_counts() -> None:
    """It carries the store of the joiner, its place on the ring, and the whole table."""
    state = state_of()
    placed = plan_change(state, replace(ADD, node=RingNode("plant-6", 7)), ALL)
    record = change_record(placed, replace(ALL, joiners=[JOINER, JOINER]), LEADERSHIP)
    state, verdict = state.apply(record)
    assert (Verdict.ACCEPTED, "store") == (verdict, state.change and state.change.store)
    assert state.change is not None
    assert RingNode("plant-6", 7) in state.change.table.ring


def test_what_can_be_cancelled() -> None:
    """The first phase; after Formal it is too late, and without a change there is nothing."""
    assert 1 == cancelled_change(running(Phase.PRE), ALL)
    with pytest.raises(CancelTooLate, match="0 of 10 slots"):
        cancelled_change(running(Phase.MIGRATING), ALL)
    with pytest.raises(NoChange):
        cancelled_change(state_of(), ALL)


@pytest.mark.parametrize(
    ("online", "advice"),
    [
        ({*NODES, "plant-6"}, ""),
        (
            {*NODES},
            "plant-6 is offline: start it again; if a disk is lost, an empty data directory under the same id will do; "
            "then ",
        ),
        ({"plant-3"}, "plant-4, plant-6 are offline: start them again; "),
    ],
)
def test_a_migration_that_waits_for_a_node_says_to_start_it(online: set[str], advice: str) -> None:
    """Nothing else ends it: a wait alone would last for ever."""
    state, nodes = running(Phase.MIGRATING), replace(ALL, online=frozenset(online))
    with pytest.raises(CancelTooLate) as late:
        cancelled_change(state, nodes)
    with pytest.raises(MigrationUnfinished) as unfinished:
        plan_change(state, REMOVE, nodes)
    for error in (late, unfinished):
        assert error.value.action.startswith(advice)
        assert "wait for " in error.value.action
        assert bool(advice) is ("offline" in error.value.action)
