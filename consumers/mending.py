"""Mends the groups of a node: finds data that is missing or wrong, brings other data in its place, and lets the group follow its log again.

Four threads find out (the log begins too late, members disagree, a file has changed on the disk, the log goes on behind a gap) and all of them end
here, where the parts of a node that have to change together are changed together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path

import structlog

from connectors.log.append import append_one
from connectors.log.port import Log
from consumers.replication.broadcast import Broadcast
from consumers.replication.gap import GapRefused, GapSeeker, gap_document, joins, last_common_offset, new_gap
from consumers.replication.group import Group
from consumers.replication.identity import Identity
from consumers.replication.inspector import Inspector
from consumers.replication.journal import Journal
from consumers.replication.limits import ReplicationLimits
from consumers.replication.recoverer import Recoverer
from consumers.replication.runner import Cursor, Runner
from consumers.replication.scrub import Scrubber
from consumers.replication.state import LogBase
from consumers.replication.transfer import finish_swap
from consumers.replication.turns import Turns
from consumers.standing import Standing
from schemas.errors import HeadraceError
from schemas.messages import Message, ProducerPosition, encode_message

SEEK_INTERVAL_S = 1.0
LET_GO_TIMEOUT_S = 60.0
_log = structlog.get_logger(__name__)


class StillRead(HeadraceError):
    """A group cannot be replaced yet: the thread that reads its log still has records for it in hand."""


class Mending:
    """Owns the four threads. `groups` gets another value when other data has taken the place of a group's store."""

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
            log,
            identity.node,
            groups,
            topic_ids,
            lambda: identity.store,
            live,
            standing.end,
            caught_up,
            self.found_wrong,
        )
        self.scrubber = Scrubber(groups, limits, self.found_wrong)
        self._log = log
        self._seekers: dict[str, GapSeeker] = {}
        self._gap_turns = Turns("gaps", SEEK_INTERVAL_S, self._seek_gaps)

    def start(self) -> None:
        """Begin; what was found wrong before the last stop is wrong still."""
        for topic, why in self._identity.wrong.items():
            self.recoverer.begin(topic, why, wrong=True)
        self.recoverer.start()
        self.inspector.start()
        self.scrubber.start()
        self._gap_turns.start()

    def stop(self) -> None:
        """Stop; a copy under way goes on at the next start."""
        self._gap_turns.stop()
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
            if (gap := self._groups[topic].gap) is not None:
                self._identity.gaps[topic] = gap_document(gap)
            self._identity.save(self._directory)
        self.recoverer.begin(topic, why, wrong=True, trusted=trusted)

    def _install(self, topic: str) -> None:
        """A verified copy of a group takes the place of its store, and the group reads its log on from there. Raises StillRead."""
        old = self._groups[topic]
        if not self._runner.let_go(topic, LET_GO_TIMEOUT_S):
            raise StillRead(f"group {old.name} is still handed what was read of its log", retriable=True)
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
            self._identity.gaps.pop(topic, None)
            self._identity.renew()
            self._identity.save(self._directory)

    # A log that has lost records.

    def accept_gap(self, topic: str, resume_offset: int | None) -> LogBase:
        """An operator accepts that the log of a group lost records: one more record says where it goes on. Raises GapRefused, and what appending
        raises."""
        group = self._groups[topic]
        state = group.replica.state
        if group.recovery is not None and group.recovery.wrong:
            raise GapRefused(f"group {group.name} holds wrong data at this node", action="see headrace status")
        if not group.stuck or state.version != self._runner.durable_version(topic):
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
            if not self.recoverer.claim(topic):
                continue
            group = self._groups[topic]
            try:
                if group.stuck:
                    self._seek_gap(topic, group)
                elif topic in self._seekers:
                    self._seekers.pop(topic).close()
            except HeadraceError as error:
                _log.warning("gap not looked for", group=group.name, error=str(error))
            finally:
                self.recoverer.release(topic)

    def _seek_gap(self, topic: str, group: Group) -> None:
        seeker = self._seekers.get(topic)
        if seeker is not None and seeker.topic_id != self._log.describe(topic).topic_id:
            seeker.close()
            seeker = None
        if seeker is None:
            seeker = self._seekers[topic] = GapSeeker(self._log, topic)
        if not self._runner.let_go(topic, 0.0) or group.replica.state.version != self._runner.durable_version(topic):
            return
        base = seeker.seek(group.gap or group.replica.state.base)
        if base is not None:
            self._cross(topic, group, base)

    def _cross(self, topic: str, group: Group, base: LogBase) -> None:
        """Go on behind a gap from exactly there, or take the files of a member that could."""
        wrong = group.recovery is not None and group.recovery.wrong
        with self._identity_lock:
            self._identity.topics[topic] = base.topic_id
            self._identity.gaps[topic] = gap_document(base)
            self._identity.save(self._directory)
        if wrong or not joins(base, group.replica.state):
            group.gap, group.lost = base, ""
            self.found_wrong(topic, f"its log goes on behind version {base.version}, which is not the newest here")
            return
        group.join(base)
        self._runner.rejoin(topic, Cursor.of(group.replica.state))
        group.recovery, group.lost = None, ""
        self._follow_again(topic)

    def _resume(self, topic: str) -> None:
        """The log holds what a group needs after all."""
        self._groups[topic].recovery = None
        self._follow_again(topic)

    def _follow_again(self, topic: str) -> None:
        self._standing.start_over(topic)
        self._runner.rejoin(topic, None)
        self._broadcast.speak_now()
