"""What is known of groups that the slot table has no longer: whether others have accepted all that came for them.

A group that ended hands over what its log still takes. Then its topic is deleted, and its members forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from headrace.connectors.clock import SYSTEM_CLOCK, Clock, Moment
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.query_errors import GroupUnavailable, NotCaughtUp
from headrace.consumers.query.remote_rows import RemoteRows
from headrace.consumers.query.scan_request import RemoteScanRequest, wire_schema
from headrace.consumers.query.table_source import ReadTimer
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.schemas.group_changes import BEGINNING, GroupKey
from headrace.schemas.group_names import FIRST_BIRTH, group_name, parse_group
from headrace.schemas.tables import TIME_COLUMN, TableSchema

GONE_MAX = 1_000
"""Groups that are known to have ended; beyond it their topics are looked up again."""


class GroupTopics(Protocol):
    """The topics of groups, as the log has them now."""

    def is_deleted(self, key: GroupKey) -> bool:
        """Whether a group has no topic any more. Raises LogUnavailable."""
        ...

    def newest_offset(self, key: GroupKey) -> int:
        """The offset of a group's newest record; -1 for none. Raises LogUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Gone:
    """A group whose topic is deleted. Everything that it handed over is up to the offsets `ends` of other groups."""

    ends: Mapping[str, int]


class EndedGroups:
    """Asks a group that ended, here or at another node. Every method may be called from any thread."""

    def __init__(
        self, local: LocalSource, remote: RemoteRows, topics: GroupTopics, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._ending: tuple[GroupKey, ...] = ()
        self._over_ns: dict[GroupKey, int] = {}
        self._local = local
        self._remote = remote
        self._topics = topics
        self._gone: dict[GroupKey, Gone] = {}

    def note(self, ended: Iterable[GroupKey]) -> None:
        """The membership log says which groups have ended and may have a topic still, in the order of their ends."""
        before, self._ending = self._ending, tuple(ended)
        for key in set(before).difference(self._ending):
            # Until then its topic was missing for a while: what it had handed over was in other logs before.
            self._over_ns[key] = self._clock.boot_ns()

    def was_over(self, key: GroupKey, moment: Moment) -> bool:
        """Whether a group that no table has any more had handed everything over at a moment of this process."""
        return key not in self._ending and self._over_ns.get(key, 0) <= moment.boot_ns

    def gone(self, key: GroupKey) -> Gone | None:
        """A group that this node knows to be gone. Raises LogUnavailable."""
        known = self._gone.get(key)
        if known is not None:
            known = Gone({name: self._end_now(name, end) for name, end in known.ends.items()})
            self._gone[key] = known
        return known

    def _end_now(self, name: str, end: int) -> int:
        """An end that was noted, or a lower one: a log that was cut or made again since may never come so far.

        What such a log lost is nobody's to wait for, once an operator has accepted that.
        """
        header, birth = parse_group(name)
        here = [group.applied.offset for group in list(self._local.groups.values()) if group.key == name]
        read = here or [each.durable_offset for each in self._remote.serving(header)]
        if max(read, default=-1) >= end:
            return end
        now = self._topics.newest_offset(GroupKey(header, birth or FIRST_BIRTH))
        # A topic that is not there, or has nothing yet: no group follows it.
        return now if 0 <= now < end else end

    def hand_overs(
        self,
        key: GroupKey,
        request: RemoteScanRequest,
        schema: TableSchema,
        timer: ReadTimer,
        present: Iterable[GroupKey],
    ) -> HandOvers | Gone:
        """What a group has handed over once it has applied and accepted what a request names.

        `present` are the groups of the table. Raises NotCaughtUp, GroupUnavailable, LogUnavailable.
        """
        if (known := self.gone(key)) is not None:
            return known
        name = group_name(key)
        for group in list(self._local.groups.values()):
            if group.key == name and not group.health.holds(State.LEAVING):
                return self._here(group, request, timer)
        # No rows: they are those of the groups that took its slots.
        empty = replace(
            request,
            group=key.group,
            birth=key.birth,
            columns=(TIME_COLUMN,),
            start_ns=0,
            end_ns=0,
            table_version=0,
            tags={},
            newest=None,
        )
        try:
            # Those of the name may all be of a younger group: a node was removed, and is here again.
            if self._remote.holders(key.group):
                columns, is_gone = wire_schema(schema, empty.columns), partial(self._topics.is_deleted, key)
                with self._remote.scan(empty, columns, timer, is_gone) as scan:
                    return scan.hand_overs
        except GroupUnavailable:
            if not self._topics.is_deleted(key):
                raise
        else:
            if not self._topics.is_deleted(key):
                raise GroupUnavailable.because(name, ["it has ended, and no node that holds it is online"])
        # One member of each next holder had accepted all of it. The one that is read may be behind that one. A next
        # holder may have ended, too: those first, since what such a one hands over is in the groups of the table then.
        others = [each for each in self._ending if each != key]
        ends = {group_name(each): self._topics.newest_offset(each) for each in (*others, *present)}
        gone = Gone({name: end for name, end in ends.items() if end >= 0})
        if len(self._gone) < GONE_MAX:
            self._gone[key] = gone
        return gone

    def _here(self, group: Group, request: RemoteScanRequest, timer: ReadTimer) -> HandOvers:
        def reached() -> bool:
            applied = group.applied
            accepted = applied.changes.accepted
            return applied.offset >= request.after and all(
                accepted.get(origin, BEGINNING) >= position for origin, position in request.accepted.items()
            )

        if not group.wait_for(reached, timer.left_s):
            raise NotCaughtUp.to({group.key: request.after})
        return HandOvers.of(group.applied.changes)


class Members(Protocol):
    """What the membership log has decided, as a node has read it."""

    @property
    def table(self) -> SlotTable | None:
        """The newest slot table."""
        ...

    @property
    def removed(self) -> Collection[str]:
        """Former nodes that have not joined again."""
        ...


class EndedLogs:
    """See FormerGroups: by what the membership log says, and by the topics that are there."""

    def __init__(self, members: Callable[[], Members], is_deleted: Callable[[GroupKey], bool]) -> None:
        self._members = members
        self._is_deleted = is_deleted

    def existed(self, key: GroupKey) -> bool:
        """Whether a group ended some time, or is of a table to come. Raises LogUnavailable."""
        members = self._members()
        table = members.table
        if table is not None and key.group in table.headers and key.birth < table.birth(key.group):
            return True
        if table is not None and key.group in members.removed and key.birth <= table.version:
            return True
        # A client may know a newer table than this node.
        return not self._is_deleted(key)


class LogTopics:
    """See GroupTopics."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topics = topics

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        try:
            self._log.describe(self._topics.forward(key.group, key.birth))
        except TopicMissing:
            # A broker that has just started knows no topic at all for a moment.
            self._log.describe(self._topics.membership)
            return True
        return False

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        try:
            return self._log.describe(self._topics.forward(key.group, key.birth)).end - 1
        except TopicMissing:
            return -1
