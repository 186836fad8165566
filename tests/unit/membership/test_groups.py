"""The members of a group while a node joins or leaves: the figures of the source, in any order and repetition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership.groups import formal_add, formal_remove, pre_add, pre_remove
from headrace.consumers.membership.ring import ClusterTooSmall, RingNode, UnknownNode
from headrace.consumers.membership.slot_table import SlotTable

FIVE = tuple("12345")
SIX = tuple("126345")
REPLICATION = 3


def members(text: str) -> tuple[str, ...]:
    """`126` → ("1", "2", "6")."""
    return tuple(text)


@pytest.mark.parametrize(
    ("before", "pre", "after"),
    [
        ("123", "1263", "126"),
        ("234", "2634", "263"),
        ("345", "345", "345"),
        ("451", "451", "451"),
        ("512", "512", "512"),
    ],
)
def test_the_figure_of_a_node_that_joins(before: str, pre: str, after: str) -> None:
    """Node 6 joins five nodes with three copies between 2 and 3: groups 1 and 2 replace a member, the others keep theirs."""
    assert members(pre) == pre_add(members(before), "6", SIX)
    assert members(after) == formal_add(members(before), "6", SIX, REPLICATION)


@pytest.mark.parametrize(
    ("before", "pre", "after"),
    [("123", "1234", "124"), ("234", "2345", "245"), ("345", "345", ""), ("451", "451", "451"), ("512", "512", "512")],
)
def test_the_figure_of_a_node_that_leaves(before: str, pre: str, after: str) -> None:
    """Node 3 leaves five nodes with three copies: groups 1 and 2 replace it, and the group of which it is header ends."""
    for ring in (FIVE, members("1245")):
        assert members(pre) == pre_remove(members(before), "3", ring, REPLICATION)
        assert members(after) == formal_remove(members(before), "3", ring, REPLICATION)


@pytest.mark.parametrize("place", ["position", "hash"])
def test_the_tables_of_the_figures(place: str) -> None:
    """A slot table gives the same groups, with positions that are set and with ids whose hashes have this order."""

    def node(number: str) -> str | RingNode:
        return f"plant-{number}" if place == "hash" else RingNode(f"plant-{number}", "126345".index(number))

    def groups(table: SlotTable) -> dict[str, str]:
        return {header[-1]: "".join(each[-1] for each in table.group(header)) for header in table.headers}

    table = SlotTable.create(map(node, FIVE), REPLICATION)
    assert {"1": "126", "2": "263", "6": "634", "3": "345", "4": "451", "5": "512"} == groups(table.add_node(node("6")))
    assert {"1": "124", "2": "245", "4": "451", "5": "512"} == groups(table.remove_node("plant-3"))


STEPS = st.lists(st.booleans(), max_size=6)


@st.composite
def rings(draw: st.DrawFn) -> tuple[SlotTable, str]:
    """A cluster of any size and replication, and a node that is in it or not."""
    ids = draw(st.lists(st.integers(0, 200), min_size=2, max_size=9, unique=True))
    nodes = [RingNode(f"n{each}", each) for each in ids]
    return SlotTable.create(nodes[1:], draw(st.integers(1, len(nodes) - 1)), 64), nodes[0].id


@given(case=rings(), steps=STEPS)
def test_any_order_and_repetition_of_a_join_ends_the_same(case: tuple[SlotTable, str], steps: list[bool]) -> None:
    """Pre and formal in any sequence give the group of the new table once formal was among them, else that of pre."""
    table, name = case
    node = RingNode(name, int(name[1:]))
    after = table.add_node(node)
    for header in table.headers:
        found = table.group(header)
        pre = pre_add(found, name, after.nodes)
        assert set(pre) == set(table.group(header)) | set(after.group(header))
        for formal in steps:
            found = (
                formal_add(found, name, after.nodes, table.replication) if formal else pre_add(found, name, after.nodes)
            )
        expected = after.group(header) if any(steps) else pre if steps else table.group(header)
        assert expected == found


@given(case=rings(), steps=STEPS)
def test_any_order_and_repetition_of_a_removal_ends_the_same(case: tuple[SlotTable, str], steps: list[bool]) -> None:
    """Pre and formal in any sequence give the group of the new table, or none for the header that leaves."""
    after, name = case
    table = after.add_node(RingNode(name, int(name[1:])))
    left = table.remove_node(name)
    for header in table.headers:
        found, replication = table.group(header), table.replication
        pre = pre_remove(found, name, table.nodes, replication)
        expected = left.group(header) if header != name else ()
        assert set(pre) == set(found) | set(expected)
        for formal in steps:
            step = formal_remove if formal else pre_remove
            found = step(found, name, table.nodes, replication)
        assert found == (expected if any(steps) else pre if steps else table.group(header))


def test_a_node_without_replacement_cannot_leave_a_group() -> None:
    """Three nodes with three copies have nobody to take the place of a member."""
    with pytest.raises(ClusterTooSmall):
        pre_remove(members("123"), "2", members("123"), 3)


def test_a_node_that_is_not_on_the_ring_cannot_join() -> None:
    """The ring must have the node already."""
    with pytest.raises(UnknownNode):
        pre_add(members("123"), "6", FIVE)
