"""Compares this node's data with the samples of the other members, and determines who is wrong.

docs/internals/replication.md has the rules. While a dispute is open and this node is not known to be right,
the group does not serve here. A group that is wrong recovers. The log decides before a majority does.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from headrace.connectors.clock import Clock
from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.integrity.divergence import ChainSamples, Dispute, Finding, Kind
from headrace.consumers.recovery.environment import RecoveryEnvironment
from headrace.consumers.recovery.log_gap import holds_record, read_chain
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_registry import forget_gone
from headrace.consumers.replication.group_state import LogBase, lost_log_choices
from headrace.consumers.replication.log_witness import witness_of_cut
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Status

TURN_S = 0.5
OPERATOR_CHOICE = "the data is kept; move the data directory of the member that is wrong away, and it recovers"
_log = structlog.get_logger(__name__)


class LogEnds(Protocol):
    """The ends of the groups' logs; see `consumers.node.log_positions`."""

    def end(self, topic: str) -> int:
        """The end of a forward log when it was read last."""
        ...


class DivergenceMonitor:
    """One thread for all groups of a node."""

    def __init__(
        self,
        log: Log,
        environment: RecoveryEnvironment,
        ends: LogEnds,
        supervisor: RecoverySupervisor,
        clock: Clock,
    ) -> None:
        self._log = log
        self._environment = environment
        self._ends = ends
        self._supervisor = supervisor
        self._shortfall = GracePeriod(clock.monotonic_s)
        self._samples: dict[str, tuple[Group, LogBase, ChainSamples]] = {}
        self._faults: dict[str, str] = {}
        self._task = PeriodicTask("divergence-monitor", TURN_S, self.turn, LOG_JOIN_TIMEOUT_S)

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self._task.request_stop()

    def stop(self) -> None:
        """Stop; reading the log for a dispute ends after the current batch."""
        self._task.stop()

    def turn(self) -> None:
        """One step: compares every group with what its members have published until now."""
        forget_gone(self._samples, self._environment.groups)
        forget_gone(self._faults, self._environment.groups)
        for topic, group in list(self._environment.groups.items()):
            try:
                self._compare(topic, group)
                self._faults.pop(topic, None)
            except TopicMissing:
                # The log consumer decides whether it is lost or its group has ended.
                continue
            except HeadraceError as error:
                if self._faults.get(topic) != error.message:
                    _log.warning("members not compared", topic=topic, error=str(error))
                self._faults[topic] = error.message

    def _compare(self, topic: str, group: Group) -> None:
        self._check_truncation(topic, group)
        if not group.follows or not self._environment.caught_up(topic):
            return
        samples = self._samples_of(topic, group)
        for status in self._environment.live(group):
            # After a replacement of this node's data, statuses of the data before may still come back from
            # the topic.
            current = status.node != self._environment.node or status.store == self._environment.store
            same_log = status.topic_id == self._environment.topic_id(topic)
            if current and same_log and not _is_before_gap(status, group.replica.state.base):
                samples.observe(status)
        dispute = samples.dispute(group.chain_at)
        if dispute is None:
            group.health.report(Event.AGREE)
        else:
            self._judge(topic, group, samples, dispute)

    def _check_truncation(self, topic: str, group: Group) -> None:
        """Find a log that no longer holds what another member has read.

        It was truncated, even if nothing is missing here.
        """
        witness = self._witness(topic, group, self._ends.end(topic))
        if witness is not None:
            # The known end may be a second old, and the other member may have read on meanwhile.
            end = self._log.describe(topic).end
            witness = self._witness(topic, group, end)
        if witness is None:
            group.health.report(Event.MATCH)
            self._shortfall.present(topic)
        elif not group.health.holds(State.TRUNCATED) and self._shortfall.missing(topic):
            found = (
                f"topic {topic} ends at offset {end} and does not hold what node {witness.node} has read, up to "
                f"{witness.durable_offset}: it was truncated"
            )
            if witness.log_lost:
                found = f"node {witness.node} does not find in topic {topic} what it has read of it"
            reason = f"{found}; {lost_log_choices(group.name)}"
            group.health.report(Event.TRUNCATE, reason)
            _log.error("log truncated", group=group.name, reason=reason)

    def _witness(self, topic: str, group: Group, end: int) -> Status | None:
        """A member that has read what a log with this end does not hold, or that reports its log as lost."""
        environment = self._environment
        return witness_of_cut(environment.live(group), environment.topic_id(topic), group.replica.state.base, end)

    def _samples_of(self, topic: str, group: Group) -> ChainSamples:
        """The samples since this group's store took its place, or since its log continues behind a gap."""
        known, base = self._samples.get(topic), group.replica.state.base
        if known is None or known[0] is not group or known[1] != base:
            known = self._samples[topic] = (group, base, ChainSamples(self._environment.node))
        return known[2]

    def _judge(self, topic: str, group: Group, samples: ChainSamples, dispute: Dispute) -> None:
        # Before the log is read: that may take minutes, and a group that may be wrong must not serve
        # meanwhile.
        finding = dispute.judge(len(group.members), None)
        if finding is not Finding.RIGHT:
            group.health.report(Event.DISPUTE, f"{dispute}; being decided")
        truth = self._truth(topic, group, dispute)
        finding = dispute.judge(len(group.members), truth)
        _log.error("members disagree", group=group.name, dispute=str(dispute), finding=str(finding))
        if finding is Finding.RIGHT:
            samples.dismiss(dispute)
            group.health.report(Event.AGREE)
        elif finding is Finding.WRONG or (dispute.kind is Kind.FILES and self._log_has_all(topic, group)):
            # Files that differ with no majority: every member in dispute builds them anew from the log, which
            # has everything. Data that was replaced while the log was read is not the data that was judged.
            if self._environment.groups.get(topic) is group:
                self._supervisor.mark_wrong(topic, f"diverged: {dispute}", dispute.right(len(group.members), truth))
        else:
            undecided = f"{dispute}, and neither the log nor a majority decides who is wrong; {OPERATOR_CHOICE}"
            group.health.report(Event.DISPUTE, undecided)

    def _truth(self, topic: str, group: Group, dispute: Dispute) -> bytes | None:
        # The log gives the chain of records only. Files depend on the code that made them, so there a
        # majority decides.
        if dispute.kind is not Kind.RECORDS or not group.log_is_whole(self._log.describe(topic).begin):
            return None
        found = read_chain(self._log, topic, dispute.version, self._task.stopping.is_set)
        return found.chain if found.version == dispute.version and self._log_has_all(topic, group) else None

    def _log_has_all(self, topic: str, group: Group) -> bool:
        """Whether the log has, now and so at any time before, every record that this node has applied."""
        # The schedule: the log is cut, and a member that was behind the cut reads on first. Its versions differ from
        # those of all others, who would find their own records in the log no more, and throw away the only copies.
        state, applied = self._log.describe(topic), group.replica.state
        offset, digest = applied.offset, applied.record_digest
        return (
            group.log_is_whole(state.begin)
            and state.topic_id == self._environment.topic_id(topic)
            and holds_record(self._log, topic, state, offset, digest)
        )


def _is_before_gap(status: Status, base: LogBase) -> bool:
    """Whether a member has not reached the accepted gap that this node continued behind."""
    # It was behind the cut, and counts the log as it is. At the gap it finds that out and copies files. Compared
    # before, a majority of such members would condemn the only one that holds what the log has lost.
    return base.record is not None and status.offset < base.record.offset
