"""What moves by slots and by bytes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership import SLOTS_MAX
from headrace.consumers.membership.balancer import BYTE_TOLERANCE, ByteBalancer, SlotCountBalancer
from headrace.consumers.membership.ring import RingNode
from headrace.consumers.membership.running_change import RunningChange, bits_of
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.slot_pull import is_reported, slots_of_bits
from headrace.schemas.membership_records import ChangeKind

NODES = [RingNode(name, place) for place, name in enumerate("abcd")]


def loads(table: SlotTable, slot_bytes: list[int]) -> dict[str, int]:
    """Bytes of each group."""
    return {header: sum(slot_bytes[slot] for slot in table.slots_of(header)) for header in table.headers}


def test_a_hot_range_is_spread_by_bytes() -> None:
    """One group has nine tenths of the bytes: after a balance by bytes all groups have a quarter, and slots differ."""
    table = SlotTable.create(NODES, 1, 400)
    sizes = [900 if slot < 100 else 33 for slot in range(400)]
    after = table.balance(ByteBalancer(sizes))
    found = loads(after, sizes)
    assert max(found.values()) - min(found.values()) < 2 * BYTE_TOLERANCE * sum(sizes) / 4
    assert {"a"} == {previous for _, previous in after.moved}
    # By slots nothing is to be done.
    assert () == table.balance().moved


def test_a_node_that_joins_takes_its_share_of_the_bytes() -> None:
    """It takes from those that have too many, and nobody else gains a slot."""
    table = SlotTable.create(NODES, 1, 400)
    sizes = [900 if slot < 100 else 33 for slot in range(400)]
    after = table.add_node(RingNode("e", 9), ByteBalancer(sizes))
    found, share = loads(after, sizes), sum(sizes) / 5
    assert share * (1 - BYTE_TOLERANCE) <= found["e"] <= share
    assert {"a"} == {previous for _, previous in after.moved}


def test_the_bytes_of_a_node_that_leaves_are_dealt_evenly() -> None:
    """Each slot goes to the group with the fewest bytes, the largest slots first."""
    table = SlotTable.create(NODES, 1, 400)
    sizes = [slot + 1 for slot in range(400)]
    after = table.remove_node("d", ByteBalancer(sizes))
    found = loads(after, sizes)
    # Slots of up to 400 bytes: the last of them decides how even it can be.
    assert max(found.values()) - min(found.values()) <= 400
    assert set(table.slots_of("d")) == {slot for slot, _ in after.moved}


def test_a_cluster_without_bytes_joins_by_slots() -> None:
    """Empty slots are all equal: the new node still gets some."""
    after = SlotTable.create(NODES, 1, 400).add_node(RingNode("e", 9), ByteBalancer([0] * 400))
    assert 76 <= len(after.slots_of("e")) <= 80


def test_one_huge_slot_stays_where_it_is() -> None:
    """A slot larger than the rest together would only make another group too large: the rest is moved, or nothing."""
    sizes = [1_000_000, *[1] * 399]
    table = SlotTable.create(NODES, 1, 400)
    after = table.balance(ByteBalancer(sizes))
    assert after.holder(0) == table.holder(0)


@given(owners=st.lists(st.integers(0, 4), min_size=5, max_size=120), data=st.data())
def test_a_balance_never_makes_it_worse(owners: list[int], data: st.DataObject) -> None:
    """From any table: by slots they differ by one at most; by bytes the largest group never grows."""
    moves = SlotCountBalancer().level(np.array(owners, np.int32), 5)
    after = [moves.get(slot, owner) for slot, owner in enumerate(owners)]
    counts = [after.count(node) for node in range(5)]
    assert max(counts) - min(counts) <= 1
    excess = sum(max(0, owners.count(node) - -(-len(owners) // 5)) for node in range(5))
    deficit = sum(max(0, len(owners) // 5 - owners.count(node)) for node in range(5))
    assert len(moves) == max(excess, deficit)

    sizes = data.draw(st.lists(st.integers(1, 1_000), min_size=len(owners), max_size=len(owners)))
    moves = ByteBalancer(sizes).level(np.array(owners, np.int32), 5)
    assert all(owners[slot] != owner for slot, owner in moves.items())
    # A group that gives and takes in one change would have barriers that count in no log.
    assert {owners[slot] for slot in moves}.isdisjoint(moves.values())

    def largest(where: list[int]) -> int:
        return max(sum(size for size, owner in zip(sizes, where, strict=True) if owner == node) for node in range(5))

    assert largest([moves.get(slot, owner) for slot, owner in enumerate(owners)]) <= largest(owners)


@pytest.mark.parametrize("balancer", [SlotCountBalancer(), ByteBalancer(range(1, 401))])
def test_a_balanced_cluster_stays(balancer: ByteBalancer | SlotCountBalancer) -> None:
    """A second balance moves nothing: nothing moves for ever."""
    table = SlotTable.create(NODES, 1, 400).balance(balancer)
    assert () == table.balance(balancer).moved


def test_a_balance_by_bytes_takes_a_time_that_grows_with_the_slots() -> None:
    """The leader of the metadata group does nothing else meanwhile, and it grew with their square."""
    sizes = [1 + slot * slot % 9_973 for slot in range(200_000)]
    table, began_s = SlotTable.create(NODES, 1, len(sizes)), time.process_time()
    after = table.add_node(RingNode("e", 9), ByteBalancer(sizes))
    assert time.process_time() - began_s < 5.0
    found, share = loads(after, sizes), sum(sizes) / 5
    assert share * (1 - BYTE_TOLERANCE) <= found["e"] <= share


def test_the_state_of_a_change_of_a_million_slots_is_quick() -> None:
    """Each reader computes it again at each record of a change."""
    table = SlotTable.create(NODES, 1, SLOTS_MAX)
    joined = table.add_node(RingNode("e", 9))
    change = RunningChange(1, "r", ChangeKind.ADD, "e", "s", table, joined, formal=True)
    began_s = time.process_time()
    slots = joined.slots_of("e")
    done = change.with_received("e", bits_of(slots))
    assert is_reported(done, "e", slots)
    assert done.migrated
    assert len(slots) == done.slots_done
    assert time.process_time() - began_s < 2.5
    assert frozenset(slots) == slots_of_bits(done.gained["e"])
    assert 0 == bits_of(())
