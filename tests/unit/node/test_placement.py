"""Running nodes hold the groups that the membership log gives them, through a join, a removal, and restarts.

The test does what `consumers/migration` does: barriers, reports, and the notice that slots have arrived.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headrace.connectors.log.port import TopicMissing
from headrace.consumers.membership import ended_topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.metadata_group import StartSettings
from headrace.consumers.membership.requests import ChangeRequest
from headrace.consumers.membership.ring import NodeExists
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.migration.change_tasks import ChangeTasks
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.node import metadata
from headrace.consumers.node.exile import NodeExiled
from headrace.consumers.node.node import Node
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import Barrier, BarrierPhase
from headrace.schemas.membership_records import ChangeKind, MembershipChange, PreDone, SlotDone
from headrace.schemas.messages import Anchor, Message, ProducerPosition, encode_message
from headrace.schemas.records import Role, encode_membership, format_of_membership
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of which two hold each row, whose build carries out changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "StartSettings", partial(StartSettings, changes=True))
        patch.setattr(ended_topics, "DELETED_AFTER_S", 0.5)
        # Each phase lasts as long as the test wants.
        patch.setattr(ChangeTasks, "turn", lambda *_: False)
        patch.setattr(SlotPuller, "turn", lambda *_: None)
        with running_nodes(tmp_path_factory.mktemp("three"), patch, NAMES, replication=2) as nodes:
            yield nodes


def state_of(nodes: Nodes) -> MembershipState:
    """What the log has decided, as the node that has read most of it knows."""
    return max((node.metadata.state for node in nodes.running.values()), key=lambda state: state.records)


def running(nodes: Nodes) -> RunningChange:
    """The change that runs."""
    change = state_of(nodes).change
    assert change is not None
    return change


def begin(nodes: Nodes, kind: ChangeKind, node: str, request: str) -> None:
    """Request a change of the node that leads the metadata group."""

    def requested() -> bool:
        leaders = [each for each in nodes.running.values() if each.metadata.leads]
        views = [each.metadata.nodes(each.slot_table) for each in leaders]
        # All nodes have reported themselves, the one that joins too.
        if not views or not views[0].carriers >= {*nodes.running}:
            return False
        try:
            leaders[0].metadata.requests.begin(ChangeRequest(request, kind, node))
        except NodeExists:
            # The status of the store before is some seconds old.
            return False
        return True

    eventually(requested, f"{kind} {node} begins")


def append(nodes: Nodes, record: MembershipChange) -> None:
    """Append to the membership log."""
    headers = format_headers(format_of_membership(record))
    nodes.log.store(nodes.topics.membership, encode_membership("test", record), None, headers)


def barriers(nodes: Nodes, phase: BarrierPhase) -> None:
    """Let the members of every group of the old table change in its own log."""
    change = running(nodes)
    for each in change.groups():
        topic = nodes.topics.forward(each.group, change.table.birth(each.group))
        members = each.pre if phase is BarrierPhase.PRE else each.after
        # The new group has been born with its members, the one that ends keeps them.
        if each.before and members:
            eventually(partial(reached, nodes, topic, phase, members, change), f"{phase} in {topic}")


def reached(nodes: Nodes, topic: str, phase: BarrierPhase, members: tuple[str, ...], change: RunningChange) -> bool:
    """Whether all that hold a group have read its barrier, which its leader appends."""
    groups = [(node, node.groups[topic]) for node in nodes.running.values() if topic in node.groups]
    wanted = (change.number, phase)
    for node, group in groups:
        applied = group.applied
        found = (applied.changes.change, applied.changes.phase)
        if found != wanted and node.role(topic) is Role.LEADER and applied.leader is not None:
            anchor = Anchor(applied.offset, applied.version, applied.chain)
            numbers = change.number, phase, change.table.version, change.table.slots
            body = Barrier(applied.leader, anchor, *numbers, members)
            message = Message(ProducerPosition(f"barrier-{topic}-{wanted}", 1, 0), body)
            nodes.log.store(topic, encode_message(message), None, format_headers(3))
    return all((group.applied.changes.change, group.applied.changes.phase) == wanted for _, group in groups)


def held(nodes: Nodes) -> dict[str, set[str]]:
    """The groups of every running node."""
    return {name: {group.key for group in node.groups.values()} for name, node in nodes.running.items()}


def holds(nodes: Nodes, expected: Callable[[str], set[str]]) -> None:
    """Wait until every node holds exactly what is expected of it."""
    wanted = {name: expected(name) for name in nodes.running}
    eventually(lambda: held(nodes) == wanted, f"{wanted}; there is {held(nodes)}")


def restart(nodes: Nodes, name: str) -> None:
    """Stop a node and start it again: at once it has the groups that it had, but for those that begin later."""
    before, change, early = held(nodes)[name], state_of(nodes).change, set[str]()
    if change is not None and not change.formal:
        new = [header for header in change.table.headers if header not in change.base.headers]
        early = {f"{header}@{change.table.version}" for header in new}
    nodes.stop(name)
    nodes.start(name)
    assert before - early <= held(nodes)[name] <= before
    eventually(lambda: before == held(nodes)[name], f"{before}")


def groups_of(change: RunningChange, phase: Phase) -> Callable[[str], set[str]]:
    """The groups of a node in a phase of a change, by the members that these have."""

    def expected(node: str) -> set[str]:
        found = set()
        for each in change.groups():
            birth = change.table.birth(each.group)
            key = each.group if birth == 1 else f"{each.group}@{birth}"
            members = {
                # A group that the table brings is opened before the table counts.
                Phase.PRE: each.pre or each.after,
                Phase.MIGRATING: (*each.pre, *each.after),
                Phase.DONE: each.after,
            }[phase]
            found |= {key} if node in members else set()
        return found

    return expected


def report_groups(nodes: Nodes) -> None:
    """Every group has its members of the first phase; then the leader of the metadata group appends `Formal`."""
    number = running(nodes).number
    for group in running(nodes).groups_waiting:
        append(nodes, PreDone(number, group, group, 1, 1))
    eventually(lambda: all(each.metadata.state.change.formal for each in nodes.running.values()), "the new table")  # type: ignore[union-attr]


def report_slots(nodes: Nodes) -> None:
    """All members of the new groups have what moved."""
    change = running(nodes)
    for node in change.table.nodes:
        slots = [slot for slot, _ in change.table.moved if node in change.table.group(change.table.holder(slot))]
        if slots:
            append(nodes, SlotDone(change.number, node, tuple(slots)))


def on_disk(nodes: Nodes, name: str) -> set[str]:
    """The groups of which a node has files."""
    return {path.name.replace("%40", "@") for path in (nodes.directory / name / "index").glob("*")}


def ready(nodes: Nodes, *names: str) -> None:
    """Wait until nodes are ready."""
    for name in names:
        node = nodes.running[name]
        eventually(lambda node=node: node.ready()[0], f"{name}: {node.ready()}")


def join(nodes: Nodes, name: str, request: str) -> RunningChange:
    """A whole join, with a restart in each phase."""
    nodes.start(name)
    assert (set(), False) == (held(nodes)[name], nodes.running[name].ready()[0])
    begin(nodes, ChangeKind.ADD, name, request)
    change = running(nodes)
    holds(nodes, groups_of(change, Phase.PRE))
    restart(nodes, name)
    barriers(nodes, BarrierPhase.PRE)
    assert nodes.running[name].ready()[1][0].startswith(f"joining: change {change.number} adds node {name}")
    # Nobody claims the new group before its table counts.
    assert 0 == nodes.log.describe(nodes.topics.forward(name, change.table.version)).end
    report_groups(nodes)
    holds(nodes, groups_of(change, Phase.MIGRATING))
    barriers(nodes, BarrierPhase.FORMAL)
    ready(nodes, name)
    return change


def joins(nodes: Nodes) -> None:
    """It opens groups in the first phase and is ready with the new table, which every node then routes by. A surplus
    member keeps its group over a restart until the change has ended, is ready, and then deletes it.
    """
    change = join(nodes, "n4", "r1")
    surplus = next(each for each in change.groups() if set(each.pre) - set(each.after))
    (donor,) = set(surplus.pre) - set(surplus.after)
    restart(nodes, donor)
    ready(nodes, donor)
    assert surplus.group in on_disk(nodes, donor)
    report_slots(nodes)
    holds(nodes, groups_of(change, Phase.DONE))
    eventually(lambda: on_disk(nodes, donor) == groups_of(change, Phase.DONE)(donor), f"{on_disk(nodes, donor)}")
    ready(nodes, *nodes.running)
    tables = {node.slot_table for node in nodes.running.values()}
    assert {change.table} == tables == {node.source.remote.placement for node in nodes.running.values()}


def is_removed(nodes: Nodes) -> None:
    """Its group keeps its members until its topic was closed and deleted. Then the node learns that it was removed; no
    other node takes the deleted topic for a loss. Its next start learns the same, and an empty directory may join.
    """
    begin(nodes, ChangeKind.REMOVE, "n4", "r2")
    change, removed = running(nodes), nodes.running["n4"]
    topic = nodes.topics.forward("n4", 2)
    holds(nodes, groups_of(change, Phase.PRE))
    barriers(nodes, BarrierPhase.PRE)
    report_groups(nodes)
    barriers(nodes, BarrierPhase.FORMAL)
    holds(nodes, groups_of(change, Phase.MIGRATING))
    restart(nodes, "n4")
    restart(nodes, change.base.group("n4")[1])
    removed = nodes.running["n4"]
    # A late record: it is drained before the topic goes.
    nodes.log.store(topic, b"late", None, ())
    ready(nodes, *change.table.nodes)
    faults = watched_for_losses(nodes)
    assert nodes.log.describe(topic).end
    report_slots(nodes)
    eventually(lambda: removed.exile is not None, f"the exile; {held(nodes)}, {state_of(nodes).exiles}")
    with pytest.raises(TopicMissing):
        nodes.log.describe(topic)
    holds(nodes, groups_of(change, Phase.DONE))
    assert [] == faults
    eventually(lambda: on_disk(nodes, "n4") == set(), "the data of the removed node is deleted")
    ready(nodes, *change.table.nodes)
    nodes.stop("n4")
    again = Node(nodes.settings("n4"), nodes.log)
    with pytest.raises(NodeExiled, match="node n4 was removed from cluster c and ends"):
        again.start(lambda _line: None)
    again.stop()
    assert 0 == NodeExiled.exit_code


def watched_for_losses(nodes: Nodes) -> list[str]:
    """Reports of lost logs from here on."""
    found: list[str] = []
    for node in nodes.running.values():
        for group in node.groups.values():
            group.mark_log_lost = lambda reason: found.append(reason)  # type: ignore[method-assign]
    return found


def joins_again(nodes: Nodes) -> None:
    """With an empty directory, also over restarts before anybody adds it; its group is another one."""
    shutil.rmtree(nodes.directory / "n4")
    nodes.start("n4")
    nodes.stop("n4")
    change = join(nodes, "n4", "r3")
    assert 4 == change.table.birth("n4")
    report_slots(nodes)
    holds(nodes, groups_of(change, Phase.DONE))
    assert "n4@4" in held(nodes)["n4"]
    ready(nodes, *nodes.running)


def test_a_node_joins_leaves_and_joins_again(nodes: Nodes) -> None:
    """In each phase every node has the groups that it needs, and after the last one those of the table alone."""
    joins(nodes)
    is_removed(nodes)
    joins_again(nodes)
