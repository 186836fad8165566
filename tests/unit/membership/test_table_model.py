"""Slot tables through any changes, compared with a model that has a dictionary of owners and a sorted list of nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.membership.balancer import Balancer, ByteBalancer, SlotCountBalancer
from headrace.consumers.membership.changes import follows, foundings_by
from headrace.consumers.membership.ring import RingNode
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.membership_records import ChangeKind

SLOTS = 48
NODES_MAX = 9


@dataclass(frozen=True)
class Step:
    """One change: a node at a place, which is added, or the one at that place, which is removed; or a balance."""

    kind: ChangeKind
    place: int
    by_bytes: bool


STEPS = st.builds(Step, st.sampled_from(ChangeKind), st.integers(0, 6), st.booleans())
"""Few places, so that nodes often have the same one."""


@dataclass
class Model:
    """What a table must be after each change, in the simplest form."""

    replication: int
    ring: list[tuple[int, str]]
    births: dict[str, int]
    version: int = 1
    owners: dict[int, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        """In ring order."""
        return [node for _, node in sorted(self.ring)]

    def group(self, header: str) -> list[str]:
        """The header and the nodes that follow it."""
        nodes = self.nodes * 2
        first = nodes.index(header)
        return nodes[first : first + self.replication]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[SlotTable, Model]:
    """A new cluster of one to nine nodes, with any number of copies."""
    places = draw(st.lists(st.integers(0, 6), min_size=1, max_size=NODES_MAX))
    ring = [(place, f"n{number}") for number, place in enumerate(places)]
    replication = draw(st.integers(1, len(ring)))
    table = SlotTable.create([RingNode(node, place) for place, node in draw(st.permutations(ring))], replication, SLOTS)
    return table, Model(replication, ring, {node: 1 for _, node in ring}, owners=owners_of(table))


def owners_of(table: SlotTable) -> dict[int, str]:
    """The owner of each slot."""
    return {slot: table.holder(slot) for slot in range(table.slots)}


def check(table: SlotTable, model: Model) -> None:
    """The table is that of the model, and every part of it agrees with every other one."""
    assert (model.version, model.replication, tuple(model.nodes)) == (table.version, table.replication, table.nodes)
    assert model.owners == owners_of(table)
    assert model.births == {node: table.birth(node) for node in table.nodes}
    counts = Counter(model.owners.values())
    assert {node: counts[node] for node in model.nodes} == table.slot_counts()
    for header in model.nodes:
        members = model.group(header)
        assert len(members) == len(set(members)) == model.replication
        assert tuple(members) == table.group(header)
        assert [slot for slot, owner in sorted(model.owners.items()) if owner == header] == list(table.slots_of(header))
    for node in model.nodes:
        assert [header for header in model.nodes if node in model.group(header)] == list(table.groups_of(node))
        held = {slot for slot, owner in model.owners.items() if node in model.group(owner)}
        assert held == {slot for slot in range(SLOTS) if table.holds(node, slot)}
    assert table == SlotTable.from_bytes(table.to_bytes())


def changed(table: SlotTable, step: Step, number: int, balancer: Balancer) -> tuple[SlotTable, str] | None:
    """The table after a step and the node that it concerns; None where the step is impossible."""
    if step.kind is ChangeKind.ADD and len(table.nodes) < NODES_MAX:
        return table.add_node(RingNode(f"j{number}", step.place), balancer), f"j{number}"
    if step.kind is ChangeKind.REMOVE and len(table.nodes) > table.replication:
        node = table.nodes[step.place % len(table.nodes)]
        return table.remove_node(node, balancer), node
    return (table.balance(balancer), "") if step.kind is ChangeKind.BALANCE else None


def spread(owners: dict[int, str], nodes: list[str]) -> int:
    """By how many slots the groups differ."""
    counts = Counter(owners.values())
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


def check_moves(before: Model, after: Model, step: Step, node: str) -> None:
    """Only what must move does, and no group both gives and takes."""
    moved = {slot: owner for slot, owner in after.owners.items() if before.owners[slot] != owner}
    givers = {before.owners[slot] for slot in moved}
    assert givers.isdisjoint(moved.values())
    if step.kind is ChangeKind.ADD:
        assert set(moved.values()) <= {node}
        assert step.by_bytes or len(moved) == SLOTS // len(after.nodes)
    elif step.kind is ChangeKind.REMOVE:
        assert moved.keys() == {slot for slot, owner in before.owners.items() if owner == node}
    elif not step.by_bytes:
        counts, share = Counter(before.owners.values()), SLOTS // len(after.nodes)
        excess = sum(max(0, counts[each] - share - (SLOTS % len(after.nodes) > 0)) for each in after.nodes)
        deficit = sum(max(0, share - counts[each]) for each in after.nodes)
        assert len(moved) == max(excess, deficit)
        assert spread(after.owners, after.nodes) <= 1
    if not step.by_bytes and spread(before.owners, before.nodes) <= 1:
        assert spread(after.owners, after.nodes) <= 1


def check_groups(base: SlotTable, table: SlotTable, kind: ChangeKind, node: str) -> None:
    """Every group has all members of before and after in its first phase, and one more than copies at most."""
    change = RunningChange(1, "r", kind, node, "", base, table)
    for each in change.groups():
        assert each.after == (table.group(each.group) if each.group in table.headers else ())
        assert set(each.pre) >= {*each.before, *(each.after if each.before else ())}
        assert len(each.pre) <= base.replication + 1
        # A majority of the members of before is one of those of after, too, but for one of them.
        assert not each.before or not each.after or len({*each.before} ^ {*each.after}) <= 2
    born = {key.group for key in foundings_by(table) if key.birth == table.version}
    assert born == ({node} if kind is ChangeKind.ADD else set())


@settings(max_examples=150)
@given(
    cluster=clusters(),
    steps=st.lists(STEPS, max_size=8),
    sizes=st.lists(st.integers(0, 40), min_size=SLOTS, max_size=SLOTS),
)
def test_a_table_is_that_of_the_model_through_any_changes(
    cluster: tuple[SlotTable, Model], steps: list[Step], sizes: list[int]
) -> None:
    """One to nine nodes, any number of copies, equal places, by slots and by bytes: one owner for each slot, groups of
    different nodes, nothing at a node that was removed, no move without need, and the same at every reader.
    """
    table, model = cluster
    check(table, model)
    for number, step in enumerate(steps):
        balancer: Balancer = ByteBalancer(sizes) if step.by_bytes else SlotCountBalancer()
        found = changed(table, step, number, balancer)
        if found is None:
            continue
        after, node = found
        # A node that knows the table from the log alone comes to the same bytes.
        read = changed(SlotTable.from_bytes(table.to_bytes()), step, number, balancer)
        assert read is not None
        assert after.to_bytes() == read[0].to_bytes()
        before, model = model, following(model, after, step, node)
        check(after, model)
        check_moves(before, model, step, node)
        check_groups(table, after, step.kind, node)
        assert follows(table, after, step.kind, node) == bool(after.moved or step.kind is not ChangeKind.BALANCE)
        assert {slot: before.owners[slot] for slot, _ in after.moved} == dict(after.moved)
        table = after


def following(model: Model, after: SlotTable, step: Step, node: str) -> Model:
    """The model after a change; which slots move is the balancer's choice, everything else is not."""
    ring, births = list(model.ring), dict(model.births)
    version = model.version + 1
    if step.kind is ChangeKind.ADD:
        ring.append((step.place, node))
        births[node] = version
    elif step.kind is ChangeKind.REMOVE:
        ring = [each for each in ring if each[1] != node]
        del births[node]
        assert ((node, model.births[node]),) == after.ended
    moved = {slot: after.holder(slot) for slot, _ in after.moved}
    owners = {slot: moved.get(slot, owner) for slot, owner in model.owners.items()}
    return Model(model.replication, ring, births, version, owners)
