"""What a node does in the metadata group: a pure function of what it knows, evaluated at every turn.

The metadata group has all nodes of the slot table. Its leader is claimed in the membership log by the rule of data
groups (`election.py`). docs/internals/membership.md has the situations as a table, which a test reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.consumers.membership.balancer import Balancer
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.requests import (
    ChangeRequest,
    NodesView,
    change_record,
    check_carriers,
    plan_change,
)
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.election import GroupView, MemberView, decide
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import (
    MEMBERSHIP_CHANGE_FORMAT,
    Cancel,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.presence import Presence
from headrace.schemas.records import Role


class Situation(StrEnum):
    """Where a node is in the metadata group; the first that holds, in this order."""

    OUTSIDE = "outside"
    UNABLE = "unable"
    OLD_BUILDS = "old builds"
    PENDING = "pending"
    FOLLOWING = "following"
    CLAIMING = "claiming"
    CANCELLING = "cancelling"
    EXILING = "exiling"
    COMPLETING = "completing"
    BEGINNING = "beginning"
    REFUSING = "refusing"
    GATHERING = "gathering"
    MIGRATING = "migrating"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class WantedChange:
    """A request that a node has taken and the log has not decided, with the choice of what moves."""

    request: ChangeRequest
    balancer: Balancer | None = None


@dataclass(frozen=True, slots=True)
class MetadataView:
    """What a node knows of the metadata group.

    `present` are the live nodes by their own reports, the newest first. `eligible`: this node has read the
    membership log to its end and follows it. `claim_age_ms` and `fenced` as in `GroupView`. `pending`: a record of
    this node was appended and not read back yet. `cancel` is the number of the change that an operator ends, 0
    without one. `lingering` are removed nodes whose former group still has its topic.
    """

    state: MembershipState
    node: str
    incarnation: str
    nodes: NodesView
    present: Sequence[Presence]
    eligible: bool
    fenced: bool
    log_answers: bool
    claim_age_ms: int
    pending: bool = False
    wanted: WantedChange | None = None
    cancel: int = 0
    lingering: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MetadataDecision:
    """The situation, why where it is not plain, and the record to append; `refusal` is the answer to `wanted`.

    `leads`: this node has read its own claim back as accepted, and nothing it knows ends its leadership.
    """

    situation: Situation
    reason: str = ""
    leads: bool = False
    record: MembershipChange | None = None
    refusal: HeadraceError | None = None


def decide_metadata(view: MetadataView) -> MetadataDecision:
    """What this node does now."""
    table = view.state.table
    if table is None or view.node not in table.nodes:
        return MetadataDecision(Situation.OUTSIDE, f"node {view.node} is not in the slot table")
    election = decide(_group_view(view, table))
    if election.role is Role.UNSYNCED:
        return MetadataDecision(Situation.UNABLE, election.reason)
    # A build that cannot read these records stops at the first of them.
    old = sorted(node for node, found in view.nodes.formats.items() if found < MEMBERSHIP_CHANGE_FORMAT)
    if old:
        return MetadataDecision(Situation.OLD_BUILDS, f"nodes {', '.join(old)} cannot read the records of a change")
    # Nobody acts on a delivery report: until the record was read back it may count, or not, or come later.
    if view.pending:
        leads = election.role is Role.LEADER
        return MetadataDecision(Situation.PENDING, "a record of this node was not read back yet", leads)
    if election.leadership is None:
        return MetadataDecision(Situation.FOLLOWING, _led_by(view.state))
    if election.claim:
        return MetadataDecision(Situation.CLAIMING, record=MetadataClaim(election.leadership))
    return _lead(view, election.leadership)


def _lead(view: MetadataView, leadership: Leadership) -> MetadataDecision:
    """What the leader does, by what the log has decided and never by what it has done itself.

    So a new leader continues where the one before stopped.
    """
    change = view.state.change
    if change is not None and not change.formal and view.cancel == change.number:
        return MetadataDecision(Situation.CANCELLING, leads=True, record=Cancel(leadership, change.number))
    # Its group hands over late records until its topic is gone, and the last member may be this very node.
    for node in (each for each in due_exiles(view.state) if each not in view.lingering):
        return MetadataDecision(Situation.EXILING, leads=True, record=Exile(leadership, node))
    if change is not None and not change.formal and not change.groups_waiting:
        return MetadataDecision(Situation.COMPLETING, leads=True, record=Formal(leadership, change.number))
    if view.wanted is not None and view.state.outcome(view.wanted.request.id) is None:
        return _begin(view, view.wanted, leadership)
    if change is None:
        return MetadataDecision(Situation.IDLE, leads=True)
    if change.formal:
        return MetadataDecision(Situation.MIGRATING, leads=True)
    return MetadataDecision(Situation.GATHERING, f"groups {', '.join(change.groups_waiting)} are due", True)


def _begin(view: MetadataView, wanted: WantedChange, leadership: Leadership) -> MetadataDecision:
    try:
        planned = plan_change(view.state, wanted.request, view.nodes, wanted.balancer)
        check_carriers(planned, view.nodes)
        record = change_record(planned, view.nodes, leadership, view.state.removed)
    except HeadraceError as error:
        return MetadataDecision(Situation.REFUSING, error.message, leads=True, refusal=error)
    return MetadataDecision(Situation.BEGINNING, leads=True, record=record)


def due_exiles(state: MembershipState) -> list[str]:
    """The removed nodes whose change has ended, and that no record has exiled yet."""
    leaving = "" if state.change is None else state.change.node
    return [node for node in state.removed if node not in state.exiled and node != leaving]


def _group_view(view: MetadataView, table: SlotTable) -> GroupView:
    # The newest of a node counts, so it comes last.
    present = {each.node: each for each in reversed(view.present)}
    return GroupView(
        members=tuple(_member(view, present, node) for node in table.nodes),
        node=view.node,
        leader=view.state.leader,
        claim_age_ms=view.claim_age_ms,
        log_answers=view.log_answers,
        fenced=view.fenced,
        # Nobody takes the leadership back: there is one, so it need not be spread.
        steady_ms=0,
    )


def _member(view: MetadataView, present: dict[str, Presence], node: str) -> MemberView:
    if node == view.node:
        return MemberView(node, view.incarnation, not view.fenced, view.eligible, view.state.epoch)
    found = present.get(node)
    if found is None:
        return MemberView(node, "", False, False, 0)
    return MemberView(node, found.incarnation, True, found.eligible, found.epoch)


def _led_by(state: MembershipState) -> str:
    return f"{state.leader.node} leads" if state.leader is not None else "nobody leads"
