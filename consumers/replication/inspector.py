"""Compares what this node holds with what the other members show, and finds out who is wrong (docs/internals/replication.md).

A group in dispute that is not known to be right serves nothing here. One that is wrong recovers; what the log says stands above what a majority says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from connectors.log.port import Log
from consumers.replication.absence import Absence
from consumers.replication.arbiter import read_chain
from consumers.replication.divergence import Dispute, Finding, Kind, Marks
from consumers.replication.gap import choices
from consumers.replication.group import Group
from consumers.replication.turns import Turns
from schemas.errors import HeadraceError
from schemas.records import Status

TURN_S = 0.5
OPERATORS_CHOICE = "the data is kept; move the data directory of the member that is wrong away, and it recovers"
_log = structlog.get_logger(__name__)


class Inspector:
    """The thread of it. `on_wrong(topic, why, right)` is called when this node's data is not what the log says, with the members whose data is."""

    def __init__(
        self,
        log: Log,
        node: str,
        groups: Mapping[str, Group],
        topic_ids: Mapping[str, str],
        store_id: Callable[[], str],
        live: Callable[[str, Sequence[str]], list[Status]],
        end: Callable[[str], int],
        caught_up: Callable[[str], bool],
        on_wrong: Callable[[str, str, frozenset[str]], None],
    ) -> None:
        self._log = log
        self._node = node
        self._groups = groups
        self._topic_ids = topic_ids
        self._store_id = store_id
        self._live = live
        self._end = end
        self._caught_up = caught_up
        self._on_wrong = on_wrong
        self._shortness = Absence()
        self._marks: dict[str, tuple[Group, Marks]] = {}
        self._turns = Turns("inspect", TURN_S, self._inspect_all)

    def start(self) -> None:
        """Begin."""
        self._turns.start()

    def stop(self) -> None:
        """Stop after the record in hand."""
        self._turns.stop()

    def _inspect_all(self) -> None:
        for topic in list(self._groups):
            try:
                self._inspect(topic, self._groups[topic])
            except HeadraceError as error:
                _log.warning("members not compared", topic=topic, error=str(error))

    def _inspect(self, topic: str, group: Group) -> None:
        self._look_for_cut(topic, group)
        if not group.follows or not self._caught_up(topic):
            return
        marks = self._marks_of(topic, group)
        for status in self._live(group.name, group.members):
            ours = status.node != self._node or status.store == self._store_id()
            if ours and status.topic_id == self._topic_ids[topic]:
                marks.hear(status)
        dispute = marks.dispute(group.chain_at)
        if dispute is None:
            group.disputed = ""
        else:
            self._settle(topic, group, marks, dispute)

    def _look_for_cut(self, topic: str, group: Group) -> None:
        """What a member has read was in the log: a log that no longer holds it has lost it, even if nothing is missing here."""
        cut = self._cut_of(topic, group, self._end(topic))
        if cut is not None:
            # The end may have moved since it was looked at last.
            end = self._log.describe(topic).end
            cut = self._cut_of(topic, group, end)
        if cut is None:
            group.outrun = ""
            self._shortness.present(topic)
        elif not group.outrun and self._shortness.missing(topic):
            group.outrun = (
                f"topic {topic} ends at offset {end} and does not hold what node {cut.node} has read, up to {cut.durable_offset}: "
                f"it was truncated; {choices(group.name)}"
            )
            _log.error("log cut", group=group.name, reason=group.outrun)

    def _cut_of(self, topic: str, group: Group, end: int) -> Status | None:
        """A member that has read what a log with this end does not hold, or says so itself."""
        return next(
            (
                each
                for each in self._live(group.name, group.members)
                if each.topic_id == self._topic_ids[topic] and (each.log_lost or each.durable_offset >= end)
            ),
            None,
        )

    def _marks_of(self, topic: str, group: Group) -> Marks:
        """What was shown since this group's store took its place."""
        known = self._marks.get(topic)
        if known is None or known[0] is not group:
            known = self._marks[topic] = (group, Marks(self._node))
        return known[1]

    def _settle(self, topic: str, group: Group, marks: Marks, dispute: Dispute) -> None:
        finding = dispute.judge(len(group.members), None)
        if finding is not Finding.RIGHT:
            group.disputed = f"{dispute}; finding out who is wrong"
        truth = self._truth(topic, group, dispute)
        finding = dispute.judge(len(group.members), truth)
        _log.error("members disagree", group=group.name, dispute=str(dispute), finding=str(finding))
        if finding is Finding.RIGHT:
            marks.settle(dispute)
            group.disputed = ""
        elif finding is Finding.WRONG or (
            dispute.kind is Kind.FILES and group.log_is_whole(self._log.describe(topic).begin)
        ):
            # Files that differ with no majority: every member in dispute makes them anew from the log, which has everything.
            # Finding out may take long; data that has come in its place meanwhile is not what was judged.
            if self._groups[topic] is group:
                self._on_wrong(topic, f"diverged: {dispute}", dispute.right(len(group.members), truth))
        else:
            group.disputed = f"{dispute}, and neither the log nor a majority says who is wrong; {OPERATORS_CHOICE}"

    def _truth(self, topic: str, group: Group, dispute: Dispute) -> bytes | None:
        if dispute.kind is not Kind.RECORDS or not group.log_is_whole(self._log.describe(topic).begin):
            return None
        return read_chain(self._log, topic, dispute.version, self._turns.stopping.is_set)
