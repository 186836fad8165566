"""What the leader of a group does for a change of members: barriers, the report of the first phase, hand-over.

What to append is decided in `barriers.py` and `hand_over_sender.py`. This shell appends one record to a group's log
at a time, and waits until the group has read it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.log.port import STOP_FLUSH_S, Appender, Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.migration.barriers import barrier_due, pre_done_due
from headrace.consumers.migration.copies_ahead import CopiesAhead
from headrace.consumers.migration.hand_over_sender import HandOverSender
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.leader_parts import LeaderRecord
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import Barrier, GroupKey, HandOverAccepted
from headrace.schemas.membership_records import PreDone
from headrace.schemas.messages import Anchor, Leadership, Seal
from headrace.schemas.records import Status, encode_membership, format_of_membership

READ_BACK_TIMEOUT_S = 5.0
"""A record that was not read back in this time was lost or did not count; it is appended again if it is due."""
SEAL_ROWS = 50_000
"""A group with more unsealed rows seals in the first phase: a query of slots that move waits for the seal of the cut."""
SEAL_WAIT_S = 15.0
"""How long the report of the first phase waits for that seal, which is no condition of it."""
FIRST_NOTE_S = 1.0
"""How long a group that gives slots waits for the first note of a node that copies its files ahead."""
ACCEPTED_INTERVAL_S = 0.5
"""Between two notes of what a next holder has accepted: late records may come one by one for long."""
_log = structlog.get_logger(__name__)


class MembershipStates(Protocol):
    """What the membership log has decided, as far as this node has read it; see `MetadataGroup`."""

    @property
    def state(self) -> MembershipState:
        """The newest state."""
        ...


class ChangeHeartbeats(Protocol):
    """The statuses of nodes; see `consumers.replication.heartbeat.Heartbeat`."""

    node: str
    incarnation: str
    detector: FailureDetector


class LeaderRecords(Protocol):
    """Appends records under a leadership; see `LeaderTasks`."""

    def append(self, topic: str, body: LeaderRecord) -> None:
        """Append a record of a leader. Raises LeadershipForeign, and the errors of the log."""
        ...


@dataclass(frozen=True, slots=True)
class _Appended:
    """The newest record in a group's log, and until when to wait for the group to show it."""

    record: Barrier | HandOverAccepted
    until_s: float

    def is_read(self, view: ChangeView) -> bool:
        """Whether the group shows it, or something newer."""
        record = self.record
        if isinstance(record, Barrier):
            return (view.change, view.phase) == (record.change, record.phase) or view.change > record.change
        return all(record.position != each.position for each in view.due.get(record.target, ()))


@dataclass(frozen=True, slots=True)
class _Sealing:
    """A seal of a first phase: the change, the version that shall be in files, and until when to wait for that.

    `begun_s` is when the first phase began. `last`: the files were copied, so what is sealed then is all there is.
    """

    change: int
    version: int
    until_s: float
    begun_s: float
    last: bool = False


class ChangeTasks:
    """The part of the leader tasks that carries out changes; see `GroupChangeTasks`. Owned by their thread."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        membership: MembershipStates,
        heartbeats: ChangeHeartbeats,
        records: LeaderRecords,
        clock: Clock = SYSTEM_CLOCK,
        copies: CopiesAhead | None = None,
    ) -> None:
        """`copies` has who copies files of the groups of this node ahead; nobody does without it.

        `reports` counts the first phases that were reported.
        """
        self._copies = copies
        self._log = log
        self._topics = topics
        self._membership = membership
        self._heartbeats = heartbeats
        self._records = records
        self._clock = clock
        self._appended: dict[str, _Appended] = {}
        self._accepted_after_s: dict[str, float] = {}
        self._reported: dict[str, tuple[int, float]] = {}
        self._sealing: dict[str, _Sealing] = {}
        self._senders: dict[str, HandOverSender] = {}
        self._appender: Appender | None = None
        self.reports = 0

    def turn(self, topic: str, group: Group, leadership: Leadership) -> bool:
        """See GroupChangeTasks."""
        view, key = group.applied.changes, group.birth_key
        state, now_s = self._membership.state, self._clock.monotonic_s()
        appended = self._appended.get(topic)
        waits = appended is not None and not appended.is_read(view) and now_s < appended.until_s
        if not waits and (due := barrier_due(state, key, view, self._topics)) is not None:
            _log.info("barrier", group=group.name, change=due.change, phase=str(due.phase))
            applied = group.applied
            anchor = Anchor(applied.offset, applied.version, applied.chain)
            self._append(topic, due.record(leadership, anchor))
            return True
        if (change := pre_done_due(state, key, view)) is not None:
            if self._is_prepared(topic, group, leadership, change):
                self._report(topic, group, leadership, change)
        else:
            self._reported.pop(topic, None)
            self._sealing.pop(topic, None)
        return self._hand_over(topic, key, view, leadership, waits=waits) or waits

    def forget(self, topic: str) -> None:
        """See GroupChangeTasks."""
        self._appended.pop(topic, None)
        self._accepted_after_s.pop(topic, None)
        self._reported.pop(topic, None)
        self._sealing.pop(topic, None)
        sender = self._senders.pop(topic, None)
        if sender is not None:
            sender.close()
        if not self._reported and self._appender is not None:
            self._close_appender(0.0)

    def close(self) -> None:
        """See GroupChangeTasks."""
        for topic in list(self._senders):
            self.forget(topic)
        self._close_appender(STOP_FLUSH_S)

    def _close_appender(self, flush_s: float) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close(flush_s)

    def _append(self, topic: str, record: Barrier | HandOverAccepted) -> None:
        # Before the append: one that raises may be in the log all the same.
        self._appended[topic] = _Appended(record, self._clock.monotonic_s() + READ_BACK_TIMEOUT_S)
        self._records.append(topic, record)

    def _hand_over(self, topic: str, key: GroupKey, view: ChangeView, leadership: Leadership, *, waits: bool) -> bool:
        """Send what is due to other groups, and note what they have accepted; whether a note was appended."""
        if not any(view.due.values()):
            sender = self._senders.pop(topic, None)
            if sender is not None:
                sender.close()
            return False
        accepted = self._sender(topic, key).turn(view)
        now_s = self._clock.monotonic_s()
        if accepted is None or waits or now_s < self._accepted_after_s.get(topic, 0.0):
            return False
        self._accepted_after_s[topic] = now_s + ACCEPTED_INTERVAL_S
        target, position = accepted
        self._append(topic, HandOverAccepted(leadership, target, position))
        return True

    def _sender(self, topic: str, key: GroupKey) -> HandOverSender:
        if topic not in self._senders:
            producer = f"{self._heartbeats.node}/{self._heartbeats.incarnation}/hand-over"
            self._senders[topic] = HandOverSender(
                self._log, topic, key, producer, self._heartbeats.detector, self._clock
            )
        return self._senders[topic]

    def _is_prepared(self, topic: str, group: Group, leadership: Leadership, change: RunningChange) -> bool:
        """Whether the cut will find few rows that are unsealed or not copied; see `_Sealing`.

        A group with many seals them before its files are copied, and those that came meanwhile after that: while
        nobody waits for it.
        """
        now_s, sealing = self._clock.monotonic_s(), self._sealing.get(topic)
        if sealing is None or sealing.change != change.number:
            sealing = self._seal(topic, group, leadership, _Sealing(change.number, 0, now_s, now_s))
        if now_s < sealing.until_s and group.sealed_for_others[0] < sealing.version:
            return False
        if sealing.last or self._copies is None:
            return True
        left = self._copies.left(group.birth_key, change.number)
        if left is None:
            # Nobody copies ahead, or does not yet.
            return now_s >= sealing.begun_s + FIRST_NOTE_S or not _gives(change, group.name)
        if left:
            return False
        sealing = self._seal(topic, group, leadership, replace(sealing, last=True))
        return now_s >= sealing.until_s

    def _seal(self, topic: str, group: Group, leadership: Leadership, sealing: _Sealing) -> _Sealing:
        """Seal what has come since the newest seal, if that is much."""
        applied, now_s = group.applied, self._clock.monotonic_s()
        if applied.unsealed_rows < SEAL_ROWS:
            sealing = replace(sealing, version=0, until_s=now_s)
        else:
            sealing = replace(sealing, version=applied.version, until_s=now_s + SEAL_WAIT_S)
            self._records.append(topic, Seal(leadership, Anchor(applied.offset, applied.version, applied.chain)))
        self._sealing[topic] = sealing
        return sealing

    def _report(self, topic: str, group: Group, leadership: Leadership, change: RunningChange) -> None:
        """Append that the group has its members of the first phase, once those that it adds follow."""
        number, until_s = self._reported.get(topic, (0, 0.0))
        if number == change.number and self._clock.monotonic_s() < until_s:
            return
        if not self._new_members_follow(group, change):
            return
        done = PreDone(change.number, group.name, leadership.node, leadership.epoch, group.applied.version)
        self.reports += 1
        # Unlike those of the metadata group, which waits for the records of its own names.
        writer = f"{self._heartbeats.node}/{self._heartbeats.incarnation}/pre-done/{self.reports}"
        self._reported[topic] = change.number, self._clock.monotonic_s() + READ_BACK_TIMEOUT_S
        if self._appender is None:
            self._appender = self._log.appender(repeats=True)
        _log.info("first phase done", group=group.name, change=change.number)
        self._appender.append(
            self._topics.membership,
            encode_membership(writer, done),
            headers=format_headers(format_of_membership(done)),
            on_delivery=_note_delivery,
        )

    def _new_members_follow(self, group: Group, change: RunningChange) -> bool:
        """Whether every member that the change adds is in sync behind the barrier of its first phase."""
        detector = self._heartbeats.detector
        own = detector.status(group.name, self._heartbeats.node)
        before = change.base.group(group.name)
        added = [node for node in change.pre_members(group.name) if node not in before]
        statuses = detector.live(group.name, added)
        return (
            own is not None
            and len(statuses) == len(added)
            and all(_follows(status, own.topic_id, change) and self._knows(status, change) for status in statuses)
            and self._is_one_directory(change.node)
        )

    def _knows(self, status: Status, change: RunningChange) -> bool:
        """Whether a node has read of the change in the membership log, too."""
        # One that has the group from the change before would drop it, with all its data, at the end of that one.
        run = status.node, status.incarnation
        present = self._heartbeats.detector.presences()
        return any((each.node, each.incarnation) == run and each.records >= change.began for each in present)

    def _is_one_directory(self, node: str) -> bool:
        """Whether no second data directory has the name of the node that joins."""
        # Not by the id that the change names: a recovery renews it, and an empty directory may replace a lost one.
        present = self._heartbeats.detector.presences()
        return len({each.store for each in present if each.node == node}) <= 1


def _gives(change: RunningChange, group: str) -> bool:
    """Whether a group gives slots."""
    return any(former == group for _, former in change.table.moved)


def _follows(status: Status, topic_id: str, change: RunningChange) -> bool:
    in_sync = status.eligible and not status.log_lost and status.durable_offset >= 0
    return in_sync and status.topic_id == topic_id and status.change >= change.number


def _note_delivery(_offset: int | None, error: HeadraceError | None) -> None:
    if error is not None:
        _log.debug("first phase not reported", error=str(error))
