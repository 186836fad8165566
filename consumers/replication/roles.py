"""Which role a node has in a data group: a pure function of what it knows, asked again at every change.

Here the header of a group leads it. The election by status (DESIGN 6, rules 1 to 4) takes this function's place and needs nothing else to change:
a decision never acts, and a claim counts only when it is read back from the log as accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.messages import Leadership
from schemas.records import Role


@dataclass(frozen=True, slots=True)
class GroupView:
    """What a node knows of one of its groups. `fault` names what keeps it from serving, empty when nothing does."""

    members: tuple[str, ...]
    node: str
    incarnation: str
    leader: Leadership | None
    caught_up: bool
    fault: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The role to take, and whether to append a claim for leadership."""

    role: Role
    claim: bool


def decide(view: GroupView) -> Decision:
    """The role of this node in the group."""
    if view.fault or not view.caught_up:
        return Decision(Role.UNSYNCED, claim=False)
    leads = view.leader is not None and (view.leader.node, view.leader.incarnation) == (view.node, view.incarnation)
    if leads:
        return Decision(Role.LEADER, claim=False)
    return Decision(Role.FOLLOWER, claim=view.node == view.members[0])
