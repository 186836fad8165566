"""How a node stands in its groups: what it has reached, what keeps it from serving, and what it tells the others.

Everything here is looked up at the moment it is asked; nothing is decided (that is `consumers.replication.roles`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from consumers.replication.broadcast import Broadcast, boot_ns
from consumers.replication.files import NO_CONTENT
from consumers.replication.group import Group
from consumers.replication.identity import Identity
from consumers.replication.progress import Progress, Reading
from consumers.replication.roles import Decision, GroupView, MemberView
from consumers.replication.runner import Runner
from consumers.replication.status import OFFLINE_MS
from schemas.framing import FORMAT
from schemas.records import Role, Status

FENCED = "this node's own status was not read back within 3 s: it is starting, was stopped, or is cut off from Kafka"


class Standing:
    """Answers for all groups of one node. `decision(topic)` and `http_address` are set once there is somebody who knows them."""

    def __init__(
        self,
        identity: Identity,
        incarnation: str,
        groups: Mapping[str, Group],
        runner: Runner,
        broadcast: Broadcast,
        ends: Mapping[str, int],
        take_back_ms: int,
    ) -> None:
        self._identity = identity
        self._incarnation = incarnation
        self._groups = groups
        self._runner = runner
        self._broadcast = broadcast
        self._ends = dict(ends)
        self._take_back_ms = take_back_ms
        self._log_answered_s = time.monotonic()
        self._reached: set[str] = set()
        self._held_back: dict[str, int] = {}
        self._reading = {topic: Reading(runner.position(topic)) for topic in groups}
        self.decision: Callable[[str], Decision] = lambda _topic: Decision(Role.UNSYNCED, False, "no role yet")
        self.http_address = ""

    def end(self, topic: str) -> int:
        """The end of a forward log when it was last looked at."""
        return self._ends[topic]

    def note_end(self, topic: str, end: int) -> None:
        """The log has answered, and ends there."""
        self._log_answered_s = time.monotonic()
        self._ends[topic] = end
        self._reading[topic].note(self._runner.position(topic))

    def note_held_back(self, topic: str, offsets: int) -> None:
        """So many offsets of a log lie behind a transaction that somebody left open."""
        self._held_back[topic] = offsets

    def held_back(self, topic: str) -> int:
        """Offsets that nobody can read because of an open transaction, when last looked at."""
        return self._held_back.get(topic, 0)

    def progress(self, topic: str) -> Progress | None:
        """How the recovery of a group goes, None while there is nothing to recover."""
        recovery = self._groups[topic].recovery
        if recovery is not None:
            return recovery.progress()
        if self.caught_up(topic):
            return None
        return self._reading[topic].progress(self._runner.position(topic), self._ends[topic])

    @property
    def log_answers(self) -> bool:
        """Whether the log has answered within the last 3 s."""
        return time.monotonic() - self._log_answered_s < OFFLINE_MS / 1_000

    def caught_up(self, topic: str) -> bool:
        """Whether the group has once reached the end of its log since this process started, and applied what it read."""
        if topic not in self._reached:
            read = self._runner.position(topic) >= self._ends[topic]
            applied = self._groups[topic].applied.offset >= self._runner.durable_offset(topic)
            if read and applied:
                self._reached.add(topic)
        return topic in self._reached

    def start_over(self, topic: str) -> None:
        """The group has lost its log, or has got it back: it is in sync only once it has reached the end again."""
        self._reached.discard(topic)
        self._reading[topic] = Reading(self._runner.position(topic))

    def reason(self, topic: str) -> str:
        """What keeps a group from being in sync at this node, empty when nothing does."""
        group = self._groups[topic]
        if group.recovery is not None:
            return group.recovery.reason
        if group.fault:
            return group.fault
        if group.lost:
            return group.lost
        if group.outrun or group.disputed:
            return group.outrun or group.disputed
        if group.waiting or group.files.waiting:
            return f"waiting for {group.waiting}" if group.waiting else group.files.waiting
        if self._runner.journal_fault:
            return f"journal: {self._runner.journal_fault}"
        if not self.caught_up(topic):
            return self._reading[topic].reason(self._runner.position(topic), self._ends[topic])
        return ""

    def ready(self) -> tuple[bool, list[str]]:
        """Whether every group here serves, and the reasons why not."""
        if self._broadcast.fenced:
            return False, [FENCED]
        reasons = [
            f"group {group.name}: {self.reason(topic) or self.decision(topic).reason}"
            for topic, group in self._groups.items()
            if self.reason(topic) or self.decision(topic).role is Role.UNSYNCED
        ]
        return not reasons, reasons

    def view(self, topic: str, steady_ms: int) -> GroupView:
        """What this node knows of a group, for the role decision."""
        group, board = self._groups[topic], self._broadcast.board
        return GroupView(
            members=tuple(self._member(topic, group.name, node) for node in group.members),
            node=self._identity.node,
            leader=group.applied.leader,
            claim_age_ms=board.newest_ms - group.applied.claimed_ms,
            log_answers=self.log_answers,
            fenced=self._broadcast.fenced,
            steady_ms=steady_ms,
            take_back_ms=self._take_back_ms,
        )

    def _member(self, topic: str, group_name: str, node: str) -> MemberView:
        if node == self._identity.node:
            epoch = self._groups[topic].applied.epoch
            return MemberView(node, self._incarnation, not self._broadcast.fenced, not self.reason(topic), epoch)
        status = self._broadcast.board.status(group_name, node)
        if status is None:
            return MemberView(node, "", False, False, 0)
        return MemberView(
            node, status.incarnation, self._broadcast.board.alive(group_name, node), status.eligible, status.epoch
        )

    def statuses(self) -> Sequence[Status]:
        """What this node says of each of its groups."""
        return [self._status(topic, group) for topic, group in self._groups.items()]

    def _status(self, topic: str, group: Group) -> Status:
        applied, reason = group.applied, self.reason(topic)
        chain_version, chain = group.chain_mark
        stored_version, content = group.files.content() if self.caught_up(topic) else NO_CONTENT
        # What is wrong is no copy of anything, so it neither confirms a write nor lets the log be trimmed.
        wrong = group.recovery is not None and group.recovery.wrong
        sealed_version, sealed_offset = group.sealed_for_others
        done, total = _done_of(self.progress(topic))
        return Status(
            node=self._identity.node,
            incarnation=self._incarnation,
            store=self._identity.store,
            http=self.http_address,
            flight="",
            group=group.name,
            topic_id=self._identity.topics[topic],
            role=self.decision(topic).role,
            # Who does not hear itself must not hold up the others, however well it is heard.
            eligible=not reason and not self._broadcast.fenced,
            epoch=applied.epoch,
            version=applied.version,
            offset=applied.offset,
            position=self._runner.position(topic),
            durable_offset=-1 if wrong else self._runner.durable_offset(topic),
            sealed_version=0 if wrong else sealed_version,
            sealed_offset=-1 if wrong else sealed_offset,
            chain_version=chain_version,
            chain=chain,
            stored_version=stored_version,
            content=content,
            sealed_log_bytes=group.files.sealed_log_bytes,
            segment_bytes=group.files.size_bytes,
            log_lost=bool(group.lost),
            recovery_done=done,
            recovery_total=total,
            format=FORMAT,
            reason=reason or self.decision(topic).reason,
            sent_boot_ns=boot_ns(),
        )


def _done_of(progress: Progress | None) -> tuple[int, int]:
    """(done, of how many) of a recovery: bytes while files are copied, then offsets of the log; zeros when there is nothing to recover."""
    if progress is None:
        return 0, 0
    if progress.way == "log":
        return progress.offsets_done, progress.offsets_total
    return progress.bytes_done, progress.bytes_total
