"""What a group that takes slots knows of the deletes of sync senders: theirs are repeated by any receiver, at any time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.consumers.replication.actions import ApplyDelete, ApplyHandedDelete, ApplyLoad, Ignored
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.producer_section import sync_fences
from headrace.schemas.group_changes import BarrierPhase, HandedDelete, HandedOver, MovedProducer, Rank, Takeover
from headrace.schemas.messages import (
    MANIFEST_NUMBER_MAX,
    NO_CHAIN,
    Delete,
    Load,
    decode_message,
    deletes_batch,
    deletes_producer,
    is_of_older_table,
    last_deletes_batch,
)
from headrace.schemas.series import slot_of
from tests.unit.replication.slot_logs import SLOTS_TOTAL, SlotLog, rows_write

PRODUCER = deletes_producer("s1", "e1/1")
DELETE = Delete("db", "t", {"pump": ("p1",)}, 10, 20)
FENCE = Delete("db", "t", {}, 0, 0)
BUCKET = 7
SLOT = slot_of("db", BUCKET, 0, SLOTS_TOTAL)
OTHER = (SLOT + 1) % SLOTS_TOTAL
MOVED = tuple(sorted((SLOT, OTHER)))


@pytest.fixture
def donor() -> SlotLog:
    """A group with all slots that has the deletes of manifest 5 whole."""
    log = SlotLog("n1", ("n1", "n2"))
    log.claim("n1")
    log.append(FENCE, PRODUCER, deletes_batch(5, 1))
    log.append(DELETE, PRODUCER, deletes_batch(5, 1, 1))
    log.append(FENCE, PRODUCER, last_deletes_batch(5))
    return log


@pytest.fixture
def taker() -> SlotLog:
    """A group that is born with two of them."""
    log = SlotLog("n6", ("n6", "n1"), era=2, birth=2, gains=MOVED)
    log.claim("n6")
    return log


def cut(donor: SlotLog, taker: SlotLog, slots: tuple[int, ...] = MOVED) -> None:
    """The slots leave; nothing has arrived yet."""
    donor.barrier(BarrierPhase.PRE, moves={taker: slots})
    donor.barrier(BarrierPhase.FORMAL, moves={taker: slots})


def load_of(log: SlotLog, number: int) -> Load:
    """A load of a file of the sender, in the slot that moves."""
    load = Load(log.leader, "s1", 0, "db", "t", 0, BUCKET, 1, number, number, 0, NO_CHAIN, 1, 0, 1, 1, 1)
    return replace(load, sender="s1", order=f"{number:09}", group="e1/1", number=number)


def test_a_delete_that_a_former_holder_had_behind_it_concerns_no_slot_of_its(donor: SlotLog, taker: SlotLog) -> None:
    """A receiver that was replaced appends it late: rows that came since, and have moved, must stay."""
    cut(donor, taker)
    donor.hand_over(taker)
    assert [] == taker.append(DELETE, PRODUCER, deletes_batch(5, 2, 1))
    # The next list of deletes counts for all slots.
    [found] = taker.append(DELETE, PRODUCER, deletes_batch(6, 2, 1))
    assert isinstance(found, ApplyDelete)


def test_a_delete_concerns_slots_whose_former_holder_did_not_have_it(taker: SlotLog) -> None:
    """Of two former holders one had it. The rows of the other one are hidden, here and where the slot goes next."""
    groups = [SlotLog(name, ("n1", "n2")) for name in ("n1", "n2")]
    for log, slot in zip(groups, (SLOT, OTHER), strict=True):
        log.claim("n1")
        if slot == SLOT:
            log.append(DELETE, PRODUCER, deletes_batch(5, 1, 1))
            log.append(FENCE, PRODUCER, last_deletes_batch(5))
        cut(log, taker, (slot,))
        log.hand_over(taker)
    [found] = taker.append(DELETE, PRODUCER, deletes_batch(5, 2, 1))
    assert isinstance(found, ApplyHandedDelete)
    assert (Rank(2, taker.replica.state.version), (OTHER,)) == (found.rank, found.slots)
    kept = taker.replica.state.changes.deletes
    assert [(OTHER,)] == [each.slots for each in kept.of((SLOT, OTHER)) if each.rank.era == 2]
    last = SlotLog("n7", ("n7", "n6"), era=3, birth=3, gains=MOVED)
    taker.barrier(BarrierPhase.PRE, change=2, table_version=3, moves={last: MOVED})
    taker.barrier(BarrierPhase.FORMAL, change=2, table_version=3, moves={last: MOVED})
    taker.hand_over(last)
    # The slots have left, and one more of that list comes late.
    taker.append(replace(DELETE, end_ns=21), PRODUCER, deletes_batch(5, 3, 1), 1)
    [late] = [decode_message(value).body for value in taker.hand_overs(last)]
    assert isinstance(late, HandedOver)
    assert isinstance(late.body, HandedDelete)
    assert (OTHER,) == late.body.slots


def test_a_file_below_the_deletes_of_a_former_holder_is_void(donor: SlotLog, taker: SlotLog) -> None:
    """Its request outlived the receiver that made it: the file does not bring the deletes, and would undo them."""
    cut(donor, taker)
    donor.hand_over(taker)
    assert [] == taker.append(load_of(taker, 4))
    assert {Ignored.VOID: 1} == dict(taker.replica.ignored)
    [found] = taker.append(load_of(taker, 6))
    assert isinstance(found, ApplyLoad)


def test_the_first_part_of_a_takeover_has_the_deletes_of_senders(donor: SlotLog, taker: SlotLog) -> None:
    """Others follow it: a load or a delete may come between them, and a leader loads from the first one on."""
    cut(donor, taker)
    first, *others = donor.hand_overs(taker)
    assert others
    taker.append_value(first)
    handed = decode_message(first).body
    assert isinstance(handed, HandedOver)
    assert isinstance(handed.body, Takeover)
    assert (MovedProducer(PRODUCER, last_deletes_batch(5), ()),) == handed.body.producers
    assert [] == taker.append(load_of(taker, 4))
    assert [] == taker.append(DELETE, PRODUCER, deletes_batch(5, 2, 1))
    # By that the leader knows that it has come, also behind a restart.
    assert {donor.key: 2} == ChangeView.of(taker.replica.state.changes).taken
    restored = GroupState.from_bytes(taker.replica.state.to_bytes())
    assert {donor.key: 2} == ChangeView.of(restored.changes).taken
    # And members show it to receivers.
    [shown] = ChangeView.of(restored.changes).acceptances()
    assert (donor.key.group, donor.key.birth, 2) == (shown.group, shown.birth, shown.table_version)


def test_deletes_of_an_older_table_count_no_more(donor: SlotLog, taker: SlotLog) -> None:
    """A receiver that was stopped: the group knows no list that a slot has behind it which came since."""
    for log in (donor, taker):
        assert [ApplyDelete] == [type(each) for each in log.append(DELETE, PRODUCER, deletes_batch(6, 2, 1))]
    log = SlotLog("n3", ("n3", "n1"))
    log.claim("n3")
    log.barrier(BarrierPhase.PRE, gains=(SLOT,))
    assert 1 == len(log.append(DELETE, PRODUCER, deletes_batch(6, 1, 1)))
    log.barrier(BarrierPhase.FORMAL, gains=(SLOT,))
    assert [] == log.append(DELETE, PRODUCER, deletes_batch(6, 1, 2))
    assert {Ignored.SUPERSEDED: 1} == dict(log.replica.ignored)
    # It is not even remembered as the newest one, and its sender's own list counts by the newer table.
    assert deletes_batch(6, 1, 1) == log.replica.state.producers[PRODUCER].batch
    assert 1 == len(log.append(DELETE, PRODUCER, deletes_batch(6, 2, 1)))
    # The last fence has no table.
    log.append(FENCE, PRODUCER, last_deletes_batch(6))
    assert last_deletes_batch(6) == log.replica.state.producers[PRODUCER].batch


def test_rows_of_the_newer_table_prove_it_before_the_barrier() -> None:
    """They have its era, and so would a delete that comes behind them: it would hide rows that are yet to come."""
    log = SlotLog("n3", ("n3", "n1"))
    log.claim("n3")
    log.barrier(BarrierPhase.PRE, gains=(SLOT,))
    log.append(rows_write({f"{SLOT}a": 1}, 2), "a writer")
    assert [] == log.append(DELETE, PRODUCER, deletes_batch(6, 1, 1))


def test_deletes_of_other_producers_name_no_table(taker: SlotLog) -> None:
    """Their batches say something else."""
    assert 1 == len(taker.append(DELETE, "a writer", 1))
    assert 1 == len(taker.append(DELETE, "a writer", deletes_batch(6, 1, 1)))


def test_a_batch_is_of_an_older_table() -> None:
    """Whatever the number; the highest version that fits stands for all above it."""
    for number in (0, 1, MANIFEST_NUMBER_MAX):
        for place in (0, 1, 9_999):
            assert is_of_older_table(deletes_batch(number, 3, place), 4)
            assert not is_of_older_table(deletes_batch(number, 4, place), 4)
            assert not is_of_older_table(deletes_batch(number, 5, place), 4)
            assert not is_of_older_table(deletes_batch(number, 1 << 20, place), 1 << 21)
        assert not is_of_older_table(last_deletes_batch(number), 1 << 20)


def test_a_fence_of_some_slots_is_none_of_others() -> None:
    """Of all slots that move together the lowest batch goes first; where one has none, nothing does."""
    older, newer = (MovedProducer(PRODUCER, deletes_batch(number), ((0, NO_CHAIN),)) for number in (5, 6))
    other = MovedProducer("a writer", 3, ())
    own = ((1, 2, 3), (older, other))
    assert (replace(older, seen=()),) == sync_fences((1, 2), (own,))
    assert (replace(older, seen=()),) == sync_fences((1, 2), (own, ((2,), (newer,))))
    assert (replace(newer, seen=()),) == sync_fences((1, 2), (own, ((2,), (newer,)), ((1, 3), (newer,))))
    assert () == sync_fences((1, 4), (own,))
