"""Commands of operators to a running cluster: seal everything, compare all replicas, accept a gap in a log.

They find nodes through their statuses and trust only what they read back: a seal is done when every live member
reports it, and members are compared at one version that all of them have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from headrace._member_views import LiveMembers
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused, NodeUnreachable, call_node
from headrace.connectors.log.port import TopicState
from headrace.consumers.integrity.verify import GroupVerdict, MemberEvidence, compare
from headrace.consumers.replication.election import FENCED
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.records import Role, Status

LEADER_TIMEOUT_S = 15.0
SETTLE_TIMEOUT_S = 20.0
POLL_S = 0.2
EVIDENCE_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 3_600.0
"""A node that reads all files of a group is as slow as its disk."""


class NoLeader(HeadraceError):
    """A group without a live leader; names it and why."""


class GapUnacceptable(HeadraceError):
    """A group whose log needs no gap, or that should not accept one yet."""


class GapUnconfirmed(StateUnknown):
    """A gap that is or may be in the log, and a member that did not continue behind it in time."""


def _append_gap(member: Status, group: str, resume_offset: int | None) -> dict[str, Any]:
    """Have a member append the gap; its answer. Raises NodeRefused, NodeUnreachable, GapUnconfirmed."""
    resume = "" if resume_offset is None else f"&resume={resume_offset}"
    try:
        answer: dict[str, Any] = call_node(
            f"{member.http}/api/v1/accept-gap?group={quote(group)}{resume}", method="POST"
        )
    except NodeUnreachable as error:
        if not error.sent:
            raise
        raise GapUnconfirmed(
            f"node {member.node} has got the request: the gap may be in the log, or come into it; {error.message}",
            action="see headrace status of that node, before you run this again",
        ) from error
    return answer


def most_advanced(live: Sequence[Status]) -> Status | None:
    """The member of a group that has lost its log whose newest record becomes the anchor of a gap."""
    # A member that consumes the rest of a truncated log may count a higher version than the members that
    # hold the truncated records. Only members that noticed the loss have the data worth keeping.
    # Wrong data is continued by nobody, however much it is.
    sound = [each for each in live if each.durable_offset >= 0 or not each.version] or live
    losers = [each for each in sound if each.log_lost] or sound
    return max((each for each in losers if each.http), key=lambda each: each.version, default=None)


def unaware_of_loss(live: Sequence[Status], best: Status, log: TopicState) -> list[Status]:
    """The members that may have read more of the log than `best` before it was lost, and do not show it yet.

    `log`: the topic as it is now.
    """
    # The schedule: the log is made again while a member cannot read Kafka, and its heartbeats arrive all the same.
    # It has most, and the gap would begin behind a member that has less.
    return [each for each in live if best.log_lost and each.node != best.node and _may_hold_more(each, best, log)]


def _may_hold_more(member: Status, best: Status, log: TopicState) -> bool:
    # A version counts what was applied. More may be durable: a member that a record has stopped applies none of it
    # before its next start.
    applies = member.durable_offset > member.offset
    if member.log_lost:
        return applies
    reads_on = member.topic_id == log.topic_id and member.durable_offset < log.end and member.reason != FENCED
    return not reads_on and (applies or member.version > best.version)


@dataclass(frozen=True, slots=True)
class AcceptedGap:
    """A group continues with the record at `offset` of its log, behind `version`, the newest of `member`."""

    group: str
    member: str
    version: int
    offset: int


class SealIncomplete(StateUnknown):
    """A seal that is in the log and that not every live member has finished in time."""


@dataclass(frozen=True, slots=True)
class SealedGroup:
    """One group: sealed up to `version` at these members."""

    group: str
    version: int
    members: tuple[str, ...]


class AdminClient:
    """Commands against one cluster. Owned by one thread."""

    def __init__(self, view: LiveMembers) -> None:
        self._view = view

    def close(self) -> None:
        """Close the view."""
        self._view.close()

    def seal_all(self, timeout_s: float, on_progress: Callable[[str], None]) -> list[SealedGroup]:
        """Seal every group and wait for all its live members. Raises NoLeader, SealIncomplete."""
        versions = {}
        for group in self._view.groups:
            on_progress(f"sealing group {group}")
            versions[group] = self._seal(group)
        deadline = Deadline(timeout_s)
        return [self._await_sealed(group, version, deadline) for group, version in versions.items()]

    def _seal(self, group: str) -> int:
        deadline = Deadline(LEADER_TIMEOUT_S)
        problem = f"group {group} has no live leader"
        while True:
            leader = next((each for each in self._live(group) if each.role is Role.LEADER and each.http), None)
            if leader is not None:
                try:
                    answer = call_node(f"{leader.http}/api/v1/seal?group={quote(group)}", method="POST")
                    return int(answer["version"])
                except (NodeUnreachable, NodeRefused) as error:
                    # The leader of the last heartbeat may have lost its claim or died: ask the next.
                    problem = str(error)
            if deadline.passed():
                if unread := self._view.unread_fault():
                    raise NoLeader(f"{problem}, as far as its statuses can be read", action=unread, retriable=True)
                # Its members run, and know why none of them leads.
                if reasons := [f"node {each.node}: {each.reason}" for each in self._live(group) if each.reason]:
                    raise NoLeader(f"{problem}; {'; '.join(reasons)}", action="look at headrace status", retriable=True)
                raise NoLeader(problem, action=f"start node {group}, the header of the group", retriable=True)
            self._view.follow(POLL_S)

    def _await_sealed(self, group: str, version: int, deadline: Deadline) -> SealedGroup:
        while True:
            live = self._live(group)
            if live and all(each.sealed_version >= version for each in live):
                return SealedGroup(group, version, tuple(each.node for each in live))
            if deadline.passed():
                late = ", ".join(each.node for each in live if each.sealed_version < version)
                raise SealIncomplete(
                    f"group {group}: {late} have not sealed version {version} in time",
                    action="wait and look at headrace status",
                )
            self._view.follow(POLL_S)

    def accept_gap(self, group: str, resume_offset: int | None, missing_max: int, timeout_s: float) -> AcceptedGap:
        """Continue a group whose log lost records: its most advanced member appends a Gap record to the log.

        Raises GapUnacceptable, GapUnconfirmed.
        """
        if group not in self._view.groups:
            raise GapUnacceptable(
                f"there is no group {group}", action=f"choose one of {', '.join(sorted(self._view.groups))}"
            )
        members, live = self._view.members(group), self._live(group)
        if not live:
            raise GapUnacceptable(
                f"no member of group {group} is up: {', '.join(sorted(members))} are offline", action="start them"
            )
        missing = sorted(set(members) - {each.node for each in live})
        if len(missing) > missing_max:
            raise GapUnacceptable(
                f"{', '.join(missing)} of group {group} may hold more than those that are up",
                action=f"start them, or give up what only they have: --allow-missing {len(missing)}",
            )
        if serving := [each.node for each in live if each.eligible]:
            raise GapUnacceptable(
                f"group {group} is in sync at {', '.join(serving)}",
                action="there is nothing to accept: the others recover from there, at the latest behind headrace seal",
            )
        best = most_advanced(live)
        if best is None:
            raise GapUnacceptable(f"no member of group {group} is up", action="start them")
        unaware = [each.node for each in unaware_of_loss(live, best, self._view.log_state(group))]
        if len(missing) + len(unaware) > missing_max:
            raise GapUnacceptable(
                f"{', '.join(unaware)} of group {group} may hold more than {best.node}, and has not noticed the loss yet, "
                "or not applied all that it has read",
                action="wait until it has, restart it if a record has stopped it, or give up what only such members have: "
                f"--allow-missing {len(missing) + len(unaware)}",
            )
        answer = _append_gap(best, group, resume_offset)
        self._await_eligible(group, best.node, Deadline(timeout_s))
        return AcceptedGap(group, best.node, int(answer["version"]), int(answer["offset"]))

    def _await_eligible(self, group: str, node: str, deadline: Deadline) -> None:
        while not any(each.node == node and each.eligible for each in self._live(group)):
            if deadline.passed():
                raise GapUnconfirmed(f"node {node} did not continue in time", action="see headrace status of that node")
            self._view.follow(POLL_S)

    def verify(
        self, timeout_s: float, on_progress: Callable[[str], None], *, read_files: bool = False
    ) -> list[GroupVerdict]:
        """Compare the members of every group at one version that all of them have passed.

        `read_files`: each member also reads its segments, and what it remembers of its log, again.
        """
        ends = {group: self._view.log_state(group).end for group in self._view.groups}
        deadline = Deadline(timeout_s)
        verdicts = []
        for group, end in ends.items():
            on_progress(f"group {group}: waiting for its members to pass offset {end - 1}")
            # With nobody to compare with, a member has its files alone to show.
            verdicts.append(self._verify_group(group, end, deadline, read_files or len(self._view.members(group)) == 1))
        if unread := self._view.unread_fault():
            on_progress(unread)
        return verdicts

    def _verify_group(self, group: str, end: int, deadline: Deadline, read_files: bool) -> GroupVerdict:
        members = self._view.members(group)
        while True:
            live = [each for each in self._live(group) if each.http and _has_passed(each, end)]
            if len(live) == len(members) or deadline.passed():
                break
            self._view.follow(POLL_S)
        version = min((each.version for each in live), default=0)
        sealed_version = min((each.sealed_version for each in live), default=0)
        evidence = self._settled_evidence(live, group, version, sealed_version)
        if read_files:
            evidence = [each for each in map(partial(_with_files, live, group), evidence) if each is not None]
        missing = [member for member in members if member not in {each.node for each in evidence}]
        return compare(group, version, sealed_version, evidence, missing)

    def _settled_evidence(
        self, live: Sequence[Status], group: str, version: int, sealed_version: int
    ) -> list[MemberEvidence]:
        """The evidence of members whose files have reached the same version.

        Jobs on files run beside the log, on each member at its own time. Files of different versions differ
        without any error.
        """
        deadline = Deadline(SETTLE_TIMEOUT_S)
        while True:
            asked = [_evidence(status, group, version, sealed_version) for status in live]
            shown = [each for each in asked if each is not None]
            newest = max((each.stored_version for each in shown), default=-1)
            settled = [each for each in shown if each.stored_version == newest >= 0]
            if len(settled) == len(live) or deadline.passed():
                return settled
            self._view.follow(POLL_S)

    def _live(self, group: str) -> list[Status]:
        return self._view.live(group)


def _has_passed(status: Status, end: int) -> bool:
    """Whether a member has applied everything below an end."""
    # The last offsets below the end may be transaction markers: then no offset reaches it, and all that was read must be
    # applied. What is durable need not be: records are on the disk first.
    return status.offset >= end - 1 or (status.position >= end and status.offset == status.durable_offset)


def _with_files(live: Sequence[Status], group: str, evidence: MemberEvidence) -> MemberEvidence | None:
    """The same, with what the member finds as it reads its files again; None if it does not answer."""
    (status,) = (each for each in live if each.node == evidence.node)
    read = _evidence(status, group, status.version, status.sealed_version, read_files=True)
    if read is None:
        return None
    return replace(evidence, files_read=read.files_read, records_read=read.records_read, wrong=read.wrong)


def _evidence(
    status: Status, group: str, version: int, sealed_version: int, *, read_files: bool = False
) -> MemberEvidence | None:
    query = f"group={quote(group)}&version={version}&sealed_version={sealed_version}"
    query, timeout_s = (f"{query}&read_files=true", READ_TIMEOUT_S) if read_files else (query, EVIDENCE_TIMEOUT_S)
    try:
        answer: dict[str, Any] = call_node(f"{status.http}/api/v1/evidence?{query}", timeout_s=timeout_s)
    except (NodeUnreachable, NodeRefused):
        return None
    return MemberEvidence(
        status.node,
        answer["chain"],
        answer["digests"],
        answer["stored_version"],
        # A node of an earlier build has read nothing.
        answer.get("files_read", 0),
        answer.get("records_read", 0),
        tuple(answer.get("wrong", ())),
    )
