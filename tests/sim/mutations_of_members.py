"""More rules of the design, each broken on purpose: versions, members, answers, recovery and lost logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.connectors.log.port import Record
from headrace.consumers.integrity.divergence_monitor import DivergenceMonitor
from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.node.recovery_environment import NodeRecoveryEnvironment
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.recovery import gap_search
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.replication import election, leader_tasks, replica
from headrace.consumers.replication.actions import Action
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import SEAL_ROWS_DEFAULT
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.log_prefix import Continuation, Cursor, LogPrefix
from headrace.consumers.replication.replica import Replica
from headrace.schemas.messages import Claim
from headrace.schemas.records import Role, Status
from tests.sim.broker import SimReader


def versions_from_offsets(patch: pytest.MonkeyPatch) -> None:
    """Two: a version follows from an offset, whose gaps count."""
    entry = LogConsumer._entry

    def counted(self: LogConsumer, record: Record, unproven: set[str]) -> JournalEntry | None:
        prefix = self._prefixes[record.topic]
        before, found = prefix.cursor, entry(self, record, unproven)
        skipped = record.offset - before.offset - 1
        if found is None or skipped <= 0:
            return found
        prefix.cursor = replace(prefix.cursor, version=prefix.cursor.version + skipped)
        return replace(found, version=found.version + skipped)

    patch.setattr(LogConsumer, "_entry", counted)


def limits_of_this_process(patch: pytest.MonkeyPatch) -> None:
    """Two: when a replica seals depends on the process, and not on the claim in the log."""
    claim = Replica._claim

    def own(self: Replica, body: Claim) -> list[Action]:
        actions = claim(self, body)
        self.state.seal_rows = SEAL_ROWS_DEFAULT
        return actions

    patch.setattr(Replica, "_claim", own)


def errors_are_skipped(patch: pytest.MonkeyPatch) -> None:
    """Two: a record that cannot be applied here is skipped here."""
    patch.setattr(Group, "fail", lambda _self, _reason: None)


def newer_formats_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Two: a record of a later build is counted and passed."""
    patch.setattr(replica, "check_format", lambda _headers: None)


def undeliverable_records_are_skipped(patch: pytest.MonkeyPatch) -> None:
    """Two: a record that the broker cannot deliver is missing in the count."""
    patch.setattr(
        SimReader,
        "_deliverable",
        lambda self, topic, found: [each for each in found if each.offset != self._log.broker.undeliverable[topic][0]],
    )


def claims_of_strangers(patch: pytest.MonkeyPatch) -> None:
    """Two: a claim counts whose node is no member."""
    claim = Replica._claim

    def anyone(self: Replica, body: Claim) -> list[Action]:
        changes = self.state.changes
        members, changes.members = changes.members, (*changes.members, body.leadership.node)
        try:
            return claim(self, body)
        finally:
            changes.members = members

    patch.setattr(Replica, "_claim", anyone)


def claimants_lead_at_once(patch: pytest.MonkeyPatch) -> None:
    """Two: who has appended a claim leads, before it has read the claim back as accepted."""
    decide = election.decide

    def at_once(view: election.GroupView) -> election.Decision:
        found = decide(view)
        return replace(found, role=Role.LEADER) if found.claim else found

    patch.setattr(leader_tasks, "decide", at_once)


def leaders_outlive_their_process(patch: pytest.MonkeyPatch) -> None:
    """Two: a leader that was restarted leads on without a claim of its own."""
    decide = election.decide

    def by_name(view: election.GroupView) -> election.Decision:
        if view.leader is not None:
            of_me = view.leader.node == view.node
            view = replace(view, leader=replace(view.leader, incarnation=view.me.incarnation)) if of_me else view
        return decide(view)

    patch.setattr(leader_tasks, "decide", by_name)


def trimming_without_window(patch: pytest.MonkeyPatch) -> None:
    """Two: everything that is in files is trimmed, and no window is left for topic replay."""
    trim_before = leader_tasks.trim_before

    def all_of_it(live: Sequence[Status], members: Sequence[str], sealed_offset: int, _keep_from: int) -> int:
        return trim_before(live, members, sealed_offset, sealed_offset + 1)

    patch.setattr(leader_tasks, "trim_before", all_of_it)


def trimmed_logs_are_followed(patch: pytest.MonkeyPatch) -> None:
    """Two: a replica behind the trim point reads on at the log's beginning."""
    start_of = LogConsumer._start_of

    def anywhere(self: LogConsumer, topic: str) -> int | None:
        begin = self._log.describe(topic).begin
        return begin if self._durable[topic].offset + 1 < begin else start_of(self, topic)

    patch.setattr(LogConsumer, "_start_of", anywhere)


def rows_expire_by_one_clock(patch: pytest.MonkeyPatch) -> None:
    """Two: retention follows the leader's clock alone."""
    patch.setattr(leader_tasks, "retention_time_ns", lambda wall_ns, _broker_ms: wall_ns)


def statuses_of_former_runs_count(patch: pytest.MonkeyPatch) -> None:
    """Six: a process is not fenced because a former run of its node has sent a status."""

    def note(self: Heartbeat, statuses: Sequence[Status]) -> None:
        for status in statuses:
            if status.node == self.node:
                self._read_back_ns = max(self._read_back_ns, status.sent_boot_ns)

    patch.setattr(Heartbeat, "_note_own", note)


def answers_are_not_checked_again(patch: pytest.MonkeyPatch) -> None:
    """Six: an answer is released although its node was fenced, or recovered, while it was made."""
    patch.setattr(LocalFence, "check", lambda _self: None)


def answers_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Six: an answer may miss what its node has confirmed and not applied yet."""
    made = LocalFence.__init__

    def impatient(self: LocalFence, groups: Mapping[str, Group], state: Any) -> None:
        made(self, groups, state)
        self.confirmed = dict.fromkeys(self.confirmed, -1)

    patch.setattr(LocalFence, "__init__", impatient)


def members_behind_serve(patch: pytest.MonkeyPatch) -> None:
    """Six: a member is eligible before it has read its log to the end."""
    patch.setattr(LogPositions, "caught_up", lambda _self, _topic: True)


def disks_that_refuse_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """Six: a member whose journal refuses records is eligible."""
    reason = Readiness.reason

    def without(self: Readiness, topic: str) -> str:
        fault, self._log_consumer.journal_fault = self._log_consumer.journal_fault, ""
        try:
            return reason(self, topic)
        finally:
            self._log_consumer.journal_fault = fault

    patch.setattr(Readiness, "reason", without)


def dead_leaders_are_followed(patch: pytest.MonkeyPatch) -> None:
    """Six: whoever claimed last is followed, alive or not."""
    patch.setattr(election, "leader_lives", lambda view: view.leader is not None)


def leaders_are_deposed(patch: pytest.MonkeyPatch) -> None:
    """Six: a follower claims although the leader is alive."""
    follower = election._follower
    patch.setattr(election, "_follower", lambda view, _claims: follower(view, True))


def header_never_takes_back(patch: pytest.MonkeyPatch) -> None:
    """Six: the preferred leader stays a follower."""
    decide: Callable[[Any], Any] = election.decide
    patch.setattr(leader_tasks, "decide", lambda view: decide(replace(view, take_back_ms=1 << 40)))


def settings_of_topics_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """Two: a topic that was there before keeps settings with which the log service deletes records."""
    patch.setattr(ClusterTopics, "ensure", lambda _self, _needed: None)


def receipts_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Six: an offset is a copy, of whatever log it was read."""
    patch.setattr(FailureDetector, "_has_receipts", lambda *_of: True)


def wrong_data_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Six: that data was found wrong is not recorded, and a restart serves it."""
    patch.setattr(NodeRecoveryEnvironment, "record_wrong", lambda *_of: None)


def divergence_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """Six: members that differ never find it."""
    patch.setattr(DivergenceMonitor, "turn", lambda _self: None)


def files_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Six: a corrupted file is never found."""
    patch.setattr(Scrubber, "_run_turns", lambda _self: None)


def copies_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Six: a copy is taken from a member that is wrong."""
    patch.setattr(RecoveryCoordinator, "_is_of_log", lambda *_of: True)
    patch.setattr(RecoveryCoordinator, "_check_source", lambda *_of: None)


def topics_made_again_are_followed(patch: pytest.MonkeyPatch) -> None:
    """Six: a start compares neither the id of a topic nor the newest record: each of the two finds another log."""
    check = LocalGroups.check_topics

    def lenient(self: LocalGroups, log: Any) -> None:
        self.identity.topics.clear()
        check(self, log)

    patch.setattr(LocalGroups, "check_topics", lenient)
    patch.setattr(LogPrefix, "comparable", property(lambda _self: False))


def cut_logs_are_followed(patch: pytest.MonkeyPatch) -> None:
    """Two: the last record is not compared behind a change of the log's leader, nor when a reader is opened."""
    patch.setattr(LogPrefix, "comparable", property(lambda _self: False))
    patch.setattr(LogPrefix, "judge", _judged_alone)


def _judged_alone(self: LogPrefix, record: Record, digest: bytes) -> Continuation:
    self.cursor = Cursor(self.cursor.version + 1, record.offset, digest, record.leader_epoch)
    return Continuation.NEXT


def gaps_are_joined_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Six: a member that is not at the anchor of a gap continues behind it."""
    patch.setattr(gap_search, "joins", lambda _base, _state: True)
