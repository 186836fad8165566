"""The readiness of a node's groups: progress, what keeps them from serving, and their statuses.

Every answer is computed at the call; the role is decided elsewhere
(`headrace.consumers.replication.election`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from headrace.connectors.clock import SYSTEM_CLOCK, Clock, Moment
from headrace.connectors.log.port import Log
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.node.data_age import DataAge
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.recovery.progress import LogProgress
from headrace.consumers.replication.election import Decision, GroupView, MemberView
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State, Use
from headrace.consumers.replication.group_registry import ByTopic, GroupNotHere
from headrace.consumers.replication.health import Progress
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.store_jobs import NO_CONTENT
from headrace.schemas.framing import FORMAT
from headrace.schemas.records import Role, Status

FENCED = "this node's own status was not read back within 3 s: it is starting, was stopped, or is cut off from Kafka"


class Readiness:
    """Answers for all groups of one node.

    `decision(topic)` and `http_address` are set once the leader tasks and the server exist. `joining` is why the node
    has no groups at all, empty for a node of the cluster's slot table. `leaving` is why a node that was removed is not
    ready. Until it ends it answers: what its groups have handed over may be known to it alone. `missing` names groups
    of the table that are not open here, `surplus` are the topics of those that are here for a running change alone, and
    `early` of those that begin with its table. `membership_failure()` is why changes of the cluster no longer reach it.
    `pulling_reason(group)` is what the data of slots that moved to a group waits for. `placement_fault()` is why groups
    of the table are not opened here.
    """

    def __init__(
        self,
        identity: Identity,
        groups: Mapping[str, Group],
        log: Log,
        log_consumer: LogConsumer,
        heartbeat: Heartbeat,
        ends: Mapping[str, int],
        take_back_ms: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._identity = identity
        self._incarnation = heartbeat.incarnation
        self._groups = groups
        self._log = log
        self._log_consumer = log_consumer
        self._heartbeat = heartbeat
        self._ends = ByTopic(ends)
        self._ends_known = set(ends)
        self._restarts: Counter[str] = Counter()
        self._take_back_ms = take_back_ms
        self._log_answered_s = self._clock.monotonic_s()
        self._reached: set[str] = set()
        self._held_back: dict[str, int] = {}
        self._lost_tables = ""
        self._log_progress = ByTopic({topic: LogProgress(log_consumer.position(topic), clock) for topic in groups})
        self.data_age = DataAge(groups, log_consumer, clock)
        self.decision: Callable[[str], Decision] = lambda _topic: Decision(Role.UNSYNCED, False, "no role yet")
        self.http_address = ""
        self.joining = ""
        self.leaving = ""
        self.missing = ""
        self.surplus: frozenset[str] = frozenset()
        self.early: frozenset[str] = frozenset()
        self.membership_failure: Callable[[], str] = lambda: ""
        self.placement_fault: Callable[[], str] = lambda: ""
        self.pulling_reason: Callable[[str], str] = lambda _group: ""

    def end(self, topic: str) -> int:
        """The end of a forward log when it was read last."""
        return self._ends[topic]

    def restarts(self, topic: str) -> int:
        """How often the group began to follow its log again; read right before the log is asked for its end."""
        return self._restarts[topic]

    def admit(self, topic: str, end: int) -> None:
        """A group comes, whose log ends at an offset."""
        self.dismiss(topic)
        self._ends[topic] = end
        self._ends_known.add(topic)
        self._log_progress[topic] = LogProgress(self._log_consumer.position(topic), self._clock)

    def dismiss(self, topic: str) -> None:
        """A group has gone."""
        # Counted, and never forgotten: an answer about the end that is still on its way must not count for the next
        # group of this topic.
        self._restarts[topic] += 1
        self._reached.discard(topic)
        self._ends_known.discard(topic)
        self.data_age.restart(topic)
        for known in (self._ends, self._log_progress, self._held_back):
            known.pop(topic, None)

    def note_end(self, topic: str, end: int, restarts: int) -> None:
        """The log has answered, and ends at an offset. `restarts` are those of before it was asked."""
        self._log_answered_s = self._clock.monotonic_s()
        # The answer may take seconds, and the data of the group may be replaced meanwhile: see `restart`.
        if restarts != self._restarts[topic]:
            return
        self._ends[topic] = end
        self._ends_known.add(topic)
        self._log_progress[topic].note(self._log_consumer.position(topic))

    def note_held_back(self, topic: str, offsets: int) -> None:
        """Note how many offsets of a log are held back by an open transaction."""
        self._held_back[topic] = offsets

    def note_lost_tables(self, why: str) -> None:
        """Note why the cluster's schemas are lost, empty while they are not: no group serves without them."""
        self._lost_tables = why

    def held_back(self, topic: str) -> int:
        """Offsets that are unreadable because of an open transaction, when checked last."""
        return self._held_back.get(topic, 0)

    def progress(self, topic: str) -> Progress | None:
        """The progress of a group's recovery, None while there is nothing to recover."""
        recovery = self._groups[topic].health.conditions.recovery
        if recovery is not None:
            return recovery.progress()
        if self.caught_up(topic):
            return None
        return self._log_progress[topic].progress(self._log_consumer.position(topic), self._ends[topic])

    @property
    def log_answers(self) -> bool:
        """Whether the log has answered within the last 3 s."""
        return self._clock.monotonic_s() - self._log_answered_s < OFFLINE_MS / 1_000

    def caught_up(self, topic: str) -> bool:
        """Whether the group has reached the end of its log since this start, and applied what it read."""
        # Once reached it stays so: under load a follower is always some records behind, and must not leave
        # sync for that.
        if topic not in self._reached:
            # A log that was cut before an accepted gap is not the one that the count of its records rests on.
            end = max(self._ends[topic], self._log_consumer.needed_end(topic))
            read = self._log_consumer.position(topic) >= end
            applied = self._groups[topic].applied.offset >= self._log_consumer.durable_offset(topic)
            if read and applied and topic in self._ends_known:
                self._reached.add(topic)
        return topic in self._reached

    def restart(self, topic: str) -> None:
        """The group begins to follow its log again: it is in sync only once it has reached the end."""
        self._restarts[topic] += 1
        self._reached.discard(topic)
        self.data_age.restart(topic)
        # The end that is known was read before this node's data was replaced: the files of another member may reach
        # it, and still not what this node has served since.
        self._ends_known.discard(topic)
        self._log_progress[topic] = LogProgress(self._log_consumer.position(topic), self._clock)

    def reason(self, topic: str) -> str:
        """What keeps a group from being in sync at this node, empty when nothing does."""
        # The most final cause first: one that other causes follow from is what an operator must act on.
        health = self._groups[topic].health
        if health.reason and not (self._lost_tables and health.state in (State.AWAITING, State.DEFERRED)):
            # A merge waits for files that come. Why they do not is what ends it.
            cause = self.pulling_reason(self._groups[topic].name) if health.state is State.DEFERRED else ""
            return f"{cause}; {health.reason}" if cause else health.reason
        if self._lost_tables:
            return self._lost_tables
        if self._log_consumer.journal_fault:
            return f"journal: {self._log_consumer.journal_fault}"
        if self._log_consumer.topic_fault(topic):
            return f"log: {self._log_consumer.topic_fault(topic)}"
        if topic in self.early:
            return "it begins with the next slot table"
        if not self.caught_up(topic):
            return self._log_progress[topic].reason(self._log_consumer.position(topic), self._ends[topic])
        return self._awaited_of_senders(topic)

    def _awaited_of_senders(self, topic: str) -> str:
        # Files of moved slots are not among them: queries know which slots these are, and ask the donor.
        awaited = sum(bool(entry.synced and not entry.held_since) for entry in self._groups[topic].store.awaited())
        if not awaited:
            return ""
        files = "a file" if awaited == 1 else f"{awaited} files"
        why = self.pulling_reason(self._groups[topic].name)
        return f"it fetches {files} of senders from other members{f': {why}' if why else ''}"

    def ready(self) -> tuple[bool, list[str]]:
        """Whether every group here serves, and the reasons why not."""
        fault = self._heartbeat.write_fault
        counted = [topic for topic in self._groups if topic not in self.surplus]
        reasons = self.refusals() or [reason for topic in counted if (reason := self._refusal_now(topic))]
        # It answers queries meanwhile, but whoever writes waits.
        unwritable = f"writes wait, the log of this node cannot be written: {fault}" if fault else ""
        missing = [self.missing, *self._placement_faults()] if self.missing else []
        reasons += [each for each in (self.leaving, *missing, unwritable) if each]
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
        if self.joining:
            return [self.joining, *self._faults()]
        if failure := self.membership_failure():
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
        fault = self.placement_fault()
        return [f"groups are not opened here: {fault}"] if fault else []

    def refusal(self, topic: str) -> str:
        """Why one group does not serve here while the node itself may, empty when it does."""
        reason, decision = self.reason(topic), self.decision(topic)
        if reason or decision.role is Role.UNSYNCED:
            return f"group {self._groups[topic].name}: {reason or decision.reason}"
        return ""

    def as_of(self) -> Moment | None:
        """The last moment at which every group held all that its log held; None before the first."""
        return self.data_age.as_of()

    def objections(self) -> list[str]:
        """Why this node must not even answer from what it had: data that it does not trust, or may be behind."""
        reasons = [
            f"group {group.name}: {group.health.reason}"
            for group in self._groups.values()
            if group.health.refuses(Use.READS)
        ]
        if self._log_consumer.journal_fault:
            reasons.append(f"journal: {self._log_consumer.journal_fault}")
        reasons += [each for each in (self.joining, self.leaving) if each]
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

    def view(self, topic: str, steady_ms: int) -> GroupView:
        """What this node knows of a group, for the role decision."""
        group, detector = self._groups[topic], self._heartbeat.detector
        # Read once: leader and epoch are of one record.
        applied, here = group.applied, self._identity.node
        changes = applied.changes
        member = partial(self._member, topic, group.name, applied.epoch)
        return GroupView(
            members=tuple(replace(member(node), votes=node not in changes.added) for node in changes.members),
            node=here,
            leader=applied.leader,
            claim_age_ms=detector.newest_ms - applied.claimed_ms,
            log_answers=self.log_answers,
            fenced=self._heartbeat.fenced,
            steady_ms=steady_ms,
            take_back_ms=self._take_back_ms,
            guest=None if here in changes.members else replace(member(here), votes=False),
        )

    def _member(self, topic: str, group_name: str, epoch: int, node: str) -> MemberView:
        if node == self._identity.node:
            return MemberView(node, self._incarnation, not self._heartbeat.fenced, not self.reason(topic), epoch)
        detector = self._heartbeat.detector
        status = detector.status(group_name, node)
        if status is None:
            return MemberView(node, "", False, False, 0)
        # A node of another cluster of this name, whose membership log is gone, is no member of this one.
        shown = detector.present.get((node, status.store))
        strange = shown is not None and MembershipLogLost.is_reported(shown.presence.reason)
        online = detector.alive(group_name, node) and not strange
        return MemberView(node, status.incarnation, online, status.eligible, status.epoch)

    def statuses(self) -> Sequence[Status]:
        """The statuses of this node, one of each group."""
        found = []
        for topic, group in self._groups.items():
            # It may go while its status is made.
            with suppress(GroupNotHere):
                found.append(self._status(topic, group))
        return found

    def _status(self, topic: str, group: Group) -> Status:
        applied, reason = group.applied, self.reason(topic)
        chain_version, chain = group.chain_sample
        stored_version, content = group.store_jobs.content() if self.caught_up(topic) else NO_CONTENT
        # Wrong data is no copy of the log: it must neither confirm a write nor let a leader trim what only
        # others have in files.
        wrong = group.health.refuses(Use.QUORUM)
        sealed_version, sealed_offset = group.sealed_for_others
        done, total = _done_of(self.progress(topic))
        return Status(
            node=self._identity.node,
            incarnation=self._incarnation,
            store=self._identity.store,
            http=self.http_address,
            flight="",
            group=group.name,
            topic_id=self._identity.topics.get(topic, ""),
            role=self.decision(topic).role,
            # A fenced leader serves nothing. While it called itself eligible, the others would keep
            # following it.
            eligible=not reason and not self._heartbeat.fenced,
            epoch=applied.epoch,
            version=applied.version,
            offset=applied.offset,
            position=self._log_consumer.position(topic),
            durable_offset=-1 if wrong else self._log_consumer.durable_offset(topic),
            sealed_version=0 if wrong else sealed_version,
            sealed_offset=-1 if wrong else sealed_offset,
            chain_version=chain_version,
            chain=chain,
            stored_version=stored_version,
            content=content,
            sealed_log_bytes=group.store_jobs.sealed_log_bytes,
            segment_bytes=group.store_jobs.size_bytes,
            log_lost=group.health.holds(State.LOST),
            recovery_done=done,
            recovery_total=total,
            format=FORMAT,
            reason=reason or self.decision(topic).reason or self.pulling_reason(group.name),
            sent_boot_ns=self._clock.boot_ns(),
            receipts=b"" if wrong else self._log_consumer.receipts(topic),
            accepted=applied.changes.acceptances(),
            change=applied.changes.change,
            settled=applied.changes.settled_version,
        )


def _done_of(progress: Progress | None) -> tuple[int, int]:
    """(done, total) of a recovery; zeros when there is nothing to recover.

    Bytes while files are copied, then offsets of the log.
    """
    if progress is None:
        return 0, 0
    if progress.way == "log":
        return progress.offsets_done, progress.offsets_total
    return progress.bytes_done, progress.bytes_total
