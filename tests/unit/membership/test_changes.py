"""The membership log as a state machine: what counts, what is ignored, and what a request led to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership import changes
from headrace.consumers.membership.changes import REQUESTS_KEPT, MembershipState, Verdict, follows
from headrace.consumers.membership.ring import RingNode
from headrace.consumers.membership.running_change import Phase, SlotState
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.founding import Founding
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Create, MembershipRecord, encode_membership

# In the ring order of the source's figures: 1 2 (6) 3 4 5.
NODES = tuple(f"plant-{number}" for number in range(1, 6))
JOINER = "plant-6"
CREATE = Create(NODES, 3, 60)
FIRST, SECOND = Leadership(1, "plant-1", "a"), Leadership(2, "plant-2", "b")


def replayed(*records: MembershipRecord) -> MembershipState:
    """The state after records that all count."""
    state = MembershipState()
    for record in records:
        state, verdict = state.apply(record)
        assert verdict is Verdict.ACCEPTED, (record, verdict)
    return state


def table_of(state: MembershipState) -> SlotTable:
    """The table that counts."""
    assert state.table is not None
    return state.table


def began() -> MembershipState:
    """A cluster with a leader of its metadata group."""
    return replayed(CREATE, MetadataClaim(FIRST))


def change(state: MembershipState, kind: ChangeKind, node: str, request: str = "r1") -> Change:
    """A change by the state's leader."""
    table = table_of(state)
    after = table.add_node(node) if kind is ChangeKind.ADD else table.remove_node(node)
    assert state.leader is not None
    return Change(state.leader, request, kind, node, "", after.to_bytes())


def run(state: MembershipState, *records: MembershipChange) -> MembershipState:
    """The state after more records that all count."""
    for record in records:
        state, verdict = state.apply(record)
        assert verdict is Verdict.ACCEPTED, (record, verdict)
    return state


def verdict(state: MembershipState, record: MembershipRecord) -> Verdict:
    """What a record would do; a record that does not count changes nothing but the number of records."""
    after, found = state.apply(record)
    if found is not Verdict.ACCEPTED:
        assert replace(after, records=state.records) == state
    return found


def pre_done(state: MembershipState) -> list[PreDone]:
    """The reports of all groups that are due."""
    assert state.change is not None
    return [PreDone(state.change.number, group, group, 1, 9) for group in state.change.groups_waiting]


def slots_done(state: MembershipState) -> list[SlotDone]:
    """The reports of all members of the groups that gain slots."""
    running = state.change
    assert running is not None
    table = running.table
    found: dict[str, list[int]] = {}
    for slot, _ in table.moved:
        for node in table.group(table.holder(slot)):
            found.setdefault(node, []).append(slot)
    return [SlotDone(running.number, node, tuple(slots)) for node, slots in found.items()]


def whole(state: MembershipState, kind: ChangeKind, node: str, request: str = "r1") -> MembershipState:
    """The state after a whole change."""
    state = run(state, change(state, kind, node, request))
    assert state.leader is not None
    state = run(state, *pre_done(state), Formal(state.leader, state.changes))
    return run(state, *slots_done(state)) if state.change is not None else state


def group_numbers(state: MembershipState) -> dict[str, str]:
    """The members of every group, as digits."""
    return {header[-1]: "".join(each[-1] for each in state.members(header)) for header in table_of(state).headers}


def test_the_first_valid_record_creates_the_cluster() -> None:
    """Nothing counts before it, no other creation counts after it, and the version is 1 wherever it is."""
    state = MembershipState()
    assert Verdict.NO_CLUSTER == verdict(state, MetadataClaim(FIRST))
    assert Verdict.INVALID == verdict(state, replace(CREATE, hash="md5"))
    assert Verdict.INVALID == verdict(state, replace(CREATE, replication=9))
    state, found = state.apply_value(b"garbage")
    assert (1, Verdict.UNDECODABLE) == (state.records, found)
    state = run(state, CREATE)  # type: ignore[arg-type]
    assert (1, 2) == (table_of(state).version, state.records)
    assert Verdict.CLUSTER_EXISTS == verdict(state, Create(("x",), 1, 10))


def test_the_leader_is_who_claims_the_next_epoch_first() -> None:
    """The rule of data groups: epoch current + 1, and a node of the table; a leader of before appends nothing more."""
    state = began()
    for wanted in (FIRST, Leadership(3, "plant-2", "b"), Leadership(2, JOINER, "b")):
        assert Verdict.CLAIM_LOST == verdict(state, MetadataClaim(wanted))
    old = change(state, ChangeKind.ADD, JOINER)
    state = run(state, MetadataClaim(SECOND))
    assert Verdict.CLAIM_LOST == verdict(state, MetadataClaim(Leadership(2, "plant-3", "c")))
    assert Verdict.NOT_LEADER == verdict(state, old)
    # Another run of the same node is another leader.
    assert Verdict.NOT_LEADER == verdict(state, replace(old, leadership=replace(SECOND, incarnation="x")))


def test_a_join_goes_through_the_groups_of_the_figure() -> None:
    """Groups show their members step by step, and the table counts from Formal on."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    before = {"1": "123", "2": "234", "3": "345", "4": "451", "5": "512"}
    assert before == group_numbers(state)
    for report in pre_done(state):
        assert Verdict.TOO_EARLY == verdict(state, Formal(FIRST, 1))
        state = run(state, report)
    assert {**before, "1": "1263", "2": "2634"} == group_numbers(state)
    assert (Phase.FORMAL, 1) == (state.change and state.change.phase, table_of(state).version)
    state = run(state, Formal(FIRST, 1))
    assert {**before, "1": "126", "2": "263", "6": "634"} == group_numbers(state)
    assert (2, 2) == (table_of(state).version, table_of(state).birth(JOINER))
    moved = [slot for slot, _ in table_of(state).moved]
    assert {SlotState.PULLING} == {state.slot_state(slot) for slot in moved}
    state = run(state, *slots_done(state))
    assert {SlotState.DONE} == {state.slot_state(slot) for slot in moved}
    assert SlotState.NONE == state.slot_state(0)
    assert state.change is None


def test_a_removal_goes_through_the_groups_of_the_figure() -> None:
    """The next node of the ring joins first; the group of the leaver ends with Formal."""
    state = began()
    state = run(state, change(state, ChangeKind.REMOVE, "plant-3"))
    state = run(state, *pre_done(state))
    assert {"1": "1234", "2": "2345", "3": "345", "4": "451", "5": "512"} == group_numbers(state)
    state = run(state, Formal(FIRST, 1))
    assert {"1": "124", "2": "245", "4": "451", "5": "512"} == group_numbers(state)


def test_a_slot_is_done_when_every_copy_has_it() -> None:
    """Old data is deleted after `replication` reports, so two members of three are not enough."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    (slot, *_), reports = [slot for slot, _ in state.change.table.moved], slots_done  # type: ignore[union-attr]
    assert Verdict.TOO_EARLY == verdict(state, SlotDone(1, JOINER, (slot,)))
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    for node in (JOINER, "plant-3"):
        state = run(state, SlotDone(1, node, (slot,)))
        assert (SlotState.PULLING, 0) == (state.slot_state(slot), state.change and state.change.slots_done)
        assert Verdict.REPEATED == verdict(state, SlotDone(1, node, (slot,)))
    state = run(state, SlotDone(1, "plant-4", (slot,)))
    assert (SlotState.DONE, 1) == (state.slot_state(slot), state.change and state.change.slots_done)
    # Of a node that is no member of the new group, of a slot that did not move or does not exist, of no slot.
    for wrong in (("plant-5", slot), (JOINER, 0), (JOINER, 60), (JOINER, -1)):
        assert Verdict.INVALID == verdict(state, SlotDone(1, wrong[0], wrong[1:]))
    assert Verdict.INVALID == verdict(state, SlotDone(1, JOINER, ()))
    state = run(state, *reports(state))
    assert state.change is None


def test_one_change_at_a_time() -> None:
    """Another one waits for the first phase, and for the last slot of the migration."""
    state = began()
    other = change(state, ChangeKind.REMOVE, "plant-3", "r2")
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    assert Verdict.CHANGE_RUNNING == verdict(state, other)
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert Verdict.CHANGE_RUNNING == verdict(state, change(state, ChangeKind.REMOVE, "plant-3", "r2"))
    state = run(state, *slots_done(state))
    # It was computed from the table before.
    assert Verdict.OLD_TABLE == verdict(state, other)
    assert Verdict.ACCEPTED == verdict(state, change(state, ChangeKind.REMOVE, "plant-3", "r2"))


def test_a_repeated_request_is_the_first_one() -> None:
    """While it runs, after its end, and after a cancellation: another record begins nothing, and the result is kept."""
    state = began()
    assert state.outcome("r1") is None
    record = change(state, ChangeKind.ADD, JOINER)
    state = run(state, record)
    assert Verdict.REPEATED == verdict(state, record)
    assert (1, 2, Phase.PRE) == outcome(state, "r1")
    state = run(state, *pre_done(state))
    assert (1, 2, Phase.FORMAL) == outcome(state, "r1")
    state = run(state, Formal(FIRST, 1))
    assert (1, 2, Phase.MIGRATING) == outcome(state, "r1")
    state = run(state, *slots_done(state))
    assert (1, 2, Phase.DONE) == outcome(state, "r1")
    assert Verdict.REPEATED == verdict(state, change(state, ChangeKind.REMOVE, "plant-3", "r1"))
    state = run(state, change(state, ChangeKind.REMOVE, "plant-3", "r2"), Cancel(FIRST, 2))
    assert (2, 3, Phase.CANCELLED) == outcome(state, "r2")
    assert Verdict.REPEATED == verdict(state, change(state, ChangeKind.REMOVE, "plant-3", "r2"))


def outcome(state: MembershipState, request: str) -> tuple[int, int, Phase]:
    """What a request led to."""
    found = state.outcome(request)
    assert found is not None
    return found.number, found.version, found.phase


def test_results_of_requests_do_not_grow_without_end() -> None:
    """The newest are kept."""
    state = began()
    for number in range(REQUESTS_KEPT + 2):
        state = run(state, change(state, ChangeKind.ADD, JOINER, f"r{number}"), Cancel(FIRST, number + 1))
    assert (REQUESTS_KEPT, None) == (len(state.requests), state.outcome("r1"))
    assert outcome(state, "r2")


def test_a_cancelled_change_leaves_nothing() -> None:
    """Reports for it that come late count for no later change to the same version, and Formal comes too late."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    late = pre_done(state)
    state = run(state, late[0], Cancel(FIRST, 1))
    assert (None, 1) == (state.change, table_of(state).version)
    assert Verdict.TOO_LATE == verdict(state, Formal(FIRST, 1))
    assert Verdict.TOO_LATE == verdict(state, Cancel(FIRST, 1))
    state = run(state, change(state, ChangeKind.ADD, JOINER, "r2"))
    assert [Verdict.TOO_LATE] * 5 == [verdict(state, report) for report in late]
    assert 5 == len(pre_done(state))
    assert Verdict.NO_SUCH_CHANGE == verdict(state, Formal(FIRST, 3))
    assert Verdict.NO_SUCH_CHANGE == verdict(state, Formal(FIRST, 0))


def test_a_change_that_counts_is_not_cancelled() -> None:
    """The table of a Formal is in use; nor does a second Formal count."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert Verdict.TOO_LATE == verdict(state, Cancel(FIRST, 1))
    assert Verdict.REPEATED == verdict(state, Formal(FIRST, 1))


def test_a_report_of_a_group_counts_once_and_from_a_member() -> None:
    """The first (epoch, version) stays; a stranger, or a group that is none, reports nothing."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    report = PreDone(1, "plant-1", "plant-2", 4, 7)
    assert Verdict.INVALID == verdict(state, replace(report, node="plant-4"))
    assert Verdict.INVALID == verdict(state, replace(report, group=JOINER))
    # The joiner may lead the group as soon as it is a member.
    assert Verdict.ACCEPTED == verdict(state, replace(report, node=JOINER))
    assert Verdict.INVALID == verdict(state, replace(report, group="plant-3", node=JOINER))
    state = run(state, report)
    assert Verdict.REPEATED == verdict(state, replace(report, epoch=5))


def test_a_new_leader_finishes_what_the_old_one_began() -> None:
    """What the log has of a change does not depend on who leads."""
    state = began()
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    state = run(state, *pre_done(state)[:2], MetadataClaim(SECOND))
    assert Verdict.NOT_LEADER == verdict(state, Formal(FIRST, 1))
    state = run(
        state, *pre_done(state), Formal(SECOND, 1), *slots_done(run(state, *pre_done(state), Formal(SECOND, 1)))
    )
    assert (2, None) == (table_of(state).version, state.change)


def test_a_leader_that_leaves_gives_up_the_leadership() -> None:
    """From the Formal of its removal on it appends nothing, and the next claim is of the next epoch."""
    state = began()
    state = run(state, change(state, ChangeKind.REMOVE, "plant-1"))
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert state.leader is None
    assert Verdict.NOT_LEADER == verdict(state, Exile(FIRST, "plant-1"))
    assert Verdict.CLAIM_LOST == verdict(state, MetadataClaim(Leadership(2, "plant-1", "a")))
    assert Verdict.ACCEPTED == verdict(state, MetadataClaim(SECOND))


def test_a_removed_node_is_exiled_after_its_slots_are_elsewhere() -> None:
    """Not while it hands over, not if it is a member, once; one that joins again is not exiled any more."""
    state = began()
    state = run(state, change(state, ChangeKind.REMOVE, "plant-3"))
    assert Verdict.NOT_DUE == verdict(state, Exile(FIRST, "plant-3"))
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert Verdict.NOT_DUE == verdict(state, Exile(FIRST, "plant-3"))
    state = run(state, *slots_done(state))
    assert Verdict.NOT_DUE == verdict(state, Exile(FIRST, "plant-4"))
    state = run(state, Exile(FIRST, "plant-3"))
    assert Verdict.REPEATED == verdict(state, Exile(FIRST, "plant-3"))
    assert (("plant-3",), ("plant-3",)) == (state.removed, state.exiled)
    state = whole(state, ChangeKind.ADD, "plant-3", "r2")
    assert ((), ()) == (state.removed, state.exiled)


def test_groups_have_their_founders_as_long_as_a_node_may_open_them() -> None:
    """Those of the birth, whoever has joined or left since: a replica begins with them whenever its node opens it.

    A group that has ended is kept, with its last members, until its node is exiled; only then may the node join again.
    """
    state = began()
    first = dict(state.founders)
    assert {GroupKey(node, 1): Founding(BASE.group(node)) for node in NODES} == first
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    assert first == state.founders
    state = run(state, *pre_done(state))
    assert first == run(state, Cancel(FIRST, 1)).founders
    state = run(state, Formal(FIRST, 1))
    joined = GroupKey(JOINER, 2)
    gains = tuple(slot for slot, _ in table_of(state).moved)
    added = {joined: Founding((JOINER, "plant-3", "plant-4"), 2, gains)}
    assert first | added == state.founders
    state = whole(run(state, *slots_done(state)), ChangeKind.REMOVE, "plant-3", "r2")
    assert (first | added, {GroupKey("plant-3", 1)}) == (state.founders, set(state.ended))
    assert ("plant-3", "plant-4", "plant-5") == state.ended[GroupKey("plant-3", 1)]
    again = change(state, ChangeKind.ADD, "plant-3", "r3")
    assert Verdict.TOO_EARLY == verdict(state, again)
    # Another change need not wait: both groups are kept.
    later = whole(state, ChangeKind.REMOVE, "plant-5", "r4")
    assert {GroupKey("plant-3", 1), GroupKey("plant-5", 1)} == set(later.ended)
    assert set(first | added) == set(later.founders)
    state = run(state, Exile(FIRST, "plant-3"))
    assert ({}, {"plant-3": state.records}) == (state.ended, state.exiles)
    assert GroupKey("plant-3", 1) not in state.founders
    state = run(state, change(state, ChangeKind.ADD, "plant-3", "r3"), *pre_done(run(state, again)), Formal(FIRST, 3))
    reborn = state.founders[GroupKey("plant-3", 4)]
    assert (table_of(state).group("plant-3"), 4) == (reborn.members, reborn.birth)


def test_ended_groups_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal waits while too many of them have not gone; a join and a balance do not."""
    monkeypatch.setattr(changes, "ENDED_MAX", 1)
    state = whole(began(), ChangeKind.REMOVE, "plant-3")
    assert Verdict.TOO_EARLY == verdict(state, change(state, ChangeKind.REMOVE, "plant-5", "r2"))
    assert Verdict.ACCEPTED == verdict(state, change(state, ChangeKind.ADD, JOINER, "r3"))
    state = run(state, Exile(FIRST, "plant-3"))
    assert Verdict.ACCEPTED == verdict(state, change(state, ChangeKind.REMOVE, "plant-5", "r2"))


def test_slots_move_while_nobody_joins() -> None:
    """A balance has one phase for the groups, whose members stay, and needs something to move."""
    state = began()
    table = table_of(state)
    even = Change(FIRST, "r1", ChangeKind.BALANCE, "", "", table.balance().to_bytes())
    assert Verdict.INVALID == verdict(state, even)
    moved = replace(table, version=2, slot_headers=(1, *table.slot_headers[1:]), moved=((0, table.holder(0)),))
    members = group_numbers(state)
    state = run(state, replace(even, table=moved.to_bytes()))
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert (members, table.nodes[1]) == (group_numbers(state), table_of(state).holder(0))


BASE = SlotTable.create(NODES, 3, 60)
ADDED, REMOVED = BASE.add_node(JOINER), BASE.remove_node("plant-3")


@pytest.mark.parametrize(
    ("after", "kind", "node"),
    [
        (ADDED, ChangeKind.ADD, "plant-7"),
        (ADDED, ChangeKind.REMOVE, JOINER),
        (ADDED, ChangeKind.BALANCE, ""),
        (BASE.add_node(RingNode("plant-5x", 1)).remove_node("plant-5"), ChangeKind.ADD, "plant-5x"),
        (replace(ADDED, version=3), ChangeKind.ADD, JOINER),
        (replace(ADDED, nodes=tuple(node.replace(JOINER, "a/b") for node in ADDED.nodes)), ChangeKind.ADD, "a/b"),
        (replace(ADDED, replication=2), ChangeKind.ADD, JOINER),
        (replace(ADDED, births=(9, *ADDED.births[1:])), ChangeKind.ADD, JOINER),
        (replace(ADDED, births=tuple(1 for _ in ADDED.births)), ChangeKind.ADD, JOINER),
        (replace(ADDED, moved=ADDED.moved[1:]), ChangeKind.ADD, JOINER),
        (replace(ADDED, moved=((0, "plant-2"), *ADDED.moved)), ChangeKind.ADD, JOINER),
        (replace(ADDED, ended=(("plant-9", 1),)), ChangeKind.ADD, JOINER),
        (replace(ADDED, positions=(1, *ADDED.positions[1:])), ChangeKind.ADD, JOINER),
        (replace(REMOVED, ended=()), ChangeKind.REMOVE, "plant-3"),
        (replace(REMOVED, ended=(("plant-3", 2),)), ChangeKind.REMOVE, "plant-3"),
        (SlotTable.create(NODES, 3, 61).add_node(JOINER), ChangeKind.ADD, JOINER),
    ],
)
def test_a_table_that_does_not_follow_is_ignored(after: SlotTable, kind: ChangeKind, node: str) -> None:
    """Every reader checks the table itself: nodes, positions, births, what moves and from where."""
    assert follows(BASE, ADDED, ChangeKind.ADD, JOINER)
    assert follows(BASE, REMOVED, ChangeKind.REMOVE, "plant-3")
    assert not follows(BASE, after, kind, node)


def test_a_joiner_takes_and_nobody_else_gains() -> None:
    """A slot that moves between old nodes is no part of a join, nor one of a stayer of a removal."""
    headers = list(ADDED.slot_headers)
    first, other = ADDED.nodes.index(ADDED.holder(0)), ADDED.nodes.index("plant-2")
    headers[0] = other if first != other else ADDED.nodes.index("plant-3")
    moved = tuple(sorted((*ADDED.moved, (0, BASE.holder(0)))))
    assert not follows(BASE, replace(ADDED, slot_headers=tuple(headers), moved=moved), ChangeKind.ADD, JOINER)


def test_no_group_gives_and_takes_in_a_balance() -> None:
    """Its log would have both in one order, and its barriers would not count."""

    def table_with(moves: dict[int, str]) -> SlotTable:
        headers = [BASE.nodes.index(moves.get(slot, BASE.holder(slot))) for slot in range(BASE.slots)]
        moved = tuple((slot, BASE.holder(slot)) for slot in sorted(moves))
        return replace(BASE, version=2, slot_headers=tuple(headers), moved=moved)

    first, second, third = (BASE.slots_of(header)[0] for header in BASE.nodes[:3])
    one_way = {first: BASE.nodes[1], third: BASE.nodes[1]}
    assert follows(BASE, table_with(one_way), ChangeKind.BALANCE, "")
    assert not follows(BASE, table_with({**one_way, second: BASE.nodes[3]}), ChangeKind.BALANCE, "")


def test_changes_without_a_table_or_a_request_are_ignored() -> None:
    """Bytes of no table, and a request without an id, whose repeats nobody could know."""
    state = began()
    record = change(state, ChangeKind.ADD, JOINER)
    assert Verdict.INVALID == verdict(state, replace(record, table=b"garbage"))
    assert Verdict.INVALID == verdict(state, replace(record, request=""))


RECORDS: tuple[MembershipRecord, ...] = (
    CREATE,
    *(MetadataClaim(Leadership(epoch, node, "i")) for epoch in (1, 2) for node in ("plant-1", "plant-3", JOINER)),
    *(
        Change(Leadership(1, "plant-1", "i"), request, kind, node, "", table.to_bytes())
        for request, kind, node, table in (
            ("r1", ChangeKind.ADD, JOINER, ADDED),
            ("r2", ChangeKind.REMOVE, "plant-3", REMOVED),
            ("r3", ChangeKind.REMOVE, "plant-3", ADDED.remove_node("plant-3")),
        )
    ),
    *(PreDone(number, node, node, 1, 1) for number in (1, 2) for node in NODES),
    *(kind(Leadership(1, "plant-1", "i"), number) for kind in (Formal, Cancel) for number in (1, 2)),
    *(SlotDone(1, node, tuple(slot for slot, _ in ADDED.moved)) for node in (JOINER, "plant-3", "plant-4")),
    Exile(Leadership(1, "plant-1", "i"), "plant-3"),
)


@given(order=st.lists(st.sampled_from(range(len(RECORDS))), max_size=60), orderly=st.booleans())
def test_any_log_gives_every_reader_one_state(order: list[int], orderly: bool) -> None:
    """Any records in any order: versions rise by one, one change runs, each slot has a holder, and repeats change nothing."""
    records = [RECORDS[index] for index in (sorted(order) if orderly else order)]
    state, version = MembershipState(), 0
    for record in records:
        before = state
        state, found = state.apply(record)
        if found is Verdict.ACCEPTED and not isinstance(record, MetadataClaim):
            # The same record again counts in no state that it has led to.
            assert state.apply(record)[1] is not Verdict.ACCEPTED
        table = state.table
        assert (before.table is None) or table is not None
        if table is not None:
            assert table.version in (version, version + 1)
            version = table.version
            assert 60 == sum(table.slot_counts().values())
            assert state.change is None or state.change.table.version in (version, version + 1)
            births = {GroupKey(header, table.birth(header)) for header in table.headers}
            assert set(state.founders) == births | set(state.ended)
            assert not births.intersection(state.ended)
            assert len({birth.group for birth in state.founders}) == len(state.founders)
    again = MembershipState()
    for record in records:
        again, _ = again.apply_value(encode_membership("another reader", record))
    assert state == again
