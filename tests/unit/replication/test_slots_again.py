"""Slots that change hands a second time, while the group that has them has not accepted everything."""

from __future__ import annotations

import pytest

from headrace.consumers.replication.actions import ApplyHandedDelete, ApplyRows, ApplyWrite, HandOversLost, Ignored
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.holdings import EARLIER_HOLDINGS_MAX
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandOverAccepted, Rank
from headrace.schemas.messages import Anchor, Delete, Gap
from tests.sim.migration_rows import GroupRows
from tests.unit.replication.slot_logs import SlotLog, rows_write

PRE, FORMAL = BarrierPhase.PRE, BarrierPhase.FORMAL


@pytest.fixture
def donor() -> SlotLog:
    """It gave slots 3 and 4 to a node that joined with table 2, which has accepted the takeover."""
    log = SlotLog("n1", ("n1", "n2"))
    log.claim("n1")
    log.barrier(FORMAL, moves={joiner(): (3, 4)})
    return log


def joiner() -> SlotLog:
    """The group of the node that joined, and that leaves with table 3."""
    log = SlotLog("n6", ("n6", "n1"), era=2, birth=2, gains=(3, 4))
    log.claim("n6")
    return log


def test_a_slot_gets_its_next_holder_when_the_present_one_has_accepted_everything(donor: SlotLog) -> None:
    """The present one may end with the change, and nobody could hand over to its closed log."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=2, birth=2, gains=(5,))
    donor.hand_over(taker)
    donor.append(rows_write({"3a": 1}))
    donor.barrier(PRE, 2, 3, moves={third: (3, 4)})
    donor.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    assert (PRE, GroupKey("n6", 2)) == (donor.replica.state.changes.phase, donor.replica.state.changes.given[3].target)
    assert donor.replica.rejection is not None
    assert "n6 has not accepted" in donor.replica.rejection.error
    donor.hand_over(taker)
    donor.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    assert (FORMAL, third.key) == (donor.replica.state.changes.phase, donor.replica.state.changes.given[3].target)


def back_again() -> SlotLog:
    """Slots 3 and 4 of the donor have left with table 2 and are back with table 3; the takeover is not here yet."""
    log, taker = SlotLog("n1", ("n1", "n2")), joiner()
    log.claim("n1")
    log.barrier(FORMAL, moves={taker: (3, 4)})
    log.hand_over(taker)
    log.barrier(PRE, 2, 3, gains=(3, 4))
    log.barrier(FORMAL, 2, 3, gains=(3, 4))
    return log


def test_rows_by_a_table_of_an_earlier_holding_have_its_era() -> None:
    """Found by the simulation, seed 4: a batch that was given up won over what the group in between had taken."""
    log = back_again()
    version = len(log.values) + 1
    old = log.append(rows_write({"3a": 1, "5a": 1}, 1))
    assert [(Rank(1, version), (3,)), (Rank(3, version), (5,))] == [
        (action.rank, action.slots) for action in old if isinstance(action, ApplyRows)
    ]
    for table in (3, 4):
        assert [ApplyWrite] == [type(action) for action in log.append(rows_write({"3a": 2, "5a": 2}, table))]
    # A group that never had the slots in between knows of no other holding, whatever table a write names.
    assert [ApplyWrite] == [type(action) for action in log.append(rows_write({"5a": 2}, 1))]


def test_rows_of_an_earlier_holding_are_handed_on_with_its_era() -> None:
    """The slot has left once more: the rank is that of the table that a write names, and not of the last holding."""
    log, third = back_again(), SlotLog("n7", ("n7", "n1"), era=4, birth=4, gains=(3, 4))
    log.barrier(FORMAL, 3, 4, moves={third: (3, 4)})
    ranks = []
    for table in (1, 3, 4):
        [handed] = [each for each in log.append(rows_write({"3a": 1}, table)) if isinstance(each, HandOver)]
        ranks.append(handed.transfer.rank)
    assert [1, 3, 3] == [rank.era for rank in ranks if rank is not None]


def test_earlier_holdings_outlast_a_restart_and_are_bounded() -> None:
    """They are state, since every member must give a late row the same rank; the oldest of very many is forgotten."""
    log = back_again()
    log.replica.state = GroupState.from_bytes(log.replica.state.to_bytes())
    [old] = log.append(rows_write({"4a": 1}, 2))
    assert isinstance(old, ApplyRows)
    assert 1 == old.rank.era
    holdings = log.replica.state.changes.holdings
    for until in range(4, 4 + EARLIER_HOLDINGS_MAX):
        holdings.end(3, until, until - 1)
    assert (3, 3, 4 + EARLIER_HOLDINGS_MAX - 2, None) == tuple(
        holdings.era(3, table) for table in (1, 3, 2 + EARLIER_HOLDINGS_MAX, 3 + EARLIER_HOLDINGS_MAX)
    )


def test_a_takeover_that_is_not_noted_as_accepted_holds_a_slot_back(donor: SlotLog) -> None:
    """Else it would be due for ever, to a group that does not exist."""
    donor.barrier(PRE, 2, 3, gains=(3, 4))
    donor.barrier(FORMAL, 2, 3, gains=(3, 4))
    assert PRE is donor.replica.state.changes.phase
    leader = donor.replica.state.leader
    assert leader is not None
    newest = donor.replica.state.changes.targets[GroupKey("n6", 2)].newest
    donor.append(HandOverAccepted(leader, GroupKey("n6", 2), newest))
    donor.barrier(FORMAL, 2, 3, gains=(3, 4))
    assert FORMAL is donor.replica.state.changes.phase


def test_late_records_for_other_slots_hold_nothing_back(donor: SlotLog) -> None:
    """Only what concerns a slot of the barrier is waited for."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(0,))
    donor.hand_over(taker)
    donor.append(rows_write({"4a": 1}))
    donor.barrier(FORMAL, 2, 3, moves={third: (0,)})
    assert FORMAL is donor.replica.state.changes.phase


def test_an_earlier_holder_renames_slots_that_are_here(donor: SlotLog) -> None:
    """The group that gave them ends. What comes late goes here directly, with the rank of the first log."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(3, 4))
    third.claim("n7")
    donor.hand_over(taker)
    taker.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    taker.hand_over(third)
    donor.barrier(PRE, 3, 4, moves={third: (3, 4)})
    donor.barrier(FORMAL, 3, 4, moves={third: (3, 4)})
    # Before the group has read of the change, nothing shows that it is one.
    assert [[]] == [third.append_value(each) for each in donor.hand_overs(third)]
    assert 1 == third.replica.ignored[Ignored.UNEXPECTED]
    third.barrier(PRE, 3, 4)
    donor.append(rows_write({"3a": 1}))
    [_, rows] = donor.hand_over(third)
    assert [(3,)] == [action.slots for action in rows if hasattr(action, "slots")]
    assert not donor.replica.state.changes.targets[third.key].outstanding


def test_a_slot_that_was_never_here_cannot_be_renamed(donor: SlotLog) -> None:
    """Whoever can append to a log gives the group no slot of another one."""
    third = SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(5,))
    third.claim("n7")
    third.barrier(PRE, 3, 4)
    donor.hand_over(joiner())
    donor.barrier(FORMAL, 3, 4, moves={third: (3, 4)})
    for each in donor.hand_overs(third):
        third.append_value(each)
    assert 1 == third.replica.ignored[Ignored.UNEXPECTED]
    assert {} == third.replica.state.changes.origins


def test_a_delete_before_the_takeover_moves_on_with_the_slot(donor: SlotLog) -> None:
    """Found by the simulation, seed 953: a row that came late through two groups was back behind such a delete."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(3, 4))
    taker.append(Delete("db", "t", {"key": ("3a",)}))
    donor.hand_over(taker)
    taker.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    taker.hand_over(third)
    [kept] = third.replica.state.changes.deletes
    assert (Rank(2, 2), (3, 4), {"key": ("3a",)}) == (kept.rank, kept.slots, kept.delete.tags)


def test_late_records_come_by_two_ways_and_a_delete_is_never_behind_a_later_row(donor: SlotLog) -> None:
    """The holder ends with them on its way, and the donor sends what comes later itself: in one file they would mix."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(3, 4))
    third.claim("n7")
    rows = GroupRows()
    donor.hand_over(taker)
    taker.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    taker.hand_over(third)
    old, deleted = {"3a": 1, "3b": 1}, Delete("db", "t", {"key": ("3a",)})
    for body in (rows_write(old), deleted, rows_write({"4a": 1})):
        donor.append(body)
    donor.hand_over(taker)
    for barrier in (PRE, FORMAL):
        donor.barrier(barrier, 3, 4, moves={third: (3, 4)})
    third.barrier(PRE, 3, 4)
    # The first late row comes through the former holder; the delete behind it, after a row from the donor itself.
    first, *behind = taker.hand_overs(third)
    donor.append(rows_write({"3b": 2}))
    for value in (first, *donor.hand_overs(third), *behind):
        rows.act(third.append_value(value), third.replica.state.changes.era)
        rows.seal()
    assert {} == rows.visible("3a")
    assert [2] == [value for _, value in sorted(rows.visible("3b").items())][1:]
    assert not third.replica.ignored


def test_deletes_of_a_late_takeover_move_on_with_the_slot(donor: SlotLog) -> None:
    """The slot has left again before the takeover comes that renames it."""
    taker, third = joiner(), SlotLog("n7", ("n7", "n1"), era=3, birth=3, gains=(3, 4))
    last = SlotLog("n8", ("n8", "n1"), era=5, birth=5, gains=(3,))
    third.claim("n7")
    donor.hand_over(taker)
    donor.append(Delete("db", "t", {"key": ("3a",)}))
    donor.hand_over(taker)
    taker.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    taker.hand_over(third)
    for barrier in (PRE, FORMAL):
        donor.barrier(barrier, 3, 4, moves={third: (3, 4)})
        third.barrier(barrier, 3, 4)
    for barrier in (PRE, FORMAL):
        third.barrier(barrier, 4, 5, moves={last: (3,)})
    third.hand_over(last)
    donor.hand_over(third)
    [due] = ChangeView.of(third.replica.state.changes).due[last.key]
    [[action]] = third.hand_over(last)
    assert isinstance(action, ApplyHandedDelete)
    assert (due.transfer.rank, (3,)) == (action.rank, action.slots)
    assert {"key": ("3a",)} == action.delete.tags


@pytest.mark.parametrize("sent", [False, True], ids=["nobody has it", "it was sent"])
def test_late_records_that_a_log_has_lost_are_due_no_more(donor: SlotLog, sent: bool) -> None:
    """They are named. What came before and what comes behind arrives, also where the lost one had been accepted."""
    taker = joiner()
    donor.hand_over(taker)
    donor.append(rows_write({"3a": 1}))
    resumed = len(donor.values)
    donor.append(rows_write({"3b": 1, "4a": 1}))
    if sent:
        for value in donor.hand_overs(taker):
            taker.append_value(value)
    state = donor.replica.state
    gap = Gap("topic", resumed, Anchor(state.offset, state.version, state.chain))
    state.base = LogBase.of(gap)
    _, lost = donor.append(gap)
    assert HandOversLost(state.version, {"n6": 1}) == lost
    # In the log again, for whoever begins at another member's files.
    assert 1 == len(donor.append(gap))
    donor.append(rows_write({"3c": 1}))
    assert [(3,), (3,)] == [each.transfer.slots for each in ChangeView.of(state.changes).due[taker.key]]
    rows = [each.write for actions in donor.hand_over(taker) for each in actions if isinstance(each, ApplyRows)]
    assert rows_write({"3c": 1}) == rows[-1]
    assert (1 if sent else 2) == len(rows)
    assert not state.changes.targets[taker.key].outstanding
    donor.barrier(FORMAL, 2, 3, gains=(3, 4))
    assert FORMAL is state.changes.phase


def test_a_log_that_begins_behind_all_that_was_read_has_no_late_record(donor: SlotLog) -> None:
    """Parts of takeovers are in the state, and stay due."""
    taker = joiner()
    donor.append(rows_write({"3a": 1}))
    state = donor.replica.state
    parts = [each for each in ChangeView.of(state.changes).due[taker.key] if each.transfer.rank is None]
    gap = Gap("topic", state.offset + 5, Anchor(state.offset, state.version, state.chain))
    state.base = LogBase.of(gap)
    assert HandOversLost(state.version + 1, {"n6": 1}) == donor.append(gap)[-1]
    assert parts == list(ChangeView.of(state.changes).due[taker.key])


def test_a_log_that_was_made_again_has_no_late_record_wherever_it_begins(donor: SlotLog) -> None:
    """Its first offset may be above that of a late record, and below the newest one that was read."""
    taker = joiner()
    donor.hand_over(taker)
    donor.append(rows_write({"3a": 1}))
    for _ in range(3):
        donor.append(rows_write({"0a": 1}))
    state = donor.replica.state
    gap = Gap("another topic", state.offset, Anchor(-1, state.version, state.chain))
    state.base = LogBase.of(gap)
    assert HandOversLost(state.version + 1, {"n6": 1}) == donor.append(gap)[-1]
    assert not state.changes.targets[taker.key].outstanding
    donor.append(rows_write({"3c": 1}))
    assert [rows_write({"3c": 1})] == [
        each.write for actions in donor.hand_over(taker) for each in actions if isinstance(each, ApplyRows)
    ]


def test_rows_of_a_slot_that_left_go_to_its_holder_whatever_table_their_writer_names(donor: SlotLog) -> None:
    """A record that somebody made by hand would else put them where no query looks."""
    taker = joiner()
    donor.hand_over(taker)
    for version in (2, 9):
        kept, handed = donor.append(rows_write({"0a": version, "3a": version}, version))
        assert isinstance(kept, ApplyRows)
        assert isinstance(handed, HandOver)
        assert ((0,), (3,), taker.key) == (kept.slots, handed.transfer.slots, handed.target)
