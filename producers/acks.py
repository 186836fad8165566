"""Write acknowledgement: waits until enough members of a group hold a record durably."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.producers.cluster import MemberStatuses, Routing, StatusSource, groups_of
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name
from headrace.schemas.receipts import WrittenRecords


class QuorumInvalid(HeadraceError):
    """A quorum that no cluster can give."""

    exit_code = 2


class QuorumTooLarge(QuorumInvalid):
    """A quorum of more members than a group has; it is never reduced to what is possible."""


class QuorumTimeout(StateUnknown):
    """Rows are in the log, but too few members confirmed them in time: every member will apply them, or none.

    `rows` counts those in the log; the message also has the rows of the same call behind them, which are not written.
    `lagging` has the state of each member, for each group below the quorum.
    """

    def __init__(self, message: str, *, rows: int, lagging: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(message, action="check that the named nodes are up; writing the rows again is safe")
        self.rows = rows
        self.lagging = lagging


def check_quorum(copies: int, replication: int) -> None:
    """Raises QuorumInvalid and QuorumTooLarge for a quorum that groups of so many members cannot give."""
    if copies < 0:
        raise QuorumInvalid(f"quorum {copies} is negative", action="use 0, 1 or up to the replication")
    if copies > replication:
        raise QuorumTooLarge(
            f"quorum {copies} is more than the {replication} members of a group", action=f"use at most {replication}"
        )


class Quorum:
    """Confirms that `copies` members hold what was written.

    While the members of a group change, so many of those before the change must hold it, and so many of those after
    it: whether the change is carried out or cancelled, the copies are those of members. Raises QuorumInvalid and
    QuorumTooLarge on construction.
    """

    def __init__(
        self, log: Log, topics: Topics, routing: Routing, watch: StatusSource, copies: int, timeout_ms: int
    ) -> None:
        table = routing.newest.table
        check_quorum(copies, table.replication)
        self.copies = copies
        self._log = log
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._routing = routing
        self._watch = watch
        self._topic_ids: dict[GroupKey, str] = {}
        self._voters: dict[GroupKey, tuple[tuple[str, ...], ...]] = {}
        if self.watched:
            # Both before the first write: ids and statuses take a round trip each, which would count against the
            # first quorum's time.
            self.prepare(groups_of(table))
            watch.start()

    @property
    def watched(self) -> bool:
        """Whether member statuses are needed in addition to the log's own acknowledgement."""
        # One copy is the log's own: the delivery report with acks=all. With 0 and 1 no status is read at all.
        return self.copies >= 2

    def prepare(self, groups: Iterable[GroupKey]) -> None:
        """To be called before the first record of a group is written. Raises TopicMissing, LogUnavailable."""
        # A member may still follow a topic that was deleted and created again under the same name: its offsets mean
        # other records. So a status counts only with the id that the topic had before the first row is written.
        for group in groups if self.watched else ():
            if group not in self._topic_ids:
                topic = self._topics.forward(group.group, group.birth)
                self._topic_ids[group] = self._log.describe(topic).topic_id

    def confirm(self, written: Mapping[GroupKey, WrittenRecords], rows: int, unit: str = "rows") -> None:
        """Wait until what was written to each group is durable at enough members. Raises QuorumTimeout."""
        if not self.watched:
            return
        self._watch.wait_for(lambda statuses: not self._groups_short(statuses, written), self._timeout_ms / 1_000)
        # Evaluated again, not taken from `wait_for`: a status that arrives right after the timeout still
        # confirms the rows.
        statuses = self._watch.statuses
        short = self._groups_short(statuses, written)
        if not short:
            return
        lagging = {group_name(group): self._member_states(statuses, group, written[group]) for group in short}
        described = "; ".join(
            f"group {group}: {', '.join(f'{node} {state}' for node, state in members.items())}"
            for group, members in lagging.items()
        )
        unreadable = f" (status not readable: {self._watch.error})" if self._watch.error else ""
        raise QuorumTimeout(
            f"{rows:,} {unit} are in the log but were not confirmed by {self.copies} members within {self._timeout_ms} ms "
            f"after that: "
            f"{described}{unreadable}",
            rows=rows,
            lagging=lagging,
        )

    def _groups_short(self, statuses: MemberStatuses, written: Mapping[GroupKey, WrittenRecords]) -> list[GroupKey]:
        """The groups in which fewer than `copies` live members hold what was written."""
        # Only live members count: the status of an offline one is old, its node may be gone with its disk.
        return [
            group
            for group, records in written.items()
            if any(
                statuses.durable_copies(group.group, members, self._topic_ids[group], records) < self.copies
                for members in self._electorates(group)
            )
        ]

    def _electorates(self, group: GroupKey) -> tuple[tuple[str, ...], ...]:
        """The sets of members of which each must have a quorum, by what the membership log has decided now."""
        # Looked up at every status: members that left meanwhile count no longer. A group that ended keeps its members
        # until all that it has was handed over.
        # A group that was never known has one set without members: nobody can confirm its records. With no set at
        # all they would count as confirmed.
        found = self._routing.newest.voters(group) or self._voters.get(group, ((),))
        self._voters[group] = found
        return found

    def _member_states(self, statuses: MemberStatuses, group: GroupKey, written: WrittenRecords) -> dict[str, str]:
        members = dict.fromkeys(node for each in self._electorates(group) for node in each)
        return {node: self._member_state(statuses, group, node, written) for node in members}

    def _member_state(self, statuses: MemberStatuses, group: GroupKey, node: str, written: WrittenRecords) -> str:
        status, topic_id = statuses.status(group.group, node), self._topic_ids[group]
        if statuses.sends_unread(group.group, node):
            return "sends statuses that this build cannot read: upgrade this client"
        if status is None:
            return "has sent no status"
        if not statuses.alive(group.group, node):
            return f"is offline since {statuses.silent_ms(group.group, node) / 1_000:.0f} s"
        if status.topic_id != topic_id:
            return "follows another topic of the same name"
        if statuses.holds(group.group, node, topic_id, written):
            return "holds it"
        reason = f": {status.reason}" if status.reason else ""
        if status.durable_offset < written.offset:
            return f"holds up to offset {status.durable_offset} of {written.offset}{reason}"
        if not status.eligible or status.log_lost:
            return f"is not in sync{reason}"
        # Its log was cut and written on, it follows a build without receipts, or a status was lost.
        return f"holds offset {written.offset}, but has not shown that it is the record written there"
