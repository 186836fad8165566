"""Reads every sealed file again, slowly, and compares its bytes with the digest computed when it was sealed.

A disk may change bytes after they were written, without an error and with the same size. The first round
begins when the node starts, later ones at an interval. A query that could not read a file requests a round at
once. What a seal or a merge could not read is marked by recovery, without a round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import structlog

from headrace.connectors.clock import Clock
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError

TURN_S = 0.5
_log = structlog.get_logger(__name__)


class Scrubber:
    """One thread for all groups of a node. The first rotted file of a group makes the group recover."""

    def __init__(
        self, groups: Mapping[str, Group], limits: ReplicationLimits, supervisor: RecoverySupervisor, clock: Clock
    ) -> None:
        self._groups = groups
        self._limits = limits
        self._supervisor = supervisor
        self._clock = clock
        self._requested = threading.Event()
        self._due_s = clock.monotonic_s()
        self._round: Iterator[tuple[str, Group, str]] | None = None
        self._task = PeriodicTask("scrubber", TURN_S, self._run_turns, nice=limits.background_nice)
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

    def _run_turns(self) -> None:
        while not self._task.stopping.is_set() and self.turn():
            pass

    def turn(self) -> bool:
        """One step: checks at most one file. Whether there may be more to check at once."""
        if self._round is None:
            if self._clock.monotonic_s() < self._due_s and not self._requested.is_set():
                return False
            # Cleared before the round: a file that a query finds unreadable during the round may have been passed
            # already.
            self._requested.clear()
            self._round = self._files()
        if (found := next(self._round, None)) is not None:
            self._check(*found)
            return True
        self._round = None
        self._due_s = self._clock.monotonic_s() + self._limits.scrub_interval_s
        return False

    def _files(self) -> Iterator[tuple[str, Group, str]]:
        """(topic, group, file name) of a round."""
        for topic in list(self._groups):
            # It may have gone while the files of the one before were read.
            group = self._groups.get(topic)
            for entry in group.store.segments() if group is not None else ():
                # Its data is replaced anyway, or may have been, or has gone, while the file before was read.
                if group is None or not group.follows or self._groups.get(topic) is not group:
                    break
                yield topic, group, entry.name

    def _check(self, topic: str, group: Group, file: str) -> None:
        try:
            rotted = group.store.is_corrupt(file, lambda size_bytes: self._pace(group, size_bytes))
        except ScrubStopped:
            return
        except HeadraceError as error:
            _log.warning("file not checked", group=group.name, file=file, error=str(error))
            return
        self.files_checked += 1
        if not rotted:
            return
        self.files_rotted += 1
        # Reading a file takes a while: the group may have got another store since.
        if self._groups.get(topic) is group:
            self._supervisor.mark_wrong(
                topic, f"segment {file} is not what was sealed: its bytes changed on this disk, or it is gone"
            )

    def _pace(self, group: Group, size_bytes: int) -> None:
        # A group that leaves this node waits for the readers of its files, and a slow round may take minutes for one.
        if not group.follows:
            raise ScrubStopped("the group does not follow its log any more")
        rate = self._limits.scrub_bytes_per_second
        if self._task.stopping.wait(size_bytes / rate if rate else 0.0):
            raise ScrubStopped("the node is stopping")


class ScrubStopped(HeadraceError):
    """The node, or the group, is stopping in the middle of a file."""
