"""Supervises the recovery of a node's groups: replaces data that is missing or wrong.

Four threads find a reason: the log begins too late, members disagree, a file has changed on the disk, the log
continues behind a gap. All of them call the supervisor, which alone changes the parts of a node that must
change together, and lets the group follow its log again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.file_copy import finish_swap
from headrace.consumers.recovery.log_gap import GapRefused, GapSeeker, gap_document, joins, last_common_offset, new_gap
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import Journal
from headrace.consumers.replication.log_consumer import Cursor, LogConsumer
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Message, ProducerPosition, encode_message

SEEK_INTERVAL_S = 1.0
RELEASE_TIMEOUT_S = 60.0
_log = structlog.get_logger(__name__)


class GroupBusy(HeadraceError):
    """A group cannot be replaced yet: the consuming thread still has records for it."""


class DataIdentity(Protocol):
    """What the data directory stores of its groups over restarts; see `consumers.node.data_directory`."""

    node: str
    store: str
    topics: dict[str, str]
    wrong: dict[str, str]
    gaps: dict[str, dict[str, Any]]

    def renew(self) -> None:
        """Give the data a new store id."""
        ...

    def save(self, directory: Path) -> None:
        """Write it durably."""
        ...


class GroupReadiness(Protocol):
    """Whether groups have reached the end of their logs; see `consumers.node.readiness`."""

    def caught_up(self, topic: str) -> bool:
        """Whether the group has reached the end of its log since it began to follow it."""
        ...

    def restart(self, topic: str) -> None:
        """The group begins to follow its log again: it is in sync only once it has reached the end."""
        ...


class RecoverySupervisor:
    """Owns the threads of recovery. `groups` gets another value when a group's store was replaced."""

    def __init__(
        self,
        log: Log,
        directory: Path,
        identity: DataIdentity,
        groups: MutableMapping[str, Group],
        journal: Journal,
        log_consumer: LogConsumer,
        readiness: GroupReadiness,
        heartbeat: Heartbeat,
        open_group: Callable[[str], Group],
        limits: ReplicationLimits,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._groups = groups
        self._journal = journal
        self._log_consumer = log_consumer
        self._readiness = readiness
        self._heartbeat = heartbeat
        self._open_group = open_group
        self._identity_lock = threading.Lock()
        caught_up = readiness.caught_up
        self.coordinator = RecoveryCoordinator(
            log,
            identity.node,
            directory,
            groups,
            identity.topics,
            heartbeat.live,
            log_consumer.durable_offset,
            lambda topic: not caught_up(topic),
            self._install,
            self._resume,
            self._follow_again,
            limits.recoveries_max,
            limits.recovery_bytes_per_second,
        )
        self._log = log
        self._seekers: dict[str, GapSeeker] = {}
        self._gap_task = PeriodicTask("gap-search", SEEK_INTERVAL_S, self._seek_gaps)

    def start(self) -> None:
        """Begin; data that was found wrong before the last stop is still wrong."""
        for topic, why in self._identity.wrong.items():
            self.coordinator.begin(topic, why, wrong=True)
        self.coordinator.start()
        self._gap_task.start()

    def stop(self) -> None:
        """Stop; an unfinished copy continues at the next start."""
        self._gap_task.stop()
        self.coordinator.stop()

    def log_trimmed(self, topic: str, needed: int, log_begin: int) -> None:
        """The log of a group begins behind the group's newest record: the group recovers."""
        self.coordinator.begin(topic, f"the log begins at offset {log_begin}, {needed} is needed")

    def mark_wrong(self, topic: str, why: str, trusted: frozenset[str] | None = None) -> None:
        """A group's data is not that of its log: it recovers, and takes no role until its data was replaced.

        `trusted`: the members that were found to be right, None = all members.
        """
        _log.error("group holds wrong data", group=self._groups[topic].name, why=why)
        # Durable before the recovery begins: after a crash the store opens without an error, and nothing else
        # would show that its data must not be served.
        with self._identity_lock:
            self._identity.wrong[topic] = why
            if (gap := self._groups[topic].gap) is not None:
                self._identity.gaps[topic] = gap_document(gap)
            self._identity.save(self._directory)
        self.coordinator.begin(topic, why, wrong=True, trusted=trusted)

    def _install(self, topic: str) -> None:
        """Replace a group's store by its verified copy. Raises GroupBusy.

        The group then reads its log from the end of the copy.
        """
        old = self._groups[topic]
        if not self._log_consumer.release(topic, RELEASE_TIMEOUT_S):
            raise GroupBusy(f"group {old.name} is still applying records of its log", retriable=True)
        # In this order: a store that is open must not be renamed. The journal's entries go last, since a
        # start skips those that are older than the store, and so a crash at any step loses nothing.
        newest = self._log_consumer.durable_version(topic)
        old.stop()
        old.store.close()
        finish_swap(self._directory, old.directory_name)
        self._journal.forget_all(old.name, newest)
        group = self._open_group(old.name)
        group.start()
        # The cursor first: no thread may find the new group together with the old position in its log.
        self._log_consumer.rejoin(topic, Cursor.of(group.replica.state))
        self._groups[topic] = group
        self._follow_again(topic)
        with self._identity_lock:
            self._identity.wrong.pop(topic, None)
            self._identity.gaps.pop(topic, None)
            # A new store id makes the other members' samples of the old data void.
            self._identity.renew()
            self._identity.save(self._directory)

    # A log that has lost records.

    def accept_gap(self, topic: str, resume_offset: int | None) -> LogBase:
        """Accept that a log lost records: one more record names the offset where it continues.

        Raises GapRefused, and the errors of `append_one`.
        """
        group = self._groups[topic]
        state = group.replica.state
        if group.recovery is not None and group.recovery.wrong:
            raise GapRefused(f"group {group.name} holds wrong data at this node", action="see headrace status")
        if not group.blocked or state.version != self._log_consumer.durable_version(topic):
            raise GapRefused(f"group {group.name} has not lost its log at this node", action="see headrace status")
        log = self._log.describe(topic)
        known_topic_id = self._identity.topics[topic]
        gap = new_gap(
            state, known_topic_id, log, lambda: last_common_offset(self._log, topic, group.history()), resume_offset
        )
        position = ProducerPosition(f"{self._identity.node}/gap", time.time_ns(), 0)
        append_one(self._log, topic, encode_message(Message(position, gap)))
        _log.warning("gap accepted", group=group.name, resume_offset=gap.resume_offset, version=state.version)
        return LogBase.of(gap)

    def _seek_gaps(self) -> None:
        for topic in list(self._groups):
            if not self.coordinator.reserve(topic):
                continue
            group = self._groups[topic]
            try:
                if group.blocked:
                    self._seek_gap(topic, group)
                elif topic in self._seekers:
                    self._seekers.pop(topic).close()
            except HeadraceError as error:
                _log.warning("gap not searched", group=group.name, error=str(error))
            finally:
                self.coordinator.release(topic)

    def _seek_gap(self, topic: str, group: Group) -> None:
        seeker = self._seekers.get(topic)
        if seeker is not None and seeker.topic_id != self._log.describe(topic).topic_id:
            seeker.close()
            seeker = None
        if seeker is None:
            seeker = self._seekers[topic] = GapSeeker(self._log, topic)
        # Only an idle group may change its state: what was read before the log was lost is applied first.
        if not self._log_consumer.release(
            topic, 0.0
        ) or group.replica.state.version != self._log_consumer.durable_version(topic):
            return
        base = seeker.seek(group.gap or group.replica.state.base)
        if base is not None:
            self._cross_gap(topic, group, base)

    def _cross_gap(self, topic: str, group: Group, base: LogBase) -> None:
        """Continue behind a gap from its anchor, or take the files of a member that could."""
        wrong = group.recovery is not None and group.recovery.wrong
        # Durable before the group continues: a restart compares the topic's id, and joins the journal's
        # records at the gap.
        with self._identity_lock:
            self._identity.topics[topic] = base.topic_id
            self._identity.gaps[topic] = gap_document(base)
            self._identity.save(self._directory)
        if wrong or not joins(base, group.replica.state):
            group.gap, group.log_lost = base, ""
            self.mark_wrong(topic, f"its log continues behind version {base.version}, which is not the newest here")
            return
        group.join_gap(base)
        self._log_consumer.rejoin(topic, Cursor.of(group.replica.state))
        group.recovery, group.log_lost = None, ""
        self._follow_again(topic)

    def _resume(self, topic: str) -> None:
        """The log holds what a group needs after all: continue from there."""
        self._groups[topic].recovery = None
        self._follow_again(topic)

    def _follow_again(self, topic: str) -> None:
        self._readiness.restart(topic)
        self._log_consumer.rejoin(topic, None)
        self._heartbeat.send_now()
