"""The statuses that a node sends of its groups, and its view of each group for the role decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.replication.election import TAKE_BACK_MS, GroupView, MemberView
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State, Use
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.replication.health import Progress
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.store_jobs import NO_CONTENT
from headrace.schemas.framing import FORMAT
from headrace.schemas.records import Status


class GroupStatuses:
    """The statuses of all groups of one node. `http_address` is set once the server exists."""

    def __init__(
        self,
        identity: Identity,
        groups: Mapping[str, Group],
        log_consumer: LogConsumer,
        heartbeat: Heartbeat,
        readiness: Readiness,
        take_back_ms: int = TAKE_BACK_MS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._identity = identity
        self._groups = groups
        self._log_consumer = log_consumer
        self._heartbeat = heartbeat
        self._positions = readiness.positions
        self._readiness = readiness
        self._take_back_ms = take_back_ms
        self.http_address = ""

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
            log_answers=self._positions.log_answers,
            fenced=self._heartbeat.fenced,
            steady_ms=steady_ms,
            take_back_ms=self._take_back_ms,
            guest=None if here in changes.members else replace(member(here), votes=False),
        )

    def _member(self, topic: str, group_name: str, epoch: int, node: str) -> MemberView:
        if node == self._identity.node:
            return MemberView(
                node, self._heartbeat.incarnation, not self._heartbeat.fenced, not self._readiness.reason(topic), epoch
            )
        detector = self._heartbeat.detector
        status = detector.status(group_name, node)
        if status is None:
            return MemberView(node, "", False, False, 0)
        # A node of another cluster of this name, whose membership log is gone, is no member of this one.
        shown = detector.present.get((node, status.store))
        strange = shown is not None and MembershipLogLost.is_reported(shown.presence.reason)
        online = detector.alive(group_name, node) and not strange
        idle_ms = detector.idle_ms(group_name, node)
        return MemberView(node, status.incarnation, online, status.eligible, status.epoch, idle_ms=idle_ms)

    def statuses(self) -> Sequence[Status]:
        """The statuses of this node, one of each group."""
        found = []
        for topic, group in self._groups.items():
            # It may go while its status is made.
            with suppress(GroupNotHere):
                found.append(self._status(topic, group))
        return found

    def _status(self, topic: str, group: Group) -> Status:
        applied, reason = group.applied, self._readiness.reason(topic)
        chain_version, chain = group.chain_sample
        stored_version, content = group.store_jobs.content() if self._positions.caught_up(topic) else NO_CONTENT
        # Wrong data is no copy of the log: it must neither confirm a write nor let a leader trim what only
        # others have in files.
        wrong = group.health.refuses(Use.QUORUM)
        sealed_version, sealed_offset = group.sealed_for_others
        done, total = _done_of(self._positions.progress(topic))
        return Status(
            node=self._identity.node,
            incarnation=self._heartbeat.incarnation,
            store=self._identity.store,
            http=self.http_address,
            flight="",
            group=group.name,
            topic_id=self._identity.topics.get(topic, ""),
            role=self._readiness.tasks.decision(topic).role,
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
            reason=reason
            or self._readiness.tasks.decision(topic).reason
            or self._readiness.tasks.pulling_reason(group.name),
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
