"""The slot table as a value: equal everywhere, balanced, with impossible settings refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership.ring import ClusterInvalid, ClusterTooSmall, NodeExists, RingNode, UnknownNode
from headrace.consumers.membership.slot_table import SlotTable, UnknownSlot
from headrace.schemas.framing import FrameInvalid, codec
from headrace.schemas.tables import DatabaseSchema

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


CHANGED = """
from headrace.consumers.membership.balancer import ByteBalancer
from headrace.consumers.membership.slot_table import SlotTable
table = SlotTable.create({"x", "y", "z"}, 2, 1_000).add_node("w").remove_node("y").add_node("v")
print(table.to_bytes().hex(), table.balance(ByteBalancer([slot * slot for slot in range(1_000)])).to_bytes().hex())
"""


def test_another_process_computes_and_encodes_the_same_bytes() -> None:
    """Hash seeds of processes do not leak into a table, nor into what its balancer chose."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", CHANGED], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    table = SlotTable.create(("x", "y", "z"), 2, 1_000).add_node("w").remove_node("y").add_node("v")
    assert 1 == len(outputs)
    assert table.to_bytes().hex().encode() in outputs.pop()


def check_change(before: SlotTable, after: SlotTable) -> None:
    """One holder per slot; previous holders where the holder is another one, and only there; one version more."""
    assert (before.slots, before.version + 1) == (after.slots, after.version)
    assert before.slots == sum(after.slot_counts().values())
    for slot in range(before.slots):
        same = before.holder(slot) == after.holder(slot)
        assert (None if same else before.holder(slot)) == after.previous_holder(slot)
    assert SlotTable.from_bytes(after.to_bytes()) == after


@given(nodes=NODES, changes=st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=12))
def test_tables_stay_even_through_any_changes(nodes: list[str], changes: list[tuple[bool, int]]) -> None:
    """Only what a joiner gains moves, only what a leaver has moves, no more than needed, and counts differ by one at most."""
    table = SlotTable.create(nodes, 1, 500)
    for joins, number in changes:
        before = table
        if joins:
            if f"j{number}" in table.nodes:
                continue
            table = table.add_node(f"j{number}")
            assert {f"j{number}"} >= {table.holder(slot) for slot, _ in table.moved}
            assert table.slots // len(table.nodes) == len(table.moved)
        elif len(table.nodes) > 1:
            leaver = table.nodes[number % len(table.nodes)]
            table = table.remove_node(leaver)
            assert before.slots_of(leaver) == tuple(slot for slot, _ in table.moved)
            assert ((leaver, before.birth(leaver)),) == table.ended
        else:
            continue
        check_change(before, table)
        counts = table.slot_counts().values()
        assert max(counts) - min(counts) <= 1


@given(nodes=NODES, slots=st.integers(20, 400))
def test_a_removal_undoes_the_join_before_it(nodes: list[str], slots: int) -> None:
    """Every node has as many slots as before both."""
    table = SlotTable.create(nodes, 1, slots)
    assert table.slot_counts() == table.add_node("joiner").remove_node("joiner").slot_counts()


def test_each_donor_gives_its_last_slots() -> None:
    """Contiguous ranges lose their ends, so that few runs of slots remain."""
    table = SlotTable.create([RingNode("a", 1), RingNode("b", 2), RingNode("c", 3)], 1, 12)
    joined = table.add_node(RingNode("d", 4))
    assert (3, 7, 11) == joined.slots_of("d")
    assert ["a", "b", "c"] == [joined.previous_holder(slot) for slot in (3, 7, 11)]


def test_a_group_is_born_with_the_table_that_has_it_first() -> None:
    """A node that joins again has a group of a later birth, so its old log is not its new one."""
    table = SlotTable.create(("a", "b"), 1)
    joined = table.add_node("c")
    removed = joined.remove_node("c")
    again = removed.add_node("c")
    assert [1, 2, 4] == [table.birth("a"), joined.birth("c"), again.birth("c")]
    # The group that has ended still has a log, which donors read to its end.
    assert 2 == removed.birth("c")
    with pytest.raises(UnknownNode):
        removed.remove_node("a").birth("c")


def test_a_node_holds_the_slots_of_all_its_groups() -> None:
    """With two copies each slot has two holders; others, and nodes that are no members, have none of it."""
    table = SlotTable.create([RingNode("a", 1), RingNode("b", 2), RingNode("c", 3)], 2, 3)
    assert {("a", 0), ("b", 0), ("b", 1), ("c", 1), ("c", 2), ("a", 2)} == {
        (node, slot) for node in ("a", "b", "c", "x") for slot in range(3) if table.holds(node, slot)
    }


@pytest.mark.parametrize("slot", [-1, 1_000])
def test_a_slot_outside_the_table_is_an_error(slot: int) -> None:
    """A negative number is no slot from the end."""
    table = SlotTable.create(("a",), 1, 1_000)
    for use in (table.holder, table.previous_holder, lambda slot: table.holds("a", slot)):
        with pytest.raises(UnknownSlot, match="no slot"):
            use(slot)


def test_several_databases_stay_even_after_a_join() -> None:
    """The slots of each database are spread over all groups, the new one too."""
    table = SlotTable.create([f"n{number}" for number in range(4)], 1).add_node("n4")
    for name in ("plant", "fleet", "grid"):
        database = DatabaseSchema(name)
        day_ns = database.slice_ns
        found = Counter(
            table.route(database, day * day_ns, bucket) for day in range(365) for bucket in range(database.buckets)
        )
        # 584 of 2,920 each, if it were exact; the hash spreads as chance does.
        assert set(table.headers) == set(found)
        assert max(found.values()) < 1.3 * min(found.values())


def test_many_changes_leave_a_small_table() -> None:
    """100 nodes and 10,000 slots, after 100 joins and removals in turn, fit 200 KB."""
    table = SlotTable.create([f"n{number}" for number in range(100)], 3)
    for number in range(100):
        table = table.remove_node(table.nodes[number * 7 % 101]) if number % 2 else table.add_node(f"j{number}")
        assert len(table.to_bytes()) < 200_000
    assert set(table.slot_counts().values()) == {100}


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xc3\x01garbage"])
def test_bytes_of_no_table_are_refused(damage: bytes) -> None:
    """They raise an error that readers of the log know."""
    with pytest.raises(FrameInvalid):
        SlotTable.from_bytes(damage)


@pytest.mark.parametrize(
    "content",
    [
        {"run_lengths": [1 << 30]},
        {"run_lengths": [0]},
        {"run_lengths": [-5]},
        {"run_owners": [1]},
        {"run_owners": [-1]},
        {"run_owners": [1 << 40]},
        {"run_owners": []},
        {"replication": 2},
        {"nodes": []},
        {"moved": [{"previous": "b", "slots": [0, 0]}]},
        {"moved": [{"previous": "b", "slots": [8]}]},
    ],
)
def test_a_table_that_contradicts_itself_is_refused(content: dict[str, object]) -> None:
    """Whatever another build or a fault may write, a reader gets an error, and no memory by a number in the bytes."""
    node = {"id": "a", "position": bytes(8), "birth": 1}
    record = {"version": 1, "replication": 1, "nodes": [node], "run_owners": [0], "run_lengths": [8], "moved": []}
    assert 8 == SlotTable.from_bytes(codec("slot_table").encode({**record, "ended": []})).slots
    with pytest.raises((FrameInvalid, ClusterInvalid)):
        SlotTable.from_bytes(codec("slot_table").encode({**record, "ended": [], **content}))


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
    table = SlotTable.create(("a", "b"), 1)
    for use in (table.group, table.groups_of, table.slots_of, table.birth, table.remove_node):
        with pytest.raises(UnknownNode, match="the members are"):
            use("c")


def test_a_change_that_no_cluster_can_have_is_refused() -> None:
    """A second node of one id, an id that no topic can have, fewer nodes than copies, fewer slots than nodes."""
    table = SlotTable.create(("a", "b"), 2, 2)
    with pytest.raises(NodeExists):
        table.add_node("a")
    with pytest.raises(ClusterTooSmall):
        table.remove_node("a")
    with pytest.raises(ClusterInvalid, match="slots 2"):
        table.add_node("c")
    for name in ("", "c/d", "ä", "-c", "c" * 101):
        with pytest.raises(ClusterInvalid):
            SlotTable.create(("a", "b"), 2).add_node(name)


def test_groups_have_donors_until_the_next_change() -> None:
    """Those that gave them slots in the last change, also where the group was there before."""
    table = SlotTable.create(("a", "b", "c"), 2, 1_000).add_node("d")
    assert [set(), set(), set(), {"a", "b", "c"}] == [set(table.donors(each)) for each in "abcd"]
    smaller = table.remove_node("a")
    assert [{"a"}] * 3 == [set(smaller.donors(each)) for each in "bcd"]
    with pytest.raises(UnknownNode):
        table.donors("e")
