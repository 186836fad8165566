"""How old the data of a node may be: the last moment at which it knew that it was at the end of every group's log.

The log monitor asks each log for its end. Once a group has applied everything below that end, it holds all that the
log held when it was asked. The moment of the answer proves nothing: records may arrive while the answer travels.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from headrace.connectors.clock import Clock, Moment
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.replication.log_consumer import LogConsumer

ENDS_KEPT = 64
"""Ends of one log that its group has not reached yet. Of more, the newest replaces the one before it."""


class Asked(NamedTuple):
    """What is known before a log is asked for its end."""

    at_ns: int
    group: Group
    durable_offset: int


class _Ends:
    """The ends of one log: the moment of the newest that was reached, and those that are still to be reached."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.reached_ns: int | None = None
        self.ahead: deque[tuple[int, int]] = deque()


class DataAge:
    """Notes when the groups of one node were at the ends of their logs. Safe to share between threads."""

    def __init__(self, groups: Mapping[str, Group], log_consumer: LogConsumer, clock: Clock) -> None:
        self._groups = groups
        self._log_consumer = log_consumer
        self._clock = clock
        self._ends: dict[str, _Ends] = {}
        self._lock = threading.Lock()

    def ask(self, topic: str) -> Asked:
        """Called right before a log is asked for its end."""
        return Asked(self._clock.boot_ns(), self._groups[topic], self._log_consumer.durable_offset(topic))

    def note(self, topic: str, asked: Asked, end: int) -> None:
        """The log has answered, is the one that the group follows, and ends at an offset."""
        with self._lock:
            # A log that ends before what this node has read from it was truncated: its end proves nothing.
            if self._groups[topic] is not asked.group or end <= asked.durable_offset:
                return
            ends = self._of(topic)
            self._advance(topic, ends)
            if len(ends.ahead) >= ENDS_KEPT:
                ends.ahead.pop()
            ends.ahead.append((end, asked.at_ns))

    def restart(self, topic: str) -> None:
        """The group begins to follow its log again, perhaps with other data."""
        with self._lock:
            self._ends.pop(topic, None)

    def as_of(self) -> Moment | None:
        """The last moment at which every group held all that its log held; None before the first."""
        with self._lock:
            reached = []
            for topic in self._groups:
                # What went a moment ago is not a part of the answer.
                with suppress(GroupNotHere):
                    reached.append(self._reached_ns(topic))
        known = [moment for moment in reached if moment is not None]
        return Moment(min(known), self._clock) if known and len(known) == len(reached) else None

    def _reached_ns(self, topic: str) -> int | None:
        ends = self._of(topic)
        self._advance(topic, ends)
        return ends.reached_ns

    def _of(self, topic: str) -> _Ends:
        # The data of a group is replaced a moment before `restart` is called, and the new data may be behind.
        if topic not in self._ends or self._ends[topic].group is not self._groups[topic]:
            self._ends[topic] = _Ends(self._groups[topic])
        return self._ends[topic]

    def _advance(self, topic: str, ends: _Ends) -> None:
        # In this order: what is below the position is durable, and what was durable then must be applied.
        position = self._log_consumer.position(topic)
        durable = self._log_consumer.durable_offset(topic)
        applied = ends.group.applied.offset
        while ends.ahead:
            end, asked_ns = ends.ahead[0]
            # Under load the log grows before all of it is applied, so the offset alone may be enough. A log that
            # ends with transaction markers has no record at its last offset.
            if applied + 1 < end and (position < end or applied < durable):
                return
            ends.reached_ns = asked_ns
            ends.ahead.popleft()
