"""One node in the metadata group: follows its log, leads it if it may, and takes operators' requests.

What to do is decided in `metadata_leader.py`. This shell asks for that at each turn, appends one record at a time,
and answers a request only by what it has read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import AppendUnknown, Log
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.membership.change_requests import ChangeRequests, NotMetadataLeader
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.metadata_leader import (
    MetadataDecision,
    MetadataView,
    Situation,
    decide_metadata,
)
from headrace.consumers.membership.placement import closable_ends
from headrace.consumers.membership.requests import NodesView, nodes_view
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import Change, MembershipChange
from headrace.schemas.presence import Presence
from headrace.schemas.records import encode_membership, format_of_membership

CHANGES_CARRIED_OUT = True
"""Whether the nodes of this build carry out a change: take and give members, and move slots."""
TURN_S = 0.25
CHANGE_TURN_S = 0.1
"""While a change runs: each of its steps waits for the turns of several nodes."""
READ_BACK_TIMEOUT_S = 5.0
APPEND_TIMEOUT_S = 3.0
RETRY_S = 1.0
_log = structlog.get_logger(__name__)


class Heartbeats(Protocol):
    """The statuses of nodes, and whether this node is fenced; see `consumers.replication.heartbeat.Heartbeat`."""

    node: str
    incarnation: str
    detector: FailureDetector

    @property
    def fenced(self) -> bool:
        """Whether this node has not read back a status that it sent less than 3 s ago."""
        ...


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The settings that a node was started with, which those of a cluster that it joins must equal."""

    store: str
    replication: int
    slots: int
    changes: bool = CHANGES_CARRIED_OUT


@dataclass(frozen=True, slots=True)
class _PendingAppend:
    """The newest record of this node, and until when to wait for it; no writer: it is certainly not in the log."""

    writer: str
    until_s: float


class MetadataGroup:
    """The thread of a node for `{c}.membership`; `turn` is one step of it. All other names are for any thread."""

    def __init__(
        self,
        log: Log,
        topic: str,
        follower: MembershipFollower,
        heartbeats: Heartbeats,
        settings: StartSettings,
        clock: Clock = SYSTEM_CLOCK,
        ended: EndedTopics | None = None,
    ) -> None:
        self._ended = ended
        self._log = log
        self._topic = topic
        self._heartbeats = heartbeats
        self._settings = settings
        self._clock = clock
        self._appended = 0
        self._pending: _PendingAppend | None = None
        self._task = PeriodicTask("metadata-group", TURN_S, self.turn, LOG_JOIN_TIMEOUT_S)
        self.follower = follower
        self.requests = ChangeRequests(self)
        self.decision = MetadataDecision(Situation.OUTSIDE, "the membership log was not read yet")

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self._task.request_stop()

    def stop(self) -> None:
        """Stop after the current turn."""
        self._task.stop()
        if not self._task.alive:
            self.follower.close()

    # What others ask.

    @property
    def state(self) -> MembershipState:
        """What the log has decided, as far as this node has read it."""
        return self.follower.state

    @property
    def statuses(self) -> FailureDetector:
        """The newest statuses of all nodes."""
        return self._heartbeats.detector

    @property
    def failure(self) -> str:
        """Why changes of the cluster no longer reach this node, empty while they do."""
        return self.follower.failure

    @property
    def leads(self) -> bool:
        """Whether this node leads the metadata group."""
        return self.decision.leads and not self._heartbeats.fenced

    def leader(self) -> tuple[str, str]:
        """(node, address) of the live leader of the metadata group, empty where there is none."""
        leader = self.state.leader
        for each in self._heartbeats.detector.presences() if leader is not None else ():
            if leader is not None and (each.node, each.incarnation) == (leader.node, leader.incarnation):
                return each.node, each.http
        return "", ""

    def report(self) -> ClusterReport:
        """What operators see of the cluster, as this node knows it. There is a table."""
        return ClusterReport(self.state, self.statuses, self.follower.formal_ms)

    def presence(self, http: str) -> Presence:
        """What this node reports of itself."""
        state, failure = self.state, self.failure
        return Presence(
            node=self._heartbeats.node,
            incarnation=self._heartbeats.incarnation,
            store=self._settings.store,
            http=http,
            replication=self._settings.replication,
            slots=self._settings.slots,
            eligible=self._eligible and not self._heartbeats.fenced,
            epoch=state.epoch,
            records=state.records,
            changes=self._settings.changes,
            reason=failure,
            sent_boot_ns=self._clock.boot_ns(),
        )

    @property
    def _eligible(self) -> bool:
        return self.follower.caught_up and not self.failure

    def not_leader(self) -> NotMetadataLeader:
        """The answer to a request that only the leader takes."""
        leader, http = self.leader()
        # This very node may be the newest leader in the log, and not be able to lead now.
        leader, http = ("", "") if leader == self._heartbeats.node else (leader, http)
        why = f"{leader} does" if leader else self.decision.reason or "nobody does"
        return NotMetadataLeader(
            f"node {self._heartbeats.node} does not lead the metadata group: {why}", leader=leader, http=http
        )

    def nodes(self, table: SlotTable) -> NodesView:
        """The nodes by their newest statuses."""
        return nodes_view(table, self._heartbeats.detector)

    # The thread.

    def turn(self) -> None:
        """Read what has arrived, decide, and append at most one record."""
        present = self._heartbeats.detector.presences()
        if self._expects_records(present):
            self.follower.look_soon()
        elif self.state.change is not None:
            self.follower.expect()
        for read in self.follower.turn():
            self._note_read(read.writer)
        self._note_timeout()
        self._task.interval_s = TURN_S if self.state.change is None else CHANGE_TURN_S
        self.requests.settle(self.state)
        before, decision = self.decision, decide_metadata(self._view(present))
        self.decision = decision
        if decision.leads is not before.leads:
            _log.info("metadata group", leads=decision.leads, epoch=self.state.epoch, reason=decision.reason)
        self.requests.refuse(decision)
        if decision.record is not None:
            self._append(decision.record)

    def _expects_records(self, present: Sequence[Presence]) -> bool:
        """Whether there are records that were not read, or will be at any moment: the log is looked at in each turn."""
        state = self.state
        return (
            self._pending is not None
            or self.requests.wanted is not None
            or any(each.records > state.records for each in present)
        )

    def _view(self, present: Sequence[Presence]) -> MetadataView:
        state, detector = self.state, self._heartbeats.detector
        return MetadataView(
            state=state,
            node=self._heartbeats.node,
            incarnation=self._heartbeats.incarnation,
            nodes=NodesView(frozenset()) if state.table is None else nodes_view(state.table, detector, present),
            present=present,
            eligible=self._eligible,
            fenced=self._heartbeats.fenced,
            log_answers=self.follower.log_answers,
            claim_age_ms=detector.newest_ms - self.follower.claimed_ms,
            pending=self._pending is not None,
            wanted=self.requests.wanted,
            cancel=self.requests.cancelled,
            lingering=self._lingering(),
        )

    def _lingering(self) -> frozenset[str]:
        """The removed nodes whose groups still have their topics."""
        # Every node looks: a leader that has just begun must know it before its first decision.
        ended = closable_ends(self.state)
        if self._ended is None or not ended:
            return frozenset()
        gone = self._ended.gone(ended)
        return frozenset(key.group for key in ended if key not in gone)

    def _note_read(self, writer: str) -> None:
        if self._pending is not None and self._pending.writer == writer:
            self._pending = None
        self.requests.resolve(writer)

    def _note_timeout(self) -> None:
        # It was lost, or is still on its way. Then it counts by the rules of the log, whatever comes first.
        if self._pending is not None and self._clock.monotonic_s() >= self._pending.until_s:
            self._pending = None

    def _append(self, record: MembershipChange) -> None:
        """Append a record, and wait in the next turns until it is read back."""
        self._appended += 1
        # Unique, so that a node knows its own records among those of others and of its earlier runs.
        writer = f"{self._heartbeats.node}/{self._heartbeats.incarnation}/{self._appended}"
        self._pending = _PendingAppend(writer, self._clock.monotonic_s() + READ_BACK_TIMEOUT_S)
        if isinstance(record, Change):
            self.requests.note_copy(writer)
        _log.info("membership record", kind=type(record).__name__, situation=str(self.decision.situation))
        try:
            append_one(
                self._log,
                self._topic,
                encode_membership(writer, record),
                timeout_s=APPEND_TIMEOUT_S,
                needed_format=format_of_membership(record),
            )
        except AppendUnknown as error:
            _log.debug("membership record not confirmed", error=str(error))
        except HeadraceError as error:
            _log.warning("membership record not appended", error=str(error))
            self._pending = _PendingAppend("", self._clock.monotonic_s() + RETRY_S)
            self.requests.resolve(writer)
