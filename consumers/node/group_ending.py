"""Ends the groups that the newest tables do not have any more: closes, drains and deletes their topics.

What to do is decided in `consumers/membership/ending.py`. This shell looks, and does at most one step of each group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.ending import Ending, EndingView, all_settled, decide_ending
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.hand_over_sender import HandOverSender
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere, GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Role

_log = structlog.get_logger(__name__)


class GroupEnding:
    """The steps of one node for the groups that ended. Owned by one thread.

    `table` is the newest one: no topic is closed before all its groups have reached it.
    """

    def __init__(
        self,
        log: Log,
        topics: Topics,
        groups: GroupRegistry,
        log_consumer: LogConsumer,
        leader_tasks: LeaderTasks,
        heartbeat: Heartbeat,
        kept_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """A closed topic is kept for `kept_s`: who follows it has to see twice that it is closed, and to read it."""
        self._kept_s = kept_s
        self._clock = clock
        self._log = log
        self._topics = topics
        self._groups = groups
        self._log_consumer = log_consumer
        self._leader_tasks = leader_tasks
        self._heartbeat = heartbeat
        self._ends: dict[str, int] = {}
        self._closed_s: dict[str, float] = {}
        self._senders: dict[str, HandOverSender] = {}
        self._faults: dict[str, str] = {}
        self.table: SlotTable | None = None

    def turn(self, ended: Iterable[GroupKey]) -> None:
        """One step of each of these groups that is here: their changes have ended, the first one before the others."""
        topics = [self._topics.forward(key.group, key.birth) for key in ended]
        for topic in topics:
            try:
                # One that ended before may have late records for a later one, and nobody can rename their slots there.
                self._step(topic, self._groups[topic], may_close=topic == topics[0])
                self._faults.pop(topic, None)
            except (GroupNotHere, TopicMissing):
                # Deleted, by this node or another member, or closed here a moment ago.
                self._forget(topic)
            except HeadraceError as error:
                if self._faults.get(topic) != str(error):
                    _log.warning("group not ended", topic=topic, error=str(error))
                self._faults[topic] = str(error)
        for topic in {*self._ends, *self._senders}.difference(topics):
            self._forget(topic)

    def close(self) -> None:
        """Release what was opened."""
        for topic in list(self._senders):
            self._forget(topic)

    def _forget(self, topic: str) -> None:
        self._ends.pop(topic, None)
        self._closed_s.pop(topic, None)
        if (sender := self._senders.pop(topic, None)) is not None:
            sender.close()

    def _step(self, topic: str, group: Group, *, may_close: bool) -> None:
        changes = group.applied.changes
        ending = decide_ending(self._view(topic, group, changes))
        if ending is Ending.FOLLOWING:
            self._forget(topic)
        elif ending is Ending.CLOSING and may_close and self._nothing_comes:
            self._ends[topic] = self._log.close_topic(topic)
            self._closed_s[topic] = self._clock.monotonic_s()
            _log.info("topic of an ended group closed", group=group.key, end=self._ends[topic])
        elif ending is Ending.HANDING_OVER:
            # Without a leadership: a closed log takes no claim. Repeats of what the leader has sent are ignored.
            self._sender(topic, group).turn(changes)
        elif ending is Ending.DELETING:
            self._delete(topic, group)

    @property
    def _nothing_comes(self) -> bool:
        """Whether no other group hands over to one that ended: each has renamed those slots in its second phase."""
        received = self._heartbeat.detector.received
        return self.table is None or all_settled(self.table, [each.status for each in list(received.values())])

    def _delete(self, topic: str, group: Group) -> None:
        # Once more: somebody who does not know of the end may have corrected the setting.
        end = self._log.close_topic(topic)
        if end == self._ends.pop(topic):
            self._log.delete_topic(topic)
            _log.info("topic of an ended group deleted", group=group.key, end=end)

    def _view(self, topic: str, group: Group, changes: ChangeView) -> EndingView:
        decision = self._leader_tasks.decision(topic)
        # In this order: what is applied behind the records of the view may be due as well.
        position, durable = self._log_consumer.position(topic), self._log_consumer.durable_offset(topic)
        applied = group.applied
        sender = self._senders.get(topic)
        due = any(changes.due.values()) and (sender is None or not sender.handed_over(changes))
        return EndingView(
            acts=decision.role is Role.LEADER or decision.claim,
            end=self._ends.get(topic),
            applied=position if applied.offset >= durable and applied.changes is changes else 0,
            due=due,
            kept=self._clock.monotonic_s() - self._closed_s.get(topic, math.inf) >= self._kept_s,
        )

    def _sender(self, topic: str, group: Group) -> HandOverSender:
        if topic not in self._senders:
            producer = f"{self._heartbeat.node}/{self._heartbeat.incarnation}/ending"
            statuses = self._heartbeat.detector
            self._senders[topic] = HandOverSender(self._log, topic, group.birth_key, producer, statuses, SYSTEM_CLOCK)
        return self._senders[topic]
