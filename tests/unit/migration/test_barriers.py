"""Which barrier a group's log lacks, in each phase of a change and behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.barriers import BarrierDue, barrier_due, pre_done_due
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.holdings import Given
from headrace.consumers.replication.transfers import HandOver, Transfer
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandOverPosition, Rank
from headrace.schemas.membership_records import ChangeKind, PreDone
from headrace.schemas.message_rules import check_message
from headrace.schemas.messages import NO_CHAIN, Anchor, Leadership, Message, ProducerPosition
from tests.unit.migration.member_logs import SLOTS, MemberLog

PRE, FORMAL, REVERT = BarrierPhase.PRE, BarrierPhase.FORMAL, BarrierPhase.REVERT
TOPICS = Topics("c")


def born(log: MemberLog, group: str) -> ChangeView:
    """A group that has read no barrier."""
    return ChangeView(log.table.group(group), log.table.birth(group), SLOTS)


def due(log: MemberLog | MembershipState, group: str, view: ChangeView, birth: int = 1) -> BarrierDue | None:
    """The barrier that a group lacks; one that a log would not take is none."""
    state = log.state if isinstance(log, MemberLog) else log
    found = barrier_due(state, GroupKey(group, birth), view, TOPICS)
    if found is not None:
        record = found.record(Leadership(1, "n1", "i"), Anchor(-1, 0, NO_CHAIN))
        check_message(Message(ProducerPosition("p", 1, 0), record))
    return found


def read(view: ChangeView, barrier: BarrierDue | None) -> ChangeView:
    """The view of a group that has read a barrier."""
    assert barrier is not None
    given = dict(view.given)
    if barrier.phase is FORMAL:
        given |= {slot: Given(each.key, view.era, 9) for each in barrier.moves for slot in each.slots}
        given = {slot: each for slot, each in given.items() if slot not in barrier.gains}
    return replace(
        view,
        members=barrier.members,
        change=barrier.change,
        phase=barrier.phase,
        table_version=barrier.table_version,
        given=given,
    )


def test_a_group_without_a_change_needs_no_barrier() -> None:
    """Neither before the first change nor for a group that the table does not have."""
    log = MemberLog()
    assert due(log, "n2", born(log, "n2")) is None
    assert due(MembershipState(), "n2", born(log, "n2")) is None


def test_every_group_of_the_old_table_gets_both_phases() -> None:
    """Also one whose members stay: the members of each phase are those of the running change."""
    log = MemberLog()
    change = log.begin(ChangeKind.ADD, "n5")
    views = {}
    for each in change.groups():
        if each.before:
            first = due(log, each.group, born(log, each.group))
            assert first is not None
            assert (PRE, each.pre, 1, 2) == (first.phase, first.members, first.change, first.table_version)
            views[each.group] = read(born(log, each.group), first)
            assert due(log, each.group, views[each.group]) is None
    assert set(views) == {"n1", "n2", "n3", "n4"}
    log.formal()
    moved: dict[int, str] = {}
    for each in change.groups():
        if each.before:
            second = due(log, each.group, views[each.group])
            assert second is not None
            assert (FORMAL, each.after) == (second.phase, second.members)
            moved |= {slot: to.topic for to in second.moves for slot in to.slots}
            assert due(log, each.group, read(views[each.group], second)) is None
    assert moved == {slot: "c.forward.n5.2" for slot, _ in change.table.moved}


def test_the_new_group_and_groups_of_another_birth_get_none() -> None:
    """What the new group needs is in its founding."""
    log = MemberLog()
    log.begin(ChangeKind.ADD, "n5")
    assert due(log, "n2", born(log, "n2"), birth=2) is None
    log.formal()
    assert due(log, "n5", ChangeView(log.table.group("n5"), 2, SLOTS), birth=2) is None


def test_a_group_that_ends_keeps_its_members_and_gives_up_every_slot() -> None:
    """They read its log to the end; the next holders are those of the new table."""
    log = MemberLog()
    before = born(log, "n3")
    slots = log.table.slots_of("n3")
    change = log.begin(ChangeKind.REMOVE, "n3")
    before = read(before, due(log, "n3", before))
    log.formal()
    last = due(log, "n3", before)
    assert last is not None
    assert change.base.group("n3") == last.members
    assert set(slots) == {slot for to in last.moves for slot in to.slots}
    assert {(to.key.group, slot) for to in last.moves for slot in to.slots} == {
        (log.table.holder(slot), slot) for slot in slots
    }
    gains: dict[int, str] = {}
    for group in log.table.headers:
        each = due(log, group, read(born(log, group), _pre_of(log, group)))
        assert each is not None
        gains |= dict.fromkeys(each.gains, group)
    assert gains == {slot: log.table.holder(slot) for slot in slots}


def _pre_of(log: MemberLog, group: str) -> BarrierDue:
    """The first phase of the running change, as it was due before it was formal."""
    found = due(replace(log.state, change=replace(log.change, formal=False)), group, born(log, group))
    assert found is not None
    return found


def test_slots_whose_holder_ends_get_the_next_one() -> None:
    """The joiner leaves again: late records of its donors go to those that have the slots then."""
    log = MemberLog()
    change = log.begin(ChangeKind.ADD, "n5")
    views = {group: read(born(log, group), due(log, group, born(log, group))) for group in change.base.headers}
    log.formal()
    views = {group: read(view, due(log, group, view)) for group, view in views.items()}
    log.migrate()
    change = log.begin(ChangeKind.REMOVE, "n5")
    views = {group: read(view, due(log, group, view)) for group, view in views.items()}
    log.formal()
    for group, view in views.items():
        found = due(log, group, view)
        assert found is not None
        after = read(view, found)
        assert GroupKey("n5", 2) not in {each.target for each in after.given.values()}
        for slot, given in after.given.items():
            assert change.table.holder(slot) == given.target.group != group


def test_slots_whose_holder_ends_are_in_the_barrier_of_each_that_gave_them_before() -> None:
    """The table moves them between two other groups: a former holder would hand its late records over to nobody."""
    log = MemberLog()
    log.begin(ChangeKind.ADD, "n5")
    log.formal()
    log.migrate()
    change = log.begin(ChangeKind.REMOVE, "n5")
    log.formal()
    ended, slots = GroupKey("n5", 2), [slot for slot, _ in change.table.moved]
    [(group, slot), *_] = [
        (group, slot) for slot in slots for group in change.table.headers if change.table.holder(slot) != group
    ]
    view = replace(born(log, group), given={slot: Given(ended, 1, 9)})
    view = replace(view, change=change.number, phase=PRE, table_version=change.table.version)
    found = due(log, group, view)
    assert found is not None
    holder = change.table.holder(slot)
    assert [(holder, (slot,))] == [(each.key.group, each.slots) for each in found.moves]


def test_slots_get_another_holder_once_the_present_one_has_everything() -> None:
    """A late record that the joiner has not accepted keeps its slots, and those of another group keep nothing."""
    log = MemberLog()
    change = log.begin(ChangeKind.ADD, "n5")
    slot, donor = change.table.moved[0]
    view = read(born(log, donor), due(log, donor, born(log, donor)))
    log.formal()
    view = read(view, due(log, donor, view))
    log.migrate()
    log.begin(ChangeKind.REMOVE, "n5")
    view = read(view, due(log, donor, view))
    log.formal()
    formal = due(log, donor, view)
    assert formal is not None
    assert FORMAL is formal.phase
    joiner, rank = GroupKey("n5", 2), Rank(view.era, 12)
    kept = log.table.slots_of(donor)[0]
    for concerned, found in ((slot, None), (kept, formal)):
        transfer = Transfer(HandOverPosition(12, 0), rank, (concerned,), 30)
        waiting = {joiner: (HandOver(joiner, "c.forward.n5.2", transfer, HandOverPosition(9, 0)),)}
        assert found == due(log, donor, replace(view, due=waiting))


def test_a_cancelled_change_is_reverted() -> None:
    """Once, in the groups that had read of it."""
    log = MemberLog()
    before = born(log, "n2")
    log.begin(ChangeKind.ADD, "n5")
    begun = read(before, due(log, "n2", before))
    log.cancel()
    assert due(log, "n2", before) is None
    back = due(log, "n2", begun)
    assert back == BarrierDue(1, REVERT, 2, SLOTS, log.table.group("n2"))
    assert due(log, "n2", read(begun, back)) is None


def test_what_a_log_has_begun_ends_before_the_next_change() -> None:
    """A group that missed the cancellation reverts first, and one that missed the second phase takes it first."""
    log = MemberLog()
    before = born(log, "n2")
    log.begin(ChangeKind.ADD, "n5")
    begun = read(before, due(log, "n2", before))
    log.cancel()
    log.begin(ChangeKind.REMOVE, "n4")
    back = due(log, "n2", begun)
    assert back is not None
    assert (REVERT, 1) == (back.phase, back.change)
    first = due(log, "n2", read(begun, back))
    assert first is not None
    assert (PRE, 2) == (first.phase, first.change)
    begun = read(begun, first)
    log.formal()
    log.migrate()
    ended = due(log, "n2", begun)
    assert ended is not None
    assert (FORMAL, 2, log.table.group("n2")) == (ended.phase, ended.change, ended.members)
    log.begin(ChangeKind.ADD, "n5")
    assert ended == due(log, "n2", begun)
    third = due(log, "n2", read(begun, ended))
    assert third is not None
    assert (PRE, 3) == (third.phase, third.change)


def test_a_node_that_has_read_less_than_the_group_appends_nothing() -> None:
    """Its membership log ends before the change, or before its end."""
    log = MemberLog()
    before, early = born(log, "n2"), log.state
    log.begin(ChangeKind.ADD, "n5")
    running = log.state
    begun = read(before, due(log, "n2", before))
    assert due(early, "n2", begun) is None
    log.formal()
    done = read(begun, due(log, "n2", begun))
    assert due(running, "n2", done) is None
    log.migrate()
    log.begin(ChangeKind.REMOVE, "n4")
    later = read(done, due(log, "n2", done))
    assert due(running, "n2", later) is None
    assert due(early, "n2", later) is None


def test_a_first_phase_that_the_log_lost_is_not_asked_for() -> None:
    """An accepted gap took it: the second phase contains it."""
    log = MemberLog()
    log.begin(ChangeKind.ADD, "n5")
    log.formal()
    found = due(log, "n2", born(log, "n2"))
    assert found is not None
    assert FORMAL is found.phase


@pytest.mark.parametrize("kind", [ChangeKind.ADD, ChangeKind.REMOVE])
def test_the_first_phase_is_reported_once_it_was_read(kind: ChangeKind) -> None:
    """Until the report is read back, and not after the change has ended."""
    log = MemberLog()
    before = born(log, "n2")
    change = log.begin(kind, "n5" if kind is ChangeKind.ADD else "n4")
    key = GroupKey("n2", 1)
    assert pre_done_due(log.state, key, before) is None
    begun = read(before, due(log, "n2", before))
    assert change == pre_done_due(log.state, key, begun)
    assert pre_done_due(log.state, GroupKey("n2", 2), begun) is None
    log.take(PreDone(1, "n2", begun.members[0], 1, 1))
    assert pre_done_due(log.state, key, begun) is None
    assert pre_done_due(log.state, GroupKey("n1", 1), begun) == log.change
    log.cancel()
    assert pre_done_due(log.state, GroupKey("n1", 1), begun) is None
