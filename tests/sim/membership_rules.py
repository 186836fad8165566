"""What must hold of the metadata group, whatever happens; and its rules, each broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.consumers.membership import changes, metadata_leader
from headrace.consumers.membership.change_requests import ChangeRequests
from headrace.consumers.membership.changes import MembershipState, Outcome, Verdict
from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.membership.metadata_leader import due_exiles
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.replication import election
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.schemas.membership_records import MembershipChange, MetadataClaim, PreDone
from headrace.schemas.messages import Leadership
from headrace.schemas.records import decode_membership
from tests.sim.world import EPOCH_MS, InvariantBroken

if TYPE_CHECKING:
    from tests.sim.membership_node import MemberNode
    from tests.sim.membership_simulation import MembershipSimulation

LOOK_MS = 2_500
"""Within this time a healthy node looks at the log and has read it."""
ALIVE_SLACK_MS = OFFLINE_MS + 2_000
"""A node that sent nothing for so long must not count for a majority: offline, a heartbeat and a step."""
FORMAL = (Phase.MIGRATING, Phase.DONE)


class MembershipInvariants:
    """Looks at the log itself and at the state of every node after each of its steps."""

    def __init__(self, simulation: MembershipSimulation) -> None:
        self._simulation = simulation
        self._leaders: dict[int, Leadership] = {}
        self._numbers: dict[str, int] = {}
        self._phases: dict[int, Phase] = {}
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._claims_seen = 0
        self._reports: list[tuple[int, int, str]] = []
        self._records = 0
        self.accepted: dict[str, Outcome] = {}

    def fail(self, why: str) -> None:
        """Raises InvariantBroken."""
        raise InvariantBroken(f"seed {self._simulation.world.seed}: {why}")

    def check(self, node: MemberNode) -> None:
        """After a step of a node."""
        state = node.group.state
        shown = _shown(state)
        # Nearly every step reads nothing.
        if self._seen.get(state.records) == shown:
            return
        if self._seen.setdefault(state.records, shown) != shown:
            self.fail(f"two nodes have read {state.records} records and decided differently")
        self._read_log()
        if state.leader is not None and self._leaders.setdefault(state.epoch, state.leader) != state.leader:
            self.fail(f"epoch {state.epoch} has two leaders: {self._leaders[state.epoch]} and {state.leader}")
        self._check_requests(state)
        if state.table is not None and set(state.exiled) & set(state.table.nodes):
            self.fail(f"a node of the table is exiled: {state.exiled}")
        change = state.change
        if change is not None and change.formal:
            reported = {group for at, number, group in self._reports if at < state.records and number == change.number}
            if missing := set(change.base.headers) - reported:
                self.fail(f"change {change.number} is formal, and groups {missing} have not reported")

    def _check_requests(self, state: MembershipState) -> None:
        if state.changes != len(state.requests) or len({name for name, _ in state.requests}) != state.changes:
            self.fail(f"{state.changes} changes of the requests {[name for name, _ in state.requests]}")
        for name, outcome in state.requests:
            if self._numbers.setdefault(name, outcome.number) != outcome.number:
                self.fail(f"request {name} was decided as {self._numbers[name]} and as {outcome.number}")
        version = 1 + sum(outcome.phase in FORMAL for _, outcome in state.requests)
        if state.table is not None and state.table.version != version:
            self.fail(f"table {state.table.version} counts after {version - 1} formal changes")
        unended = [outcome for _, outcome in state.requests if outcome.phase not in (Phase.DONE, Phase.CANCELLED)]
        if len(unended) != (state.change is not None):
            self.fail(f"{len(unended)} changes run at a time")
        if state.records < self._records:
            return
        self._records = state.records
        self.accepted = dict(state.requests)
        for outcome in self.accepted.values():
            before = self._phases.get(outcome.number)
            if before in (Phase.DONE, Phase.CANCELLED) and before is not outcome.phase:
                self.fail(f"change {outcome.number} was {before} and is {outcome.phase}")
            self._phases[outcome.number] = outcome.phase

    def _read_log(self) -> None:
        """Note the reports in the log, by code of its own."""
        records = self._simulation.topic.records
        for place in range(self._claims_seen, len(records)):
            _, record = decode_membership(records[place].value)
            if isinstance(record, PreDone):
                self._reports.append((place, record.change, record.group))
        self._claims_seen = len(records)

    def claimed(self, node: MemberNode, claim: MetadataClaim) -> None:
        """A node appends a claim."""
        table, simulation = node.group.state.table, self._simulation
        assert table is not None
        since_ms = node.turn_ms - ALIVE_SLACK_MS
        online = sum(each == node.name or simulation.statuses.sent_since(each, since_ms) for each in table.nodes)
        even = 1 - len(table.nodes) % 2
        if 2 * (online + even) <= len(table.nodes) + even:
            self.fail(f"{claim.leadership.node} claims with {online} of {len(table.nodes)} nodes online")

    def settled(self, nodes: Sequence[MemberNode]) -> bool:
        """Whether all nodes have read what was there a moment ago: copies of records may arrive for long."""
        return min(node.group.state.records for node in nodes) >= self._old_records()

    def _old_records(self) -> int:
        before_ms = EPOCH_MS + self._simulation.world.now_ms - LOOK_MS
        return sum(record.timestamp_ms < before_ms for record in self._simulation.topic.records)

    def ended(self) -> None:
        """After the world was healed for long enough."""
        nodes = [node for node in self._simulation.nodes.values() if node.alive]
        if not self.settled(nodes):
            self.fail(
                f"{[node.group.state.records for node in nodes]} records were read of {self._old_records()} or more"
            )
        state = max((node.group.state for node in nodes), key=lambda each: each.records)
        if state.change is not None:
            self.fail(f"change {state.change.number} has not ended, phase {state.change.phase}")
        if due := due_exiles(state):
            self.fail(f"nodes {due} were removed and not exiled")
        leaders = [node.name for node in nodes if node.group.leads]
        if len(leaders) != 1:
            self.fail(f"{leaders} lead")
        self._check_answers()

    def _check_answers(self) -> None:
        for name, answers in self._simulation.answers.items():
            outcome = self.accepted.get(name)
            for answer in answers:
                if isinstance(answer, Outcome) and (outcome is None or outcome.number != answer.number):
                    self.fail(f"request {name} was answered with change {answer.number}, the log has {outcome}")
            if outcome is not None and all(isinstance(answer, str) and answer for answer in answers):
                self.fail(f"request {name} was refused ({answers}), and is change {outcome.number}")


def _shown(state: MembershipState) -> tuple[Any, ...]:
    change = state.change
    running = None if change is None else (change.number, change.formal, len(change.pre_done), change.received)
    version = None if state.table is None else state.table.version
    return (state.epoch, state.leader, version, running, state.requests, state.removed, state.exiled)


# The rules, each broken on purpose.


@dataclass(frozen=True, slots=True)
class MembershipRule:
    """A rule, and how it is broken; `quick`: within `QUICK_SEEDS` schedules it is found."""

    rule: str
    breaks: Callable[[pytest.MonkeyPatch], None]
    quick: bool = True


def answers_before_reading_back(patch: pytest.MonkeyPatch) -> None:
    """A request is answered once its record was sent."""
    note_copy = ChangeRequests.note_copy

    def broken(self: ChangeRequests, writer: str) -> None:
        note_copy(self, writer)
        if self._ticket is not None:
            state = self._member.state
            assert state.table is not None
            self._ticket.outcome = Outcome(state.changes + 1, state.table.version + 1, Phase.PRE)

    patch.setattr(ChangeRequests, "note_copy", broken)


def claims_need_no_next_epoch(patch: pytest.MonkeyPatch) -> None:
    """A claim of the present epoch counts too."""
    claim = changes._claim

    def broken(state: MembershipState, table: Any, record: MetadataClaim) -> Any:
        return claim(replace(state, epoch=min(state.epoch, record.leadership.epoch - 1)), table, record)

    patch.setattr(changes, "_claim", broken)


def claims_need_no_majority(patch: pytest.MonkeyPatch) -> None:
    """One node that is online is enough."""
    patch.setattr(election, "count_online", lambda view: (len(view.members), len(view.members)))


def a_request_counts_again(patch: pytest.MonkeyPatch) -> None:
    """The log does not remember the ids of requests."""
    change = changes._change

    def broken(state: MembershipState, table: Any, record: Any) -> Any:
        kept = tuple(each for each in state.requests if each[0] != record.request)
        after, verdict = change(replace(state, requests=kept), table, record)
        return (after if verdict is Verdict.ACCEPTED else state), verdict

    patch.setattr(changes, "_change", broken)


def groups_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Formal counts before every group has reported."""
    waiting: Any = RunningChange.groups_waiting
    fget = waiting.fget
    patch.setattr(RunningChange, "groups_waiting", property(lambda change: fget(change)[1:]))


def leaders_forget_that_they_cancel(patch: pytest.MonkeyPatch) -> None:
    """A leader that has appended a Cancel does not remember it: the groups report, and it appends Formal."""
    note_timeout = MetadataGroup._note_timeout

    def broken(self: MetadataGroup) -> None:
        pending = self._pending
        note_timeout(self)
        if pending is not None and self._pending is None:
            self.requests.cancelled = 0

    patch.setattr(MetadataGroup, "_note_timeout", broken)


def a_cancellation_may_come_late(patch: pytest.MonkeyPatch) -> None:
    """Cancel counts after Formal.

    The leader is broken too: one that keeps its rules appends Formal behind a Cancel only if it was fenced and
    leads again while that Cancel was on its way. No schedule of 5,000 had that.
    """
    leaders_forget_that_they_cancel(patch)

    def broken(state: MembershipState, cancel: Any) -> Any:
        change, verdict = changes._running(state, cancel.change)
        return (state, verdict) if change is None else (changes._ended(state, change, Phase.CANCELLED), verdict)

    patch.setattr(changes, "_cancel", broken)


def former_leaders_count(patch: pytest.MonkeyPatch) -> None:
    """A record counts whoever leads."""
    decide = changes._decide

    def broken(state: MembershipState, table: Any, record: MembershipChange) -> Any:
        leadership = getattr(record, "leadership", None)
        if leadership is None or isinstance(record, MetadataClaim):
            return decide(state, table, record)
        after, verdict = decide(replace(state, leader=leadership), table, record)
        return replace(after, leader=state.leader), verdict

    patch.setattr(changes, "_decide", broken)


def copies_on_their_way_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request is refused although a record of it may still arrive."""
    patch.setattr(ChangeRequests, "_refusal", lambda _self, _wanted, error: error)


def nobody_is_exiled(patch: pytest.MonkeyPatch) -> None:
    """The leader never exiles anybody."""
    patch.setattr(metadata_leader, "due_exiles", lambda _state: [])


MEMBERSHIP_RULES = (
    MembershipRule("read back before an answer", answers_before_reading_back),
    MembershipRule("the epoch of a claim is the current one + 1", claims_need_no_next_epoch),
    MembershipRule("a majority of all nodes is online", claims_need_no_majority),
    MembershipRule("a request is decided once", a_request_counts_again),
    MembershipRule("every group reports before Formal", groups_are_not_waited_for),
    MembershipRule("no Cancel after Formal", a_cancellation_may_come_late),
    MembershipRule("records of a former leader do not count", former_leaders_count),
    MembershipRule("no refusal while a record is on its way", copies_on_their_way_are_forgotten, quick=False),
    MembershipRule("a removed node is exiled", nobody_is_exiled),
)
