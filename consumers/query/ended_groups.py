"""What is known of groups that the slot table has no longer: whether others have accepted all that came for them.

A group that ended hands over what its log still takes. Then its topic is deleted, and its members forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.query_errors import GroupUnavailable, NotCaughtUp
from headrace.consumers.query.remote_rows import RemoteRows
from headrace.consumers.query.scan_request import RemoteScanRequest, wire_schema
from headrace.consumers.query.table_source import LocalSource, ReadTimer
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.schemas.group_changes import BEGINNING, GroupKey
from headrace.schemas.group_names import group_name
from headrace.schemas.tables import TIME_COLUMN, TableSchema

GONE_MAX = 1_000
"""Groups that are known to have ended; beyond it their topics are looked up again."""


class EndedGroups:
    """Asks a group that ended, here or at another node. Every method may be called from any thread."""

    def __init__(self, local: LocalSource, remote: RemoteRows, is_deleted: Callable[[GroupKey], bool]) -> None:
        """`is_deleted`: whether the topic of a group does not exist any more."""
        self._local = local
        self._remote = remote
        self._is_deleted = is_deleted
        self._gone: set[GroupKey] = set()

    def hand_overs(
        self, key: GroupKey, request: RemoteScanRequest, schema: TableSchema, timer: ReadTimer
    ) -> HandOvers | None:
        """What a group has handed over once it has applied and accepted what a request names.

        None: it is gone, and everything was handed over. Raises NotCaughtUp, GroupUnavailable.
        """
        if key in self._gone:
            return None
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
            if self._remote.holders(key.group):
                with self._remote.scan(empty, wire_schema(schema, empty.columns), timer) as scan:
                    return scan.hand_overs
        except GroupUnavailable:
            if not self._is_deleted(key):
                raise
        else:
            if not self._is_deleted(key):
                raise GroupUnavailable.because(name, ["it has ended, and no node that holds it is online"])
        if len(self._gone) < GONE_MAX:
            self._gone.add(key)
        return None

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


class DeletedTopics:
    """Whether topics of groups were deleted, by the log."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topics = topics

    def __call__(self, key: GroupKey) -> bool:
        """Whether a group has no topic any more. Raises LogUnavailable."""
        try:
            self._log.describe(self._topics.forward(key.group, key.birth))
        except TopicMissing:
            # A broker that has just started knows no topic at all for a moment.
            self._log.describe(self._topics.membership)
            return True
        return False
