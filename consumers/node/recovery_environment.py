"""What recovery asks of this node and orders from it: see `headrace.consumers.recovery.environment`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.recovery.environment import GroupBusy
from headrace.consumers.recovery.file_copy import Source, finish_swap
from headrace.consumers.recovery.log_gap import gap_document
from headrace.consumers.recovery.peer_source import PeerSource, chain_of_member
from headrace.consumers.recovery.progress import TransferStopped
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.log_prefix import Cursor
from headrace.schemas.records import Status

_log = structlog.get_logger(__name__)


class NodeRecoveryEnvironment:
    """Changes together the parts of a node that must change together when the data of a group does."""

    def __init__(
        self,
        local: LocalGroups,
        log_consumer: LogConsumer,
        positions: LogPositions,
        heartbeat: Heartbeat,
        stopping: threading.Event,
    ) -> None:
        """`stopping` is set when the node stops: nobody waits for a member that is silent any more."""
        self._stopping = stopping
        self._local = local
        self._identity = local.identity
        self._log_consumer = log_consumer
        self._positions = positions
        self._heartbeat = heartbeat
        self._recording = local.recording
        self._unrecorded = False

    @property
    def node(self) -> str:
        """See RecoveryEnvironment."""
        return self._identity.node

    @property
    def store(self) -> str:
        """See RecoveryEnvironment."""
        return self._identity.store

    @property
    def directory(self) -> Path:
        """See RecoveryEnvironment."""
        return self._local.directory

    @property
    def groups(self) -> Mapping[str, Group]:
        """See RecoveryEnvironment."""
        return self._local.groups

    def topic_id(self, topic: str) -> str:
        """See RecoveryEnvironment."""
        if (known := self._identity.topics.get(topic)) is None:
            raise GroupNotHere.of(topic)
        return known

    def live(self, group: Group) -> list[Status]:
        """See RecoveryEnvironment."""
        members: Sequence[str] = group.members
        if self.node not in members:
            # It has read too little of the log to know who has the group by now: whoever reports it.
            members = self._heartbeat.detector.reporting(group.name)
        return self._heartbeat.live(group.name, members)

    def caught_up(self, topic: str) -> bool:
        """See RecoveryEnvironment."""
        return self._positions.caught_up(topic)

    def durable_offset(self, topic: str) -> int:
        """See RecoveryEnvironment."""
        return self._log_consumer.durable_offset(topic)

    def cursor(self, topic: str) -> Cursor:
        """See RecoveryEnvironment."""
        return self._log_consumer.cursor(topic)

    def is_released(self, topic: str) -> bool:
        """See RecoveryEnvironment."""
        return self._log_consumer.release(topic, 0.0)

    def is_idle(self, topic: str) -> bool:
        """See RecoveryEnvironment."""
        # In this order: until it is released, more records may come.
        released = self.is_released(topic)
        return released and self.groups[topic].replica.state.version == self._log_consumer.durable_version(topic)

    def source(self, url: str, group: str) -> Source:
        """See RecoveryEnvironment."""
        return PeerSource(url, group, self._check_stop)

    def _check_stop(self, _left_s: float) -> None:
        if self._stopping.is_set():
            raise TransferStopped("the node is stopping")

    def chain_of(self, url: str, group: str, version: int) -> bytes | None:
        """See RecoveryEnvironment."""
        return chain_of_member(url, group, version)

    def record_wrong(self, topic: str, group: Group) -> None:
        """See RecoveryEnvironment."""
        with self._recording:
            # Its data may have been replaced since it was judged.
            if self.groups.get(topic) is not group:
                return
            self._identity.wrong[topic] = group.health.cause(Aspect.DATA)
            if (gap := group.health.conditions.gap) is not None:
                self._identity.gaps[topic] = gap_document(gap)
            self._identity.save(self.directory)

    def record_gap(self, topic: str, base: LogBase) -> None:
        """See RecoveryEnvironment."""
        with self._recording:
            self._identity.topics[topic] = base.topic_id
            self._identity.gaps[topic] = gap_document(base)
            self._identity.save(self.directory)

    def repeat_records(self) -> None:
        """See RecoveryEnvironment."""
        with self._recording:
            if self._unrecorded:
                self._record()

    def _record(self) -> None:
        # What is not written here costs a recovery after the next start, and no data.
        try:
            self._identity.save(self.directory)
            self._unrecorded = False
        except OSError as error:
            self._unrecorded = True
            _log.warning("replacement not recorded", error=str(error))

    def reassign(self, topic: str) -> None:
        """See RecoveryEnvironment."""
        self._positions.restart(topic)
        self._log_consumer.rejoin(topic, None)
        self._heartbeat.send_now()

    def join_gap(self, topic: str, base: LogBase) -> None:
        """See RecoveryEnvironment."""
        group = self.groups[topic]
        group.join_gap(base)
        self._log_consumer.rejoin(topic, Cursor.of(group.replica.state))

    def install(self, topic: str) -> None:
        """See RecoveryEnvironment."""
        old = self.groups[topic]
        if not self._log_consumer.release(topic, 0.0):
            raise GroupBusy(f"group {old.name} is still applying records of its log", retriable=True)
        # In this order: a store that is open must not be renamed. The journal's entries go last, since a
        # start skips those that are older than the store, and so a crash at any step loses nothing.
        self._local.discard(old)
        finish_swap(self.directory, old.directory_name)
        self._local.journal.forget_all(old.key)
        group = self._local.open_group(topic)
        group.start()
        # The cursor first: no thread may find the new group together with the old position in its log.
        self._log_consumer.rejoin(topic, Cursor.of(group.replica.state))
        # Nor together with the end that the old data has reached.
        self._positions.restart(topic)
        with self._recording:
            self._local.groups.put(topic, group)
        self.reassign(topic)
        with self._recording:
            self._identity.wrong.pop(topic, None)
            self._identity.gaps.pop(topic, None)
            # A new store id makes the other members' samples of the old data void.
            self._identity.renew()
            self._record()
