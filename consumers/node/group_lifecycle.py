"""Lets groups come and go in a running node, as its placement has them (docs/internals/membership.md).

`follow` is one step that waits for nothing but the record and the store job under way: whoever calls it calls it
again after GroupBusy. The passes of a closing, each with the crash that it answers:

1. The group is `leaving`: it takes no records, reads, or leadership, and its status is that of no copy. Nothing is
   written, so the next start finds the group.
2. Its threads end, and its store takes no new readers. What the journal holds beyond the store is applied again by
   the next start, if the group is wanted then.
3. Its partition of the journal is cut, durably. A crash before it: the next start cuts the partitions of groups that
   are not its own. Its directories stay until `delete` (see `group_deletion`).

Opening writes the id of the topic before any data. A crash behind that leaves an empty group, which recovers.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import structlog

from headrace.connectors.log.port import Log, LogUnavailable, TopicMissing
from headrace.connectors.log.topic_settings import FORWARD
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.group_changes import GroupChanges, group_changes
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.environment import GroupBusy
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name

_log = structlog.get_logger(__name__)


class GroupHeld(HeadraceError):
    """The directories of a group that this node still holds, or has to hold, are not deleted."""


class GroupLifecycle:
    """Opens and closes the groups of one node. Any thread may call it; one step runs at a time."""

    def __init__(
        self,
        log: Log,
        topics: ClusterTopics,
        local: LocalGroups,
        log_consumer: LogConsumer,
        readiness: Readiness,
        leader_tasks: LeaderTasks,
        coordinator: RecoveryCoordinator,
        heartbeat: Heartbeat,
    ) -> None:
        self._log = log
        self._topics = topics
        self._local = local
        self._log_consumer = log_consumer
        self._positions = readiness.positions
        self._readiness = readiness
        self._leader_tasks = leader_tasks
        self._coordinator = coordinator
        self._heartbeat = heartbeat
        self._step = threading.Lock()
        self._wanted: Mapping[GroupKey, Founding] | None = None
        self._reserved: set[str] = set()

    @property
    def present(self) -> list[GroupKey]:
        """The groups that are here, those that leave included."""
        keys = self._local.keys
        return [keys[topic] for topic in self._local.groups if topic in keys]

    def follow(self, wanted: Mapping[GroupKey, Founding], ended: Collection[GroupKey] = ()) -> GroupChanges:
        """Open and close groups until exactly those that are wanted are here.

        `ended` are groups whose topics may be gone: none of these is created. Returns what was done. Raises GroupBusy
        while something is left to do, the errors of the log, StoreError and OSError: the same call continues.
        """
        with self._step:
            self._wanted = wanted
            changes, busy, failure = self._step_to(wanted, ended)
            self._heartbeat.send_now()
            if failure is not None:
                raise failure
            if busy:
                raise GroupBusy("; ".join(busy), retriable=True)
            return changes

    def _step_to(
        self, wanted: Mapping[GroupKey, Founding], ended: Collection[GroupKey]
    ) -> tuple[GroupChanges, list[str], Exception | None]:
        """What was done, what keeps the rest from being done now, and the first error of a group that was not opened."""
        groups, keys, busy = self._local.groups, self._local.keys, list[str]()
        changes = group_changes({keys[topic] for topic in groups}, wanted)
        # A group that was leaving when it became wanted again is closed first: it may have lost a part of itself. So
        # is one that was opened for a change that was cancelled, if another change brings it with other slots.
        other = [
            topic
            for topic, group in groups.items()
            if topic in self._readiness.standing.early and wanted.get(keys[topic], group.founding) != group.founding
        ]
        leaving = [*other, *(topic for topic, group in groups.items() if group.health.holds(State.LEAVING))]
        closing = [(topic, keys[topic]) for topic in groups if keys[topic] in changes.closed or topic in leaving]
        closed, opened, failures = list[GroupKey](), list[GroupKey](), list[Exception]()
        for topic, key in closing:
            if why := self._close(topic, groups[topic]):
                busy.append(f"group {key.group} is closed once {why}")
            else:
                closed.append(key)
        # One life of a header at a time: statuses name the header alone.
        held = {keys[topic].group for topic in groups}
        for key in wanted:
            if key.group in held:
                continue
            try:
                self._open(key, wanted[key], create=key not in ended)
                opened.append(key)
            except TopicMissing as error:
                busy.append(f"group {key.group} is not opened: {error}")
            except LogUnavailable:
                # Without Kafka each of the others would wait in vain as well.
                raise
            except (HeadraceError, OSError) as error:
                failures.append(error)
        return GroupChanges(tuple(opened), tuple(closed)), busy, next(iter(failures), None)

    def _open(self, key: GroupKey, founding: Founding, *, create: bool) -> None:
        topic = self._local.topics.forward(key.group, key.birth)
        if create:
            self._topics.ensure({topic: FORWARD})
        topic, group = self._local.add(key, founding, self._log.describe(topic))
        # All that is known of it comes first: from the moment at which the registry has it, every thread asks.
        self._log_consumer.admit(topic, self._local.cursors[topic], self._local.receipts[topic])
        self._positions.admit(topic, self._local.ends[topic])
        self._local.groups.put(topic, group)
        self._log_consumer.rejoin(topic, None)
        _log.info("group opened", group=group.key, members=group.members, version=group.version)

    def _close(self, topic: str, group: Group) -> str:
        """One attempt to close a group; returns what it waits for, empty once it is closed."""
        if group.health.report(Event.LEAVE, "the group leaves this node"):
            _log.info("group leaves", group=group.key, version=group.version)
            self._log_consumer.rejoin(topic, None)
            self._heartbeat.send_now()
        if why := self._awaited(topic, group):
            return why
        # A record or a store job under way ends first. Whoever waits for an offset of the group gets an error.
        group.stop()
        if not group.store.retire():
            return "queries that read its files have ended"
        self._local.remove(topic, group)
        self._local.groups.remove(topic)
        self._log_consumer.dismiss(topic)
        self._positions.dismiss(topic)
        self._reserved.discard(topic)
        self._coordinator.forget(topic)
        _log.info("group closed", group=group.key)
        return ""

    def _awaited(self, topic: str, group: Group) -> str:
        """Which thread still works with a leaving group, empty when none does."""
        if topic not in self._reserved:
            if not self._coordinator.reserve(topic):
                self._coordinator.cancel(topic)
                return "its recovery has ended"
            self._reserved.add(topic)
        # Before this node stops to follow: the others choose a leader at once, and need not wait for its silence.
        if not self._heartbeat.withdrawn(group.name):
            return "its status is sent"
        if not self._log_consumer.release(topic, 0.0):
            return "its log is not read any more"
        if not self._leader_tasks.dismiss(topic):
            return "the leader tasks have ended their turn"
        return ""

    def delete(self, key: GroupKey) -> None:
        """Delete the directories of a group that was closed. Raises GroupHeld, OSError; it can be repeated."""
        with self._step:
            topic = self._local.topics.forward(key.group, key.birth)
            wanted = self._local.keys.values() if self._wanted is None else self._wanted
            if key in wanted or topic in self._local.groups:
                raise GroupHeld(
                    f"group {key.group} belongs to node {self._local.identity.node}",
                    action="its data is deleted once the change that takes the group away has ended",
                )
            self._local.delete(topic)
            _log.info("data of a closed group deleted", group=group_name(key))
