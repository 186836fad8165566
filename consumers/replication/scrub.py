"""Reads every sealed file again, slowly, and compares its bytes with the digest that the catalogue has had since it was sealed.

A disk may change bytes that it once took; a file of equal size looks like any other. A first round begins when the node starts, later ones after a
while; a query that could not read a file asks for one at once, and a file that a seal or a merge could not read is found already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from consumers.replication.group import Group
from consumers.replication.limits import ReplicationLimits
from consumers.replication.turns import Turns
from schemas.errors import HeadraceError

TURN_S = 0.5
_log = structlog.get_logger(__name__)


class Scrubber:
    """The thread of it. `on_rot(topic, why)` is called for the first file of a group that is not what was sealed."""

    def __init__(
        self, groups: Mapping[str, Group], limits: ReplicationLimits, on_rot: Callable[[str, str], None]
    ) -> None:
        self._groups = groups
        self._limits = limits
        self._on_rot = on_rot
        self._asked = threading.Event()
        self._due_s = 0.0
        self._turns = Turns("scrub", TURN_S, self._turn)
        self.files_checked = 0
        self.files_rotted = 0

    def start(self) -> None:
        """Begin the first round."""
        self._turns.start()

    def stop(self) -> None:
        """Stop in the middle of a file."""
        self._turns.stop()

    def hurry(self) -> None:
        """Begin a round now: somebody could not read a file."""
        self._asked.set()

    def _turn(self) -> None:
        for topic, group in list(self._groups.items()):
            if group.damage and group.recovery is None:
                self._on_rot(topic, group.damage)
        if time.monotonic() < self._due_s and not self._asked.is_set():
            return
        self._asked.clear()
        for topic in list(self._groups):
            self._scrub(topic)
        self._due_s = time.monotonic() + self._limits.scrub_interval_s

    def _scrub(self, topic: str) -> None:
        group = self._groups[topic]
        for entry in group.store.segments():
            if self._turns.stopping.is_set() or not group.follows:
                return
            try:
                rotted = group.store.is_rotted(entry.name, self._pace)
            except ScrubStopped:
                return
            except HeadraceError as error:
                _log.warning("file not checked", group=group.name, file=entry.name, error=str(error))
                continue
            self.files_checked += 1
            if rotted:
                self.files_rotted += 1
                if self._groups[topic] is group:
                    self._on_rot(topic, f"segment {entry.name} is not what was sealed: its bytes changed on this disk")
                return

    def _pace(self, size_bytes: int) -> None:
        rate = self._limits.scrub_bytes_per_second
        if self._turns.stopping.wait(size_bytes / rate if rate else 0.0):
            raise ScrubStopped("the node is stopping")


class ScrubStopped(HeadraceError):
    """The node is stopping."""
