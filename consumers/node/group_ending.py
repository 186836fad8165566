"""Ends the groups that the newest tables do not have any more: closes, drains and deletes their topics.

What to do is decided in `consumers/membership/ending.py`. This shell looks, and does at most one step of each group.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from headrace.connectors.log.closing import SIZE_SETTING, is_closed
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topic_settings import FORWARD
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.ending import Ending, EndingView, decide_ending
from headrace.consumers.membership.group_changes import GroupBirth
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere, GroupRegistry
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Role

_log = structlog.get_logger(__name__)


class GroupEnding:
    """The steps of one node for the groups that ended. Owned by one thread."""

    def __init__(
        self, log: Log, topics: Topics, groups: GroupRegistry, log_consumer: LogConsumer, leader_tasks: LeaderTasks
    ) -> None:
        self._log = log
        self._topics = topics
        self._groups = groups
        self._log_consumer = log_consumer
        self._leader_tasks = leader_tasks
        self._ends: dict[str, int] = {}
        self._faults: dict[str, str] = {}

    def turn(self, ended: Iterable[GroupBirth]) -> None:
        """One step of each of these groups that is here. Their changes have ended."""
        for birth in ended:
            topic = self._topics.forward(birth.header, birth.birth)
            try:
                self._step(topic, self._groups[topic])
                self._faults.pop(topic, None)
            except (GroupNotHere, TopicMissing):
                # Deleted, by this node or another member, or closed here a moment ago.
                self._ends.pop(topic, None)
            except HeadraceError as error:
                if self._faults.get(topic) != str(error):
                    _log.warning("group not ended", group=birth.key, error=str(error))
                self._faults[topic] = str(error)

    def _step(self, topic: str, group: Group) -> None:
        ending = decide_ending(self._view(topic, group))
        if ending is Ending.CLOSING:
            self._ends[topic] = self._log.close_topic(topic)
            _log.info("topic of an ended group closed", group=group.key, end=self._ends[topic])
        elif ending is Ending.REOPENING:
            self._ends.pop(topic, None)
            self._log.configure(topic, {SIZE_SETTING: FORWARD[SIZE_SETTING].value})
            _log.info("topic of an ended group opened again: records are due", group=group.key)
        elif ending is Ending.DELETING:
            self._delete(topic, group)

    def _delete(self, topic: str, group: Group) -> None:
        # Once more: another member may have opened it since.
        end = self._log.close_topic(topic)
        if end == self._ends.pop(topic):
            self._log.delete_topic(topic)
            _log.info("topic of an ended group deleted", group=group.key, end=end)

    def _view(self, topic: str, group: Group) -> EndingView:
        decision = self._leader_tasks.decision(topic)
        acts = decision.role is Role.LEADER or decision.claim
        # Behind what was read in this order: a record that is not applied yet may be due.
        position, durable = self._log_consumer.position(topic), self._log_consumer.durable_offset(topic)
        applied = group.applied
        return EndingView(
            acts=acts,
            due=any(applied.changes.due.values()),
            closed=acts and is_closed(self._log, topic),
            end=self._ends.get(topic),
            applied=position if applied.offset >= durable else applied.offset + 1,
        )
