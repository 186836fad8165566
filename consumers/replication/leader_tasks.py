"""What a leader does, and what a node does to become one: it appends, and acts only on what it reads back.

Every turn compares the newest claim and seal in the log with those before the newest append. An append that
is not read back as accepted within some seconds was lost or did not count, and is repeated.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.log.port import STOP_FLUSH_S, Log
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.replication.election import Decision, decide
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_parts import (
    GroupChangeTasks,
    GroupViews,
    LeaderRecord,
    NoChangeTasks,
    TableRetention,
)
from headrace.consumers.replication.settings import SealPolicy
from headrace.consumers.replication.upkeep import NoWaitingCentres, WaitingCentres, due_upkeep, is_seal_due
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.messages import (
    Anchor,
    Claim,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    Seal,
    encode_message,
    format_of,
)
from headrace.schemas.records import Role, Status

TURN_S = 0.1
READ_BACK_TIMEOUT_S = 5.0
UPKEEP_INTERVAL_S = 5.0
NO_ROLE = Decision(Role.UNSYNCED, False, "no role yet")
RESUMED = Decision(Role.UNSYNCED, False, "this process was stopped for 3 s or more and has just resumed")
_log = structlog.get_logger(__name__)


class NotLeader(HeadraceError):
    """The group is led by another node; names it."""


class LeadershipForeign(HeadraceError):
    """A record under the leadership of another node or run; it was not appended."""


@dataclass(frozen=True, slots=True)
class _PendingAppend:
    """(epoch, frontier) of the log at the newest append, and until when to wait for the log to show others."""

    before: tuple[int, int] = (-1, -1)
    until_s: float = 0.0


class LeaderTasks:
    """The thread that claims, seals and does a leader's upkeep. `decision` may be called by any thread.

    `turn` is one step of it, after `prepare`. `change_tasks` are set by a node that takes part in changes, and `centres`
    by one whose store sends to others.
    """

    def __init__(
        self,
        log: Log,
        groups: Mapping[str, Group],
        policy: SealPolicy,
        views: GroupViews,
        heartbeat: Heartbeat,
        tables: TableRetention,
        trimmer: LogTrimmer,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._log = log
        self._groups = groups
        self._node = heartbeat.node
        self._incarnation = heartbeat.incarnation
        self._policy = policy
        self._views = views
        self._heartbeat = heartbeat
        self._tables = tables
        self._trimmer = trimmer
        self.change_tasks: GroupChangeTasks = NoChangeTasks()
        self.centres: WaitingCentres = NoWaitingCentres()
        # A group without an entry in these has come since the newest turn, and is due at the next one.
        self._upkeep_after_s: dict[str, float] = {}
        self._batch = 0
        # The incarnation is part of the producer's name: a restarted node counts its batches from 1 again,
        # and under the old name the replicas would drop them as repeats.
        self._producer = f"{self._node}/{self._incarnation}"
        self._pending: dict[str, _PendingAppend] = {}
        self._unsealed_since_s: dict[str, tuple[int, float]] = {}
        self._decisions: dict[str, Decision] = {}
        self._turn_ns = 0
        self._follower_since_s: dict[str, float] = {}
        self._lock = threading.Lock()
        # Held while the thread works on one group.
        self._working = threading.Lock()
        self._opened = ExitStack()
        # All that a turn waits for is the log, and its records may be lost: the next leader decides anew.
        self._task = PeriodicTask("leader-tasks", TURN_S, self.turn, LOG_JOIN_TIMEOUT_S)

    def start(self) -> None:
        """Begin."""
        self.prepare()
        self._task.start()

    def prepare(self) -> None:
        """Open what `turn` needs; no role is taken before the first turn."""
        self._appender = self._log.appender()
        self._opened.callback(lambda: self.change_tasks.close())
        self._opened.callback(self._appender.close, STOP_FLUSH_S)
        # The decisions so far, no role, hold until the first turn. Else `decision` would be made anew until then,
        # perhaps with a role, which the first turn took away again as that of a process that had been stopped.
        self._turn_ns = self._clock.boot_ns()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self._task.request_stop()

    def stop(self) -> None:
        """Stop after the current turn."""
        self._task.stop()
        self._opened.close()

    def decision(self, topic: str) -> Decision:
        """The newest decision on the group of a topic.

        One that is older than 3 s is made anew: the process may have been paused.
        """
        if self._is_current(self._clock.boot_ns()):
            return self._decisions.get(topic, NO_ROLE)
        return decide(self._views.view(topic, 0))

    def dismiss(self, topic: str) -> bool:
        """Forget a group that goes. False while the thread is working on it: to be called again."""
        # Not waited for: a turn may wait for Kafka, for long.
        if not self._working.acquire(blocking=False):
            return False
        try:
            self._forget(topic)
        finally:
            self._working.release()
        return True

    def _forget(self, topic: str) -> None:
        kept: tuple[dict[str, Any], ...] = (self._decisions, self._pending, self._upkeep_after_s)
        for known in (*kept, self._unsealed_since_s, self._follower_since_s):
            known.pop(topic, None)
        self._trimmer.forget(topic)
        self.change_tasks.forget(topic)

    def unsealed_s(self, topic: str) -> float:
        """For how long a group has had rows that are in no file, 0 without such rows."""
        _, since_s = self._unsealed_since_s.get(topic, (-1, self._clock.monotonic_s()))
        return self._clock.monotonic_s() - since_s

    def seal(self, topic: str) -> None:
        """Append a Seal now.

        Raises NotLeader, also in a process that was stopped as a leader and has just resumed.
        """
        self._append_seal(topic, self._groups[topic], self._leadership(topic))

    def append_for(self, topic: str, bodies_of: Callable[[Leadership], Iterable[Load]]) -> None:
        """Append loads under the leadership of this node. Raises NotLeader, and the errors of the log."""
        for body in bodies_of(self._leadership(topic)):
            self.append(topic, body)

    def _leadership(self, topic: str) -> Leadership:
        """The leadership of this node. Raises NotLeader."""
        # Decided here and now: the stored decision of a process that was stopped is that of before the stop.
        group, decision = self._groups[topic], decide(self._views.view(topic, 0))
        if decision.role is not Role.LEADER:
            leader = group.applied.leader.node if group.applied.leader else "nobody"
            why = decision.reason or (f"{leader} leads" if leader != self._node else "another node has claimed it")
            raise NotLeader(
                f"group {group.name} is not led by {self._node}: {why}", action="ask its leader", retriable=True
            )
        assert decision.leadership is not None, "a leader without leadership"
        return decision.leadership

    def _is_current(self, now_ns: int) -> bool:
        return now_ns - self._turn_ns < OFFLINE_MS * 1_000_000

    def turn(self) -> None:
        """One turn for every group.

        The first turn after a stop takes no role: statuses that arrived meanwhile are read first.
        """
        # The time is taken once a turn, at its begin: a stop in the middle of a turn then counts at the next
        # one.
        now_ns = self._clock.boot_ns()
        current, self._turn_ns = self._is_current(now_ns), now_ns
        for topic in set(self._decisions).difference(self._groups):
            self._forget(topic)
        for topic, group in self._groups.items():
            try:
                with self._working:
                    # It may have gone, or another one may have come in its place, since the turn began.
                    if self._groups.get(topic) is group:
                        self._run_group(topic, group, current)
            except HeadraceError as error:
                _log.warning("leader task not done", group=group.name, error=str(error))
            except Exception:
                # A thread that ends here would leave the group without a leader for good.
                _log.exception("leader task failed", group=group.name)

    def _run_group(self, topic: str, group: Group, current: bool) -> None:
        decision = self._decide(topic, current)
        before, self._decisions[topic] = self._decisions.get(topic, NO_ROLE), decision
        if decision.role is not before.role:
            _log.info("role", group=group.name, role=str(decision.role), reason=decision.reason)
            self._heartbeat.send_now()
        pending, now = self._pending.get(topic, _PendingAppend()), (group.applied.epoch, group.applied.frontier)
        old = self._is_old(topic, group)
        if decision.role is not Role.LEADER:
            self.change_tasks.forget(topic)
        # One append at a time. A delivery report proves nothing (the record may be delivered and not count),
        # so only a changed epoch or frontier ends the wait, and a lost append is repeated after the timeout.
        if pending.before == now and self._clock.monotonic_s() < pending.until_s:
            return
        if decision.leadership is None:
            return
        if decision.claim:
            self._note_pending(topic, group)
            self._append_claim(topic, group, decision.leadership)
        elif old:
            self._note_pending(topic, group)
            self._append_seal(topic, group, decision.leadership)
        elif not self.change_tasks.turn(topic, group, decision.leadership):
            self._upkeep(topic, group, decision.leadership)

    def _note_pending(self, topic: str, group: Group) -> None:
        now = (group.applied.epoch, group.applied.frontier)
        self._pending[topic] = _PendingAppend(now, self._clock.monotonic_s() + READ_BACK_TIMEOUT_S)

    def _upkeep(self, topic: str, group: Group, leadership: Leadership) -> None:
        """Merge small segments, drop expired slices and trim the log, one round at a time."""
        # Plans are made from the catalogue: while a job runs it still lists files that the job replaces.
        if self._clock.monotonic_s() < self._upkeep_after_s.get(topic, 0.0) or group.store.pending_jobs():
            return
        self._upkeep_after_s[topic] = self._clock.monotonic_s() + UPKEEP_INTERVAL_S
        live = self._heartbeat.live(group.name, group.applied.changes.members)
        if self._trimmer.is_trimmed_unsealed(topic, group) or is_seal_due(group, live):
            self._note_pending(topic, group)
            self._append_seal(topic, group, leadership)
            return
        now_ns = retention_time_ns(self._clock.wall_ns(), self._heartbeat.detector.newest_ms)
        with self.centres.planning():
            for record in due_upkeep(group, leadership, self._tables, now_ns, self.centres.progress(group)):
                self.append(topic, record)
        self._trimmer.trim(topic, group)

    def _decide(self, topic: str, current: bool) -> Decision:
        since_s = self._follower_since_s.get(topic)
        steady_ms = 0 if since_s is None else int((self._clock.monotonic_s() - since_s) * 1_000)
        decision = decide(self._views.view(topic, steady_ms)) if current else RESUMED
        if decision.role is not Role.FOLLOWER:
            self._follower_since_s.pop(topic, None)
        elif since_s is None:
            self._follower_since_s[topic] = self._clock.monotonic_s()
        return decision

    def _is_old(self, topic: str, group: Group) -> bool:
        """Whether rows, or files that were loaded, have been in no seal for the age of the policy."""
        frontier = group.applied.frontier
        if not group.applied.unsealed_rows and group.store.loaded_version <= frontier:
            self._unsealed_since_s.pop(topic, None)
            return False
        known, since_s = self._unsealed_since_s.get(topic, (-1, 0.0))
        if known != frontier:
            self._unsealed_since_s[topic] = (frontier, self._clock.monotonic_s())
            return False
        return (self._clock.monotonic_s() - since_s) * 1_000 >= self._policy.seal_age_ms

    def _append_claim(self, topic: str, group: Group, leadership: Leadership) -> None:
        _log.info("claiming", group=group.name, epoch=leadership.epoch)
        self.append(topic, Claim(leadership, _anchor(group), self._policy.seal_rows, self._policy.seal_bytes))

    def _append_seal(self, topic: str, group: Group, leadership: Leadership) -> None:
        self.append(topic, Seal(leadership, _anchor(group)))

    def append(self, topic: str, body: LeaderRecord) -> None:
        """Append a record of a leader. Raises LeadershipForeign, and the errors of the log."""
        # The last gate, whatever decided: replicas cannot see who appended a record, only whose leadership it names.
        by = body.leadership
        if (by.node, by.incarnation) != (self._node, self._incarnation):
            raise LeadershipForeign(f"{type(body).__name__} under the leadership of {by.node} at {self._node}")
        # Two threads append, this one and an operator's seal. A batch of a lower number would be dropped by
        # the replicas.
        with self._lock:
            self._batch += 1
            message = Message(ProducerPosition(self._producer, self._batch, 0), body)
            self._appender.append(topic, encode_message(message), headers=format_headers(format_of(body)))


def retention_time_ns(wall_ns: int, broker_ms: int) -> int:
    """The present by which rows expire: the earlier of this node's clock and the broker's, ns."""
    # A Drop removes rows for good, on all replicas. A clock that is ahead, of the leader or of the broker, must not
    # expire what the other one keeps; one that is behind only drops later. Before the first heartbeat nothing expires.
    return min(wall_ns, broker_ms * 1_000_000)


def _anchor(group: Group) -> Anchor:
    applied = group.applied
    return Anchor(applied.offset, applied.version, applied.chain)


def new_incarnation() -> str:
    """A name for one run of a process, never used before."""
    return uuid.uuid4().hex[:16]


class LogTrimmer:
    """Trims the logs of groups that this node leads. Owned by the thread of the leader tasks."""

    def __init__(self, log: Log, heartbeat: Heartbeat, keep_records: int) -> None:
        self._log = log
        self._heartbeat = heartbeat
        self._keep_records = keep_records
        self._trimmed: dict[str, int] = {}

    def forget(self, topic: str) -> None:
        """A group has gone."""
        self._trimmed.pop(topic, None)

    def is_trimmed_unsealed(self, topic: str, group: Group) -> bool:
        """Whether the log has lost records that are in no file: who has not read them can get them from nobody.

        Somebody else trimmed it: this class leaves what is not sealed. Raises TopicMissing, LogUnavailable.
        """
        return self._log.describe(topic).begin > group.store_jobs.sealed_offset + 1

    def trim(self, topic: str, group: Group) -> None:
        """Trim what may go. Raises TopicMissing, LogUnavailable, AppendFailed."""
        if self._keep_records <= 0:
            return
        keep_from = group.applied.offset + 1 - self._keep_records
        changes = group.applied.changes
        live = self._heartbeat.live(group.name, changes.members)
        if (due := changes.due_offset()) is not None:
            # Another group must still accept it, and it is handed over from this log.
            keep_from = min(keep_from, due)
        before = trim_before(live, changes.voters, group.store_jobs.sealed_offset, keep_from)
        if before > self._trimmed.get(topic, 0):
            self._log.trim(topic, before)
            self._trimmed[topic] = before
            _log.info("log trimmed", group=group.name, before=before)


def trim_before(live: Sequence[Status], members: Sequence[str], sealed_offset: int, keep_from: int) -> int:
    """The offset below which a leader may trim.

    Below it, records are sealed and durable at every live member, and outside the window for topic replay.
    `sealed_offset` is that of the leader's own newest durable seal, `keep_from` the first offset of the
    window. Members that are down recover from files. 0 = trim nothing, also while fewer than a majority of
    `members` are live, since those that are not may be the only ones with the files, or while a live member follows
    another log. `live` may have more: those that a running first phase adds.
    """
    # An offset of another topic, or of records that the log has lost, is no offset of this log.
    if len({status.topic_id for status in live}) > 1 or any(status.log_lost for status in live):
        return 0
    # Members that are away are not waited for, since one lost disk would then fill Kafka's; a majority must
    # have the files.
    if 2 * sum(status.node in members for status in live) <= len(members):
        return 0
    lowest = min((status.sealed_offset for status in live), default=-1)
    return max(0, min(lowest + 1, sealed_offset + 1, keep_from))
