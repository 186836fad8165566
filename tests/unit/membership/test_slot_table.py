"""The slot table as a value: equal everywhere, balanced, with impossible settings refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership.ring import ClusterInvalid, UnknownNode
from headrace.consumers.membership.slot_table import SlotTable

NODES = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(nodes=NODES, data=st.data())
def test_slots_are_assigned_evenly_and_survive_a_round_trip(nodes: list[str], data: st.DataObject) -> None:
    """Every slot has one group, the largest share is at most one above the smallest, and decoding gives an equal table."""
    replication = data.draw(st.integers(1, len(nodes)))
    table = SlotTable.create(tuple(nodes), replication, 1_000)
    shares = Counter(table.holder(slot) for slot in range(table.slots))
    assert max(shares.values()) - min(shares.get(node, 0) for node in nodes) <= 1
    assert SlotTable.from_bytes(table.to_bytes()) == table
    assert sorted(slot for node in nodes for slot in table.slots_of(node)) == list(range(1_000))


@given(nodes=NODES, data=st.data())
def test_order_of_the_nodes_given_does_not_matter(nodes: list[str], data: st.DataObject) -> None:
    """Any order of the same nodes gives the same bytes."""
    shuffled = data.draw(st.permutations(nodes))
    assert SlotTable.create(tuple(nodes), 1).to_bytes() == SlotTable.create(tuple(shuffled), 1).to_bytes()


@given(nodes=NODES, data=st.data())
def test_a_group_is_the_nodes_that_follow_its_header(nodes: list[str], data: st.DataObject) -> None:
    """Groups have `replication` different members, header first, and each node is in that many groups."""
    replication = data.draw(st.integers(1, len(nodes)))
    table = SlotTable.create(tuple(nodes), replication)
    for header in table.headers:
        members = table.group(header)
        assert (header, replication) == (members[0], len(set(members)))
    assert {replication} == {len(table.groups_of(node)) for node in nodes}


def test_another_process_encodes_the_same_bytes() -> None:
    """Hash seeds of processes do not leak into the table."""
    program = "from headrace.consumers.membership.slot_table import SlotTable; print(SlotTable.create(('x', 'y', 'z'), 2).to_bytes().hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert {SlotTable.create(("x", "y", "z"), 2).to_bytes().hex().encode() + b"\n"} == outputs


@pytest.mark.parametrize(
    ("nodes", "replication", "word"),
    [((), 1, "nodes"), (("a", "a"), 1, "twice"), (("a",), 2, "replication"), (("a",), 0, "replication")],
)
def test_impossible_settings_are_refused_by_name(nodes: tuple[str, ...], replication: int, word: str) -> None:
    """The error names the impossible setting."""
    with pytest.raises(ClusterInvalid, match=word):
        SlotTable.create(nodes, replication)


def test_a_node_that_is_no_member_is_refused() -> None:
    """Asking for a node that is no member names the members."""
    with pytest.raises(UnknownNode, match="the members are"):
        SlotTable.create(("a", "b"), 1).group("c")
