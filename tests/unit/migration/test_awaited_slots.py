"""Which slots of a group here are on their way, while a change reaches the log of each group at a moment of its own."""

from __future__ import annotations

import pytest

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.running_change import RunningChange
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey
from headrace.schemas.membership_records import ChangeKind
from tests.unit.migration.moves import ANCHOR, SLOTS, TABLE, Moves, topic_of

LEFT = TABLE.remove_node("n4")
BACK = RunningChange(2, "r2", ChangeKind.REMOVE, "n4", "s", TABLE, LEFT, formal=True)


@pytest.mark.parametrize("header", ["n1", "n2", "n3"])
def test_slots_are_on_their_way_from_the_record_on_that_brings_them(moves: Moves, header: str) -> None:
    """Before it a group is read by the table before, as the one that has the slots: rows of both would be there twice.

    The membership log is ahead of the group's own, as it is between the two.
    """
    key = GroupKey(header, 1)
    topic, nodes = (
        topic_of(key),
        [moves.nodes[member] for member in LEFT.group(header) if member in TABLE.group(header)],
    )
    gained = frozenset(slot for slot, _ in LEFT.moved if LEFT.holder(slot) == header)
    assert gained
    moves.state = MembershipState(records=2, table=LEFT, changes=2, change=BACK)
    assert {frozenset()} == {node.puller.pulling(header) for node in nodes}
    moves.append(
        topic,
        Barrier(moves.leaders[topic], ANCHOR, 2, BarrierPhase.FORMAL, LEFT.version, SLOTS, LEFT.group(header), ()),
    )
    assert {gained} == {node.puller.pulling(header) for node in nodes}
