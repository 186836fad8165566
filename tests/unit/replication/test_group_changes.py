"""Barriers and hand-overs: members change in the log alone, and late records follow the slots that moved."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from itertools import chain
from typing import Any, TypeVar

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from headrace.consumers.replication import cut_memory, producer_section
from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyRows,
    ApplyWrite,
    CutSlots,
    Ignored,
    ReleaseSlots,
    SealNow,
)
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.transfers import HandOver
from headrace.consumers.replication.write_slots import SlotsUnknown
from headrace.schemas.framing import FrameInvalid, codec
from headrace.schemas.group_changes import Barrier, BarrierPhase, HandOverPosition, Rank, from_runs, to_runs
from headrace.schemas.messages import Delete, Leadership, Load, Seal, decode_message
from tests.unit.replication.slot_logs import ANCHOR, SlotLog, rows_write

T = TypeVar("T")
PRE, FORMAL, REVERT = BarrierPhase.PRE, BarrierPhase.FORMAL, BarrierPhase.REVERT
TAKEOVER_PARTS = 2
"""The slots, and the producers: everyone who appended before the cut."""
OLD, BOTH, NEW = ("n1", "n2", "n3"), ("n1", "n2", "n6", "n3"), ("n1", "n2", "n6")


@pytest.fixture
def donor() -> SlotLog:
    """A group with a leader; it has all slots."""
    log = SlotLog("n1", OLD)
    log.claim("n3")
    return log


@pytest.fixture
def taker() -> SlotLog:
    """The group of a node that joins, born with table 2."""
    log = SlotLog("n6", ("n6", "n1", "n2"), era=2, birth=2, gains=tuple(range(8)))
    log.claim("n6")
    return log


def kinds(actions: Sequence[object]) -> list[type]:
    """The kinds of some actions."""
    return [type(action) for action in actions]


def all_of(kind: type[T], actions: Iterable[Action]) -> list[T]:
    """Some actions, which are all of one kind."""
    found = list(actions)
    assert {kind} >= set(kinds(found))
    return [action for action in found if isinstance(action, kind)]


def cut(donor: SlotLog, taker: SlotLog, slots: tuple[int, ...] = (3, 4)) -> None:
    """Both phases of a change by which slots leave."""
    donor.barrier(PRE, moves={taker: slots})
    donor.barrier(FORMAL, moves={taker: slots})


def test_pre_changes_members_only_and_formal_seals_everything(donor: SlotLog, taker: SlotLog) -> None:
    """The era and the slots change with the second phase, at one version, behind a seal of the whole group."""
    assert [] == donor.barrier(PRE, members=BOTH, moves={taker: (3,)})
    changes = donor.replica.state.changes
    assert (BOTH, 1, {}) == (changes.members, changes.era, changes.given)
    donor.append(rows_write({"3a": 1}))
    seal, left = donor.barrier(FORMAL, members=NEW, moves={taker: (3,)})
    assert isinstance(seal, SealNow)
    assert isinstance(left, CutSlots)
    assert (4, 4, 4) == (seal.version, left.version, donor.replica.state.frontier)
    assert [(taker.key, (3,))] == [(each.key, each.slots) for each in left.moves]
    assert (NEW, 2, {3}) == (changes.members, changes.era, set(changes.given))
    assert GroupState.from_bytes(seal.state) == donor.replica.state


def test_a_claim_counts_only_from_a_member_at_that_version(donor: SlotLog) -> None:
    """The joiner may lead from the first phase on, and the surplus member not after the second."""
    donor.claim("n6")
    assert "n3" == donor.leader.node
    donor.barrier(PRE, members=BOTH)
    donor.claim("n6")
    assert "n6" == donor.leader.node
    donor.barrier(FORMAL, members=NEW)
    donor.claim("n3")
    assert "n6" == donor.leader.node
    assert {Ignored.CLAIM_LOST: 2} == dict(donor.replica.ignored)


def test_a_leader_that_is_no_member_loses_leadership_at_once(donor: SlotLog) -> None:
    """Whatever it appends behind the barrier is ignored; the epoch goes up with the next claim."""
    leader = donor.leader
    donor.barrier(PRE, members=BOTH)
    donor.barrier(FORMAL, members=NEW)
    assert donor.replica.state.leader is None
    assert [] == donor.append(Seal(leader, ANCHOR))
    assert {Ignored.NOT_LEADER: 1} == dict(donor.replica.ignored)
    assert Leadership(2, "n1", "i2") == donor.claim("n1") == donor.replica.state.leader


@pytest.mark.parametrize(
    "orders",
    [
        [(FORMAL, 1, 2)],
        [(PRE, 1, 2), (PRE, 1, 2), (FORMAL, 1, 2), (FORMAL, 1, 2), (PRE, 1, 2)],
        [(FORMAL, 1, 2), (REVERT, 1, 2), (PRE, 1, 2)],
    ],
)
def test_formal_contains_pre_and_pre_after_formal_changes_nothing(
    donor: SlotLog, taker: SlotLog, orders: list[tuple[BarrierPhase, int, int]]
) -> None:
    """Every order and repetition ends in the same members, era and slots."""
    donor.claim("n1")
    for phase, change, table_version in orders:
        members = {PRE: BOTH, FORMAL: NEW, REVERT: OLD}[phase]
        moves = {} if phase is REVERT else {taker: (3, 4)}
        donor.barrier(phase, change, table_version, members, moves)
    changes = donor.replica.state.changes
    assert (NEW, 2, {3, 4}, FORMAL) == (changes.members, changes.era, set(changes.given), changes.phase)


def test_a_cancelled_change_returns_to_the_old_members_for_good(donor: SlotLog) -> None:
    """Its barriers may still arrive, in the name of an earlier leader: none of them counts."""
    donor.barrier(PRE, members=BOTH)
    donor.barrier(REVERT, members=OLD)
    for phase in (PRE, FORMAL, REVERT):
        donor.barrier(phase, members=NEW)
    changes = donor.replica.state.changes
    assert (OLD, 1, REVERT) == (changes.members, changes.era, changes.phase)
    assert {Ignored.OUT_OF_ORDER: 3} == dict(donor.replica.ignored)
    assert "n3" == donor.leader.node


def test_a_cancellation_that_comes_first_keeps_the_change_away(donor: SlotLog) -> None:
    """A group that never took its new member needs none: the first phase that comes late is ignored."""
    donor.barrier(REVERT, members=OLD)
    donor.barrier(PRE, members=BOTH)
    assert OLD == donor.replica.state.changes.members


def test_a_barrier_of_an_older_change_is_ignored(donor: SlotLog) -> None:
    """The next change names all members, so a group that missed a cancellation needs no other record."""
    donor.barrier(PRE, 1, 2, BOTH)
    donor.barrier(PRE, 2, 2, (*OLD, "n9"))
    for phase in (FORMAL, REVERT):
        donor.barrier(phase, 1, 2, NEW)
    assert (*OLD, "n9") == donor.replica.state.changes.members
    assert {Ignored.OUT_OF_ORDER: 2} == dict(donor.replica.ignored)


def test_slots_leave_before_the_next_table(donor: SlotLog, taker: SlotLog) -> None:
    """A barrier of the next table does not count while the log lacks the cut; that of a cancelled change does."""
    donor.barrier(PRE, 1, 2, moves={taker: (3,)})
    donor.barrier(PRE, 2, 3)
    assert 1 == donor.replica.state.changes.change
    donor.barrier(PRE, 2, 2)
    assert 2 == donor.replica.state.changes.change
    donor.barrier(PRE, 3, 3)
    assert (3, 2) == (donor.replica.state.changes.change, donor.replica.state.changes.era)


def test_only_the_leader_appends_barriers(donor: SlotLog) -> None:
    """A zombie leader changes no member."""
    zombie = donor.replica.state.leader
    donor.claim("n1")
    donor.barrier(PRE, members=BOTH, leader=zombie)
    assert OLD == donor.replica.state.changes.members


@pytest.mark.parametrize(
    "wrong",
    [
        {"change": 0},
        {"table_version": 1},
        {"members": ()},
        {"members": ("n1", "n1")},
        {"members": ("",)},
        {"slots_total": 3},
        {"gains": (3,)},
        {"gains": (9,)},
        {"phase": REVERT},
    ],
    ids=str,
)
def test_a_barrier_that_no_change_has_is_ignored(donor: SlotLog, taker: SlotLog, wrong: dict[str, Any]) -> None:
    """By the record alone, also under the leader."""
    donor.barrier(FORMAL, moves={taker: (3,)})
    body = decode_message(donor.values[-1]).body
    assert isinstance(body, Barrier)
    other = SlotLog("n1", OLD)
    other.claim("n3")
    assert [] == other.append(replace(body, **wrong))
    assert {Ignored.INVALID: 1} == dict(other.replica.ignored)
    assert [SealNow, CutSlots] == kinds(other.append(body))


def test_a_group_gives_and_takes_in_different_changes(donor: SlotLog, taker: SlotLog) -> None:
    """One era could not be below the next holder's and at that of the slots it takes."""
    donor.barrier(PRE, moves={taker: (3,)}, gains=(6,))
    assert {Ignored.OUT_OF_ORDER: 1} == dict(donor.replica.ignored)


def test_late_rows_are_divided_by_their_slots(donor: SlotLog, taker: SlotLog) -> None:
    """Kept ones are applied, moved ones handed over with the era under which this group held them, in log order."""
    cut(donor, taker)
    late = rows_write({"1a": 1, "3a": 2, "4a": 3})
    kept, handed = donor.append(late, "p")
    assert kept == ApplyRows(4, Rank(2, 4), (1,), late)
    assert isinstance(handed, HandOver)
    assert (Rank(1, 4), (3, 4)) == (handed.transfer.rank, handed.transfer.slots)
    assert handed.previous == HandOverPosition(3, TAKEOVER_PARTS - 1)
    assert [HandOver] == kinds(donor.append(rows_write({"3a": 5}), "p", 2))
    own = rows_write({"1a": 5})
    assert [ApplyWrite(6, own)] == donor.append(own, "p", 3)
    taken = donor.hand_over(taker)
    assert [ApplyRows(4, Rank(1, 4), (3, 4), late)] == taken[2]
    assert [[], [], [ApplyRows], [ApplyRows]] == [kinds(actions) for actions in taken]
    assert [] == donor.hand_overs(taker)
    assert {} == donor.replica.state.changes.cuts


def test_a_repeated_late_message_is_handed_over_once(donor: SlotLog, taker: SlotLog) -> None:
    """The donor remembers its producers on; a zombie's batch is not handed over either."""
    cut(donor, taker)
    donor.append(rows_write({"3a": 1}), "p", 2)
    assert [] == donor.append(rows_write({"3a": 1}), "p", 2)
    assert [] == donor.append(rows_write({"3a": 0}), "p", 1)


def test_hand_overs_count_in_order_and_once(donor: SlotLog, taker: SlotLog) -> None:
    """Several leaders send from any position: what was lost comes again, what came is not applied twice."""
    cut(donor, taker)
    for value in (1, 2, 3):
        donor.append(rows_write({"3a": value}), "p", value)
    takeover, producers, first, second, third = donor.hand_overs(taker)
    for too_early in (producers, first, third):
        assert [] == taker.append_value(too_early)
    taker.append_value(takeover)
    assert [] == taker.append_value(first)
    taker.append_value(producers)
    assert [ApplyRows] == kinds(taker.append_value(first))
    for wrong in (first, takeover, producers, third):
        assert [] == taker.append_value(wrong)
    assert [ApplyRows] == kinds(taker.append_value(second))
    assert [ApplyRows] == kinds(taker.append_value(third))
    assert {Ignored.OUT_OF_ORDER: 8} == dict(taker.replica.ignored)


def test_a_delete_goes_to_every_group_that_took_slots(donor: SlotLog, taker: SlotLog) -> None:
    """And applies here. There it concerns the slots that moved, below its rank in the donor's log."""
    other = SlotLog("n4", ("n4", "n5", "n1"), era=2, birth=2, gains=(4, 5))
    other.claim("n4")
    donor.barrier(FORMAL, moves={taker: (3,), other: (4, 5)})
    delete = Delete("db", "t", {"a": ("x",)})
    own, *handed = donor.append(delete)
    assert own == ApplyDelete(3, delete)
    assert [(other.key, (4, 5)), (taker.key, (3,))] == [
        (each.target, each.transfer.slots) for each in all_of(HandOver, handed)
    ]
    assert [ApplyHandedDelete(4, Rank(1, 3), (3,), delete)] == donor.hand_over(taker)[-1]
    assert [ApplyHandedDelete(4, Rank(1, 3), (4, 5), delete)] == donor.hand_over(other)[-1]


def test_late_rows_follow_a_slot_through_two_groups_with_their_rank(donor: SlotLog, taker: SlotLog) -> None:
    """Rank and producer are those of the log that first took the rows."""
    third = SlotLog("n7", ("n7", "n1", "n2"), era=3, birth=3, gains=(3, 4))
    third.claim("n7")
    cut(donor, taker)
    donor.hand_over(taker)
    taker.barrier(FORMAL, 2, 3, moves={third: (3,)})
    taker.hand_over(third)
    late = rows_write({"3a": 1, "4a": 1})
    donor.append(late, "p")
    ((kept, handed),) = donor.hand_over(taker)
    assert kept == ApplyRows(taker.replica.state.version, Rank(1, 5), (4,), late)
    assert isinstance(handed, HandOver)
    assert handed.transfer.rank == Rank(1, 5)
    ((applied,),) = taker.hand_over(third)
    assert applied == ApplyRows(len(third.values), Rank(1, 5), (3,), late)


def test_deletes_move_with_a_slot_for_late_rows_of_earlier_holders(donor: SlotLog, taker: SlotLog) -> None:
    """The files that move bring their own; a row that comes late has none, and must not come back."""
    third = SlotLog("n7", ("n7", "n1", "n2"), era=3, birth=3, gains=(3, 4))
    cut(donor, taker)
    donor.hand_over(taker)
    delete = Delete("db", "t", {"key": ("3a",)})
    taker.append(delete)
    taker.replica.state = GroupState.from_bytes(taker.replica.state.to_bytes())
    taker.barrier(FORMAL, 2, 3, moves={third: (3,)})
    moved = all_of(ApplyHandedDelete, chain.from_iterable(taker.hand_over(third)))
    assert [(Rank(2, 4), (3,), delete)] == [(each.rank, each.slots, each.delete) for each in moved]


def test_late_rows_go_to_the_next_holder_when_one_ends(donor: SlotLog, taker: SlotLog) -> None:
    """The barrier of the later change names the slots again; their late rows keep the era of the first cut."""
    third = SlotLog("n7", ("n7", "n1", "n2"), era=3, birth=3, gains=(3, 4))
    third.claim("n7")
    cut(donor, taker)
    donor.hand_over(taker)
    donor.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    donor.append(rows_write({"3a": 1}), "p")
    assert [] == donor.hand_overs(taker)
    assert [ApplyRows(3, Rank(1, 6), (3,), rows_write({"3a": 1}))] == donor.hand_over(third)[-1]


@pytest.mark.parametrize("proof", ["write", "takeover", "formal"])
def test_a_slot_that_comes_back_is_held_from_the_first_proof_on(donor: SlotLog, taker: SlotLog, proof: str) -> None:
    """A writer of the new table is ahead of the barrier: its rows outrank those of the former holder at once."""
    cut(donor, taker)
    donor.hand_over(taker)
    donor.barrier(PRE, 2, 3, gains=(3, 4))
    taker.barrier(FORMAL, 2, 3, moves={donor: (3, 4)})
    early = donor.append(rows_write({"3a": 1}), "old")
    assert [HandOver] == kinds(early)
    if proof == "takeover":
        taker.hand_over(donor)
    elif proof == "formal":
        # A second phase counts once nothing is due for slots that come back.
        donor.hand_over(taker)
        donor.barrier(FORMAL, 2, 3, gains=(3, 4))
    new = rows_write({"3a": 2}, 3)
    back = ReleaseSlots(len(donor.values) + 1, (3, 4))
    assert [*([back] if proof == "write" else []), ApplyWrite(back.version, new)] == donor.append(new, "new")
    assert 1 == sum(
        action.slots == (3, 4) for actions in donor.actions for action in actions if isinstance(action, ReleaseSlots)
    )
    assert (3, {}) == (donor.replica.state.changes.era, donor.replica.state.changes.given)
    donor.hand_over(taker)
    assert [Rank(1, 6)] == [each.rank for each in all_of(ApplyRows, taker.hand_over(donor)[-1])]


def test_a_takeover_of_an_older_table_does_not_bring_slots_back(donor: SlotLog, taker: SlotLog) -> None:
    """It may arrive after the slots have left again."""
    third = SlotLog("n7", ("n7", "n1", "n2"), era=3, birth=3, gains=(3, 4))
    cut(donor, taker)
    late = donor.hand_overs(taker)[0]
    taker.barrier(FORMAL, 2, 3, moves={third: (3, 4)})
    taker.append_value(late)
    assert {3, 4} == set(taker.replica.state.changes.given)


def test_repeats_and_zombies_are_recognised_at_the_new_holder(donor: SlotLog, taker: SlotLog) -> None:
    """For rows of the slots that moved only, and by what the donor knew as of the cut."""
    for producer in "pq":
        donor.append(rows_write({"3a": 1}), producer, 5)
    cut(donor, taker)
    donor.append(rows_write({"1a": 9}), "p", 9)
    donor.hand_over(taker)
    assert [] == taker.append(rows_write({"3a": 1}), "p", 5)
    assert {Ignored.SUPERSEDED: 1} == dict(taker.replica.ignored)
    newer = rows_write({"3a": 2}, 2)
    assert [ApplyWrite(5, newer)] == taker.append(newer, "p", 6)
    mixed = rows_write({"3a": 0, "6a": 0}, 2)
    assert [ApplyRows(6, Rank(2, 6), (6,), mixed)] == taker.append(mixed, "q", 4)


def test_a_late_message_is_remembered_as_its_producers(donor: SlotLog, taker: SlotLog) -> None:
    """A zombie of an older batch that finds the new holder does not cover what came by hand-over."""
    cut(donor, taker)
    donor.append(rows_write({"3a": 6}), "p", 6)
    donor.hand_over(taker)
    assert [] == taker.append(rows_write({"3a": 5}, 2), "p", 5)
    assert [] == taker.append(rows_write({"3a": 6}), "p", 6)


def test_a_takeover_has_as_many_parts_as_it_needs(
    donor: SlotLog, taker: SlotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divided by estimated sizes alone, so every leader divides it alike; one producer may be in several parts."""
    monkeypatch.setattr(cut_memory, "TAKEOVER_BYTES_MAX", 200)
    for number in range(10):
        for sequence in range(10 if number == 3 else 1):
            donor.append(rows_write({"3a": 1}), f"p{number}", 7, sequence)
    cut(donor, taker)
    values = donor.hand_overs(taker)
    assert len(values) > 5
    assert max(map(len, values)) < 600
    for value in values:
        taker.append_value(value)
    for number in range(10):
        assert [] == taker.append(rows_write({"3a": 1}), f"p{number}", 7, 9 if number == 3 else 0)
    donor.accept(taker)
    donor.append(rows_write({"3a": 4}), "late")
    assert [[ApplyRows]] == [kinds(actions) for actions in donor.hand_over(taker)]


def test_the_memory_of_a_former_holders_producers_is_bounded(
    donor: SlotLog, taker: SlotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one with the oldest last record is forgotten, also by a replica that was restored in between."""
    monkeypatch.setattr(producer_section, "SECTION_PRODUCERS_MAX", 3)
    cut(donor, taker)
    for number in (1, 2, 3, 1, 4):
        donor.append(rows_write({"3a": number}), f"p{number}", 2, donor.replica.state.version)
        taker.replica.state = GroupState.from_bytes(taker.replica.state.to_bytes())
        donor.hand_over(taker)
    (origin,) = taker.replica.state.changes.origins.values()
    assert ["p3", "p1", "p4"] == list(origin.sections[0].producers)


LOAD = Load(Leadership(1, "n3", "i1"), "edge", 0, "db", "t", 0, 0, 1, 5, 6, 0, bytes(16), 9, 0, 99, 1_000, 1)


def test_a_file_for_a_slot_that_moved_is_refused(donor: SlotLog, taker: SlotLog) -> None:
    """Its leader reads that; a file that was loaded before the cut is known at the new holder."""
    donor.append(LOAD)
    donor.barrier(FORMAL, moves={taker: tuple(range(8))})
    assert [] == donor.append(replace(LOAD, bucket=1))
    assert {Ignored.SLOT_MOVED: 1} == dict(donor.replica.ignored)
    donor.hand_over(taker)
    assert [] == taker.append(replace(LOAD, leadership=taker.leader))
    assert {Ignored.REPEATED: 1} == dict(taker.replica.ignored)


def test_a_refused_late_record_does_not_end_the_hand_over(donor: SlotLog, taker: SlotLog) -> None:
    """An operator refused it at the new holder: what follows names its position."""
    cut(donor, taker)
    donor.append(rows_write({"3a": 1}), "p")
    donor.append(rows_write({"3a": 2}), "p", 2)
    *takeover, refused, last = donor.hand_overs(taker)
    for value in takeover:
        taker.append_value(value)
    taker.replica.knows_tables = lambda _offset, _digest, _tables: False
    assert [] == taker.append_value(refused)
    assert {Ignored.REFUSED: 1} == dict(taker.replica.ignored)
    taker.replica.knows_tables = lambda _offset, _digest, _tables: True
    assert [ApplyRows] == kinds(taker.append_value(last))


def test_a_group_that_cannot_follow_slots_stops(donor: SlotLog, taker: SlotLog) -> None:
    """A build that does not divide rows must not apply them here while another hands them over."""
    cut(donor, taker)
    donor.replica.slots_of = Replica(OLD).slots_of
    with pytest.raises(SlotsUnknown):
        donor.append(rows_write({"3a": 1}))


def test_a_state_of_an_earlier_build_is_read(donor: SlotLog) -> None:
    """It has no members: those of the birth apply, with its era."""
    text = resources.files("headrace.schemas").joinpath("released/state.0.2.0-loads.avsc").read_text("utf-8")
    schema = fastavro.parse_schema(json.loads(text))
    donor.append(rows_write({"3a": 1}), "p")
    record = codec("state").decode(donor.replica.state.to_bytes())
    del record["changes"]
    out = io.BytesIO()
    name = str(fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO"))
    out.write(b"\xc3\x01" + bytes.fromhex(name))
    fastavro.schemaless_writer(out, schema, record)
    restored = Replica(OLD, GroupState.from_bytes(out.getvalue()), era=1)
    assert restored.state == donor.replica.state


def test_all_of_it_is_in_the_state(donor: SlotLog, taker: SlotLog) -> None:
    """A replica that is restored in between decides the same on."""
    donor.append(rows_write({"3a": 1}), "p", 5)
    cut(donor, taker)
    donor.append(rows_write({"3a": 2}), "p", 6)
    donor.hand_overs(taker)
    for log in (donor, taker):
        log.replica.state = GroupState.from_bytes(log.replica.state.to_bytes())
        assert log.replica.state.to_bytes() == log.replica.state.to_bytes()
    donor.hand_over(taker)
    fresh = [log.new_replica() for log in (donor, taker)]
    for log, replica in zip((donor, taker), fresh, strict=True):
        for offset, value in enumerate(log.values):
            replica.apply(offset, value, (("format", b"3"),))
        assert replica.state == log.replica.state
        assert replica.state.to_bytes() == log.replica.state.to_bytes()


def test_runs_of_slots() -> None:
    """A donor gives its last slots: one run. Others than `to_runs` gives are no record."""
    assert [3, 4, 9, 1] == to_runs((3, 4, 5, 6, 9))
    assert (3, 4, 5, 6, 9) == from_runs([3, 4, 9, 1])
    for wrong in ([3], [3, 0], [3, -1], [-1, 1], [3, 1, 4, 1], [5, 1, 3, 1], [0, 1 << 40]):
        with pytest.raises(FrameInvalid):
            from_runs(wrong)
