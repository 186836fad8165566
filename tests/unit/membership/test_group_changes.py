"""Which groups a node opens and closes when its slot table changes."""

from __future__ import annotations

import random

from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.group_changes import GroupChanges, group_changes, groups_at
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name


def test_a_node_gets_exactly_the_groups_of_the_table() -> None:
    """Over random changes every node that follows holds what the table gives it, with births and members; following a
    table twice changes nothing more.
    """
    chance = random.Random(14)
    table = SlotTable.create([f"n{number}" for number in range(5)], 3, 60)
    present: dict[str, set[GroupKey]] = {}
    for number in range(60):
        leavers = [node for node in table.nodes if len(table.nodes) > 3 and chance.random() < 0.3]
        table = table.remove_node(leavers[0]) if leavers else table.add_node(f"n{number % 9 + 5}x{number}")
        for node in {*table.nodes, *present}:
            wanted, before = groups_at(table, node), present.get(node, set())
            changes = group_changes(before, wanted)
            present[node] = (before - set(changes.closed)) | set(changes.opened)
            assert set(wanted) == present[node]
            assert {group.group for group in wanted} == set(table.groups_of(node) if node in table.nodes else ())
            assert all(group.birth == table.birth(group.group) for group in wanted)
            assert all(node in founding.members for founding in wanted.values())
            assert GroupChanges() == group_changes(present[node], wanted)


def test_a_group_that_was_born_again_is_another_group() -> None:
    """A node that left and joined again: its former group is closed, the new one opened, under another name."""
    table = SlotTable.create(("n1", "n2", "n3"), 2, 60)
    again = table.remove_node("n3").add_node("n3")
    changes = group_changes(groups_at(table, "n3"), groups_at(again, "n3"))
    assert GroupKey("n3", 1) in changes.closed
    assert GroupKey("n3", 3) in changes.opened
    assert ("n3", "n3@3") == (group_name(GroupKey("n3", 1)), group_name(GroupKey("n3", 3)))


def test_a_forward_topic_has_its_header_and_its_birth() -> None:
    """Also where the node's name has dots; no other topic is a forward log."""
    topics = Topics("c")
    for header, birth in (("n1", 1), ("a.b.2", 17), ("forward.3", 2)):
        assert (header, birth) == topics.group_of(topics.forward(header, birth))
    for topic in (topics.status, topics.table, "c.forward.n1.x", "d.forward.n1.1", "c.forwards.n1.1"):
        assert topics.group_of(topic) is None
