"""A cluster in memory whose members change: the membership log with the records that its nodes would append."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import RecordTooLarge
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.framing import format_headers
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Create, encode_membership, format_of_membership

TOPICS = Topics("c")
SLOTS = 120


class ClosableLog(MemoryLog):
    """A log whose topics can be closed as Kafka's are: every record is above their limit of size."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[str] = set()

    def store(self, topic: str, value: bytes, key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> int:
        """See MemoryLog."""
        if topic in self.closed:
            raise RecordTooLarge(f"a record of {len(value)} bytes is more than topic {topic} takes")
        return super().store(topic, value, key, headers)


class Growing:
    """A cluster and its changes. Every record that is appended here must count."""

    def __init__(self, nodes: tuple[str, ...], replication: int, log: ClosableLog | None = None) -> None:
        self.log = log or ClosableLog()
        self._requests = itertools.count(1)
        self.state = MembershipState()
        self.state, _ = self.state.apply(Create(nodes, replication, SLOTS))
        join_cluster(self.log, TOPICS, Create(nodes, replication, SLOTS))
        self.claim()

    @property
    def table(self) -> SlotTable:
        """The newest table."""
        assert self.state.table is not None
        return self.state.table

    def append(self, record: MembershipChange) -> None:
        """One record, which counts."""
        self.state, verdict = self.state.apply(record)
        assert verdict is Verdict.ACCEPTED, (record, verdict)
        headers = format_headers(format_of_membership(record))
        self.log.store(TOPICS.membership, encode_membership("w", record), None, headers)

    def claim(self, node: str = "") -> None:
        """A node leads all."""
        self.append(MetadataClaim(Leadership(self.state.epoch + 1, node or self.table.nodes[-1], "a")))

    def create_topic(self, header: str) -> None:
        """The topic of a group of the newest table, as one of its members makes it."""
        self.log.create_topic(TOPICS.forward(header, self.table.birth(header)), {})

    # A change, step by step.

    def begin(self, kind: ChangeKind, node: str = "") -> None:
        """The first phase of a change, to its end."""
        assert self.state.leader is not None
        if self.state.leader.node == node:
            self.claim(next(each for each in self.table.nodes if each != node))
        after = {
            ChangeKind.ADD: lambda: self.table.add_node(node),
            ChangeKind.REMOVE: lambda: self.table.remove_node(node),
            ChangeKind.BALANCE: lambda: self.table.balance(),
        }[kind]()
        request = f"r{next(self._requests)}"
        self.append(Change(self.state.leader, request, kind, node, "", after.to_bytes()))
        for header in self.table.headers:
            self.append(PreDone(self.state.changes, header, self.table.group(header)[0], 1, 1))

    def formal(self) -> None:
        """The new table counts."""
        assert self.state.leader is not None
        self.append(Formal(self.state.leader, self.state.changes))

    def cancel(self) -> None:
        """The change ends without effect."""
        assert self.state.leader is not None
        self.append(Cancel(self.state.leader, self.state.changes))

    def finish(self) -> None:
        """All data has arrived."""
        change = self.state.change
        assert change is not None
        for node in change.table.nodes:
            bits = change.due_from(node)
            slots = tuple(slot for slot in range(SLOTS) if bits >> slot & 1)
            if slots and self.state.change is not None:
                self.append(SlotDone(change.number, node, slots))
        if self.state.leader is None:
            self.claim()

    def add(self, node: str) -> None:
        """A node joins, and its group has a topic from the formal phase on."""
        self.begin(ChangeKind.ADD, node)
        self.formal()
        self.create_topic(node)
        self.finish()

    def remove(self, node: str) -> None:
        """A node leaves: its group's topic is closed at the end."""
        topic = TOPICS.forward(node, self.table.birth(node))
        self.begin(ChangeKind.REMOVE, node)
        self.formal()
        self.finish()
        self.log.closed.add(topic)
        assert self.state.leader is not None
        # It may join again only then.
        self.append(Exile(self.state.leader, node))
