"""Write acknowledgement: waits until enough members of a group hold a record durably."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.producers.cluster import MemberStatuses, SlotRouting, StatusSource
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.receipts import WrittenRecords


class QuorumInvalid(HeadraceError):
    """A quorum that no cluster can give."""

    exit_code = 2


class QuorumTooLarge(QuorumInvalid):
    """A quorum of more members than a group has; it is never reduced to what is possible."""


class QuorumTimeout(StateUnknown):
    """Rows are in the log, but too few members confirmed them in time: every member will apply them, or none.

    `lagging` has the state of each member, for each group below the quorum.
    """

    def __init__(self, message: str, *, rows: int, lagging: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(message, action="check that the named nodes are up; writing the rows again is safe")
        self.rows = rows
        self.lagging = lagging


class Quorum:
    """Confirms that `copies` members hold what was written.

    Raises QuorumInvalid and QuorumTooLarge on construction.
    """

    def __init__(
        self, log: Log, topics: Topics, slot_table: SlotRouting, watch: StatusSource, copies: int, timeout_ms: int
    ) -> None:
        if copies < 0:
            raise QuorumInvalid(f"quorum {copies} is negative", action="use 0, 1 or up to the replication")
        if copies > slot_table.replication:
            raise QuorumTooLarge(
                f"quorum {copies} is more than the {slot_table.replication} members of a group",
                action=f"use at most {slot_table.replication}",
            )
        self.copies = copies
        self._timeout_ms = timeout_ms
        self._slot_table = slot_table
        self._watch = watch
        self._topic_ids: dict[str, str] = {}
        # A member may still follow a topic that was deleted and created again under the same name: its
        # offsets mean other records. So a status counts only with the id that the topic has now, before the
        # first row is written.
        if self.watched:
            self._topic_ids = {
                name: log.describe(topics.forward(name, slot_table.birth(name))).topic_id for name in slot_table.headers
            }
            watch.start()

    @property
    def watched(self) -> bool:
        """Whether member statuses are needed in addition to the log's own acknowledgement."""
        # One copy is the log's own: the delivery report with acks=all. With 0 and 1 no status is read at all.
        return self.copies >= 2

    def confirm(self, written: Mapping[str, WrittenRecords], rows: int, unit: str = "rows") -> None:
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
        lagging = {group: self._member_states(statuses, group, written[group]) for group in short}
        described = "; ".join(
            f"group {group}: {', '.join(f'{node} {state}' for node, state in members.items())}"
            for group, members in lagging.items()
        )
        unreadable = f" (status not readable: {self._watch.error})" if self._watch.error else ""
        raise QuorumTimeout(
            f"{rows:,} {unit} are in the log but were not confirmed by {self.copies} members within {self._timeout_ms} ms: "
            f"{described}{unreadable}",
            rows=rows,
            lagging=lagging,
        )

    def _groups_short(self, statuses: MemberStatuses, written: Mapping[str, WrittenRecords]) -> list[str]:
        """The groups in which fewer than `copies` live members hold what was written."""
        # Only live members count: the status of an offline one is old, its node may be gone with its disk.
        return [
            group
            for group, records in written.items()
            if statuses.durable_copies(group, self._slot_table.group(group), self._topic_ids[group], records)
            < self.copies
        ]

    def _member_states(self, statuses: MemberStatuses, group: str, written: WrittenRecords) -> dict[str, str]:
        return {node: self._member_state(statuses, group, node, written) for node in self._slot_table.group(group)}

    def _member_state(self, statuses: MemberStatuses, group: str, node: str, written: WrittenRecords) -> str:
        status = statuses.status(group, node)
        if status is None:
            return "has sent no status"
        if not statuses.alive(group, node):
            return f"is offline since {statuses.silent_ms(group, node) / 1_000:.0f} s"
        if status.topic_id != self._topic_ids[group]:
            return "follows another topic of the same name"
        if statuses.holds(group, node, self._topic_ids[group], written):
            return "holds it"
        reason = f": {status.reason}" if status.reason else ""
        if status.durable_offset < written.offset:
            return f"holds up to offset {status.durable_offset} of {written.offset}{reason}"
        if not status.eligible or status.log_lost:
            return f"is not in sync{reason}"
        # Its log was cut and written on, it follows a build without receipts, or a status was lost.
        return f"holds offset {written.offset}, but has not shown that it is the record written there"
