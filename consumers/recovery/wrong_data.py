"""Marks a group's data as wrong: in memory at once, then durably, however long the disk refuses.

Until the mark is durable the group serves nothing, counts for nothing, and does not recover: after a crash in the
middle of a recovery nothing else would show that its data must not be served.
"""

from __future__ import annotations

import structlog

from headrace.consumers.recovery.environment import RecoveryEnvironment
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect, Event, State
from headrace.consumers.replication.group_state import LogBase
from headrace.schemas.errors import HeadraceError

_log = structlog.get_logger(__name__)


class WrongData:
    """The marks of a node's groups. `mark` may be called by any thread, `turn` by one."""

    def __init__(self, environment: RecoveryEnvironment) -> None:
        self._environment = environment

    def mark(self, topic: str, why: str, trusted: frozenset[str] | None = None, gap: LogBase | None = None) -> None:
        """A group's data is not that of its log. `trusted` and `gap`: see Conditions."""
        if self._mark(topic, why, trusted, gap):
            _log.error("group holds wrong data", topic=topic, why=why)

    def replace(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """No record brings what a group's data lacks, as it happens to a new member: that of `trusted` takes its place."""
        if self._mark(topic, why, trusted, None):
            _log.info("group is copied from its members", topic=topic, why=why)

    def _mark(self, topic: str, why: str, trusted: frozenset[str] | None, gap: LogBase | None) -> bool:
        """Whether it was not marked before."""
        group = self._environment.groups.get(topic)
        # Data of a group that goes is not served, and deleted.
        if group is None or group.health.holds(State.LEAVING):
            return False
        first = group.health.mark(why, trusted, gap)
        if first:
            self._environment.reassign(topic)
        self._record(topic, group)
        return first

    def turn(self) -> None:
        """One step: marks what a store job or a record found to be damaged, and repeats what was not recorded."""
        self._environment.repeat_records()
        for topic, group in list(self._environment.groups.items()):
            if group.health.holds(State.LEAVING):
                continue
            if group.health.holds(State.DAMAGED):
                self.mark(topic, group.health.cause(Aspect.DATA))
            elif group.health.holds(State.WRONG):
                self._record(topic, group)

    def _record(self, topic: str, group: Group) -> None:
        try:
            self._environment.record_wrong(topic, group)
        except (HeadraceError, OSError) as error:
            # Not raised: whoever found the data wrong may find it once only. `turn` repeats the mark until the disk
            # takes it.
            _log.error("wrong data not recorded", group=group.name, error=str(error))
            group.health.note_unrecorded(str(error))
        else:
            group.health.report(Event.RECORD)
