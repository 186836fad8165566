"""Running nodes carry a change up to the point where data moves: barriers, reports, the new table, and hand-over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.metadata_group import StartSettings
from headrace.consumers.membership.requests import ChangeRequest
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.node import metadata
from headrace.consumers.replication.change_view import ChangeView
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import BarrierPhase
from headrace.schemas.membership_records import ChangeKind, SlotDone
from headrace.schemas.messages import Delete, Message, ProducerPosition, encode_message
from headrace.schemas.records import encode_membership, format_of_membership
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of which two hold each row, whose build carries out changes, and one that joins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "StartSettings", partial(StartSettings, changes=True))
        # The data never arrives: the change does not end.
        patch.setattr(SlotPuller, "turn", lambda *_: None)
        with running_nodes(tmp_path_factory.mktemp("three"), patch, NAMES, replication=2) as nodes:
            nodes.start("n4")
            yield nodes


def state_of(nodes: Nodes) -> MembershipState:
    """What the log has decided, as the node that has read most of it knows."""
    return max((node.metadata.state for node in nodes.running.values()), key=lambda state: state.records)


def begin(nodes: Nodes, kind: ChangeKind, node: str) -> None:
    """Request a change of the node that leads the metadata group, once that knows all nodes."""

    def requested() -> bool:
        leaders = [each for each in nodes.running.values() if each.metadata.leads]
        if not leaders or not leaders[0].metadata.nodes(leaders[0].slot_table).carriers >= {*nodes.running}:
            return False
        leaders[0].metadata.requests.begin(ChangeRequest(f"{kind} {node}", kind, node))
        return True

    eventually(requested, f"{kind} {node} begins")


def views(nodes: Nodes, header: str) -> list[ChangeView]:
    """The view of every node that holds a group."""
    groups = (group for node in nodes.running.values() for group in node.groups.values())
    return [group.applied.changes for group in groups if group.name == header]


def has_moved(nodes: Nodes, number: int) -> bool:
    """Whether every group has the new table, and every next holder all that was due."""
    state = state_of(nodes)
    change, table = state.change, state.table
    if change is None or table is None or not change.formal:
        return False
    found = [view for header in table.headers for view in views(nodes, header)]
    old = [view for header in change.base.headers for view in views(nodes, header)]
    return (
        all((view.change, view.phase) == (number, BarrierPhase.FORMAL) for view in old)
        and not any(due for view in found for due in view.due.values())
        and all(view.settled_version == table.version for view in found)
    )


def test_leaders_carry_out_both_phases_and_hand_over(nodes: Nodes) -> None:
    """With a node that joins: its group gets a takeover from each donor, and every delete that comes late."""
    begin(nodes, ChangeKind.ADD, "n4")
    eventually(partial(has_moved, nodes, 1), "both phases of the change")
    change = state_of(nodes).change
    assert change is not None
    donors = {former for _, former in change.table.moved}
    assert donors == {key.group for key in views(nodes, "n4")[0].accepted}
    for header in change.base.headers:
        assert {change.table.group(header)} == {view.members for view in views(nodes, header)}
    donor = min(donors)
    before = next(each for key, each in views(nodes, "n4")[0].accepted.items() if key.group == donor)
    late = encode_message(Message(ProducerPosition("late", 1, 0), Delete("db", "t", {})))
    nodes.log.store(nodes.topics.forward(donor, 1), late, None, format_headers(1))

    def arrived() -> bool:
        accepted = {key.group: each for key, each in views(nodes, "n4")[0].accepted.items()}
        return accepted[donor] > before and has_moved(nodes, 1)

    eventually(arrived, "the late delete")
    for node in change.table.nodes:
        slots = [slot for slot, _ in change.table.moved if node in change.table.group(change.table.holder(slot))]
        if slots:
            record = SlotDone(1, node, tuple(slots))
            headers = format_headers(format_of_membership(record))
            nodes.log.store(nodes.topics.membership, encode_membership("test", record), None, headers)
    eventually(lambda: state_of(nodes).change is None, "the end of the change")
