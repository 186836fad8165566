"""A change of a cluster's members or slots, as an operator asks for it: one request, followed to its end.

The request goes to the leader of the metadata group, under one id until the log has decided it. What follows is
read from the membership log, so it does not matter which node leads meanwhile, or whether any does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused, NodeUnreachable, request_node
from headrace.connectors.log.port import Log, LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership import change_requests, requests, ring
from headrace.consumers.membership.change_requests import ChangeUnconfirmed, NotMetadataLeader
from headrace.consumers.membership.changes import MembershipState, Outcome
from headrace.consumers.membership.cluster_report import UNKNOWN, ClusterReport
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.requests import NoChange, NoMajority
from headrace.consumers.membership.running_change import Phase
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.schemas.errors import HeadraceError, StateUnknown

ANSWER_TIMEOUT_S = 20.0
LEADER_TIMEOUT_S = 20.0
JOINER_TIMEOUT_S = 10.0
"""So long a node that was just started may take to its first status."""
POLL_S = 0.25
LOOK_INTERVAL_S = 0.1
"""Between two looks at the membership log at least."""
CHANGE_PATH = "/api/v1/cluster/change"
ENDED = (Phase.DONE, Phase.CANCELLED)
START_NODES = "start the nodes that are down; headrace cluster show names them"
CAUSE_CHARACTERS_MAX = 120
NEXT_STEPS = "see headrace cluster show; headrace cluster cancel ends it before its table counts"


def first_cause(causes: Sequence[str]) -> str:
    """The first thing that a change waits for, and how many more there are; empty for none."""
    if not causes:
        return ""
    first = causes[0] if len(causes[0]) <= CAUSE_CHARACTERS_MAX else f"{causes[0][: CAUSE_CHARACTERS_MAX - 1]}…"
    return first + (f", and for {len(causes) - 1} more" if causes[1:] else "")


class ChangeUnfinished(StateUnknown):
    """A change that had not ended when the time was over. It continues."""


class ChangeCancelled(HeadraceError):
    """A change that an operator ended before its table counted."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """A change that has ended; `bytes_moved` is an estimate, -1 while unknown."""

    version: int
    phase: Phase
    slots_moved: int
    bytes_moved: int
    seconds: float

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": self.version,
            "phase": str(self.phase),
            "slots_moved": self.slots_moved,
            "bytes_moved": self.bytes_moved,
            "seconds": round(self.seconds, 3),
        }


class ClusterChanges:
    """Begins, follows and cancels changes of one cluster. Owned by one thread."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._follower = MembershipFollower(log, topics.membership)
        self._statuses = StatusReader(log, topics.status)

    def close(self) -> None:
        """Close the readers."""
        self._follower.close()
        self._statuses.close()

    @property
    def state(self) -> MembershipState:
        """What the membership log has decided, as far as it was read."""
        return self._follower.state

    def waits_to_join(self, node: str) -> bool:
        """Whether a node is online that is not in the slot table."""
        self._look()
        table = self.state.table
        outside = table is not None and node not in table.nodes
        return outside and any(each.node == node for each in self._statuses.detector.presences())

    def begin(
        self,
        request: Mapping[str, Any],
        timeout_s: float = ANSWER_TIMEOUT_S,
        on_wait: Callable[[str], None] = lambda _line: None,
    ) -> Outcome:
        """Begin a change, or the result of the request with this id.

        Waits for the first status of a node that joins, and calls `on_wait` then. Raises the refusals of
        `consumers.membership.requests`, NoMajority, and ChangeUnconfirmed while a record of it may still count.
        """
        name, deadline = str(request["id"]), Deadline(timeout_s)
        joiner, waits, attempts = Deadline(JOINER_TIMEOUT_S), False, _Attempts(_undecided)
        while True:
            try:
                problem = self._post(request, attempts)
            # By the leader: the node that would join has sent no status, or sends none any more; or its former self,
            # which was removed, has sent one a moment ago.
            except (NodeUnreachable, ring.NodeExists) as error:
                if joiner.passed() or deadline.passed() or (isinstance(error, ring.NodeExists) and not error.retriable):
                    raise
                if not waits:
                    todo = f"; {error.action}" if error.action else ""
                    on_wait(f"{error.message}: waiting up to {JOINER_TIMEOUT_S:g} s{todo}")
                problem, waits = error, True
            self._look()
            if (outcome := self.state.outcome(name)) is not None:
                return outcome
            # Sent again under the same id only: a request that was decided gets its first result.
            if deadline.passed():
                raise attempts.failure(problem)

    def cancel(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Outcome:
        """End the running change before its table counts.

        Raises NoChange, CancelTooLate, ChangeUnconfirmed, and LogUnavailable while it is not known which change runs.
        """
        deadline = Deadline(timeout_s)
        self._read_to_end(deadline)
        change = self.state.change
        if change is None:
            raise NoChange("no change is running", action="see headrace cluster show")
        request = {"id": f"cancel-{change.number}", "kind": "cancel", "change": change.number}
        attempts = _Attempts(lambda: _cancellation_unconfirmed(change.table.version))
        while True:
            problem = self._post(request, attempts)
            self._look()
            outcome = self.state.outcome(change.request)
            if outcome is not None and outcome.phase is Phase.CANCELLED:
                return outcome
            if deadline.passed():
                raise attempts.failure(problem)

    def follow(
        self, name: str, on_progress: Callable[[Mapping[str, Any]], None], timeout_s: float | None = None
    ) -> ChangeResult:
        """Wait for the end of the change of a request. Raises ChangeUnfinished, ChangeCancelled."""
        began_s = time.monotonic()
        slots_moved, bytes_moved, shown = 0, UNKNOWN, dict[str, Any]()
        while True:
            outcome = self.state.outcome(name)
            running = self.state.change
            if running is not None and running.request == name:
                shown = ClusterReport(self.state, self._statuses.detector, self._follower.formal_ms).cluster()["change"]
                # The most that was seen: a group that leaves has no bytes any more once its last slot has moved.
                slots_moved, bytes_moved = running.slots_total, max(bytes_moved, shown["bytes_total"])
                if fault := self._follower.fault:
                    # What the log showed last may be over by now.
                    shown["waiting_for"] = [fault, *shown["waiting_for"]]
                on_progress(shown)
            if outcome is not None and outcome.phase in ENDED:
                seconds = time.monotonic() - began_s
                if outcome.phase is Phase.CANCELLED:
                    raise ChangeCancelled(
                        f"change to table {outcome.version} was cancelled", action="see headrace cluster show"
                    )
                table = self.state.table
                if table is not None and table.version == outcome.version:
                    # Also of a change that was done between two looks.
                    slots_moved = len(table.moved)
                return ChangeResult(outcome.version, outcome.phase, slots_moved, bytes_moved, seconds)
            if timeout_s is not None and time.monotonic() - began_s >= timeout_s:
                causes = first_cause(shown.get("waiting_for", ())) or "its first record"
                raise ChangeUnfinished(
                    f"the change is in phase {shown.get('phase', 'unknown')} after {timeout_s:g} s; it waits for {causes}",
                    action=f"it continues: {NEXT_STEPS}",
                )
            self._look()

    def _post(self, request: Mapping[str, Any], attempts: _Attempts) -> HeadraceError | None:
        """Send a request once; returns what keeps it from being decided now. Raises a refusal."""
        try:
            address = self._leader()
        except NoMajority as error:
            if attempts.may_count:
                raise attempts.failure(error) from error
            raise
        try:
            with request_node(address + CHANGE_PATH, method="POST", document=request, timeout_s=ANSWER_TIMEOUT_S):
                attempts.may_count = True
                return None
        except NodeUnreachable as error:
            # It may have the request and be gone: the next leader gets the same id.
            attempts.may_count |= error.sent
            self._look()
            return error
        except NodeRefused as error:
            refusal = raised_by_leader(error)
            if not undecided(error):
                raise refusal from error
            attempts.may_count |= isinstance(refusal, ChangeUnconfirmed)
            self._look()
            return refusal

    def _leader(self) -> str:
        """The address of the leader of the metadata group, waited for. Raises NoMajority."""
        deadline = Deadline(LEADER_TIMEOUT_S)
        while True:
            leader = self.state.leader
            wanted = None if leader is None else (leader.node, leader.incarnation)
            for each in self._statuses.detector.presences():
                if each.http and (each.node, each.incarnation) == wanted:
                    return each.http
            if deadline.passed():
                raise NoMajority(
                    "the metadata group has no leader: a majority of all nodes must be online",
                    action=START_NODES,
                    retriable=True,
                )
            self._look()

    def _look(self) -> None:
        """Take what the cluster has appended meanwhile, at most a moment later."""
        # All at once: nodes that apply rows send dozens of statuses a second.
        deadline = Deadline(LOOK_INTERVAL_S)
        self._statuses.follow(POLL_S)
        time.sleep(deadline.left_s())
        self._statuses.follow(0.0)
        if self.state.change is None:
            self._follower.look_soon()
        else:
            self._follower.expect()
        self._follower.turn()
        if self._follower.failure:
            raise HeadraceError(self._follower.failure, action="use the command of the cluster's own version")

    def _read_to_end(self, deadline: Deadline) -> None:
        while not self._follower.caught_up:
            if deadline.passed():
                why = self._follower.fault or "there is more of it"
                raise LogUnavailable(
                    f"the membership log could not be read to its end: {why}", action="check the broker", retriable=True
                )
            self._look()


_REFUSALS: Mapping[str, type[HeadraceError]] = {
    name: found
    for module in (requests, change_requests, ring)
    for name, found in vars(module).items()
    # NotMetadataLeader is never the end of a request, and its other fields name the leader.
    if isinstance(found, type) and issubclass(found, HeadraceError) and found is not NotMetadataLeader
}


class _Attempts:
    """The attempts to send one request. `may_count`: a node has got it, and it may count at any time."""

    def __init__(self, unconfirmed: Callable[[], ChangeUnconfirmed]) -> None:
        self._unconfirmed = unconfirmed
        self.may_count = False

    def failure(self, problem: HeadraceError | None) -> HeadraceError:
        """What to raise when the time is over; `problem` is what the last attempt met."""
        # A leader that was paused handles what it has got when it continues, also when a later attempt met nobody.
        return self._unconfirmed() if self.may_count or problem is None else problem


def _cancellation_unconfirmed(version: int) -> ChangeUnconfirmed:
    return ChangeUnconfirmed(
        f"the cancellation of the change to table {version} was not read back", action="send it again"
    )


def _undecided() -> ChangeUnconfirmed:
    # People have no id to send it again under.
    return ChangeUnconfirmed(
        "the cluster has not decided the request in time; it may still begin",
        action="see headrace cluster show: if no such change runs or has ended there, run the command again",
    )


_UNDECIDED = ("NotMetadataLeader", "ChangeUnconfirmed")


def undecided(refused: NodeRefused) -> bool:
    """Whether a request that was refused so is to be sent again under its id."""
    kind = str(refused.document.get("kind", ""))
    # Another request is being decided at this moment: afterwards this one is refused by name, or taken.
    return kind in _UNDECIDED or (kind == "ChangeRunning" and bool(refused.document.get("retriable")))


def raised_by_leader(refused: NodeRefused) -> HeadraceError:
    """The error that the leader raised, under its own class where a request has one, else as NodeRefused."""
    document = refused.document
    if document.get("kind") == NotMetadataLeader.__name__ and not document.get("leader", {}).get("node"):
        return NoMajority(
            f"the metadata group has no leader: {document['message']}", action=START_NODES, retriable=True
        )
    known = _REFUSALS.get(str(document.get("kind", "")))
    if known is None:
        return refused
    action, retriable = str(document.get("action", "")), bool(document.get("retriable", False))
    return known(str(document["message"]), action=action, retriable=retriable)
