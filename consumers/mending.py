"""Mends the groups of a node: finds data that is missing or wrong, brings other data in its place, and lets the group follow its log again.

Three threads find out (the log begins too late, members disagree, a file has changed on the disk) and all of them end here, where the parts of a
node that have to change together are changed together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path

import structlog

from connectors.log.port import Log
from consumers.replication.broadcast import Broadcast
from consumers.replication.group import Group
from consumers.replication.identity import Identity
from consumers.replication.inspector import Inspector
from consumers.replication.journal import Journal
from consumers.replication.limits import ReplicationLimits
from consumers.replication.recoverer import Recoverer
from consumers.replication.runner import Cursor, Runner
from consumers.replication.scrub import Scrubber
from consumers.replication.transfer import finish_swap
from consumers.standing import Standing

_log = structlog.get_logger(__name__)


class Mending:
    """Owns the three threads. `groups` gets another value when other data has taken the place of a group's store."""

    def __init__(
        self,
        log: Log,
        directory: Path,
        identity: Identity,
        groups: MutableMapping[str, Group],
        journal: Journal,
        runner: Runner,
        standing: Standing,
        broadcast: Broadcast,
        open_group: Callable[[str], Group],
        limits: ReplicationLimits,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._groups = groups
        self._journal = journal
        self._runner = runner
        self._standing = standing
        self._broadcast = broadcast
        self._open_group = open_group
        self._identity_lock = threading.Lock()
        topic_ids, live, caught_up = identity.topics, broadcast.live, standing.caught_up
        self.recoverer = Recoverer(
            log,
            identity.node,
            directory,
            groups,
            topic_ids,
            live,
            runner.durable_offset,
            lambda topic: not caught_up(topic),
            self._install,
            self._resume,
            self._follow_again,
            limits.recoveries_max,
            limits.recovery_bytes_per_second,
        )
        self.inspector = Inspector(
            log, identity.node, groups, topic_ids, lambda: identity.store, live, caught_up, self.found_wrong
        )
        self.scrubber = Scrubber(groups, limits, self.found_wrong)

    def start(self) -> None:
        """Begin; what was found wrong before the last stop is wrong still."""
        for topic, why in self._identity.wrong.items():
            self.recoverer.begin(topic, why, wrong=True)
        self.recoverer.start()
        self.inspector.start()
        self.scrubber.start()

    def stop(self) -> None:
        """Stop; a copy under way goes on at the next start."""
        self.inspector.stop()
        self.scrubber.stop()
        self.recoverer.stop()

    def trimmed(self, topic: str, needed: int, log_begin: int) -> None:
        """The log of a group begins behind what the group has."""
        self.recoverer.begin(topic, f"the log begins at offset {log_begin}, {needed} is needed")

    def found_wrong(self, topic: str, why: str, trusted: frozenset[str] | None = None) -> None:
        """A group holds what its log does not say: remembered over restarts, until other data has taken the place. `trusted`: the members that were
        found to be right, None when nothing speaks against any."""
        _log.error("group holds wrong data", group=self._groups[topic].name, why=why)
        with self._identity_lock:
            self._identity.wrong[topic] = why
            self._identity.save(self._directory)
        self.recoverer.begin(topic, why, wrong=True, trusted=trusted)

    def _install(self, topic: str) -> None:
        """A verified copy of a group takes the place of its store, and the group reads its log on from there."""
        old = self._groups[topic]
        newest = self._runner.durable_version(topic)
        old.stop()
        old.store.close()
        finish_swap(self._directory, old.directory_name)
        self._journal.forget_all(old.name, newest)
        group = self._open_group(old.name)
        group.start()
        # The cursor first: whoever finds the new group must not find the old place in its log.
        self._runner.rejoin(topic, Cursor.of(group.replica.state))
        self._groups[topic] = group
        self._follow_again(topic)
        with self._identity_lock:
            self._identity.wrong.pop(topic, None)
            self._identity.renew()
            self._identity.save(self._directory)

    def _resume(self, topic: str) -> None:
        """The log holds what a group needs after all."""
        self._groups[topic].recovery = None
        self._follow_again(topic)

    def _follow_again(self, topic: str) -> None:
        self._standing.start_over(topic)
        self._runner.rejoin(topic, None)
        self._broadcast.speak_now()
