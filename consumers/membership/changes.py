"""The membership log as a state machine: record in, state out. Pure.

Every reader replays `{c}.membership` from its first record and checks each record in the same way. A record
that breaks a rule is ignored by all of them; `Verdict` names the rule. Whoever appends a record reads it back
with the verdict before it does what follows. docs/internals/membership.md has the rules as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.consumers.membership.ring import ClusterInvalid, is_node_id
from headrace.consumers.membership.running_change import Phase, RunningChange, SlotState, bits_of
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.founding import Founding
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.records import HASH_NAME, Create, MembershipRecord, decode_membership

REQUESTS_KEPT = 1_000
"""Requests whose results are kept: a request that is sent again much later would be another one."""
ENDED_MAX = 16
"""Groups that ended and whose topics are not gone yet. Another removal waits."""


class Verdict(StrEnum):
    """Whether a record counts, or which rule it breaks."""

    ACCEPTED = "accepted"
    UNDECODABLE = "undecodable"
    NO_CLUSTER = "no cluster"
    CLUSTER_EXISTS = "cluster exists"
    INVALID = "invalid"
    CLAIM_LOST = "claim lost"
    NOT_LEADER = "not leader"
    REPEATED = "repeated"
    OLD_TABLE = "old table"
    CHANGE_RUNNING = "change running"
    NO_SUCH_CHANGE = "no such change"
    TOO_EARLY = "too early"
    TOO_LATE = "too late"
    NOT_DUE = "not due"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request led to: the change `number`, to `version` of the table, and its phase now."""

    number: int
    version: int
    phase: Phase


@dataclass(frozen=True)
class MembershipState:
    """What the membership log has decided so far.

    `records` counts all that were read, `changes` the accepted ones. `removed` are the former nodes that have
    not joined again, `exiles` those of them that have nothing left to do, each with the number of its record.
    `requests` are (request id, outcome), the newest last.

    `founders` has every group of the table, and every one of `ended`: the groups that ended, with their last members.
    Such a group stays until its node is exiled, so that a restart opens the same groups.

    `formal_change` is the number of the change that led to `table`. A later one that does not run was cancelled.
    """

    records: int = 0
    table: SlotTable | None = None
    epoch: int = 0
    leader: Leadership | None = None
    changes: int = 0
    change: RunningChange | None = None
    removed: tuple[str, ...] = ()
    exiles: Mapping[str, int] = field(default_factory=dict)
    requests: tuple[tuple[str, Outcome], ...] = ()
    formal_change: int = 0
    founders: Mapping[GroupKey, Founding] = field(default_factory=dict)
    ended: Mapping[GroupKey, tuple[str, ...]] = field(default_factory=dict)

    @property
    def exiled(self) -> tuple[str, ...]:
        """The removed nodes that have nothing left to do."""
        return tuple(self.exiles)

    def apply_value(self, value: bytes) -> tuple[MembershipState, Verdict]:
        """The state after the next record of the log."""
        try:
            _, record = decode_membership(value)
        except FrameInvalid:
            return replace(self, records=self.records + 1), Verdict.UNDECODABLE
        return self.apply(record)

    def apply(self, record: MembershipRecord) -> tuple[MembershipState, Verdict]:
        """The state after the next record of the log."""
        counted = replace(self, records=self.records + 1)
        if isinstance(record, Create):
            return _create(counted, record)
        if counted.table is None:
            return counted, Verdict.NO_CLUSTER
        return _decide(counted, counted.table, record)

    def outcome(self, request: str) -> Outcome | None:
        """What a request has led to; None when no record has it. A repeat gets the answer of the first."""
        return dict(self.requests).get(request)

    def members(self, group: str) -> tuple[str, ...]:
        """The members of a group at present, also between the phases of a change. Raises UnknownNode."""
        assert self.table is not None
        return self.change.members(group) if self.change is not None else self.table.group(group)

    def slot_state(self, slot: int) -> SlotState:
        """A slot at its holder. Raises UnknownSlot."""
        assert self.table is not None
        if self.change is not None and self.change.formal:
            return self.change.slot_state(slot)
        return SlotState.NONE if self.table.previous_holder(slot) is None else SlotState.DONE


Decided = tuple[MembershipState, Verdict]


def _decide(state: MembershipState, table: SlotTable, record: MembershipChange) -> Decided:
    if isinstance(record, MetadataClaim):
        return _claim(state, table, record)
    if isinstance(record, PreDone):
        return _pre_done(state, record)
    if isinstance(record, SlotDone):
        return _slot_done(state, record)
    # Decided by what the log accepted, never by who sends: a leader that was stopped may append long after its
    # term.
    if record.leadership != state.leader:
        return state, Verdict.NOT_LEADER
    if isinstance(record, Change):
        return _change(state, table, record)
    if isinstance(record, Formal):
        return _formal(state, record)
    if isinstance(record, Cancel):
        return _cancel(state, record)
    return _exile(state, record)


def _create(state: MembershipState, create: Create) -> Decided:
    if state.table is not None:
        return state, Verdict.CLUSTER_EXISTS
    # A record with another hash is of a build that places rows elsewhere: it creates no cluster here.
    if create.hash != HASH_NAME:
        return state, Verdict.INVALID
    try:
        table = SlotTable.create(create.nodes, create.replication, create.slots)
    except ClusterInvalid:
        return state, Verdict.INVALID
    return replace(state, table=table, founders=_founders(state, table)), Verdict.ACCEPTED


def _founders(state: MembershipState, table: SlotTable) -> dict[GroupKey, Founding]:
    """The founding of each group of a table that counts from now on, and of those that ended."""
    found = {key: state.founders[key] for key in state.ended}
    return found | {key: state.founders.get(key, new) for key, new in foundings_by(table).items()}


def foundings_by(table: SlotTable) -> dict[GroupKey, Founding]:
    """What each group of a table is born with if it is born with that table."""
    gains: dict[str, list[int]] = {}
    for slot, _ in table.moved:
        gains.setdefault(table.holder(slot), []).append(slot)
    keys = (GroupKey(header, table.birth(header)) for header in table.headers)
    return {key: Founding(table.group(key.group), key.birth, tuple(gains.get(key.group, ()))) for key in keys}


def _claim(state: MembershipState, table: SlotTable, claim: MetadataClaim) -> Decided:
    # The rule of data groups: exactly one above the current epoch, so that of two claims made from the same view
    # only the first counts.
    wanted = claim.leadership
    if wanted.epoch != state.epoch + 1 or wanted.node not in table.nodes:
        return state, Verdict.CLAIM_LOST
    return replace(state, epoch=wanted.epoch, leader=wanted), Verdict.ACCEPTED


def _change(state: MembershipState, table: SlotTable, change: Change) -> Decided:
    if state.outcome(change.request) is not None:
        return state, Verdict.REPEATED
    if state.change is not None:
        return state, Verdict.CHANGE_RUNNING
    try:
        after = SlotTable.from_bytes(change.table)
    except (FrameInvalid, ClusterInvalid):
        return state, Verdict.INVALID
    if after.version <= table.version:
        return state, Verdict.OLD_TABLE
    if not change.request or change.rate < 0 or not follows(table, after, change.kind, change.node):
        return state, Verdict.INVALID
    if unfinished_ends(state, change.kind, change.node):
        return state, Verdict.TOO_EARLY
    number = state.changes + 1
    tables = table, after
    running = RunningChange(
        number, change.request, change.kind, change.node, change.store, *tables, began=state.records, rate=change.rate
    )
    requests = (*state.requests, (change.request, Outcome(number, after.version, running.phase)))
    state = replace(state, changes=number, change=running, requests=requests[-REQUESTS_KEPT:])
    return state, Verdict.ACCEPTED


def unfinished_ends(state: MembershipState, kind: ChangeKind, node: str) -> tuple[GroupKey, ...]:
    """The ended groups that a change of this kind must wait for."""
    # Statuses name a group by its header alone, so a node never has two births of one header.
    if kind is ChangeKind.ADD:
        return tuple(key for key in state.ended if key.group == node)
    # What a restart needs of them is bounded.
    return tuple(state.ended) if kind is ChangeKind.REMOVE and len(state.ended) >= ENDED_MAX else ()


def _running(state: MembershipState, number: int) -> tuple[RunningChange | None, Verdict]:
    """The change with this number while it runs, else why a record for it does not count."""
    if state.change is not None and state.change.number == number:
        return state.change, Verdict.ACCEPTED
    return None, Verdict.TOO_LATE if 0 < number <= state.changes else Verdict.NO_SUCH_CHANGE


def _pre_done(state: MembershipState, done: PreDone) -> Decided:
    change, verdict = _running(state, done.change)
    if change is None:
        return state, verdict
    if done.group not in change.groups_waiting:
        reported = done.group in change.base.headers
        return state, Verdict.REPEATED if reported else Verdict.INVALID
    # Whether the sender leads that group is in the group's log, which this one must not wait for.
    if done.node not in change.pre_members(done.group):
        return state, Verdict.INVALID
    return _with(state, replace(change, pre_done=(*change.pre_done, done))), Verdict.ACCEPTED


def _formal(state: MembershipState, formal: Formal) -> Decided:
    change, verdict = _running(state, formal.change)
    if change is None:
        return state, verdict
    if change.formal:
        return state, Verdict.REPEATED
    if change.groups_waiting:
        return state, Verdict.TOO_EARLY
    # A former node that joins again is one of the cluster.
    removed = tuple(each for each in state.removed if each != change.node)
    exiles = {each: number for each, number in state.exiles.items() if each != change.node}
    if change.kind is ChangeKind.REMOVE:
        removed = (*removed, change.node)
    ended = {GroupKey(*each): change.base.group(each[0]) for each in change.table.ended}
    state = replace(state, table=change.table, ended={**state.ended, **ended})
    leader = state.leader
    # The node that leaves leads nothing from here on. The epoch stays, so that the next claim is one higher.
    leader = None if leader is not None and leader.node not in change.table.nodes else leader
    founders = _founders(state, change.table)
    state = replace(state, founders=founders, removed=removed, exiles=exiles, leader=leader)
    state = replace(state, formal_change=change.number)
    return _with(state, replace(change, formal=True)), Verdict.ACCEPTED


def _slot_done(state: MembershipState, done: SlotDone) -> Decided:
    change, verdict = _running(state, done.change)
    if change is None:
        return state, verdict
    if not change.formal:
        return state, Verdict.TOO_EARLY
    # Before the bits, whose number a slot would make as long as it is large.
    if not done.slots or not all(0 <= slot < change.table.slots for slot in done.slots):
        return state, Verdict.INVALID
    slots = bits_of(done.slots)
    if slots & ~change.due_from(done.node):
        return state, Verdict.INVALID
    if not slots & ~dict(change.received).get(done.node, 0):
        return state, Verdict.REPEATED
    return _with(state, change.with_received(done.node, slots)), Verdict.ACCEPTED


def _cancel(state: MembershipState, cancel: Cancel) -> Decided:
    change, verdict = _running(state, cancel.change)
    if change is None:
        return state, verdict
    if change.formal:
        return state, Verdict.TOO_LATE
    return _ended(state, change, Phase.CANCELLED), Verdict.ACCEPTED


def _exile(state: MembershipState, exile: Exile) -> Decided:
    if exile.node in state.exiles:
        return state, Verdict.REPEATED
    # A node hands over what it has until its slots are done elsewhere.
    leaving = state.change is not None and state.change.node == exile.node
    if exile.node not in state.removed or leaving:
        return state, Verdict.NOT_DUE
    # Whoever appends it has seen that the topic of its group is gone.
    gone = [key for key in state.ended if key.group == exile.node]
    return replace(
        state,
        exiles={**state.exiles, exile.node: state.records},
        ended={key: members for key, members in state.ended.items() if key not in gone},
        founders={key: founding for key, founding in state.founders.items() if key not in gone},
    ), Verdict.ACCEPTED


def _with(state: MembershipState, change: RunningChange) -> MembershipState:
    """The state with a change that went one step further, and without it once nothing is left to do."""
    if change.phase is Phase.DONE:
        return _ended(state, change, Phase.DONE)
    return replace(state, change=change, requests=_with_phase(state, change, change.phase))


def _ended(state: MembershipState, change: RunningChange, phase: Phase) -> MembershipState:
    return replace(state, change=None, requests=_with_phase(state, change, phase))


def _with_phase(state: MembershipState, change: RunningChange, phase: Phase) -> tuple[tuple[str, Outcome], ...]:
    return tuple(
        (request, replace(outcome, phase=phase) if outcome.number == change.number else outcome)
        for request, outcome in state.requests
    )


def follows(table: SlotTable, after: SlotTable, kind: ChangeKind, node: str) -> bool:
    """Whether `after` is a table that such a change of `table` may lead to, whichever balancer chose the slots."""
    settings = (after.version, after.replication, after.slots)
    if settings != (table.version + 1, table.replication, table.slots):
        return False
    return (
        _nodes_follow(table, after, kind, node)
        and after.moved == _differences(table, after)
        and _moves_follow(after, kind, node)
    )


def _nodes_follow(table: SlotTable, after: SlotTable, kind: ChangeKind, node: str) -> bool:
    before = _born(table)
    found = _born(after)
    if kind is ChangeKind.ADD:
        joined = found.pop(node, None)
        return (
            node not in before
            and is_node_id(node)
            and joined is not None
            and joined[1] == after.version
            and found == before
        )
    ended: tuple[tuple[str, int], ...] = ()
    if kind is ChangeKind.REMOVE:
        left = before.pop(node, None)
        if left is None:
            return False
        ended = ((node, left[1]),)
    return found == before and after.ended == ended


def _born(table: SlotTable) -> dict[str, tuple[int, int]]:
    """Position on the ring and birth of every node."""
    return {
        node: (position, birth)
        for node, position, birth in zip(table.nodes, table.positions, table.births, strict=True)
    }


def _differences(table: SlotTable, after: SlotTable) -> tuple[tuple[int, str], ...]:
    """(slot, former header) of every slot with another owner."""
    owners = [table.nodes[index] for index in table.slot_headers]
    later = [after.nodes[index] for index in after.slot_headers]
    return tuple((slot, owner) for slot, owner in enumerate(owners) if owner != later[slot])


def _moves_follow(after: SlotTable, kind: ChangeKind, node: str) -> bool:
    if kind is ChangeKind.ADD:
        return after.ended == () and all(after.holder(slot) == node for slot, _ in after.moved)
    if kind is ChangeKind.REMOVE:
        return all(previous == node for _, previous in after.moved)
    # The barriers of a group that gives and takes in one change would count in no log.
    givers = {previous for _, previous in after.moved}
    return bool(after.moved) and node == "" and givers.isdisjoint(after.holder(slot) for slot, _ in after.moved)
