"""Which role a node has in a data group: a pure function of what it knows, evaluated at every change.

There are no votes. Every node reads the same statuses and the same log, so every node comes to the same
answer, sooner or later. A node that believes it leads must still find its claim accepted in the log.
docs/internals/replication.md has the cases as a table, which a test reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Role

CLAIM_GRACE_MS = OFFLINE_MS
TAKE_BACK_MS = 30_000

FENCED = "this node's own status was not read back within 3 s"
"""The reason in the status of a node that cannot act on what it knows."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """What is known of a member of the group.

    For this node itself it is the present state, not what its newest status shows.

    `epoch`: that of the newest accepted claim it has read. `votes`: whether it counts for a majority; a member that
    a running first phase adds does not yet. `idle_ms`: for how long it has sent that it is in sync and takes no role;
    0 for this node.
    """

    node: str
    incarnation: str
    alive: bool
    eligible: bool
    epoch: int
    votes: bool = True
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupView:
    """What a node knows of one of its groups.

    `members` are in list order, the header first. `guest` is this node where it is none of them: it will be one, or
    it was one until its slots are elsewhere.

    `fenced`: this node has not read back a status that it sent less than 3 s ago. `claim_age_ms`: the age of
    the newest accepted claim by the broker's time. `steady_ms`: how long this node has been an eligible
    follower without a break.
    """

    members: tuple[MemberView, ...]
    node: str
    leader: Leadership | None
    claim_age_ms: int
    log_answers: bool
    fenced: bool
    steady_ms: int
    take_back_ms: int = TAKE_BACK_MS
    guest: MemberView | None = None

    @property
    def me(self) -> MemberView:
        """This node."""
        return self.guest or next(member for member in self.members if member.node == self.node)


@dataclass(frozen=True, slots=True)
class Decision:
    """The role to take, whether to append a claim for leadership, and why a node that takes no role does not.

    `leadership` is what this node may append under: that of its own accepted claim as leader, the next one with
    `claim`, else None.
    """

    # A value that travels from the decision to the append. An append that read the group's leadership again could
    # get that of another node, whose claim was applied in between: replicas would accept a Seal of this node under
    # it. Under the leadership of the decision they ignore it.
    role: Role
    claim: bool
    reason: str = ""
    leadership: Leadership | None = None


def decide(view: GroupView) -> Decision:
    """The role of this node in the group."""
    # Fencing comes first. A process that was stopped (SIGSTOP, a suspended machine) wakes up with old
    # statuses and its old role; until it has read its own new status back, nothing it knows is good enough to
    # act on.
    if view.fenced:
        return Decision(Role.UNSYNCED, False, FENCED)
    online, members = count_online(view)
    if 2 * online <= members:
        return Decision(Role.UNSYNCED, False, f"{online} of {members} members are online, not a majority")
    if not view.me.eligible:
        return Decision(Role.UNSYNCED, False, "not in sync")
    if leader_lives(view):
        return _under_leader(view)
    # List order instead of the highest version: eligible members have all read the same log to its end, so
    # any of them is as good, and an order that all know needs no message. Two that see different members may
    # both claim; the log decides.
    first = next((member.node for member in view.members if _can_lead(member, view)), "")
    return _follower(view, first == view.node)


def count_online(view: GroupView) -> tuple[int, int]:
    """(online, members) of those that count. With an even number the log is one more, online while it answers."""
    voters = [member for member in view.members if member.votes]
    online = sum(member.alive for member in voters)
    if len(voters) % 2:
        return online, len(voters)
    # Two members could never lose one of them if both were needed. The log is the arbitrator that TDengine
    # runs as a process.
    return online + view.log_answers, len(voters) + 1


def leader_lives(view: GroupView) -> bool:
    """Whether the log's newest accepted claim is that of a member in sync; a fresh claim has a grace period."""
    if view.leader is None:
        return False
    if (view.leader.node, view.leader.incarnation) == (view.node, view.me.incarnation):
        return True
    # The claim travels in the forward log and the leader's eligibility in the status topic. Without the grace
    # period a member that reads the log first would claim against a leader of some milliseconds.
    if 0 <= view.claim_age_ms < CLAIM_GRACE_MS:
        return True
    return any(
        (member.node, member.incarnation) == (view.leader.node, view.leader.incarnation) and _can_lead(member, view)
        for member in view.members
    )


def _can_lead(member: MemberView, view: GroupView) -> bool:
    """Whether a member is in sync, and takes a role.

    The schedule: a cluster is upgraded, and the last node of the older build cannot read the statuses of the others.
    It sees no majority, and leads nothing. The others see it alive, and would wait for it for ever.
    """
    # Where a majority comes back, all members have waited, and show it until their next statuses. So only who has had
    # a role for as long judges others by it.
    is_idle = member.idle_ms >= CLAIM_GRACE_MS and view.steady_ms >= CLAIM_GRACE_MS
    return member.alive and member.eligible and not is_idle


def _under_leader(view: GroupView) -> Decision:
    assert view.leader is not None
    if view.leader.node == view.node and view.leader.incarnation == view.me.incarnation:
        if _superseded(view, view.leader.epoch):
            return Decision(Role.FOLLOWER, False)
        return Decision(Role.LEADER, False, leadership=view.leader)
    # The header claims back so that leaders stay spread, one a node. It waits, since a node that flaps would
    # otherwise move the leadership twice at every flap.
    is_header = view.members[0].node == view.node
    return _follower(view, is_header and view.steady_ms >= view.take_back_ms)


def _follower(view: GroupView, claims: bool) -> Decision:
    wanted = Leadership(view.me.epoch + 1, view.node, view.me.incarnation) if claims else None
    return Decision(Role.FOLLOWER, claims, leadership=wanted)


def _superseded(view: GroupView, epoch: int) -> bool:
    """Whether a member in sync has read a later claim.

    This node was stopped or cut off, and receives statuses before its log.
    """
    # Only members in sync count: one that is not may follow another log, whose epochs mean nothing here.
    return any(member.alive and member.eligible and member.epoch > epoch for member in view.members)
