"""Reads every sealed file again, slowly, and compares its bytes with the digest computed when it was sealed.

A disk may change bytes after they were written, without an error and with the same size. The first round
begins when the node starts, later ones at an interval. A query that could not read a file requests a round at
once. A file that a seal or a merge could not read is reported without a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import structlog

from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError

TURN_S = 0.5
_log = structlog.get_logger(__name__)


class Scrubber:
    """One thread for all groups of a node. The first rotted file of a group makes the group recover."""

    def __init__(self, groups: Mapping[str, Group], limits: ReplicationLimits, supervisor: RecoverySupervisor) -> None:
        self._groups = groups
        self._limits = limits
        self._supervisor = supervisor
        self._requested = threading.Event()
        self._due_s = 0.0
        self._task = PeriodicTask("scrubber", TURN_S, self._run_turn)
        self.files_checked = 0
        self.files_rotted = 0

    def start(self) -> None:
        """Begin the first round."""
        self._task.start()

    def stop(self) -> None:
        """Stop in the middle of a file."""
        self._task.stop()

    def scrub_now(self) -> None:
        """Begin a round now: a query could not read a file."""
        self._requested.set()

    def _run_turn(self) -> None:
        # Damage that a job or a record found comes first: waiting for a round of the whole disk would take
        # hours.
        for topic, group in list(self._groups.items()):
            if group.damage and group.recovery is None:
                self._supervisor.mark_wrong(topic, group.damage)
        if time.monotonic() < self._due_s and not self._requested.is_set():
            return
        # Cleared before the round: a file that a query finds unreadable during the round may have been passed
        # already.
        self._requested.clear()
        for topic in list(self._groups):
            self._scrub(topic)
        self._due_s = time.monotonic() + self._limits.scrub_interval_s

    def _scrub(self, topic: str) -> None:
        group = self._groups[topic]
        for entry in group.store.segments():
            if self._task.stopping.is_set() or not group.follows:
                return
            try:
                rotted = group.store.is_corrupt(entry.name, self._pace)
            except ScrubStopped:
                return
            except HeadraceError as error:
                _log.warning("file not checked", group=group.name, file=entry.name, error=str(error))
                continue
            self.files_checked += 1
            if rotted:
                self.files_rotted += 1
                # Reading a file takes a while: the group may have got another store since.
                if self._groups[topic] is group:
                    self._supervisor.mark_wrong(
                        topic, f"segment {entry.name} is not what was sealed: its bytes changed on this disk"
                    )
                return

    def _pace(self, size_bytes: int) -> None:
        rate = self._limits.scrub_bytes_per_second
        if self._task.stopping.wait(size_bytes / rate if rate else 0.0):
            raise ScrubStopped("the node is stopping")


class ScrubStopped(HeadraceError):
    """The node is stopping in the middle of a file."""
