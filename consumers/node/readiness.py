"""What keeps the groups of a node from serving. Every answer is computed at the call; the role is decided elsewhere
(`headrace.consumers.replication.election`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.connectors.clock import Moment
from headrace.connectors.log.port import Log
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.replication.election import Decision
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State, Use
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.replication.group_state import LogBase, lost_log_choices
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import NO_ROLE
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.log_witness import read_elsewhere, witness_of_cut
from headrace.schemas.records import Role, Status

FENCED = "this node's own status was not read back within 3 s: it is starting, was stopped, or is cut off from Kafka"


@dataclass(frozen=True, slots=True)
class Standing:
    """A node in the slot table of its cluster.

    `joining` is why it has no groups at all, empty for a node of the table. `leaving` is why a node that was removed is
    not ready. Until it ends it answers: what its groups have handed over may be known to it alone. `missing` names
    groups of the table that are not open here, `surplus` are the topics of those that are here for a running change
    alone, and `early` of those that begin with its table.
    """

    joining: str = ""
    leaving: str = ""
    missing: str = ""
    surplus: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()


class ServingTasks(Protocol):
    """What the tasks of a node know of its groups; see `consumers.node.serving_tasks`."""

    def decision(self, topic: str) -> Decision:
        """The role of a group here."""
        ...

    def membership_failure(self) -> str:
        """Why changes of the cluster no longer reach the node."""
        ...

    def placement_fault(self) -> str:
        """Why groups of the table are not opened here."""
        ...

    def pulling_reason(self, group: str) -> str:
        """What the data of slots that moved to a group waits for."""
        ...


class NoTasks:
    """A node whose tasks are not made yet."""

    def decision(self, _topic: str) -> Decision:
        """See ServingTasks."""
        return NO_ROLE

    def membership_failure(self) -> str:
        """See ServingTasks."""
        return ""

    def placement_fault(self) -> str:
        """See ServingTasks."""
        return ""

    def pulling_reason(self, _group: str) -> str:
        """See ServingTasks."""
        return ""


class Readiness:
    """Answers for all groups of one node. `tasks` are set once they exist: they depend on these answers themselves.

    `standing` is kept by the placement of the node.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        log: Log,
        log_consumer: LogConsumer,
        heartbeat: Heartbeat,
        positions: LogPositions,
        topic_ids: Mapping[str, str],
        standing: Standing = Standing(),
    ) -> None:
        """`topic_ids`: the logs that the data of the groups is of."""
        self._groups = groups
        self._topic_ids = topic_ids
        self._log = log
        self._log_consumer = log_consumer
        self._heartbeat = heartbeat
        self.positions = positions
        positions.elsewhere = lambda topic: None if self._heartbeat.fenced else read_elsewhere(*self._witnessed(topic))
        self._lost_tables = ""
        self.standing = standing
        self.tasks: ServingTasks = NoTasks()

    def note_lost_tables(self, why: str) -> None:
        """Note why the cluster's schemas are lost, empty while they are not: no group serves without them."""
        self._lost_tables = why

    def reason(self, topic: str) -> str:
        """What keeps a group from being in sync at this node, empty when nothing does."""
        # The most final cause first: one that other causes follow from is what an operator must act on.
        health = self._groups[topic].health
        if health.reason and not (self._lost_tables and health.state in (State.AWAITING, State.DEFERRED)):
            # A merge waits for files that come. Why they do not is what ends it.
            cause = self.tasks.pulling_reason(self._groups[topic].name) if health.state is State.DEFERRED else ""
            return f"{cause}; {health.reason}" if cause else health.reason
        if self._lost_tables:
            return self._lost_tables
        if self._log_consumer.journal_fault:
            return f"journal: {self._log_consumer.journal_fault}"
        if self._log_consumer.topic_fault(topic):
            return f"log: {self._log_consumer.topic_fault(topic)}"
        if topic in self.standing.early:
            return "it begins with the next slot table"
        if not self.positions.caught_up(topic):
            return self._cut(topic) or self.positions.lag_reason(topic)
        return self._log_before(topic, self._groups[topic]) or self._awaited_of_senders(topic)

    def _witnessed(self, topic: str) -> tuple[list[Status], str, LogBase]:
        """What other members report of a group, its log here, and the accepted gap behind which it is."""
        group = self._groups[topic]
        live = self._heartbeat.live(group.name, group.members)
        others = [each for each in live if each.node != self._heartbeat.node]
        return others, self._topic_ids.get(topic, ""), group.replica.state.base

    def _cut(self, topic: str) -> str:
        """Who has read what the log of a group, which was read to its end here, does not hold."""
        position, end = self._log_consumer.position(topic), self.positions.end(topic)
        witness = witness_of_cut(*self._witnessed(topic), position) if position >= end else None
        return "" if witness is None else f"topic {topic} may have been cut: node {witness.node} has read more of it"

    def _log_before(self, topic: str, group: Group) -> str:
        """Who has read another log of a group than this node, in whose log nobody has led yet."""
        # The schedule: a topic is made again, and the disk of a member is replaced. It finds an empty log, and would
        # serve what is in it. The others hold what was in the log before, and nobody could accept the gap: no gap is
        # accepted while a member serves. A log with a leader is one that members have served: a member with the data
        # of another one, which was away all that time, keeps nobody from that.
        if group.applied.leader is not None:
            return ""
        known = self._topic_ids.get(topic)
        others = (each for each in self._heartbeat.live(group.name, group.members) if each.topic_id != known)
        if (other := next(others, None)) is None:
            return ""
        return f"node {other.node} has read another topic {topic}, made before this one; {lost_log_choices(group.name)}"

    def _awaited_of_senders(self, topic: str) -> str:
        # Files of moved slots are not among them: queries know which slots these are, and ask the donor.
        awaited = sum(bool(entry.synced and not entry.held_since) for entry in self._groups[topic].store.awaited())
        if not awaited:
            return ""
        files = "a file" if awaited == 1 else f"{awaited} files"
        why = self.tasks.pulling_reason(self._groups[topic].name)
        return f"it fetches {files} of senders from other members{f': {why}' if why else ''}"

    def ready(self) -> tuple[bool, list[str]]:
        """Whether every group here serves, and the reasons why not."""
        fault = self._heartbeat.write_fault
        counted = [topic for topic in self._groups if topic not in self.standing.surplus]
        reasons = self.refusals() or [reason for topic in counted if (reason := self._refusal_now(topic))]
        # It answers queries meanwhile, but whoever writes waits.
        unwritable = f"writes wait, the log of this node cannot be written: {fault}" if fault else ""
        missing = [self.standing.missing, *self._placement_faults()] if self.standing.missing else []
        reasons += [each for each in (self.standing.leaving, *missing, unwritable) if each]
        # Others may serve without that node. Where they do not, it may be why.
        if reasons and (unread := self._heartbeat.detector.unread_fault()):
            reasons.append(unread)
        return not reasons, reasons

    def _refusal_now(self, topic: str) -> str:
        try:
            return self.refusal(topic)
        except GroupNotHere:
            # It went a moment ago: what is not here keeps nothing from serving.
            return ""

    def refusals(self) -> list[str]:
        """Why this node serves no group at all, whatever their states."""
        if self.standing.joining:
            return [self.standing.joining, *self._faults()]
        if failure := self.tasks.membership_failure():
            return [failure]
        if self._heartbeat.fenced:
            return [f"{FENCED}: {self._heartbeat.error}" if self._heartbeat.error else FENCED]
        return []

    def _faults(self) -> list[str]:
        """What an operator must cure before a node that joins can go on."""
        if fault := self._log_consumer.journal_fault:
            return [f"journal: {fault}"]
        if found := self._placement_faults():
            return found
        faults = (group.health.reason for group in self._groups.values() if group.health.refuses(Use.QUORUM))
        return list(dict.fromkeys(each for each in faults if each))

    def _placement_faults(self) -> list[str]:
        fault = self.tasks.placement_fault()
        return [f"groups are not opened here: {fault}"] if fault else []

    def refusal(self, topic: str) -> str:
        """Why one group does not serve here while the node itself may, empty when it does."""
        reason, decision = self.reason(topic), self.tasks.decision(topic)
        if reason or decision.role is Role.UNSYNCED:
            return f"group {self._groups[topic].name}: {reason or decision.reason}"
        return ""

    def as_of(self) -> Moment | None:
        """The last moment at which every group held all that its log held; None before the first."""
        return self.positions.data_age.as_of()

    def objections(self) -> list[str]:
        """Why this node must not even answer from what it had: data that it does not trust, or may be behind."""
        reasons = [
            f"group {group.name}: {why}"
            for topic, group in self._groups.items()
            if (why := group.health.reason if group.health.refuses(Use.READS) else self._log_before(topic, group))
        ]
        if self._log_consumer.journal_fault:
            reasons.append(f"journal: {self._log_consumer.journal_fault}")
        reasons += [each for each in (self.standing.joining, self.standing.leaving) if each]
        return [*reasons, self._lost_tables] if self._lost_tables else reasons

    @property
    def fenced(self) -> bool:
        """Whether this node serves nothing at all, see `Heartbeat`."""
        return self._heartbeat.fenced

    @property
    def fencings(self) -> int:
        """How often this node was fenced, see `Heartbeat`."""
        return self._heartbeat.fencings

    def durable_offset(self, topic: str) -> int:
        """The log offset up to which this node has confirmed the records of a forward topic as durable."""
        return self._log_consumer.durable_offset(topic)

    def confirmed_offset(self, topic: str) -> int:
        """The same, and where the log is this node's own, also of those that the log has acknowledged to writers."""
        return max(self._log_consumer.durable_offset(topic), self._log.acknowledged_end(topic) - 1)
