"""Takes operators' requests at the leader of the metadata group, and answers them by what the log has decided.

A delivery report answers nothing: a record may be delivered and not count, or count after its sender gave up. One
request is taken at a time, since one change runs at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.membership.balancer import Balancer
from headrace.consumers.membership.changes import MembershipState, Outcome
from headrace.consumers.membership.metadata_leader import MetadataDecision, Situation, WantedChange
from headrace.consumers.membership.requests import (
    CancelTooLate,
    ChangeRequest,
    ChangeRunning,
    NoChange,
    NodesView,
    cancelled_change,
    change_record,
    check_carriers,
    plan_change,
)
from headrace.consumers.membership.running_change import Phase
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.errors import HeadraceError, StateUnknown

ANSWER_TIMEOUT_S = 10.0


class NotMetadataLeader(HeadraceError):
    """A node that does not lead the metadata group; `leader` and `http` name the one that does, if any."""

    def __init__(self, message: str, *, leader: str, http: str) -> None:
        action = f"send it to {leader}, {http or 'whose address is not known'}" if leader else "ask again in a moment"
        super().__init__(message, action=action, retriable=True)
        self.leader = leader
        self.http = http


class ChangeUnconfirmed(StateUnknown):
    """A request that may or may not have reached the log. Sent again under its id, it gets the first result."""


class MetadataMember(Protocol):
    """A node of the metadata group; see `metadata_group.py`."""

    @property
    def state(self) -> MembershipState:
        """What the log has decided, as far as this node has read it."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this node leads the metadata group."""
        ...

    def not_leader(self) -> NotMetadataLeader:
        """The answer to a request that only the leader takes."""
        ...

    def nodes(self, table: SlotTable) -> NodesView:
        """The nodes by their newest statuses."""
        ...


@dataclass(slots=True)
class Ticket:
    """A request of an operator until the log, or a check, has decided it."""

    wanted: WantedChange
    outcome: Outcome | None = None
    error: HeadraceError | None = None

    @property
    def decided(self) -> bool:
        """Whether it has its answer."""
        return self.outcome is not None or self.error is not None

    def answer(self) -> Outcome:
        """The result. Raises the refusal, and ChangeUnconfirmed while it is not decided."""
        if self.outcome is not None:
            return self.outcome
        raise self.error or unconfirmed(self.wanted.request.id)


def unconfirmed(request: str) -> ChangeUnconfirmed:
    """The answer to a request whose record may or may not count."""
    return ChangeUnconfirmed(
        f"request {request} was not read back as decided",
        action="send it again under the same id: it gets the first result",
    )


class ChangeRequests:
    """The requests that this node has taken. Any thread may send one; the thread of the group decides them."""

    def __init__(self, member: MetadataMember) -> None:
        self._member = member
        self._ticket: Ticket | None = None
        # Writer → request of each record that was appended in this epoch and not read back: it may still count.
        self._copies: dict[str, str] = {}
        self._epoch = 0
        self._changed = threading.Condition()
        self.cancelled = 0
        """The number of the change that is to be cancelled, 0 without one."""

    def begin(
        self, request: ChangeRequest, balancer: Balancer | None = None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Outcome:
        """Begin a change, or the result of the request with this id; waits until the log has decided it.

        Raises NotMetadataLeader, ChangeUnconfirmed, and the refusals of `requests.py`.
        """
        ticket = self.submit(request, balancer)
        with self._changed:
            self._changed.wait_for(lambda: ticket.decided, timeout_s)
        return ticket.answer()

    def submit(self, request: ChangeRequest, balancer: Balancer | None = None) -> Ticket:
        """Take a request without waiting, see `begin`."""
        wanted = WantedChange(request, balancer)
        outcome = self._member.state.outcome(request.id)
        if outcome is not None:
            return Ticket(wanted, outcome=outcome)
        self._require_leadership()
        with self._changed:
            if self._ticket is None:
                # Looked at again: the log may have decided it a moment ago.
                outcome = self._member.state.outcome(request.id)
                if outcome is None:
                    self._check(wanted)
                    self._ticket = Ticket(wanted)
                return self._ticket or Ticket(wanted, outcome=outcome)
            if self._ticket.wanted.request.id != request.id:
                raise ChangeRunning(
                    f"request {self._ticket.wanted.request.id} is being decided",
                    action="try again in a moment",
                    retriable=True,
                )
            return self._ticket

    def cancel(self, number: int, timeout_s: float = ANSWER_TIMEOUT_S) -> Outcome:
        """End the change with this number before its table counts; a repeat gets the same result.

        Raises NotMetadataLeader, CancelTooLate, NoChange, ChangeUnconfirmed.
        """
        if self.request_cancel(number):
            with self._changed:
                self._changed.wait_for(lambda: self.cancelled != number or self._cancelled(number), timeout_s)
        outcome = self._cancelled(number)
        if outcome is None:
            raise ChangeUnconfirmed(f"the cancellation of change {number} was not read back", action="send it again")
        return outcome

    def request_cancel(self, number: int) -> bool:
        """Ask for the end of a change without waiting; False when it has been cancelled already."""
        if self._cancelled(number) is not None:
            return False
        self._require_leadership()
        self.cancelled = number
        return True

    def _cancelled(self, number: int) -> Outcome | None:
        """The result of a cancellation, None while that change can still be cancelled."""
        state = self._member.state
        if state.change is not None and state.change.number == number:
            table = state.table
            assert table is not None, "a change of no cluster"
            cancelled_change(state, self._member.nodes(table))
            return None
        outcome = next((each for _, each in state.requests if each.number == number), None)
        if outcome is None:
            raise NoChange(f"there is no change {number}", action="see headrace cluster show")
        if outcome.phase is not Phase.CANCELLED:
            raise CancelTooLate(f"change {number} has ended", action="see headrace cluster show")
        return outcome

    def _require_leadership(self) -> None:
        if not self._member.leads:
            raise self._member.not_leader()

    def _check(self, wanted: WantedChange) -> None:
        """Refuse at once what the next turn would refuse."""
        state = self._member.state
        table = state.table
        if table is None or state.leader is None:
            raise self._member.not_leader()
        nodes = self._member.nodes(table)
        try:
            planned = plan_change(state, wanted.request, nodes, wanted.balancer)
            check_carriers(planned, nodes)
            change_record(planned, nodes, state.leader, state.removed)
        except HeadraceError as error:
            raise self._refusal(wanted, error) from error

    def _refusal(self, wanted: WantedChange, error: HeadraceError) -> HeadraceError:
        """The refusal, unless a record of the request is on its way: it may still count."""
        request = wanted.request.id
        return unconfirmed(request) if request in self._copies.values() else error

    # What the thread of the group calls.

    @property
    def wanted(self) -> WantedChange | None:
        """The request that is to be decided."""
        ticket = self._ticket
        return None if ticket is None else ticket.wanted

    def note_copy(self, writer: str) -> None:
        """A record of the request is being appended by `writer`."""
        if self._ticket is not None:
            self._copies[writer] = self._ticket.wanted.request.id

    def resolve(self, writer: str) -> None:
        """The record of `writer` was read back, or is certainly not in the log."""
        self._copies.pop(writer, None)

    def settle(self, state: MembershipState) -> None:
        """Answer what the log has decided."""
        # Records of an earlier leadership do not count any more.
        if state.epoch != self._epoch:
            self._epoch = state.epoch
            self._copies = {}
        ticket, change = self._ticket, state.change
        if ticket is not None:
            ticket.outcome = state.outcome(ticket.wanted.request.id)
        ended = change is None or change.formal or change.number != self.cancelled
        if (ticket is None or not ticket.decided) and not (self.cancelled and ended):
            return
        with self._changed:
            if ticket is not None and ticket.decided:
                self._ticket = None
            if ended:
                self.cancelled = 0
            self._changed.notify_all()

    def refuse(self, decision: MetadataDecision) -> None:
        """Answer what this node refuses, or can no longer decide."""
        ticket = self._ticket
        if decision.leads and decision.refusal is None:
            return
        if decision.situation is Situation.PENDING or (ticket is None and not self.cancelled):
            return
        with self._changed:
            if ticket is not None:
                ticket.error = self._refusal(ticket.wanted, decision.refusal or self._member.not_leader())
                self._ticket = None
            if not decision.leads:
                self.cancelled = 0
            self._changed.notify_all()
