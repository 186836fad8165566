"""The membership log of a small cluster, record by record, for tests of what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Create

NODES = ("n1", "n2", "n3", "n4")
LEADER = Leadership(1, "n1", "run-1")
STORE = "store of the joiner"
SLOTS = 8


@dataclass
class MemberLog:
    """What a cluster of four nodes with two copies has decided so far."""

    state: MembershipState = field(default_factory=MembershipState)

    def __post_init__(self) -> None:
        """The cluster is created, and its first node leads it."""
        self.take(Create(NODES, 2, SLOTS))
        self.take(MetadataClaim(LEADER))

    def take(self, record: Create | MembershipChange) -> None:
        """One more record, which counts."""
        self.state, verdict = self.state.apply(record)
        assert verdict is Verdict.ACCEPTED, (record, verdict)

    @property
    def table(self) -> SlotTable:
        """The present table."""
        assert self.state.table is not None
        return self.state.table

    @property
    def change(self) -> RunningChange:
        """The change that runs."""
        assert self.state.change is not None
        return self.state.change

    def begin(self, kind: ChangeKind, node: str) -> RunningChange:
        """A node joins or leaves."""
        after = self.table.add_node(node) if kind is ChangeKind.ADD else self.table.remove_node(node)
        self.take(Change(LEADER, f"r{self.state.changes}", kind, node, STORE, after.to_bytes()))
        return self.change

    def formal(self) -> None:
        """Every group reports, and the table counts."""
        for group in self.change.groups_waiting:
            self.take(PreDone(self.change.number, group, self.change.pre_members(group)[0], 1, 1))
        self.take(Formal(LEADER, self.change.number))

    def migrate(self) -> None:
        """Every member reports what its groups gained."""
        change = self.change
        for node in change.table.nodes:
            bits = change.due_from(node)
            if slots := tuple(slot for slot in range(SLOTS) if bits >> slot & 1):
                self.take(SlotDone(change.number, node, slots))

    def cancel(self) -> None:
        """The change ends without effect."""
        self.take(Cancel(LEADER, self.change.number))
