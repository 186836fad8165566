"""Which groups a node holds: those of the table, and what a running change needs of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.placement import (
    closable_ends,
    early_groups,
    groups_of_table,
    is_exiled,
    joining_reason,
    leaving_reason,
    wanted_groups,
)
from headrace.consumers.membership.running_change import RunningChange
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import Cancel, Change, ChangeKind, Exile, Formal, MembershipChange
from tests.unit.membership.test_changes import (
    FIRST,
    JOINER,
    NODES,
    began,
    change,
    pre_done,
    run,
    slots_done,
    table_of,
    whole,
)

EVERYBODY = (*NODES, JOINER)


def held(state: MembershipState, gone: frozenset[GroupKey] = frozenset()) -> dict[str, str]:
    """The groups of each node, as ascending digits."""
    found = {node[-1]: wanted_groups(state, node, gone) for node in EVERYBODY}
    return {node: "".join(sorted(birth.group[-1] for birth in wanted)) for node, wanted in found.items()}


# The ring of the source's figures is 1 2 (6) 3 4 5, with three members a group: node 1 is in the groups 1, 4 and 5.
TABLE = {"1": "145", "2": "125", "3": "123", "4": "234", "5": "345", "6": ""}


def test_a_join_step_by_step() -> None:
    """The joiner opens groups in the first phase; a surplus member keeps its group until the change has ended."""
    state = began()
    assert TABLE == held(state)
    state = run(state, change(state, ChangeKind.ADD, JOINER))
    assert TABLE | {"6": "12"} == held(state)
    assert "change 1 adds node plant-6" in joining_reason(state, JOINER)
    state = run(state, *pre_done(state))
    assert TABLE | {"6": "12"} == held(state)
    # A cancelled change takes them away again.
    assert TABLE == held(run(state, Cancel(FIRST, 1)))
    state = run(state, Formal(FIRST, 1))
    # Node 3 gives up group 1, and node 4 gives up group 2.
    assert TABLE | {"6": "126", "3": "1236", "4": "2346"} == held(state)
    assert "" == joining_reason(state, JOINER)
    state = run(state, *slots_done(state))
    assert TABLE | {"6": "126", "3": "236", "4": "346"} == held(state)


def test_new_groups_are_opened_before_their_table_counts() -> None:
    """With the founding that they have later. A cancellation takes them away, and no other kind of change has any."""
    state = began()
    assert {} == early_groups(state, JOINER)
    running = run(
        state, change(state, ChangeKind.ADD, JOINER), *pre_done(run(state, change(state, ChangeKind.ADD, JOINER)))
    )
    early = {node[-1]: early_groups(running, node) for node in EVERYBODY}
    assert {"6", "3", "4"} == {node for node, groups in early.items() if groups}
    formal = run(running, Formal(FIRST, 1))
    assert early["6"] == early["3"] == {birth: formal.founders[birth] for birth in early["6"]}
    assert [JOINER] == [birth.group for birth in early["6"]]
    assert {} == early_groups(formal, JOINER) == early_groups(run(running, Cancel(FIRST, 1)), JOINER)
    removing = run(state, change(state, ChangeKind.REMOVE, "plant-3"))
    assert {} == early_groups(removing, "plant-4")


def test_a_removal_step_by_step() -> None:
    """The group of the removed node ends: its members keep it until its topic is gone, also through another change."""
    state = began()
    state = run(state, change(state, ChangeKind.REMOVE, "plant-3"))
    # Node 4 replaces node 3 in group 1, and node 5 does in group 2.
    assert TABLE | {"4": "1234", "5": "2345"} == held(state)
    state = run(state, *pre_done(state), Formal(FIRST, 1))
    assert {"1": "145", "2": "125", "3": "123", "4": "1234", "5": "2345", "6": ""} == held(state)
    assert [] == closable_ends(state)
    assert "hands over what is left" in leaving_reason(state, "plant-3")
    assert ("", "") == (joining_reason(state, "plant-3"), leaving_reason(state, "plant-4"))
    state = run(state, *slots_done(state))
    ended = {"1": "145", "2": "125", "3": "3", "4": "1234", "5": "2345", "6": ""}
    assert ended == held(state)
    group = GroupKey("plant-3", 1)
    assert [group] == closable_ends(state)
    later = run(state, change(state, ChangeKind.ADD, JOINER, "r2"))
    assert {"3", "4", "5"} == {node for node, groups in held(later).items() if "3" in groups}
    left = {"1": "145", "2": "125", "3": "", "4": "124", "5": "245", "6": ""}
    assert left == held(state, frozenset({group}))
    exiled = run(state, Exile(FIRST, "plant-3"))
    assert "" == leaving_reason(exiled, "plant-3")
    assert left == held(exiled)
    assert exiled.records == exiled.exiles["plant-3"]
    # Its own directory, and a new one under the same id.
    assert (True, False) == tuple(is_exiled(exiled, "plant-3", born) for born in (0, exiled.records))
    assert not is_exiled(exiled, "plant-4", 0)


def test_a_group_of_the_table_is_never_gone() -> None:
    """A topic that is missing there is a loss, which others report."""
    state = began()
    assert TABLE == held(state, frozenset(GroupKey(node, 1) for node in NODES))


def test_slots_that_move_alone_keep_every_group() -> None:
    """A balance changes no members."""
    state = began()
    table = table_of(state)
    moved = replace(table, version=2, slot_headers=(1, *table.slot_headers[1:]), moved=((0, table.holder(0)),))
    state = run(state, Change(FIRST, "r1", ChangeKind.BALANCE, "", "", moved.to_bytes()), *pre_done_of(moved, state))
    assert TABLE == held(state)
    state = run(state, Formal(FIRST, 1))
    assert TABLE == held(state)
    assert TABLE == held(run(state, *slots_done(state)))


def pre_done_of(moved: object, state: MembershipState) -> Iterator[MembershipChange]:
    """The reports that a balance waits for."""
    running = RunningChange(1, "r1", ChangeKind.BALANCE, "", "", table_of(state), moved)  # type: ignore[arg-type]
    yield from pre_done(replace(state, change=running))


class Copies:
    """Which nodes have all rows of a slot, by the groups that they have held without a break."""

    def __init__(self, state: MembershipState) -> None:
        table = table_of(state)
        self.state = state
        self.holders = {slot: set(table.group(table.holder(slot))) for slot in range(table.slots)}

    def step(self, record: MembershipChange) -> None:
        """One more record; members of the first phase have their groups when these report, movers as they report."""
        before, (self.state, found) = self.state, self.state.apply(record)
        assert found is Verdict.ACCEPTED, (record, found)
        state, table = self.state, table_of(self.state)
        running = state.change
        if running is not None and not running.formal:
            for slot in range(table.slots):
                if table.holder(slot) not in running.groups_waiting:
                    self.holders[slot] |= set(running.pre_members(table.holder(slot)))
        if before.change is not None and before.change.formal:
            after = before.change.table
            for slot, _ in after.moved:
                if state.change is None or state.change.is_done(slot):
                    self.holders[slot] |= set(after.group(after.holder(slot)))
        self.check(before)

    def check(self, before: MembershipState) -> None:
        """No slot loses its last copies, no member its group, and no node gets two births of one header."""
        state, table = self.state, table_of(self.state)
        nodes = {*table.nodes, *table_of(before).nodes, *state.removed}
        nodes |= {state.change.node} if state.change is not None else set()
        wanted = {node: wanted_groups(state, node) for node in nodes}
        for node, groups in wanted.items():
            assert len({birth.group for birth in groups}) == len(groups)
            assert set(groups_of_table(table, node)) <= set(groups)
            assert all(founding == state.founders[birth] for birth, founding in groups.items())
            if state.change is not None:
                # Nobody gives up a group before the change has ended, whatever its table gives to others.
                assert set(wanted_groups(before, node)) <= set(groups), node
        owners = {slot: self._groups(slot, before) for slot in range(table.slots)}
        for slot, births in owners.items():
            self.holders[slot] = {node for node in self.holders[slot] if births.intersection(wanted.get(node, {}))}
            assert len(self.holders[slot]) >= table.replication, (slot, self.holders[slot])

    def _groups(self, slot: int, before: MembershipState) -> set[GroupKey]:
        """The groups whose files have rows of a slot."""
        table = table_of(self.state)
        found = {GroupKey(table.holder(slot), table.birth(table.holder(slot)))}
        if self.state.change is not None and (former := table.previous_holder(slot)) and self.state.change.formal:
            found.add(GroupKey(former, self.state.change.base.birth(former)))
        return found


@given(seed=st.integers(0, 2**32), length=st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_no_schedule_of_changes_closes_the_last_copies(seed: int, length: int) -> None:
    """Joins, removals and cancellations in any order: at each record every slot has all its copies at nodes that keep
    their groups, and no node ever gets two births of one header.
    """
    chance = random.Random(seed)
    copies = Copies(began())
    for number in range(length):
        state = copies.state
        table = table_of(state)
        removable = [node for node in table.nodes if node != FIRST.node and len(table.nodes) > table.replication]
        joinable = [node for node in (JOINER, "plant-7", *state.removed) if node not in table.nodes]
        joinable = [node for node in joinable if node not in {birth.group for birth in state.ended}]
        kinds = [ChangeKind.ADD] * bool(joinable) + [ChangeKind.REMOVE] * bool(removable)
        kind = chance.choice(kinds)
        node = chance.choice(joinable if kind is ChangeKind.ADD else removable)
        copies.step(change(state, kind, node, f"r{number}"))
        reports = pre_done(copies.state)
        chance.shuffle(reports)
        cancelled = chance.random() < 0.2
        for report in reports[: chance.randint(0, len(reports)) if cancelled else None]:
            copies.step(report)
        if cancelled:
            copies.step(Cancel(FIRST, copies.state.changes))
            continue
        copies.step(Formal(FIRST, copies.state.changes))
        for done in slots_done(copies.state) if copies.state.change is not None else ():
            copies.step(done)
        for birth in closable_ends(copies.state):
            if chance.random() < 0.5:
                copies.step(Exile(FIRST, birth.group))


def test_a_restart_opens_the_same_groups() -> None:
    """At every record of a change, a state that was replayed from the beginning wants the same groups and founders."""
    records: list[MembershipChange] = []
    state = began()
    for record in script(state):
        state = run(state, record)
        records.append(record)
        again = run(began(), *records)
        assert [wanted_groups(state, node) for node in EVERYBODY] == [wanted_groups(again, node) for node in EVERYBODY]


def script(state: MembershipState) -> Iterator[MembershipChange]:
    """The records of a join and of a removal."""
    for kind, node in ((ChangeKind.ADD, JOINER), (ChangeKind.REMOVE, "plant-3")):
        first = change(state, kind, node, node)
        state = run(state, first)
        yield first
        reports = pre_done(state)
        yield from reports
        state = run(state, *reports, Formal(FIRST, state.changes))
        yield Formal(FIRST, state.changes)
        done = slots_done(state)
        yield from done
        state = run(state, *done)


@pytest.mark.parametrize("kind", [ChangeKind.ADD, ChangeKind.REMOVE])
def test_a_later_change_begins_where_the_one_before_ended(kind: ChangeKind) -> None:
    """Nothing of an ended change is left but the groups that ended."""
    state = whole(began(), kind, JOINER if kind is ChangeKind.ADD else "plant-3")
    extra = {node: set(wanted_groups(state, node)) - set(groups_of_table(table_of(state), node)) for node in EVERYBODY}
    expected = {GroupKey("plant-3", 1)} if kind is ChangeKind.REMOVE else set()
    assert expected == set[GroupKey]().union(*extra.values())
